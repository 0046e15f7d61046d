//! A lane's share of memory: a free list over equal buffers, in two sizes.
//!
//! Small buffers hold ordinary frames, large ones a 64 KiB super-frame or a jumbo frame, so that not every buffer needs
//! 68 KiB. One lane owns the pool, so nothing is locked. Taking and giving back are a pop and a push. Where a lane uses
//! AF_XDP, its small buffers are chunks of the UMEM, and go to the kernel and back without their bytes being moved.

#![allow(unsafe_code)]

mod chain;
#[cfg(feature = "xdp")]
mod umem;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

#[cfg(feature = "xdp")]
pub(crate) use umem::Chunks;

use super::{Frame, Meta, Region};

/// Bytes kept free in front of a frame, so that tags and headers can be put before it.
pub const HEADROOM: usize = 64;
/// The longest frame a small buffer holds, in bytes. (A chunk of a UMEM holds more.)
pub const SMALL_FRAME: usize = SMALL_STRIDE - HEADROOM;
/// The longest frame a large buffer holds, in bytes: a 64 KiB packet with its headers and tags fits.
pub const LARGE_FRAME: usize = LARGE_STRIDE - HEADROOM;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Most bytes of a frame that are fetched ahead.
const MOST_FETCHED: usize = 1536;

const SMALL_STRIDE: usize = 2048;
const LARGE_STRIDE: usize = 68 * 1024;

/// How many buffers a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Buffers for frames of up to [`SMALL_FRAME`] bytes.
    pub small: usize,
    /// Buffers for frames of up to [`LARGE_FRAME`] bytes.
    pub large: usize,
}

impl PoolSize {
    /// Bytes of memory that such a pool needs.
    pub fn bytes(&self) -> usize {
        self.small * SMALL_STRIDE + self.large * LARGE_STRIDE
    }
}

/// Buffers of one size, and which of them are free.
struct Class {
    /// Keeps the memory mapped for as long as the pool points into it.
    region: Arc<Region>,
    /// Offset of the first buffer in the region, in bytes.
    start: usize,
    /// Bytes from one buffer to the next.
    stride: usize,
    /// Bytes kept free in front of a frame.
    headroom: usize,
    count: usize,
    /// Their indices in the pool.
    free: Vec<u32>,
}

impl Class {
    /// Takes `count * stride` bytes of `region` from `start` on. The pool's index of the first buffer is `first`.
    ///
    /// # Panics
    /// If the region is shorter than that.
    fn new(
        (region, start): (Arc<Region>, usize),
        stride: usize,
        headroom: usize,
        first: usize,
        count: usize,
    ) -> Self {
        assert!(
            region.len() >= start + stride * count,
            "region too short for its pools"
        );
        Self {
            region,
            start,
            stride,
            headroom,
            count,
            // Last in, first out: the buffer that was used last is still in the cache.
            free: (first as u32..(first + count) as u32).rev().collect(),
        }
    }

    /// The longest frame a buffer holds.
    #[inline]
    fn longest(&self) -> usize {
        self.stride - self.headroom
    }
}

/// A free list of buffers in a [`Region`], or in two.
pub struct FramePool {
    small: Class,
    large: Class,
    tag: u32,
    meta: Vec<Meta>,
    /// Which small buffers the kernel has; empty if it never gets any.
    #[cfg(feature = "xdp")]
    lent: Vec<bool>,
}

impl FramePool {
    fn new(small: Class, large: Class) -> Self {
        static TAG: AtomicU32 = AtomicU32::new(0);
        Self {
            tag: TAG.fetch_add(1, Ordering::Relaxed),
            meta: vec![Meta::default(); small.count + large.count],
            #[cfg(feature = "xdp")]
            lent: Vec::new(),
            small,
            large,
        }
    }

    /// Takes `size.bytes()` bytes of `region` from `start` on.
    ///
    /// No two pools may share bytes of a region; [`FramePool::split`] sees to that.
    fn in_one(region: &Arc<Region>, start: usize, size: PoolSize) -> Self {
        let small = Class::new(
            (Arc::clone(region), start),
            SMALL_STRIDE,
            HEADROOM,
            0,
            size.small,
        );
        let start = start + SMALL_STRIDE * size.small;
        Self::new(
            small,
            Class::new(
                (Arc::clone(region), start),
                LARGE_STRIDE,
                HEADROOM,
                size.small,
                size.large,
            ),
        )
    }

    /// Divides a region into as many pools of one size as are wanted.
    ///
    /// # Panics
    /// If the region is shorter than `count` pools.
    pub fn split(region: Region, size: PoolSize, count: usize) -> Vec<Self> {
        let region = Arc::new(region);
        (0..count)
            .map(|i| Self::in_one(&region, i * size.bytes(), size))
            .collect()
    }

    /// A pool without buffers.
    pub(crate) fn none() -> Self {
        let size = PoolSize { small: 0, large: 0 };
        Self::in_one(&Arc::new(Region::none()), 0, size)
    }

    /// A pool on ordinary pages of its own, for tests and examples.
    ///
    /// # Errors
    /// Memory is short.
    pub fn ordinary(size: PoolSize) -> crate::error::Result<Self> {
        let region = Region::map(size.bytes(), super::HugePages::Off)?;
        Ok(Self::in_one(&Arc::new(region), 0, size))
    }

    /// Takes a buffer for a frame of `len` bytes. Its bytes are those of an earlier frame, or zero.
    ///
    /// `None` if no buffer of that size is free, or `len` is above [`LARGE_FRAME`].
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<Frame> {
        let class = if len <= self.small.longest() {
            &mut self.small
        } else if len <= LARGE_FRAME {
            &mut self.large
        } else {
            return None;
        };
        let (index, offset) = (class.free.pop()?, class.headroom as u32);
        Some(self.frame(index, offset, len as u32))
    }

    /// The right to a buffer that has just been taken, with what is known of the frame in it.
    #[inline]
    fn frame(&mut self, index: u32, offset: u32, len: u32) -> Frame {
        self.meta[index as usize] = Meta {
            offset,
            len,
            segments: 1,
            ..Meta::default()
        };
        Frame {
            index,
            pool: self.tag,
        }
    }

    /// Takes a buffer and copies `bytes` into it.
    pub fn alloc_copy(&mut self, bytes: &[u8]) -> Option<Frame> {
        let frame = self.alloc(bytes.len())?;
        self.bytes_mut(&frame).copy_from_slice(bytes);
        Some(frame)
    }

    /// Gives a buffer back, or all of a chain.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        debug_assert_eq!(frame.pool, self.tag, "frame of another pool");
        let mut next = self.meta[frame.index as usize].next;
        self.release(frame.index);
        while next != 0 {
            let index = next - 1;
            next = self.meta[index as usize].next;
            self.release(index);
        }
    }

    /// Puts one buffer on its free list.
    #[inline]
    fn release(&mut self, index: u32) {
        if (index as usize) < self.small.count {
            self.small.free.push(index);
        } else {
            self.large.free.push(index);
        }
    }

    /// The bytes of a frame; of a chain, those in its first buffer ([`FramePool::parts`] gives all).
    #[inline]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        debug_assert_eq!(frame.pool, self.tag, "frame of another pool");
        self.slice(frame.index)
    }

    /// Has the processor fetch a frame, which will be read soon.
    #[inline]
    pub(crate) fn fetch(&self, frame: &Frame) {
        let (start, len) = self.locate(frame);
        for at in (0..len.min(MOST_FETCHED)).step_by(LINE) {
            fetch(start.wrapping_add(at));
        }
    }

    /// The bytes of a frame, to be edited; of a chain, those in its first buffer.
    #[inline]
    pub fn bytes_mut(&mut self, frame: &Frame) -> &mut [u8] {
        let (start, len) = self.locate(frame);
        // SAFETY: invariant EXCLUSIVE, as in `slice`; `&mut self` excludes every other reference into the share.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Length of a frame in bytes, a chain's as a whole.
    #[inline]
    pub fn len(&self, frame: &Frame) -> usize {
        let meta = &self.meta[frame.index as usize];
        (meta.len + meta.rest) as usize
    }

    /// What is known about a frame.
    #[inline]
    pub fn meta(&self, frame: &Frame) -> &Meta {
        &self.meta[frame.index as usize]
    }

    /// What is known about a frame, to be changed.
    #[inline]
    pub fn meta_mut(&mut self, frame: &Frame) -> &mut Meta {
        &mut self.meta[frame.index as usize]
    }

    /// Cuts a frame to its first `len` bytes; a longer `len` changes nothing.
    pub fn truncate(&mut self, frame: &Frame, len: usize) {
        let meta = self.meta_mut(frame);
        meta.len = meta.len.min(len as u32);
    }

    /// Puts `bytes` in between a frame's first `at` bytes and the rest, into the headroom.
    ///
    /// Returns `false`, and changes nothing, if the headroom is too small or the frame shorter than `at`.
    pub fn insert(&mut self, frame: &Frame, at: usize, bytes: &[u8]) -> bool {
        let meta = self.meta_mut(frame);
        if meta.offset < bytes.len() as u32 || (meta.len as usize) < at {
            return false;
        }
        meta.offset -= bytes.len() as u32;
        meta.len += bytes.len() as u32;
        let all = self.bytes_mut(frame);
        all.copy_within(bytes.len()..bytes.len() + at, 0);
        all[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Buffers that are free for frames of `len` bytes.
    #[inline]
    pub fn available(&self, len: usize) -> usize {
        if len <= self.small.longest() {
            self.small.free.len()
        } else {
            self.large.free.len()
        }
    }

    /// How many buffers the pool has.
    pub fn size(&self) -> PoolSize {
        PoolSize {
            small: self.small.count,
            large: self.large.count,
        }
    }

    /// Buffers that are somewhere else than in the pool, those lent to the kernel included.
    pub fn outstanding(&self) -> usize {
        let (small, large) = (&self.small, &self.large);
        small.count + large.count - small.free.len() - large.free.len()
    }

    /// Copies `len` bytes of one frame, from `from_at` on, to another, from `to_at` on.
    ///
    /// # Panics
    /// If they are not there, or the frames are of another pool.
    #[cfg(feature = "xdp")]
    #[inline]
    pub(crate) fn copy(
        &mut self,
        (from, from_at): (&Frame, usize),
        (to, to_at): (&Frame, usize),
        len: usize,
    ) {
        assert!(
            from.pool == self.tag && to.pool == self.tag && from.index != to.index,
            "two frames of this pool"
        );
        self.copy_buffer((from.index, from_at), (to.index, to_at), len);
    }

    /// The same between buffers.
    #[inline]
    fn copy_buffer(
        &mut self,
        (from, from_at): (u32, usize),
        (to, to_at): (u32, usize),
        len: usize,
    ) {
        assert!(from != to, "two buffers");
        let ((from, from_len), (to, to_len)) = (self.place(from), self.place(to));
        assert!(
            from_at + len <= from_len && to_at + len <= to_len,
            "beyond the frame"
        );
        // SAFETY: invariant EXCLUSIVE: both ranges are inside what is in buffers of this pool, which are different ones.
        unsafe { std::ptr::copy_nonoverlapping(from.add(from_at), to.add(to_at), len) };
    }

    /// What is in a buffer.
    #[inline]
    fn slice(&self, index: u32) -> &[u8] {
        let (start, len) = self.place(index);
        // SAFETY: invariant EXCLUSIVE (docs/architecture.md): `place` keeps the range inside this pool's share of the
        // region, which lives as long as `self`; the share is written through `&mut self` alone, and by the kernel only
        // in buffers that are lent to it, to which there is no `Frame`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Where a frame's bytes are, and how many. Always inside this pool's share.
    #[inline]
    fn locate(&self, frame: &Frame) -> (*mut u8, usize) {
        debug_assert_eq!(frame.pool, self.tag, "frame of another pool");
        self.place(frame.index)
    }

    /// The same of a buffer.
    #[inline]
    fn place(&self, index: u32) -> (*mut u8, usize) {
        let index = index as usize;
        // The index of a foreign frame can be out of range: this panics then, and never reads beyond.
        let meta = &self.meta[index];
        let (class, place) = self.class(index);
        let at = class.start + place * class.stride + meta.offset as usize;
        // SAFETY: invariant EXCLUSIVE: `Class::new` has checked that the class lies within its region, and offset + len
        // never exceeds the stride: `alloc` and `take_back` set both within it, `truncate` only shrinks, `insert` moves
        // the start forward into the headroom by as much as it lengthens, `append` and `align` check.
        (
            unsafe { class.region.mapping.as_ptr().add(at) },
            meta.len as usize,
        )
    }
}

impl FramePool {
    /// The buffers that are like this one, and its place among them.
    #[inline]
    fn class(&self, index: usize) -> (&Class, usize) {
        if index < self.small.count {
            (&self.small, index)
        } else {
            (&self.large, index - self.small.count)
        }
    }
}

impl std::fmt::Debug for FramePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "FramePool({:?}, {} outstanding)",
            self.size(),
            self.outstanding()
        )
    }
}

/// Has the processor fetch the cache line at `start`, which need not be there.
#[inline]
fn fetch(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, and does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(start.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: PoolSize = PoolSize { small: 8, large: 2 };

    #[derive(Clone, Debug)]
    enum Step {
        Alloc(usize, u8),
        Free(usize),
        Insert(usize, usize, usize),
        Truncate(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (prop_oneof![0..SMALL_FRAME + 1, 0..LARGE_FRAME + 10], any::<u8>()).prop_map(|(l, b)| Step::Alloc(l, b)),
            2 => any::<usize>().prop_map(Step::Free),
            1 => (any::<usize>(), 0usize..40, 0usize..80).prop_map(|(f, a, n)| Step::Insert(f, a, n)),
            1 => (any::<usize>(), 0usize..3000).prop_map(|(f, l)| Step::Truncate(f, l)),
        ]
    }

    proptest! {
        /// Against a model: a list of byte vectors. No frame ever sees another's bytes.
        #[test]
        fn behaves_like_a_list_of_vectors(steps in prop::collection::vec(step(), 1..80)) {
            let mut pool = FramePool::ordinary(SIZE).unwrap();
            let mut model: Vec<(Frame, Vec<u8>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Alloc(len, byte) => {
                        let free = if len <= LARGE_FRAME { pool.available(len) } else { 0 };
                        match pool.alloc(len) {
                            Some(frame) => {
                                prop_assert!(free > 0);
                                pool.bytes_mut(&frame).fill(byte);
                                model.push((frame, vec![byte; len]));
                            }
                            None => prop_assert_eq!(free, 0),
                        }
                    }
                    Step::Free(i) if !model.is_empty() => {
                        let (frame, _) = model.swap_remove(i % model.len());
                        pool.free(frame);
                    }
                    Step::Insert(i, at, n) if !model.is_empty() => {
                        let i = i % model.len();
                        let tag: Vec<u8> = (0..n as u8).collect();
                        let (frame, bytes) = &mut model[i];
                        if pool.insert(frame, at, &tag) {
                            bytes.splice(at..at, tag);
                        } else {
                            prop_assert!(at > bytes.len() || n > 0);
                        }
                    }
                    Step::Truncate(i, len) if !model.is_empty() => {
                        let i = i % model.len();
                        pool.truncate(&model[i].0, len);
                        model[i].1.truncate(len);
                    }
                    _ => {}
                }
                prop_assert_eq!(pool.outstanding(), model.len());
                for (frame, bytes) in &model {
                    prop_assert_eq!(pool.bytes(frame), &bytes[..]);
                }
            }
            for (frame, _) in model.drain(..) {
                pool.free(frame);
            }
            prop_assert_eq!(pool.outstanding(), 0);
        }
    }

    #[test]
    fn pools_of_a_region_do_not_overlap() {
        let region = Region::map(SIZE.bytes() * 2, super::super::HugePages::Off).unwrap();
        let mut pools = FramePool::split(region, SIZE, 2);
        let (mut b, mut a) = (pools.pop().unwrap(), pools.pop().unwrap());
        let last: Vec<Frame> = std::iter::from_fn(|| a.alloc(LARGE_FRAME)).collect();
        let first: Vec<Frame> = std::iter::from_fn(|| b.alloc(SMALL_FRAME)).collect();
        last.iter().for_each(|f| a.bytes_mut(f).fill(1));
        first.iter().for_each(|f| b.bytes_mut(f).fill(2));
        assert!(last.iter().all(|f| a.bytes(f).iter().all(|&x| x == 1)));
        last.into_iter().for_each(|f| a.free(f));
        first.into_iter().for_each(|f| b.free(f));
    }
}
