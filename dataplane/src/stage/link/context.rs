//! What every effect may use while a frame passes, and what it counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{
    arena::{Arena, Packet},
    lateness::Lateness,
};
use crate::stats::{Reason, Tally};

/// The link's memory and counters.
pub(super) struct Context<'a> {
    pub(super) arena: &'a mut Arena,
    pub(super) tally: &'a mut Tally,
    pub(super) gauges: &'a Gauges,
}

impl Context<'_> {
    /// Drops a frame and counts it.
    pub(super) fn discard(&mut self, packet: Packet, reason: Reason) {
        self.tally.dropped[reason as usize] += 1;
        self.arena.free(packet);
    }
}

/// What a link shows to others. Written by its lane alone.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) marked: AtomicU64,
    pub(super) corrupted: AtomicU64,
    pub(super) reordered: AtomicU64,
    pub(super) queue_packets: AtomicU64,
    pub(super) queue_bytes: AtomicU64,
    pub(super) memory_bytes: AtomicU64,
    pub(super) lateness: Lateness,
}

impl Gauges {
    pub(super) fn count_marked(&self) {
        add(&self.marked);
    }

    pub(super) fn count_corrupted(&self) {
        add(&self.corrupted);
    }

    pub(super) fn count_reordered(&self) {
        add(&self.reordered);
    }

    /// Nothing is in the link any more.
    pub(super) fn empty(&self) {
        for level in [&self.queue_packets, &self.queue_bytes, &self.memory_bytes] {
            level.store(0, Relaxed);
        }
    }
}

/// Adds one. There is one writer, so it needs no locked instruction.
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}
