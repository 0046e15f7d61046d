//! A constant delay: what a longer wire would add.

use std::time::Duration;

use super::arena::Arena;
use crate::{burst::Burst, lane::Turn, stage::Stage, stats::Reason};

/// Holds every frame for the same time, in order.
///
/// A frame is due at its arrival plus the delay, so a late wake-up delays that frame and no other.
#[derive(Debug)]
pub struct Delay {
    delay_ns: u64,
    arena: Arena,
}

impl Delay {
    /// Bytes that a delay may hold: 1 Gbit/s × 500 ms.
    pub const LIMIT: usize = 64 << 20;

    /// Delays by `delay`. Holds up to [`Delay::LIMIT`] bytes; what exceeds them is counted
    /// [`QueueFull`](Reason::QueueFull).
    pub fn new(delay: Duration) -> Self {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self {
            delay_ns,
            arena: Arena::new(Self::LIMIT),
        }
    }
}

impl Stage for Delay {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        for frame in burst.drain() {
            let due_ns = turn
                .pool
                .meta(&frame)
                .arrival_ns
                .saturating_add(self.delay_ns);
            if self.arena.push(turn.pool, &frame, due_ns) {
                turn.pool.free(frame);
            } else {
                turn.discard(frame, Reason::QueueFull);
            }
        }
        for _ in 0..turn.room.min(Burst::MIN) {
            let Some(frame) = self.arena.pop_due(turn.pool, turn.now_ns) else {
                break;
            };
            burst.push(frame);
        }
    }

    fn is_queue(&self) -> bool {
        true
    }

    fn held(&self) -> u64 {
        self.arena.packets()
    }

    fn due_ns(&self) -> Option<u64> {
        self.arena.due_ns()
    }

    fn abandon(&mut self, turn: &mut Turn) {
        turn.tally.dropped[Reason::Stopped as usize] += self.arena.clear();
    }
}
