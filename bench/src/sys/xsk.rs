//! An AF_XDP socket that only sends, by xsk-rs: prepared frames, over and over. Used by `limit`.

#![expect(unsafe_code, reason = "AF_XDP rings hold memory that the kernel reads")]

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;

use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig, XdpFlags,
};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem};

/// Bytes of a chunk of the memory that frames lie in.
const CHUNK: u32 = 2048;
/// Slots of each ring.
const RING: u32 = 2048;
/// Frames in all, if there are not more different ones: few, so that they stay in the cache.
const FRAMES: usize = 256;
/// Frames handed over in one call.
const BURST: usize = 64;
/// Bytes that frames on their way through the kernel may take.
const SEND_BUFFER: libc::c_int = 16 << 20;
/// if_xdp.h: most frames of one send. 32, if it is not raised; new in Linux 6.17.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// A socket bound to queue 0 of an interface, and its frames.
pub(crate) struct Sender {
    tx: TxQueue,
    completion: CompQueue,
    /// Every frame, by its place in the memory.
    frames: Vec<FrameDesc>,
    /// Those that the kernel does not have. A burst is taken from the front, what was sent comes back at the end.
    free: VecDeque<usize>,
    burst: Vec<FrameDesc>,
    _rx: RxQueue,
    _fill: FillQueue,
    _umem: Umem,
}

impl Sender {
    /// Binds a socket in the calling thread's namespace and writes the frames, again and again up to [`FRAMES`].
    pub(crate) fn open(interface: &str, frames: &[Vec<u8>]) -> io::Result<Sender> {
        let ring = QueueSize::new(RING).map_err(io::Error::other)?;
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(CHUNK).map_err(io::Error::other)?)
            .fill_queue_size(ring)
            .comp_queue_size(ring)
            .build()
            .map_err(io::Error::other)?;
        let count = frames.len().max(FRAMES);
        // All of them may be in the completion ring at once.
        let count = u32::try_from(count)
            .ok()
            .filter(|&count| count <= RING)
            .and_then(NonZeroU32::new)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let (umem, mut descs) = Umem::new(config, count, false).map_err(io::Error::other)?;
        let interface: Interface = interface.parse().map_err(io::Error::other)?;
        let config = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .xdp_flags(XdpFlags::empty())
            .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
            .build();
        // SAFETY: libxdp loads no program, which is what the contract is about.
        let (tx, rx, rings) =
            unsafe { Socket::new(config, &umem, &interface, 0) }.map_err(io::Error::other)?;
        let (fill, completion) = rings.ok_or(io::ErrorKind::AddrInUse)?;
        let fd = tx.fd().as_raw_fd();
        // Where the kernel has no such option, it has no such limit either.
        let _ = set(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, RING.cast_signed());
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)?;
        for (desc, frame) in descs.iter_mut().zip(frames.iter().cycle()) {
            // SAFETY: the descriptor is of this UMEM, and in no ring yet.
            let mut data = unsafe { umem.data_mut(desc) };
            io::Write::write_all(&mut data.cursor(), frame)?;
        }
        Ok(Sender {
            tx,
            completion,
            free: (0..descs.len()).collect(),
            frames: descs,
            burst: vec![FrameDesc::default(); BURST],
            _rx: rx,
            _fill: fill,
            _umem: umem,
        })
    }

    /// Hands a burst over, has the kernel send it, and takes back what it has sent; returns how many frames that were.
    pub(crate) fn turn(&mut self) -> io::Result<usize> {
        let room = self.tx.nb_free_exact() as usize;
        let count = BURST.min(room).min(self.free.len());
        for (slot, at) in self.burst.iter_mut().zip(self.free.drain(..count)) {
            *slot = self.frames[at];
        }
        // SAFETY: the descriptors are of this UMEM and in no ring; nobody writes to their frames any more.
        let taken = unsafe { self.tx.produce(&self.burst[..count]) };
        debug_assert_eq!(taken, count, "there was room");
        self.kick()?;
        // SAFETY: whatever comes back was sent by this socket, so it is of this UMEM.
        let sent = unsafe { self.completion.consume(&mut self.burst) };
        let back = self.burst[..sent].iter();
        self.free
            .extend(back.map(|desc| desc.addr() / CHUNK as usize));
        Ok(sent)
    }

    /// A full queue of the receiver or an interface that is down is not ours to report: what was not sent is not counted.
    fn kick(&self) -> io::Result<()> {
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
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN) => {
                Ok(())
            }
            _ => Err(error),
        }
    }
}

fn set(
    fd: libc::c_int,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is plain data, valid for its own size.
    let result = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(fd, level, name, (&raw const value).cast(), len)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
