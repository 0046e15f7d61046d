//! Receiving: chunks go to the kernel empty and come back with a frame, or a piece of one.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use crate::{
    burst::Burst,
    lane::Turn,
    memory::{Frame, FramePool, LARGE_FRAME, Offload},
    port::{Link, RxQueue, exceeds},
    stats::Reason,
    sys::{
        event::Any,
        packet::PacketSocket,
        xdp::Attached,
        xsk::{Piece, XskRx},
    },
    wire::{ethernet, partial},
};

/// The receive half of a port: one queue of it, or several.
pub struct XdpRx {
    queues: Vec<Queue>,
    /// Whose turn it is to be asked first.
    first: usize,
    /// Readable when one of several queues is.
    any: Option<Any>,
    program: Arc<Attached>,
    /// Keeps the interface in promiscuous mode.
    _promiscuous: Option<Arc<PacketSocket>>,
    /// Set where the kernel hands over super-frames whole, and does not say so.
    merged: Option<Arc<Link>>,
}

/// One receive queue.
struct Queue {
    id: u32,
    socket: XskRx,
    /// Taken from the ring, in order, and not yet looked at.
    pieces: VecDeque<Piece>,
    scratch: Vec<Piece>,
    /// Chunks that the kernel has, those in `pieces` included.
    lent: usize,
    /// How many it shall have.
    share: usize,
}

/// Chunks that each queue has at least. More where bursts are deeper, twice as many as a burst: not all there are, because chunks go round, and
/// what went round longer has left the caches of both cores (1500-byte frames merged: half as many again; docs/decisions/0010).
const LEAST: usize = 1024;
/// How many pieces ahead memory is asked for: the kernel has written on another core.
const PREFETCH: usize = 6;

impl XdpRx {
    /// Begins to receive by sockets that are bound to these queues, into at most `share` chunks each.
    pub(super) fn start(
        sockets: Vec<(u32, XskRx)>,
        share: usize,
        program: Arc<Attached>,
        promiscuous: Option<Arc<PacketSocket>>,
        merged: Option<Arc<Link>>,
        pool: &mut FramePool,
    ) -> io::Result<Self> {
        let queues = sockets.into_iter().map(|(id, socket)| Queue {
            id,
            socket,
            pieces: VecDeque::new(),
            scratch: Vec::new(),
            lent: 0,
            share,
        });
        let mut queues: Vec<Queue> = queues.collect();
        let any = if queues.len() > 1 {
            Some(Any::of(queues.iter().map(|queue| queue.socket.fd()))?)
        } else {
            None
        };
        for queue in &mut queues {
            // Before a frame can come.
            queue.refill(LEAST, pool);
            program.register(queue.id, queue.socket.fd())?;
        }
        Ok(Self {
            queues,
            first: 0,
            any,
            program,
            _promiscuous: promiscuous,
            merged,
        })
    }
}

impl RxQueue for XdpRx {
    fn rx_burst(&mut self, burst: &mut Burst, limit: usize, turn: &mut Turn) {
        let (count, wanted) = (self.queues.len(), burst.len() + limit);
        for at in 0..count {
            let queue = &mut self.queues[(self.first + at) % count];
            queue.rx_burst(burst, wanted, self.merged.as_deref(), turn);
        }
        self.first = (self.first + 1) % count;
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.any {
            Some(any) => {
                // It shows an error as if there were something to read, and would go on doing so.
                self.queues
                    .iter()
                    .for_each(|queue| queue.socket.clear_error());
                Some(any.as_fd())
            }
            None => Some(self.queues.first()?.socket.fd()),
        }
    }

    fn clear_error(&mut self) {
        // ENETDOWN when the interface is gone: the link's state tells of it.
        self.queues
            .iter()
            .for_each(|queue| queue.socket.clear_error());
    }

    fn kernel_drops(&mut self) -> u64 {
        self.queues
            .iter_mut()
            .map(|queue| queue.socket.drops())
            .sum()
    }

    fn lent(&self) -> usize {
        self.queues.iter().map(|queue| queue.lent).sum()
    }

    fn close(&mut self) {
        self.queues
            .iter()
            .for_each(|queue| self.program.unregister(queue.id));
    }
}

impl Queue {
    /// Adds frames until the burst has as many as are wanted, and gives the kernel as many free chunks.
    #[inline]
    fn rx_burst(
        &mut self,
        burst: &mut Burst,
        wanted: usize,
        merged: Option<&Link>,
        turn: &mut Turn,
    ) {
        // What has become free since the last burst, before what comes now is looked at.
        self.refill((2 * wanted).max(LEAST), turn.pool);
        while burst.len() < wanted {
            if let Some(piece) = self.pieces.get(PREFETCH) {
                turn.pool.fetch_chunk(piece.chunk, piece.offset);
            }
            let Some((count, len)) = self.next(wanted - burst.len()) else {
                break;
            };
            if !self.take(count, len, merged, burst, turn) {
                break;
            }
        }
        self.socket.wake();
    }

    /// In how many pieces the next frame lies, and its length. Looks into the ring if nothing is left of the last look.
    #[inline]
    fn next(&mut self, limit: usize) -> Option<(usize, usize)> {
        loop {
            let mut len = 0;
            for (at, piece) in self.pieces.iter().enumerate() {
                len += piece.len;
                if !piece.more {
                    return Some((at + 1, len));
                }
            }
            self.scratch.clear();
            self.socket.receive(&mut self.scratch, limit);
            if self.scratch.is_empty() {
                return None;
            }
            self.pieces.extend(self.scratch.drain(..));
        }
    }

    /// Moves the next frame into the burst, or counts why not. `false`: no buffer is free to put it together in.
    #[inline]
    fn take(
        &mut self,
        count: usize,
        len: usize,
        merged: Option<&Link>,
        burst: &mut Burst,
        turn: &mut Turn,
    ) -> bool {
        let frame = if count == 1 {
            self.piece(turn.pool)
        } else {
            if len <= LARGE_FRAME && turn.pool.available(LARGE_FRAME) == 0 {
                return false;
            }
            self.gather(count, len, turn.pool)
        };
        turn.tally.received(1, len);
        let Some(frame) = frame else {
            turn.tally.dropped[Reason::Oversize as usize] += 1;
            return true;
        };
        let bytes = turn.pool.bytes(&frame);
        // Longer than the interface can receive: several packets in one, and nothing tells how long each was.
        if merged.is_some_and(|link| exceeds(bytes, link.mtu() + ethernet::HEADER_LEN)) {
            turn.discard(frame, Reason::GsoUnsupported);
            return true;
        }
        let offload = partial::find(bytes).map_or_else(Offload::default, |found| Offload {
            flags: Offload::NEEDS_CSUM,
            csum_start: found.start,
            csum_offset: found.offset,
            ..Offload::default()
        });
        let meta = turn.pool.meta_mut(&frame);
        (meta.offload, meta.arrival_ns) = (offload, turn.now_ns);
        burst.push(frame);
        true
    }

    /// The next piece as a frame of its own. Nothing is copied.
    #[inline]
    fn piece(&mut self, pool: &mut FramePool) -> Option<Frame> {
        let piece = self.pieces.pop_front()?;
        let frame = pool.take_back(piece.chunk, piece.offset, piece.len);
        debug_assert!(
            frame.is_some(),
            "the kernel gave what it had not been lent: {piece:?}"
        );
        self.lent -= usize::from(frame.is_some());
        frame
    }

    /// A frame that lies in several chunks, put together in a large buffer. `None` if it fits none.
    #[cold]
    fn gather(&mut self, count: usize, len: usize, pool: &mut FramePool) -> Option<Frame> {
        let whole = pool.alloc_large(len);
        let mut at = 0;
        for _ in 0..count {
            let Some(piece) = self.piece(pool) else {
                continue;
            };
            if let Some(whole) = &whole {
                let len = pool.len(&piece);
                pool.copy((&piece, 0), (whole, at), len);
                at += len;
            }
            pool.free(piece);
        }
        whole
    }

    /// Gives the kernel free chunks until it has `count`, or its share if that is less.
    #[inline]
    fn refill(&mut self, count: usize, pool: &mut FramePool) {
        let wanted = count.min(self.share).saturating_sub(self.lent);
        if wanted > 0 {
            let free = std::iter::from_fn(|| pool.lend_free()).take(wanted);
            self.lent += self.socket.fill(free);
        }
    }
}
