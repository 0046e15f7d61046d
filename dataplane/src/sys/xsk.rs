//! AF_XDP sockets and the memory they share, by xsk-rs. Called by the `xdp` back end.
//!
//! A [`Umem`] is chunks of memory that the kernel knows. A socket, bound to one queue of an interface, has four rings
//! through which chunks go to the kernel and come back, and two halves here that may live on different threads: [`XskRx`]
//! with the fill and receive rings, [`XskTx`] with the transmit and completion rings. A half works for one lane, with the
//! lane's [`Share`] of the chunks; chunks are named by their place in the share.
//!
//! Kernel sources meant here: `net/xdp/xsk.c`, `include/uapi/linux/if_xdp.h`.

mod halves;

use std::{io, num::NonZeroU32, os::fd::AsRawFd, ptr::NonNull, sync::Arc};

use libc::{c_int, socklen_t};
use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue,
    config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig, XdpFlags},
};

pub(crate) use halves::{Piece, Share, XskRx, XskTx};

use super::mapping::Mapping;

/// Bytes of a chunk: the two sizes that the kernel takes. Of the larger one, 18 pieces hold the longest frame of any interface, and
/// that is as many as it takes in copy mode (`CONFIG_MAX_SKB_FRAGS` + 1); of the smaller one they hold 31 KiB.
pub(crate) const CHUNKS: [usize; 2] = [2048, 4096];
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
    /// Bytes of each.
    chunk: usize,
    huge: bool,
}

/// How to bind the sockets of a UMEM: what the first one does, all must do (`xp_assign_dev_shared`, `net/xdp/xsk_buff_pool.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The driver copies no frame, or the socket is not bound.
    pub(crate) zero_copy: bool,
    /// Frames longer than a chunk come and go in pieces. Linux 6.6, and without copies only of drivers that can.
    pub(crate) pieces: bool,
}

impl Way {
    /// What every driver can.
    pub(crate) const COPY: Self = Self {
        zero_copy: false,
        pieces: true,
    };
}

/// A bound socket, not yet divided.
pub(crate) struct Bound {
    rx: RxQueue,
    fill: FillQueue,
    tx: TxQueue,
    completion: CompQueue,
    zero_copy: bool,
}

impl Umem {
    /// Maps at least `chunks` chunks of `chunk` bytes (one of [`CHUNKS`]) for sockets with rings of `ring` slots. To be called in the
    /// namespace of the first interface: the first socket is made here.
    pub(crate) fn map(chunks: usize, chunk: usize, ring: u32, huge: bool) -> io::Result<Self> {
        const PAGE: usize = 4096;
        // A part of a page could not be unmapped.
        let whole = if huge {
            super::mapping::huge_page_size().unwrap_or(PAGE)
        } else {
            PAGE
        };
        let chunks = (chunks * chunk).next_multiple_of(whole) / chunk;
        let count = u32::try_from(chunks).ok().and_then(NonZeroU32::new);
        let twice = QueueSize::new(2 * ring).map_err(io::Error::other)?;
        let config = UmemConfig::builder()
            .frame_size((chunk as u32).try_into().map_err(io::Error::other)?)
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
            chunk,
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
        let len = self.descs.len() * self.chunk;
        // SAFETY: xsk-rs has mapped so many bytes and populated them, and unmaps them with the last clone of the UMEM.
        // Nobody but the pools makes references to them.
        Ok(unsafe { Mapping::other(start, len, self.huge, self.umem.clone()) })
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.chunk
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
            chunk: self.chunk.trailing_zeros(),
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
        way: Way,
    ) -> io::Result<Bound> {
        let interface: Interface = interface.parse().map_err(io::Error::other)?;
        let size = QueueSize::new(ring).map_err(io::Error::other)?;
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        flags |= if way.zero_copy {
            BindFlags::XDP_ZEROCOPY
        } else {
            BindFlags::XDP_COPY
        };
        if way.pieces {
            flags |= BindFlags::XDP_USE_SG;
        }
        let config = SocketConfig::builder()
            .rx_queue_size(size)
            .tx_queue_size(size)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .xdp_flags(XdpFlags::empty())
            .bind_flags(flags)
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
                received: Vec::new(),
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
