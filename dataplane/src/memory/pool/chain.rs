//! Chains: one frame in several buffers, as merged frames leave.
//!
//! Made by coalescing, behind all stages; read by transmit queues. A chain is one [`Frame`], the right to its first buffer,
//! which owns the others: they have no `Frame` of their own any more, and are freed with it.

#![deny(unsafe_code)]

use super::FramePool;
use crate::memory::Frame;

/// Up to so many bytes are copied to the end of a chain, if there is room; more stay where they are. An entry of an
/// iovec costs the kernel more than copying so much costs us, which has just summed it up (figures: docs/decisions/0010-coalescing.md).
const COPY_UP_TO: usize = 256;

impl FramePool {
    /// Adds what `frame` has from byte `from` on to the end of `chain`, and takes `frame` in.
    ///
    /// # Panics
    /// If a frame is of another pool, or `frame` is shorter than that, or a chain itself.
    #[inline]
    pub(crate) fn append(&mut self, chain: &Frame, frame: Frame, from: usize) {
        assert!(
            chain.pool == self.tag && frame.pool == self.tag && chain.index != frame.index,
            "two frames of this pool"
        );
        let (head, index) = (chain.index as usize, frame.index as usize);
        let tail = match self.meta[head].next {
            0 => head,
            _ => self.meta[head].last as usize,
        };
        let added = self.meta[index];
        assert!(from <= added.len as usize && added.next == 0, "one buffer");
        let len = added.len - from as u32;
        let end = self.meta[tail].offset + self.meta[tail].len;
        let room = self.class(tail).0.stride as u32 - end;
        if len as usize <= COPY_UP_TO && len <= room {
            let to_len = self.meta[tail].len;
            self.meta[tail].len += len;
            let to = (tail as u32, to_len as usize);
            self.copy_buffer((frame.index, from), to, len as usize);
            if tail != head {
                self.meta[head].rest += len;
            }
            self.free(frame);
        } else {
            let meta = &mut self.meta[index];
            (meta.offset, meta.len) = (meta.offset + from as u32, len);
            self.meta[tail].next = frame.index + 1;
            let meta = &mut self.meta[head];
            (meta.last, meta.rest) = (frame.index, meta.rest + len);
        }
    }

    /// The bytes of a frame, in order: one piece, or those of a chain.
    #[inline]
    pub fn parts<'a>(&'a self, frame: &Frame) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        debug_assert_eq!(frame.pool, self.tag, "frame of another pool");
        let mut next = frame.index + 1;
        std::iter::from_fn(move || {
            let index = next.checked_sub(1)?;
            next = self.meta[index as usize].next;
            Some(self.slice(index))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PoolSize;
    use proptest::prelude::*;

    proptest! {
        /// Against a model: one vector. Nothing else changes, and nothing is lost.
        #[test]
        fn a_chain_has_the_bytes_of_all(
            first in prop::collection::vec(any::<u8>(), 0..1984),
            others in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..1984), any::<prop::sample::Index>()), 0..40),
        ) {
            let mut pool = FramePool::ordinary(PoolSize { small: 64, large: 0 }).unwrap();
            let witness = pool.alloc_copy(&[7; 1984]).unwrap();
            let chain = pool.alloc_copy(&first).unwrap();
            let mut model = first;
            for (bytes, from) in others {
                let from = from.index(bytes.len() + 1);
                let frame = pool.alloc_copy(&bytes).unwrap();
                pool.append(&chain, frame, from);
                model.extend_from_slice(&bytes[from..]);
                prop_assert_eq!(pool.len(&chain), model.len());
            }
            prop_assert_eq!(pool.parts(&chain).collect::<Vec<_>>().concat(), model);
            prop_assert_eq!(pool.bytes(&witness), [7; 1984]);
            pool.free(chain);
            pool.free(witness);
            prop_assert_eq!(pool.outstanding(), 0);
        }
    }

    #[test]
    fn short_pieces_are_copied_and_long_ones_linked() {
        let mut pool = FramePool::ordinary(PoolSize { small: 4, large: 0 }).unwrap();
        let chain = pool.alloc_copy(&[1; 60]).unwrap();
        for (len, used) in [(COPY_UP_TO, 1), (COPY_UP_TO + 1, 2), (10, 2)] {
            let frame = pool.alloc_copy(&vec![2; len]).unwrap();
            pool.append(&chain, frame, 0);
            assert_eq!(pool.outstanding(), used);
        }
        assert_eq!(pool.parts(&chain).count(), 2);
        pool.free(chain);
        assert_eq!(pool.outstanding(), 0);
    }
}
