//! Sending: chunks go to the kernel with a frame, or a piece of one, and come back when it is sent.
//!
//! The kernel can do nothing for such a frame but send it. So here its checksum is completed, and a super-frame cut.

use std::{collections::VecDeque, io, sync::Arc};

use super::LARGE;
use crate::{
    burst::Burst,
    cut::Cutter,
    lane::Turn,
    memory::{Frame, FramePool, Offload},
    port::{Link, TxQueue, exceeds, queue::Queue},
    stats::Reason,
    sys::xsk::{MAX_PIECES, XskTx},
    wire::{checksum, ethernet},
};

/// The transmit half of a port.
pub struct XdpTx {
    /// Frames that are not in the ring yet.
    queue: Queue,
    cutter: Cutter,
    socket: XskTx,
    /// Frames in the ring, in order.
    ring: VecDeque<InRing>,
    /// Pieces of them that the kernel has taken, of the first frames.
    taken: usize,
    /// Pieces in the ring when it was last looked at.
    unsent: usize,
    /// Frames that the device has dropped, and that are not yet known to be out of the ring.
    refused: usize,
    /// Chunks that the kernel has, those in the ring included.
    lent: usize,
    link: Arc<Link>,
    /// Segments longer than this take a large buffer each.
    longest: usize,
    /// Most pieces of a frame that the kernel takes.
    pieces: usize,
    /// The interface is gone, and the socket with it.
    gone: bool,
}

struct InRing {
    pieces: usize,
    len: usize,
}

impl XdpTx {
    /// Segments of super-frames that are longer than `longest` need large buffers. The kernel takes a frame in at most `pieces`.
    pub(super) fn new(socket: XskTx, link: Arc<Link>, longest: usize, pieces: usize) -> Self {
        Self {
            queue: Queue::default(),
            cutter: Cutter::default(),
            socket,
            ring: VecDeque::new(),
            taken: 0,
            unsent: 0,
            refused: 0,
            lent: 0,
            link,
            longest,
            pieces,
            gone: false,
        }
    }

    /// Takes a burst into the queue, as plain frames with whole checksums.
    #[inline]
    fn accept(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let max_frame = self.link.mtu() + ethernet::HEADER_LEN;
        for frame in burst.drain() {
            let offload = turn.pool.meta(&frame).offload;
            if offload.is_gso() {
                self.cutter
                    .cut(frame, turn, |frame, pool| self.queue.push(frame, pool));
                continue;
            }
            let bytes = turn.pool.bytes_mut(&frame);
            if exceeds(bytes, max_frame) {
                turn.discard(frame, Reason::Oversize);
                continue;
            }
            if offload.needs_csum() {
                let (start, offset) = (offload.csum_start.into(), offload.csum_offset.into());
                if !checksum::complete(bytes, start, offset) {
                    turn.discard(frame, Reason::Refused);
                    continue;
                }
                turn.pool.meta_mut(&frame).offload = Offload::default();
            }
            self.queue.push(frame, turn.pool);
        }
    }

    /// Moves frames from the queue to the ring, as many as fit.
    #[inline]
    fn fill_ring(&mut self, turn: &mut Turn) {
        let longest = self.pieces * turn.pool.longest_small();
        while let Some(frame) = self.queue.pop(turn.pool) {
            let len = turn.pool.len(&frame);
            if len > longest {
                turn.discard(frame, Reason::Oversize);
                continue;
            }
            match self.push(frame, turn.pool) {
                Ok(pieces) => {
                    self.ring.push_back(InRing { pieces, len });
                    (self.unsent, self.lent) = (self.unsent + pieces, self.lent + pieces);
                }
                Err(frame) => {
                    self.queue.unpop(frame, turn.pool);
                    break;
                }
            }
        }
        let all = self.socket.submit();
        debug_assert!(all, "there is room for what was pushed");
    }

    /// Free slots of the ring, as it was when it was last looked at.
    #[inline]
    fn free_slots(&self) -> usize {
        self.socket.slots() - self.unsent
    }

    /// Most frames of a burst: if all are super-frames, there must be buffers for their segments.
    #[inline]
    fn most(&self) -> usize {
        let mtu = self.link.mtu();
        if mtu + ethernet::HEADER_LEN <= self.longest {
            Burst::MAX
        } else {
            LARGE / (1 + usize::from(u16::MAX).div_ceil(mtu))
        }
    }

    /// Puts a frame into the ring; returns in how many pieces. `Err` with the frame if there is no room for it.
    #[inline]
    fn push(&mut self, frame: Frame, pool: &mut FramePool) -> Result<usize, Frame> {
        if self.free_slots() == 0 {
            return Err(frame);
        }
        // Where a tag was put in front, the start has moved, but the kernel's descriptor of the chunk has not.
        if !pool.is_aligned(&frame) && !pool.align(&frame) {
            return self.push_split(frame, pool);
        }
        let len = pool.len(&frame);
        let chunk = pool.lend(frame)?;
        self.socket.push(&[(chunk, len)]);
        Ok(1)
    }

    /// Copies a frame that lies in no chunk into as many as it needs.
    #[cold]
    fn push_split(&mut self, frame: Frame, pool: &mut FramePool) -> Result<usize, Frame> {
        let (len, longest) = (pool.len(&frame), pool.longest_small());
        let count = len.div_ceil(longest);
        if self.free_slots() < count || pool.available(longest) < count {
            return Err(frame);
        }
        let mut pieces = [(0, 0); MAX_PIECES];
        for (at, piece) in pieces[..count].iter_mut().enumerate() {
            let part = longest.min(len - at * longest);
            let Some(copy) = pool.alloc(part) else {
                break;
            };
            pool.copy((&frame, at * longest), (&copy, 0), part);
            match pool.lend(copy) {
                Ok(chunk) => *piece = (chunk, part),
                Err(copy) => pool.free(copy),
            }
        }
        pool.free(frame);
        self.socket.push(&pieces[..count]);
        Ok(count)
    }

    /// Has the kernel send what is in the ring.
    #[inline]
    fn kick(&mut self, turn: &mut Turn) {
        let outstanding = self.unsent > 0 || (self.socket.is_zero_copy() && self.lent > 0);
        if !outstanding || !self.socket.needs_kick() {
            return;
        }
        let Err(error) = self.socket.kick() else {
            return;
        };
        match Refusal::of(&error) {
            Refusal::Later => {}
            Refusal::Dropped => self.refused += 1,
            Refusal::Gone => {
                self.gone = true;
                self.drop_ring(turn, Reason::LinkDown);
            }
        }
    }

    /// Counts what the kernel has taken out of the ring.
    #[inline]
    fn settle(&mut self, turn: &mut Turn) {
        if self.ring.is_empty() {
            return;
        }
        let unsent = self.socket.unsent();
        self.taken += self.unsent - unsent;
        self.unsent = unsent;
        while let Some(first) = self.ring.front()
            && first.pieces <= self.taken
        {
            if self.refused > 0 {
                self.refused -= 1;
                turn.tally.dropped[Reason::Refused as usize] += 1;
            } else {
                turn.tally.sent(1, first.len);
            }
            self.taken -= first.pieces;
            self.ring.pop_front();
        }
    }

    /// Takes chunks back that the kernel is done with.
    #[inline]
    fn reclaim(&mut self, pool: &mut FramePool) {
        if self.lent == 0 {
            return;
        }
        self.lent -= self.socket.complete(|chunk| {
            let frame = pool.take_back(chunk, 0, 0);
            debug_assert!(
                frame.is_some(),
                "the kernel gave chunk {chunk}, which it had not been lent"
            );
            if let Some(frame) = frame {
                pool.free(frame);
            }
        });
    }

    /// Gives up what is in the ring. Its chunks stay with the kernel.
    fn drop_ring(&mut self, turn: &mut Turn, reason: Reason) {
        turn.tally.dropped[reason as usize] += self.ring.len() as u64;
        self.ring.clear();
        (self.taken, self.refused) = (0, 0);
    }
}

/// What it means that the kernel did not send all that is in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// What it did not take stays there, and is tried again.
    Later,
    /// The device has dropped a frame, the last it was given: its peer's queue is full, or the frame too long for it.
    Dropped,
    /// The socket was unbound, for good.
    Gone,
}

impl Refusal {
    /// By `xsk_sendmsg` and `__xsk_generic_xmit` (`net/xdp/xsk.c`).
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) => Self::Dropped,
            Some(libc::ENXIO | libc::EBADF) => Self::Gone,
            // The budget, the send buffer or the completion ring is used up, the link is down, or memory is short: the frame stays in the ring.
            _ => Self::Later,
        }
    }
}

impl TxQueue for XdpTx {
    fn room(&mut self) -> usize {
        if self.gone || !self.link.is_up() {
            Burst::MAX
        } else if self.queue.frames.is_empty() {
            self.free_slots().min(self.most())
        } else {
            0
        }
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        self.reclaim(turn.pool);
        if self.gone || !self.link.is_up() {
            for frame in burst.drain() {
                turn.discard(frame, Reason::LinkDown);
            }
            self.queue.discard_all(turn, Reason::LinkDown);
        } else {
            self.accept(burst, turn);
            self.fill_ring(turn);
            self.kick(turn);
        }
        self.settle(turn);
        self.reclaim(turn.pool);
    }

    fn held(&self) -> u64 {
        self.ring.len() as u64 + self.queue.packets()
    }

    fn wants_retry(&self) -> bool {
        self.link.is_up() && self.held() > 0
    }

    fn lent(&self) -> usize {
        self.lent
    }

    fn abandon(&mut self, turn: &mut Turn) {
        self.gone = true;
        self.queue.discard_all(turn, Reason::Stopped);
        self.drop_ring(turn, Reason::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_is_unbound_is_given_up() {
        let of = |errno| Refusal::of(&io::Error::from_raw_os_error(errno));
        for errno in [libc::ENXIO, libc::EBADF] {
            assert_eq!(of(errno), Refusal::Gone);
        }
        assert_eq!(of(libc::EBUSY), Refusal::Dropped);
        // Memory that is short now need not be so for ever.
        for errno in [
            libc::ENOMEM,
            libc::EAGAIN,
            libc::ENOBUFS,
            libc::EINTR,
            libc::ENETDOWN,
        ] {
            assert_eq!(of(errno), Refusal::Later);
        }
    }
}
