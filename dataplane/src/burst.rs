//! A handful of frames on their way through a lane, in order.

use crate::{
    lane::Turn,
    memory::{Frame, FramePool},
    stats::Reason,
};

/// Frames in order of arrival. A lane has one and uses it again every turn.
#[derive(Debug, Default)]
pub struct Burst {
    frames: Vec<Frame>,
}

impl Burst {
    /// Most frames that a lane takes in at a time while each leaves alone: deeper bursts measured no better. Where frames
    /// are merged, bursts grow from here with what waits.
    pub const MIN: usize = 64;
    /// Most frames that any lane takes in at a time: two of each of 1024 flows, and a millisecond of the fastest flood.
    pub const MAX: usize = 2048;

    /// An empty burst with room for [`Burst::MIN`] frames, to begin with.
    pub fn new() -> Self {
        Self {
            frames: Vec::with_capacity(Self::MIN),
        }
    }

    /// Adds a frame at the end.
    #[inline]
    pub fn push(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    /// Frames in the burst.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames, in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Frame> {
        self.frames.iter()
    }

    /// Exchanges all frames for others.
    #[inline]
    pub(crate) fn swap(&mut self, frames: &mut Vec<Frame>) {
        std::mem::swap(&mut self.frames, frames);
    }

    /// Takes the frames out, in order.
    #[inline]
    pub fn drain(&mut self) -> std::vec::Drain<'_, Frame> {
        self.frames.drain(..)
    }

    /// Takes the first `count` frames out, in order.
    #[inline]
    pub fn drain_first(&mut self, count: usize) -> std::vec::Drain<'_, Frame> {
        self.frames.drain(..count)
    }

    /// Discards the frames for which `keep` is false, and counts them under `reason`.
    pub fn filter(
        &mut self,
        turn: &mut Turn,
        reason: Reason,
        mut keep: impl FnMut(&mut FramePool, &Frame) -> bool,
    ) {
        let mut kept = 0;
        for at in 0..self.frames.len() {
            if keep(turn.pool, &self.frames[at]) {
                self.frames.swap(kept, at);
                kept += 1;
            }
        }
        // What is not kept has gathered behind.
        for frame in self.frames.drain(kept..) {
            turn.discard(frame, reason);
        }
    }
}
