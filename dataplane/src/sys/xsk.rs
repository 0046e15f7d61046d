//! AF_XDP sockets and the memory they share, by xsk-rs. Called by the `xdp` back end.
//!
//! A [`Umem`] is chunks of memory that the kernel knows. A socket, bound to one queue of an interface, has four rings
//! through which chunks go to the kernel and come back, and two halves here that may live on different threads: [`XskRx`]
//! with the fill and receive rings, [`XskTx`] with the transmit and completion rings. A half works for one lane, with the
//! lane's [`Share`] of the chunks; chunks are named by their place in the share.
//!
//! Kernel sources meant here: `net/xdp/xsk.c`, `include/uapi/linux/if_xdp.h`.

use std::{
    io,
    num::NonZeroU32,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

use libc::{c_int, socklen_t};
use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue,
    config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig, XdpFlags},
};

use super::mapping::Mapping;

/// Bytes of a chunk. The kernel takes 2048 or 4096. Of the latter, 18 pieces hold the longest frame of any interface, and
/// that is as many as it takes in copy mode (`CONFIG_MAX_SKB_FRAGS` + 1); of the former they hold 32 KiB.
pub(crate) const CHUNK: usize = 4096;
/// Bytes that the kernel leaves free in front of a frame (`XDP_PACKET_HEADROOM`).
pub(crate) const HEADROOM: usize = 256;
/// Most pieces of a frame.
pub(crate) const MAX_PIECES: usize = 18;

// if_xdp.h, where the libc crate lacks them.
const XDP_OPTIONS: c_int = 8;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// Flag of a descriptor: the frame goes on in the next one.
const XDP_PKT_CONTD: u32 = 1;

/// Memory in chunks that sockets share.
pub(crate) struct Umem {
    umem: xsk_rs::Umem,
    /// The kernel's descriptor of each chunk.
    descs: Arc<[FrameDesc]>,
    huge: bool,
}

/// How to bind a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copying {
    /// Without copies if the driver can.
    Auto,
    /// With copies.
    Copy,
    /// Without copies, or not at all.
    ZeroCopy,
}

/// A lane's chunks of a [`Umem`]. No two shares of one overlap.
#[derive(Clone)]
pub(crate) struct Share {
    umem: xsk_rs::Umem,
    descs: Arc<[FrameDesc]>,
    first: usize,
    count: usize,
}

/// Part of a frame, or all of it, in a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The chunk.
    pub(crate) chunk: u32,
    /// Where it starts, in bytes from the start of the chunk.
    pub(crate) offset: usize,
    /// Its length in bytes.
    pub(crate) len: usize,
    /// Whether the frame goes on in the next piece.
    pub(crate) more: bool,
}

/// A bound socket, not yet divided.
pub(crate) struct Bound {
    rx: RxQueue,
    fill: FillQueue,
    tx: TxQueue,
    completion: CompQueue,
    zero_copy: bool,
}

/// The receiving half of a socket.
pub(crate) struct XskRx {
    rx: RxQueue,
    fill: FillQueue,
    share: Share,
    scratch: Vec<FrameDesc>,
    drops: u64,
}

/// The transmitting half of a socket.
pub(crate) struct XskTx {
    tx: TxQueue,
    completion: CompQueue,
    share: Share,
    scratch: Vec<FrameDesc>,
    /// Not yet in the ring.
    pushed: Vec<FrameDesc>,
    slots: u32,
    zero_copy: bool,
}

impl Umem {
    /// Maps at least `chunks` chunks for sockets with rings of `ring` slots. To be called in the namespace of the first
    /// interface: the first socket is made here.
    pub(crate) fn map(chunks: usize, ring: u32, huge: bool) -> io::Result<Self> {
        // A part of a huge page could not be unmapped.
        let whole = if huge {
            super::mapping::huge_page_size().unwrap_or(CHUNK)
        } else {
            CHUNK
        };
        let chunks = (chunks * CHUNK).next_multiple_of(whole) / CHUNK;
        let count = u32::try_from(chunks).ok().and_then(NonZeroU32::new);
        let twice = QueueSize::new(2 * ring).map_err(io::Error::other)?;
        let config = UmemConfig::builder()
            .frame_size((CHUNK as u32).try_into().map_err(io::Error::other)?)
            // A fill ring that is full looks so until its index is read again; this one is never full.
            .fill_queue_size(twice)
            .comp_queue_size(twice)
            .build()
            .map_err(io::Error::other)?;
        let (umem, descs) =
            xsk_rs::Umem::new(config, count.ok_or(io::ErrorKind::InvalidInput)?, huge)
                .map_err(|error| os_error(&error))?;
        Ok(Self {
            umem,
            descs: descs.into(),
            huge,
        })
    }

    /// The memory, for a region of frames.
    pub(crate) fn mapping(&self) -> io::Result<Mapping> {
        // SAFETY: the first descriptor belongs to this UMEM, and the slice has no bytes: only its address is of interest.
        let (_, data) = unsafe { self.umem.frame(&self.descs[0]) };
        // Where the mapping starts, which xsk-rs does not say. It has handed that address to the kernel, so it is exposed.
        let start = data.contents().as_ptr().addr() - self.descs[0].addr();
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start))
            .ok_or_else(|| io::Error::other("mapped at address zero"))?;
        let len = self.descs.len() * CHUNK;
        // SAFETY: xsk-rs has mapped so many bytes and populated them, and unmaps them with the last clone of the UMEM.
        // Nobody but the pools makes references to them.
        Ok(unsafe { Mapping::other(start, len, self.huge, self.umem.clone()) })
    }

    /// The `count` chunks from `first` on, for a lane that nobody else gets them for.
    ///
    /// # Panics
    /// If there are not so many.
    pub(crate) fn share(&self, first: usize, count: usize) -> Share {
        assert!(first + count <= self.descs.len(), "share beyond the UMEM");
        Share {
            umem: self.umem.clone(),
            descs: Arc::clone(&self.descs),
            first,
            count,
        }
    }

    /// Binds a socket to a queue of an interface, in the calling thread's namespace.
    pub(crate) fn bind(
        &self,
        interface: &str,
        queue: u32,
        ring: u32,
        copying: Copying,
    ) -> io::Result<Bound> {
        let interface: Interface = interface.parse().map_err(io::Error::other)?;
        let size = QueueSize::new(ring).map_err(io::Error::other)?;
        let how = match copying {
            Copying::Auto => BindFlags::empty(),
            Copying::Copy => BindFlags::XDP_COPY,
            Copying::ZeroCopy => BindFlags::XDP_ZEROCOPY,
        };
        // SG: frames longer than a chunk come in pieces.
        let config = SocketConfig::builder()
            .rx_queue_size(size)
            .tx_queue_size(size)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .xdp_flags(XdpFlags::empty())
            .bind_flags(how | BindFlags::XDP_USE_NEED_WAKEUP | BindFlags::XDP_USE_SG)
            .build();
        // SAFETY: no program is loaded by libxdp, which is what the contract is about.
        let (tx, rx, rings) = unsafe { Socket::new(config, &self.umem, &interface, queue) }
            .map_err(|error| os_error(&error))?;
        let (fill, completion) = rings.ok_or(io::ErrorKind::AddrInUse)?;
        let fd = tx.fd().as_raw_fd();
        // Both, or a send stops at 32 frames, or when the default buffer is full. The budget is new in Linux 6.17.
        let _ = set(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, ring.cast_signed());
        let _ = set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
            .or_else(|_| set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER));
        let options: u32 = get(fd, libc::SOL_XDP, XDP_OPTIONS)?;
        Ok(Bound {
            rx,
            fill,
            tx,
            completion,
            zero_copy: options & XDP_OPTIONS_ZEROCOPY != 0,
        })
    }
}

/// Bytes that frames on their way through the kernel may take.
const SEND_BUFFER: c_int = 16 << 20;

impl Bound {
    /// Whether the kernel copies no frame either.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Divides the socket into halves for the lanes that own these shares.
    pub(crate) fn divide(self, rx: Share, tx: Share) -> (XskRx, XskTx) {
        let mut tx_queue = self.tx;
        // Nothing is in the ring yet.
        let slots = tx_queue.nb_free_exact();
        (
            XskRx {
                rx: self.rx,
                fill: self.fill,
                share: rx,
                scratch: Vec::new(),
                drops: 0,
            },
            XskTx {
                tx: tx_queue,
                completion: self.completion,
                share: tx,
                scratch: Vec::new(),
                pushed: Vec::new(),
                slots,
                zero_copy: self.zero_copy,
            },
        )
    }
}

impl Share {
    /// The kernel's descriptor of a chunk.
    #[inline]
    fn desc(&self, chunk: u32) -> FrameDesc {
        assert!((chunk as usize) < self.count, "chunk of another share");
        self.descs[self.first + chunk as usize]
    }

    /// What a descriptor says. A chunk that is not of this share is named by a number that no chunk has.
    #[inline]
    fn piece(&self, desc: &FrameDesc) -> Piece {
        let place = (desc.addr() / CHUNK).wrapping_sub(self.first);
        Piece {
            chunk: u32::try_from(place).unwrap_or(u32::MAX),
            offset: desc.addr() % CHUNK,
            len: desc.lengths().data(),
            more: desc.options() & XDP_PKT_CONTD != 0,
        }
    }
}

impl XskRx {
    /// Gives chunks to the kernel to receive into. They must be lent ones of the share's pool.
    #[inline]
    pub(crate) fn fill(&mut self, chunks: impl Iterator<Item = u32>) -> usize {
        self.scratch.clear();
        let share = &self.share;
        self.scratch.extend(chunks.map(|chunk| share.desc(chunk)));
        // SAFETY: invariant EXCLUSIVE: the chunks belong to this UMEM and are lent, so nobody here touches them.
        let taken = unsafe { self.fill.produce(&self.scratch) };
        debug_assert_eq!(
            taken,
            self.scratch.len(),
            "the fill ring holds twice what is lent"
        );
        taken
    }

    /// Takes what was received, up to the length of `pieces`; returns how many pieces there are.
    #[inline]
    pub(crate) fn receive(&mut self, pieces: &mut Vec<Piece>, limit: usize) {
        self.scratch.clear();
        self.scratch.resize(limit, FrameDesc::default());
        // SAFETY: every chunk in this socket's rings comes from `fill`, so what is received describes chunks of this UMEM.
        let count = unsafe { self.rx.consume(&mut self.scratch) };
        pieces.extend(
            self.scratch[..count]
                .iter()
                .map(|desc| self.share.piece(desc)),
        );
    }

    /// Packets dropped since the last call: no chunk was there for them, or no slot.
    pub(crate) fn drops(&mut self) -> u64 {
        let Ok(statistics) = self.rx.fd().xdp_statistics() else {
            return 0;
        };
        let all = statistics.rx_dropped() + statistics.rx_ring_full();
        all - std::mem::replace(&mut self.drops, all)
    }

    /// The socket: readable when something was received.
    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open for as long as its rings, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }

    /// Takes the pending error off the socket, which would end every wait at once.
    pub(crate) fn clear_error(&self) {
        let _ = get::<c_int>(self.rx.fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
    }
}

impl XskTx {
    /// Pieces in the ring that the kernel has not looked at.
    #[inline]
    pub(crate) fn unsent(&mut self) -> usize {
        (self.slots - self.tx.nb_free_exact()) as usize
    }

    /// Slots of the ring.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Adds a frame, in pieces, to what the next [`XskTx::submit`] puts into the ring. The pieces must be lent chunks of
    /// the share's pool.
    #[inline]
    pub(crate) fn push(&mut self, pieces: &[(u32, usize)]) {
        for (at, &(chunk, len)) in pieces.iter().enumerate() {
            let mut desc = self.share.desc(chunk);
            // SAFETY: invariant EXCLUSIVE: the chunk belongs to this UMEM, is lent, and not in any ring yet.
            unsafe { self.share.umem.data_mut(&mut desc) }
                .cursor()
                .set_pos(len);
            desc.set_options(if at + 1 < pieces.len() {
                XDP_PKT_CONTD
            } else {
                0
            });
            self.pushed.push(desc);
        }
    }

    /// Puts what was pushed into the ring: all or, if there is no room, none.
    #[inline]
    pub(crate) fn submit(&mut self) -> bool {
        let wanted = self.pushed.len();
        if self.tx.nb_free(wanted as u32) < wanted as u32 {
            return false;
        }
        // SAFETY: invariant EXCLUSIVE: the chunks belong to this UMEM and are lent, so nobody here touches them.
        let taken = unsafe { self.tx.produce(&self.pushed) };
        self.pushed.clear();
        taken == wanted
    }

    /// Whether the kernel sends only when it is told to.
    #[inline]
    pub(crate) fn needs_kick(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Has the kernel send what lies in the ring. Never blocks. (xsk-rs would swallow the errors.)
    #[inline]
    pub(crate) fn kick(&self) -> io::Result<()> {
        let fd = self.tx.fd().as_raw_fd();
        // SAFETY: no memory is passed; the ring is the kernel's.
        let result = unsafe {
            libc::sendto(
                fd,
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Takes back chunks that the kernel has sent: gives each to `back`, and returns how many.
    #[inline]
    pub(crate) fn complete(&mut self, mut back: impl FnMut(u32)) -> usize {
        const AT_ONCE: usize = 64;
        let mut all = 0;
        loop {
            self.scratch.clear();
            self.scratch.resize(AT_ONCE, FrameDesc::default());
            // SAFETY: every chunk in this socket's rings comes from `push`, so what is done describes chunks of this UMEM.
            let count = unsafe { self.completion.consume(&mut self.scratch) };
            for desc in &self.scratch[..count] {
                back(self.share.piece(desc).chunk);
            }
            all += count;
            if count < AT_ONCE {
                return all;
            }
        }
    }

    /// Whether the kernel copies no frame either.
    #[inline]
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }
}

/// What the system said, out of an error of xsk-rs.
fn os_error(error: &dyn std::error::Error) -> io::Error {
    match error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
    {
        Some(source) => match source.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(error.to_string()),
        },
        None => io::Error::other(error.to_string()),
    }
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: `value` is plain data, valid for its own size.
    let result = unsafe {
        let len = size_of::<c_int>() as socklen_t;
        libc::setsockopt(fd, level, name, (&raw const value).cast(), len)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn get<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is writable for `len` bytes.
    let result =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(value)
    }
}
