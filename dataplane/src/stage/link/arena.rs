//! A queue of frames that are held for long, in memory of its own.
//!
//! Holding 100 ms of a fast link must not empty the lane's pool: so the bytes move here and the buffer is free at once.
//! Memory is bounded in bytes; a frame that does not fit is refused and its sender counts it.

use std::collections::VecDeque;

use crate::memory::{Frame, FramePool, Meta};

/// Frames in order, each with the time at which it is due.
#[derive(Debug)]
pub(super) struct Arena {
    bytes: VecDeque<u8>,
    frames: VecDeque<Held>,
    limit: usize,
    packets: u64,
}

#[derive(Debug)]
struct Held {
    due_ns: u64,
    len: usize,
    meta: Meta,
}

impl Arena {
    /// Room for `limit` bytes of frames, their bookkeeping included. Memory is taken as it is needed.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            frames: VecDeque::new(),
            limit,
            packets: 0,
        }
    }

    /// Copies a frame in. `false` if there is no room. Due times must not decrease.
    pub(super) fn push(&mut self, pool: &FramePool, frame: &Frame, due_ns: u64) -> bool {
        let bytes = pool.bytes(frame);
        let used = self.bytes.len() + self.frames.len() * size_of::<Held>();
        if used + bytes.len() + size_of::<Held>() > self.limit {
            return false;
        }
        let meta = *pool.meta(frame);
        self.packets += u64::from(meta.segments);
        self.bytes.extend(bytes);
        self.frames.push_back(Held {
            due_ns,
            len: bytes.len(),
            meta,
        });
        true
    }

    /// Copies the oldest frame out if it is due. `None` also if the pool has no buffer: it stays, and is late.
    pub(super) fn pop_due(&mut self, pool: &mut FramePool, now_ns: u64) -> Option<Frame> {
        let held = self.frames.front().filter(|held| held.due_ns <= now_ns)?;
        let frame = pool.alloc(held.len)?;
        let (front, back) = self.bytes.as_slices();
        let out = pool.bytes_mut(&frame);
        let first = held.len.min(front.len());
        out[..first].copy_from_slice(&front[..first]);
        out[first..].copy_from_slice(&back[..held.len - first]);
        let meta = pool.meta_mut(&frame);
        (meta.segments, meta.offload, meta.arrival_ns) =
            (held.meta.segments, held.meta.offload, held.meta.arrival_ns);
        self.bytes.drain(..held.len);
        self.packets -= u64::from(held.meta.segments);
        self.frames.pop_front();
        Some(frame)
    }

    /// When the oldest frame is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.frames.front().map(|held| held.due_ns)
    }

    /// Packets held.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Forgets every frame; returns how many packets they were.
    pub(super) fn clear(&mut self) -> u64 {
        self.bytes.clear();
        self.frames.clear();
        std::mem::take(&mut self.packets)
    }
}
