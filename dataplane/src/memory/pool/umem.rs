//! Pools whose small buffers are chunks of a UMEM: what goes to the kernel, and what comes back.
//!
//! Called by the `xdp` back end. A chunk that is lent has no [`Frame`], so nobody here reads or writes it; and only one that
//! is lent is taken back, so no chunk gets two.

use std::sync::Arc;

use super::{Class, FramePool, HEADROOM, LARGE_FRAME, LARGE_STRIDE, fetch};
use crate::memory::{Frame, Region};

/// Where a pool's small buffers are if they are chunks of a UMEM.
pub(crate) struct Chunks {
    /// The UMEM.
    pub(crate) region: Arc<Region>,
    /// Which chunk is the pool's first.
    pub(crate) first: usize,
    /// How many it has.
    pub(crate) count: usize,
    /// Bytes of a chunk.
    pub(crate) size: usize,
    /// Bytes that the kernel leaves free in front of a frame.
    pub(crate) headroom: usize,
}

/// Of a pool in a UMEM: what goes to the kernel, and what comes back.
impl FramePool {
    /// Pools whose small buffers are chunks of a UMEM, and whose large ones lie in `large`, as many in each.
    ///
    /// No two of all [`Chunks`] of a UMEM may overlap: its owner sees to that.
    ///
    /// # Panics
    /// If a region is too short.
    pub(crate) fn in_umem(chunks: Vec<Chunks>, large: Region, large_each: usize) -> Vec<Self> {
        let large = Arc::new(large);
        let pool = |(at, chunks): (usize, Chunks)| {
            let small = Class::new(
                (chunks.region, chunks.first * chunks.size),
                chunks.size,
                chunks.headroom,
                0,
                chunks.count,
            );
            let start = at * large_each * LARGE_STRIDE;
            let large = Class::new(
                (Arc::clone(&large), start),
                LARGE_STRIDE,
                HEADROOM,
                small.count,
                large_each,
            );
            Self {
                lent: vec![false; small.count],
                ..Self::new(small, large)
            }
        };
        chunks.into_iter().enumerate().map(pool).collect()
    }

    /// Takes a small buffer for the kernel to receive into, if one is free; returns its place among the pool's chunks.
    #[inline]
    pub(crate) fn lend_free(&mut self) -> Option<u32> {
        if self.lent.is_empty() {
            return None;
        }
        let index = self.small.free.pop()?;
        self.lent[index as usize] = true;
        Some(index)
    }

    /// Hands a frame to the kernel. `Err` with the frame if it is not in a chunk, or starts where the kernel's
    /// descriptor of the chunk does not.
    #[inline]
    pub(crate) fn lend(&mut self, frame: Frame) -> Result<u32, Frame> {
        debug_assert_eq!(frame.pool, self.tag, "frame of another pool");
        if !self.is_aligned(&frame) {
            return Err(frame);
        }
        self.lent[frame.index as usize] = true;
        Ok(frame.index)
    }

    /// Takes a lent chunk back with the frame that the kernel put there. `None` if it was not lent, or what is said of
    /// the frame is impossible: then it stays with the kernel.
    #[inline]
    pub(crate) fn take_back(&mut self, chunk: u32, offset: usize, len: usize) -> Option<Frame> {
        let lent = self.lent.get_mut(chunk as usize)?;
        if !*lent || offset + len > self.small.stride {
            return None;
        }
        *lent = false;
        Some(self.frame(chunk, offset as u32, len as u32))
    }

    /// Has the processor fetch the beginning of what is in a lent chunk, which will be taken back soon.
    #[inline]
    pub(crate) fn fetch_chunk(&self, chunk: u32, offset: usize) {
        if (chunk as usize) < self.lent.len() && offset < self.small.stride {
            let at = self.small.start + chunk as usize * self.small.stride + offset;
            fetch(self.small.region.mapping.as_ptr().wrapping_add(at));
        }
    }

    /// Takes a large buffer for a frame of `len` bytes, however short it is.
    pub(crate) fn alloc_large(&mut self, len: usize) -> Option<Frame> {
        if len > LARGE_FRAME {
            return None;
        }
        let index = self.large.free.pop()?;
        Some(self.frame(index, HEADROOM as u32, len as u32))
    }

    /// Whether a frame starts in a chunk where the kernel's descriptor of the chunk does.
    #[inline]
    pub(crate) fn is_aligned(&self, frame: &Frame) -> bool {
        let index = frame.index as usize;
        index < self.lent.len() && self.meta[index].offset as usize == self.small.headroom
    }

    /// Moves a frame in its chunk to where the kernel's descriptor starts. `false` if it is too long for that.
    pub(crate) fn align(&mut self, frame: &Frame) -> bool {
        let index = frame.index as usize;
        let (headroom, longest) = (self.small.headroom, self.small.longest());
        let meta = self.meta[index];
        if index >= self.lent.len() || meta.len as usize > longest {
            return false;
        }
        let (from, to) = (meta.offset as usize, headroom);
        let whole = &mut self.meta[index];
        let start = from.min(to);
        // The whole range that is read or written, for a moment.
        (whole.offset, whole.len) = (start as u32, (from.max(to) - start) as u32 + meta.len);
        let bytes = self.bytes_mut(frame);
        let len = meta.len as usize;
        bytes.copy_within(from - start..from - start + len, to - start);
        let aligned = &mut self.meta[index];
        (aligned.offset, aligned.len) = (headroom as u32, meta.len);
        true
    }

    /// Bytes of its small and of its large buffers, and whether they lie on huge pages.
    pub(crate) fn pages(&self) -> [(usize, bool); 2] {
        [&self.small, &self.large].map(|class| (class.count * class.stride, class.region.is_huge()))
    }

    /// The longest frame that fits one chunk.
    pub(crate) fn longest_small(&self) -> usize {
        self.small.longest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HugePages;

    const CHUNKS: usize = 4;

    /// Two pools in ordinary memory that stands in for a UMEM.
    fn pools() -> Vec<FramePool> {
        let (size, headroom) = (4096, 256);
        let region = Region::map(2 * CHUNKS * size, HugePages::Off).unwrap();
        let region = Arc::new(region);
        let chunks = [0, CHUNKS].map(|first| Chunks {
            region: Arc::clone(&region),
            first,
            count: CHUNKS,
            size,
            headroom,
        });
        let large = Region::map(2 * LARGE_STRIDE, HugePages::Off).unwrap();
        FramePool::in_umem(chunks.into(), large, 1)
    }

    #[test]
    fn only_what_is_lent_is_taken_back_and_once() {
        let mut pool = pools().remove(1);
        let chunk = pool.lend_free().unwrap();
        for foreign in [chunk + 1, CHUNKS as u32, u32::MAX] {
            assert!(pool.take_back(foreign, 256, 60).is_none(), "{foreign}");
        }
        // What is impossible leaves it lent.
        assert!(pool.take_back(chunk, 256, 3841).is_none());
        let frame = pool.take_back(chunk, 256, 3840).unwrap();
        assert!(pool.take_back(chunk, 256, 60).is_none());
        assert_eq!(pool.bytes(&frame).len(), 3840);
        assert_eq!(pool.lend(frame).unwrap(), chunk);
        assert_eq!(pool.outstanding(), 1);
        let frame = pool.take_back(chunk, 0, 0).unwrap();
        pool.free(frame);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn all_chunks_can_be_lent_and_large_buffers_never() {
        let mut pool = pools().remove(0);
        let lent: Vec<u32> = std::iter::from_fn(|| pool.lend_free()).collect();
        assert_eq!(lent.len(), CHUNKS);
        let large = pool.alloc(3841).unwrap();
        let large = pool.lend(large).unwrap_err();
        assert!(!pool.align(&large));
        pool.free(large);
        assert_eq!(pool.outstanding(), CHUNKS);
    }

    #[test]
    fn a_frame_whose_start_has_moved_is_lent_after_it_is_moved_back() {
        let mut pool = pools().remove(0);
        let bytes: Vec<u8> = (0..100).collect();
        let frame = pool.alloc_copy(&bytes).unwrap();
        assert!(pool.insert(&frame, 12, &[9; 4]));
        let frame = pool.lend(frame).unwrap_err();
        assert!(pool.align(&frame));
        let tagged = [&bytes[..12], &[9; 4], &bytes[12..]].concat();
        assert_eq!(pool.bytes(&frame), tagged);
        let chunk = pool.lend(frame).unwrap();
        // And from behind, where a driver has put it.
        let frame = pool.take_back(chunk, 300, 104).unwrap();
        pool.bytes_mut(&frame).copy_from_slice(&tagged);
        assert!(pool.align(&frame) && pool.is_aligned(&frame));
        assert_eq!(pool.bytes(&frame), tagged);
        pool.free(frame);
        // No room at the standard place.
        let full = pool.alloc(3840).unwrap();
        assert!(pool.insert(&full, 12, &[9; 4]));
        assert!(!pool.align(&full));
        pool.free(full);
    }

    #[test]
    fn pieces_of_frames_are_copied() {
        let mut pool = pools().remove(0);
        let from = pool.alloc_copy(&[1, 2, 3, 4, 5]).unwrap();
        let to = pool.alloc_large(6).unwrap();
        pool.bytes_mut(&to).fill(0);
        pool.copy((&from, 1), (&to, 2), 3);
        assert_eq!(pool.bytes(&to), [0, 0, 2, 3, 4, 0]);
        pool.free(from);
        pool.free(to);
    }
}
