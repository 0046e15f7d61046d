//! A port made of two queues in memory: no root, no kernel. For tests, examples and benchmarks.
//!
//! ```
//! use l2relay::port::memory::{self, Packet};
//!
//! let (rx, tx, mut wire) = memory::port(16, 1518);
//! wire.send(Packet::new(&[0; 60])).unwrap();       // arrives at `rx`
//! assert!(wire.receive().is_none());               // nothing has left by `tx` yet
//! # let _ = (rx, tx);
//! ```

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam::queue::ArrayQueue;

use super::{RxQueue, TxQueue};
use crate::{
    burst::Burst,
    lane::Turn,
    memory::{LARGE_FRAME, Offload},
    stats::Reason,
};

/// A frame outside of any pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The frame, from the destination address on, without FCS.
    pub bytes: Vec<u8>,
    /// Checksum and segmentation state.
    pub offload: Offload,
}

impl Packet {
    /// A plain frame.
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.into(),
            offload: Offload::default(),
        }
    }
}

/// The other end of a port in memory: what a test holds.
#[derive(Clone, Debug)]
pub struct Wire {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inbound: ArrayQueue<Packet>,
    outbound: ArrayQueue<Packet>,
    /// Frames that found `inbound` full, as the kernel counts them.
    lost: AtomicU64,
    up: AtomicBool,
    open: AtomicBool,
}

/// Makes a port whose queues hold `capacity` frames each and which sends frames of up to `max_frame` bytes.
pub fn port(capacity: usize, max_frame: usize) -> (MemoryRx, MemoryTx, Wire) {
    let shared = Arc::new(Shared {
        inbound: ArrayQueue::new(capacity),
        outbound: ArrayQueue::new(capacity),
        lost: AtomicU64::new(0),
        up: AtomicBool::new(true),
        open: AtomicBool::new(true),
    });
    let rx = MemoryRx {
        shared: Arc::clone(&shared),
        next: None,
    };
    let tx = MemoryTx {
        shared: Arc::clone(&shared),
        max_frame,
    };
    (rx, tx, Wire { shared })
}

impl Wire {
    /// Puts a frame on the wire towards the port; gives it back if the port's queue is full.
    pub fn send(&mut self, packet: Packet) -> Result<(), Packet> {
        if !self.shared.open.load(Ordering::Acquire) {
            return Err(packet);
        }
        self.shared.inbound.push(packet).inspect_err(|_| {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Takes the oldest frame that the port has sent.
    pub fn receive(&mut self) -> Option<Packet> {
        self.shared.outbound.pop()
    }

    /// Takes the link down, or up again.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Release);
    }
}

/// The receive half.
#[derive(Debug)]
pub struct MemoryRx {
    shared: Arc<Shared>,
    /// Taken from the queue, but no buffer was free for it.
    next: Option<Packet>,
}

impl RxQueue for MemoryRx {
    fn rx_burst(&mut self, burst: &mut Burst, limit: usize, turn: &mut Turn) {
        for _ in 0..limit {
            let Some(packet) = self.next.take().or_else(|| self.shared.inbound.pop()) else {
                return;
            };
            let segments = packet.segments();
            if packet.bytes.len() > LARGE_FRAME {
                turn.tally.received(segments, packet.bytes.len());
                turn.tally.dropped[Reason::Oversize as usize] += u64::from(segments);
                continue;
            }
            let Some(frame) = turn.pool.alloc_copy(&packet.bytes) else {
                self.next = Some(packet);
                return;
            };
            turn.tally.received(segments, packet.bytes.len());
            let meta = turn.pool.meta_mut(&frame);
            (meta.segments, meta.offload, meta.arrival_ns) =
                (segments, packet.offload, turn.now_ns);
            burst.push(frame);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn kernel_drops(&mut self) -> u64 {
        self.shared.lost.swap(0, Ordering::Relaxed)
    }

    fn close(&mut self) {
        self.shared.open.store(false, Ordering::Release);
    }
}

impl Packet {
    fn segments(&self) -> u32 {
        self.offload.segments(&self.bytes, self.bytes.len())
    }
}

/// The transmit half.
#[derive(Debug)]
pub struct MemoryTx {
    shared: Arc<Shared>,
    max_frame: usize,
}

impl TxQueue for MemoryTx {
    fn room(&mut self) -> usize {
        if !self.shared.up.load(Ordering::Acquire) {
            return Burst::MAX;
        }
        self.shared.outbound.capacity() - self.shared.outbound.len()
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let up = self.shared.up.load(Ordering::Acquire);
        // Only this half adds to the queue, so the room can only grow while the burst is sent.
        let count = if up {
            self.room().min(burst.len())
        } else {
            burst.len()
        };
        for frame in burst.drain_first(count) {
            let meta = *turn.pool.meta(&frame);
            let len = turn.pool.len(&frame);
            if !up {
                turn.discard(frame, Reason::LinkDown);
            } else if len > self.max_frame && !meta.offload.is_gso() {
                turn.discard(frame, Reason::Oversize);
            } else if self
                .shared
                .outbound
                .push(Packet {
                    bytes: turn.pool.parts(&frame).collect::<Vec<_>>().concat(),
                    offload: meta.offload,
                })
                .is_ok()
            {
                turn.tally.sent(meta.segments, len);
                turn.pool.free(frame);
            } else {
                turn.discard(frame, Reason::TxFull);
            }
        }
    }

    fn abandon(&mut self, _turn: &mut Turn) {}
}
