//! Random numbers that are the same on every machine.
//!
//! Each effect of each link has a stream of its own, so to add one effect, or one link, changes nothing for the others.
//! ChaCha with 8 rounds is fixed by a published algorithm, not by a library's version.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// What random numbers are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    /// The queue's discipline.
    Queue = 1,
    Slot,
    Jitter,
    Reorder,
    Loss,
    Duplicate,
    Corrupt,
}

/// The random numbers of one effect of one link.
#[derive(Clone, Debug)]
pub(super) struct Draws {
    rng: ChaCha8Rng,
}

impl Draws {
    /// Those that derive from `seed` for the link `name` (`a>b`).
    pub(super) fn new(seed: u64, name: &str, stream: Stream) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&fnv1a(name).to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(stream as u64);
        Self { rng }
    }

    /// The next number.
    #[inline]
    pub(super) fn next(&mut self) -> u32 {
        self.rng.next_u32()
    }

    /// The next number below `bound`, which is not zero. (The bias is below `bound` / 2³².)
    #[inline]
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.rng.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }
}

/// A seed for who gives none: another one at every call.
pub(super) fn any() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // What the standard library seeds its maps with comes from the system. 32 bits: short enough to be typed again.
    RandomState::new().hash_one(0) >> 32
}

/// Fowler, Noll and Vo's hash: names become numbers.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
