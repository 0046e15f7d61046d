//! The two halves of a socket: its rings, and the chunks that go through them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

use libc::c_int;
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue};

use super::{XDP_PKT_CONTD, get};

/// A lane's chunks of a [`Umem`]. No two shares of one overlap.
#[derive(Clone)]
pub(crate) struct Share {
    pub(super) umem: xsk_rs::Umem,
    pub(super) descs: Arc<[FrameDesc]>,
    /// Bytes of a chunk, as a power of two.
    pub(super) chunk: u32,
    pub(super) first: usize,
    pub(super) count: usize,
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

/// The receiving half of a socket.
pub(crate) struct XskRx {
    pub(super) rx: RxQueue,
    pub(super) fill: FillQueue,
    pub(super) share: Share,
    pub(super) scratch: Vec<FrameDesc>,
    /// As long as was ever asked for: an idle worker looks into the ring all the time, and need not make it anew.
    pub(super) received: Vec<FrameDesc>,
    pub(super) drops: u64,
}

/// The transmitting half of a socket.
pub(crate) struct XskTx {
    pub(super) tx: TxQueue,
    pub(super) completion: CompQueue,
    pub(super) share: Share,
    pub(super) scratch: Vec<FrameDesc>,
    /// Not yet in the ring.
    pub(super) pushed: Vec<FrameDesc>,
    pub(super) slots: u32,
    pub(super) zero_copy: bool,
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
        let place = (desc.addr() >> self.chunk).wrapping_sub(self.first);
        Piece {
            chunk: u32::try_from(place).unwrap_or(u32::MAX),
            offset: desc.addr() & ((1 << self.chunk) - 1),
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

    /// Tells a driver that has run out of chunks that there are some again, if it wants to be told. (In copy mode it never
    /// does.)
    #[inline]
    pub(crate) fn wake(&self) {
        if self.fill.needs_wakeup() {
            let fd = self.rx.fd().as_raw_fd();
            // SAFETY: no memory is passed.
            unsafe {
                libc::recvfrom(
                    fd,
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }

    /// Takes what was received, up to the length of `pieces`; returns how many pieces there are.
    #[inline]
    pub(crate) fn receive(&mut self, pieces: &mut Vec<Piece>, limit: usize) {
        if self.received.len() < limit {
            self.received.resize(limit, FrameDesc::default());
        }
        // SAFETY: every chunk in this socket's rings comes from `fill`, so what is received describes chunks of this UMEM.
        let count = unsafe { self.rx.consume(&mut self.received[..limit]) };
        pieces.extend(
            self.received[..count]
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
