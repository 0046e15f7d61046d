//! A transmit side with two ways out of one port: one that is cheap for plain frames, and one that carries super-frames.
//!
//! Used where AF_XDP receives and frames are merged: what could not be merged leaves by AF_XDP, which costs the kernel less a frame,
//! the rest by AF_PACKET. The way is chosen once a burst, and changed only when nothing is left in the other; on a device with one transmit
//! queue, and no other is joined so, frames of a flow then never overtake each other.

use super::TxQueue;
use crate::{burst::Burst, coalesce::Kinds, lane::Turn};

/// Sends bursts of plain frames one way, and those with a super-frame among them another.
pub struct DualTx {
    /// The way in use, and the other.
    active: Way,
    other: Way,
    nothing: Burst,
}

struct Way {
    tx: Box<dyn TxQueue>,
    /// Whether it is the one for super-frames. (Either can carry anything, at a price.)
    whole: bool,
}

impl DualTx {
    /// `plain` for plain frames, `whole` for bursts with super-frames.
    pub fn new(plain: Box<dyn TxQueue>, whole: Box<dyn TxQueue>) -> Self {
        let way = |tx, whole| Way { tx, whole };
        Self {
            active: way(whole, true),
            other: way(plain, false),
            nothing: Burst::new(),
        }
    }
}

impl TxQueue for DualTx {
    fn has_plain_way(&self) -> bool {
        true
    }

    fn room(&mut self) -> usize {
        self.active.tx.room()
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let is_super = |frame| turn.pool.meta(frame).offload.is_gso();
        let whole = burst.iter().any(is_super);
        if !burst.is_empty() && whole != self.active.whole {
            if self.active.tx.held() > 0 {
                self.active.tx.tx_burst(&mut self.nothing, turn);
            }
            if self.active.tx.held() == 0 {
                std::mem::swap(&mut self.active, &mut self.other);
            }
        }
        // It has nothing to send, but buffers to take back.
        self.other.tx.tx_burst(&mut self.nothing, turn);
        self.active.tx.tx_burst(burst, turn);
    }

    fn refuses(&self) -> Kinds {
        let whole = if self.active.whole {
            &self.active
        } else {
            &self.other
        };
        whole.tx.refuses()
    }

    fn held(&self) -> u64 {
        self.active.tx.held() + self.other.tx.held()
    }

    fn wants_retry(&self) -> bool {
        self.active.tx.wants_retry() || self.other.tx.wants_retry()
    }

    fn lent(&self) -> usize {
        self.active.tx.lent() + self.other.tx.lent()
    }

    fn abandon(&mut self, turn: &mut Turn) {
        self.active.tx.abandon(turn);
        self.other.tx.abandon(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        memory::{FramePool, Offload, PoolSize},
        port::memory,
        stats::Tally,
    };

    /// A queue that hands nothing over until it is told to.
    struct Slow {
        frames: std::collections::VecDeque<crate::memory::Frame>,
        go: std::sync::Arc<std::sync::atomic::AtomicBool>,
        out: memory::MemoryTx,
    }

    impl TxQueue for Slow {
        fn room(&mut self) -> usize {
            Burst::MAX
        }

        fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
            self.frames.extend(burst.drain());
            if self.go.load(std::sync::atomic::Ordering::Relaxed) {
                let mut all = Burst::new();
                self.frames.drain(..).for_each(|frame| all.push(frame));
                self.out.tx_burst(&mut all, turn);
            }
        }

        fn held(&self) -> u64 {
            self.frames.len() as u64
        }

        fn abandon(&mut self, _: &mut Turn) {}
    }

    /// In the order in which they are sent, plain and super-frames; the first two while the way for `slow_whole` hands nothing over.
    fn sent(slow_whole: bool, supers: [bool; 4]) -> [Vec<u8>; 2] {
        let go = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (_, out, mut whole_wire) = memory::port(16, 1514);
        let (_, plain, mut plain_wire) = memory::port(16, 1514);
        let slow = |out| {
            Box::new(Slow {
                frames: Default::default(),
                go: go.clone(),
                out,
            })
        };
        let mut dual = if slow_whole {
            DualTx::new(Box::new(plain), slow(out))
        } else {
            DualTx::new(slow(plain), Box::new(out))
        };
        let mut pool = FramePool::ordinary(PoolSize { small: 8, large: 0 }).unwrap();
        let mut tally = Tally::default();
        let mut send = |dual: &mut DualTx, number: u8, is_super: bool| {
            let mut burst = Burst::new();
            let frame = pool.alloc_copy(&[number; 60]).unwrap();
            if is_super {
                pool.meta_mut(&frame).offload = Offload {
                    gso_type: 5,
                    gso_size: 10,
                    ..Offload::default()
                };
            }
            burst.push(frame);
            let mut turn = Turn {
                pool: &mut pool,
                tally: &mut tally,
                now_ns: 0,
                room: 1,
            };
            dual.tx_burst(&mut burst, &mut turn);
            assert!(burst.is_empty());
        };
        let [first, second, third, fourth] = supers;
        send(&mut dual, 1, first);
        send(&mut dual, 2, second);
        assert_eq!(dual.held(), 2);
        assert!(plain_wire.receive().is_none() && whole_wire.receive().is_none());
        go.store(true, std::sync::atomic::Ordering::Relaxed);
        send(&mut dual, 3, third);
        send(&mut dual, 4, fourth);
        let first = |wire: &mut memory::Wire| -> Vec<u8> {
            std::iter::from_fn(|| wire.receive())
                .map(|packet| packet.bytes[0])
                .collect()
        };
        let left = [first(&mut plain_wire), first(&mut whole_wire)];
        assert_eq!(pool.outstanding(), 0);
        left
    }

    #[test]
    fn the_way_changes_only_when_the_other_is_empty() {
        // The second waits behind the first, whichever way that is: a super-frame then leaves by the way for plain frames, which cuts it.
        let left = sent(true, [true, false, false, true]);
        assert_eq!(left, [vec![3], vec![1, 2, 4]]);
        let left = sent(false, [false, true, true, false]);
        assert_eq!(left, [vec![1, 2, 4], vec![3]]);
    }
}
