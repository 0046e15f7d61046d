//! Frames that a transmit side has accepted and not yet handed over, in order.

use std::collections::VecDeque;

use crate::{
    lane::Turn,
    memory::{Frame, FramePool},
    stats::Reason,
};

/// Frames in order, and how many packets they stand for.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) frames: VecDeque<Frame>,
    packets: u64,
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, frame: Frame, pool: &FramePool) {
        self.packets += u64::from(pool.meta(&frame).segments);
        self.frames.push_back(frame);
    }

    #[inline]
    pub(super) fn pop(&mut self, pool: &FramePool) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.packets -= u64::from(pool.meta(&frame).segments);
        Some(frame)
    }

    /// Puts a frame that was popped back to the front.
    pub(super) fn unpop(&mut self, frame: Frame, pool: &FramePool) {
        self.packets += u64::from(pool.meta(&frame).segments);
        self.frames.push_front(frame);
    }

    /// Discards every frame.
    pub(super) fn discard_all(&mut self, turn: &mut Turn, reason: Reason) {
        while let Some(frame) = self.pop(turn.pool) {
            turn.discard(frame, reason);
        }
    }

    /// Packets that these frames stand for.
    #[inline]
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }
}
