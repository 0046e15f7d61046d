//! Counters: written by one lane, read by anybody at any time.
//!
//! A lane counts in a plain [`Tally`] and publishes it once a turn into its [`Counters`]. A reader gets a [`Tally`] that
//! existed at some moment, never a mixture of two: so **conservation** holds in every snapshot,
//!
//! ```text
//! received + created = sent + dropped (by reason) + held        in packets
//! ```
//!
//! where a super-frame counts as many packets as it has segments.

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence};

/// Why a packet was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// The transmit side took nothing: its ring or socket buffer was full.
    TxFull,
    /// No buffer was free for a frame that a stage had to make.
    PoolEmpty,
    /// Longer than the interface may send (its MTU), or than any buffer.
    Oversize,
    /// The kernel cut it on the way in.
    Truncated,
    /// The interface it should leave by was down or gone.
    LinkDown,
    /// A filter rejected it.
    Filtered,
    /// A super-frame that neither the kernel nor we can split.
    GsoUnsupported,
    /// A link stage had no room to hold it.
    QueueFull,
    /// The kernel refused to send it.
    Refused,
    /// The relay was stopped before it could leave.
    Stopped,
    /// There were more multicast and broadcast packets than the storm guard lets pass.
    Storm,
}

impl Reason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();
    /// All of them, in the order of [`Tally::dropped`].
    pub const ALL: [Self; 11] = [
        Self::TxFull,
        Self::PoolEmpty,
        Self::Oversize,
        Self::Truncated,
        Self::LinkDown,
        Self::Filtered,
        Self::GsoUnsupported,
        Self::QueueFull,
        Self::Refused,
        Self::Stopped,
        Self::Storm,
    ];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::TxFull => "tx_full",
            Self::PoolEmpty => "pool_empty",
            Self::Oversize => "oversize",
            Self::Truncated => "truncated",
            Self::LinkDown => "link_down",
            Self::Filtered => "filtered",
            Self::GsoUnsupported => "gso_unsupported",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Stopped => "stopped",
            Self::Storm => "storm",
        }
    }
}

/// What a lane has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, without FCS; a super-frame counts with its own length.
    pub rx_bytes: u64,
    /// Packets accepted by the kernel for sending.
    pub tx_packets: u64,
    /// Bytes accepted by the kernel for sending.
    pub tx_bytes: u64,
    /// Packets that stages made: duplicates and the like.
    pub created: u64,
    /// Packets inside the lane: in a stage, or in a transmit queue that the kernel has not taken.
    pub held: u64,
    /// Packets the kernel dropped before the lane saw them, because nothing took them in time. Not part of `rx_packets`.
    pub kernel_drops: u64,
    /// Packets discarded, in the order of [`Reason::ALL`].
    pub dropped: [u64; Reason::COUNT],
}

impl Tally {
    const WORDS: usize = 7 + Reason::COUNT;

    /// Counts packets received.
    #[inline]
    pub fn received(&mut self, packets: u32, bytes: usize) {
        self.rx_packets += u64::from(packets);
        self.rx_bytes += bytes as u64;
    }

    /// Counts packets sent.
    #[inline]
    pub fn sent(&mut self, packets: u32, bytes: usize) {
        self.tx_packets += u64::from(packets);
        self.tx_bytes += bytes as u64;
    }

    /// Packets discarded for whatever reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Packets discarded for one reason.
    pub fn dropped_for(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Whether the conservation law holds.
    pub fn is_conserved(&self) -> bool {
        self.rx_packets + self.created == self.tx_packets + self.dropped_total() + self.held
    }

    /// Adds another tally, for totals.
    pub fn add(&mut self, other: &Self) {
        let (mut sum, words) = (self.to_words(), other.to_words());
        sum.iter_mut()
            .zip(words)
            .for_each(|(sum, word)| *sum += word);
        *self = Self::from_words(sum);
    }

    /// What to take off from now on, so that counting begins anew. What is held counts as just received, for it is yet to be
    /// sent or dropped: so the conservation law goes on.
    pub fn baseline(&self) -> Self {
        let received = self.held.min(self.rx_packets);
        Self {
            rx_packets: self.rx_packets - received,
            created: self.created - (self.held - received),
            held: 0,
            ..*self
        }
    }

    /// Counted since a [`baseline`](Self::baseline).
    pub fn since(&self, base: &Self) -> Self {
        let (mut words, base) = (self.to_words(), base.to_words());
        words
            .iter_mut()
            .zip(base)
            .for_each(|(word, base)| *word -= base);
        Self::from_words(words)
    }

    fn to_words(self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[..7].copy_from_slice(&[
            self.rx_packets,
            self.rx_bytes,
            self.tx_packets,
            self.tx_bytes,
            self.created,
            self.held,
            self.kernel_drops,
        ]);
        words[7..].copy_from_slice(&self.dropped);
        words
    }

    fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            created,
            held,
            kernel_drops,
            dropped @ ..,
        ] = words;
        Self {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            created,
            held,
            kernel_drops,
            dropped,
        }
    }
}

/// A tally that others may read while its lane writes it.
#[derive(Debug, Default)]
pub struct Counters {
    words: SequenceLock<{ Tally::WORDS }>,
    levels: SequenceLock<3>,
}

/// How full a lane's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Buffers of the pool that are in use, by the lane or by the kernel.
    pub pool_used: u64,
    /// Buffers that the pool has.
    pub pool_size: u64,
    /// Frames that the transmit side would take now.
    pub tx_room: u64,
}

impl Counters {
    /// Publishes a tally. Only the lane that owns the counters may call it.
    #[inline]
    pub fn publish(&self, tally: &Tally) {
        self.words.write(tally.to_words());
    }

    /// Publishes levels. Only the lane that owns the counters may call it.
    pub fn publish_levels(&self, levels: Levels) {
        let Levels {
            pool_used,
            pool_size,
            tx_room,
        } = levels;
        self.levels.write([pool_used, pool_size, tx_room]);
    }

    /// The levels as they were when the kernel's counters were last asked for.
    pub fn levels(&self) -> Levels {
        let [pool_used, pool_size, tx_room] = self.levels.read();
        Levels {
            pool_used,
            pool_size,
            tx_room,
        }
    }

    /// The tally as it was published last.
    pub fn read(&self) -> Tally {
        Tally::from_words(self.words.read())
    }
}

/// Words with one writer, who never waits. A reader that meets a write in progress tries again.
#[derive(Debug)]
pub(crate) struct SequenceLock<const N: usize> {
    /// Odd while the words are being written.
    version: CachePadded<AtomicU64>,
    words: CachePadded<[AtomicU64; N]>,
}

impl<const N: usize> Default for SequenceLock<N> {
    fn default() -> Self {
        Self {
            version: CachePadded::new(AtomicU64::new(0)),
            words: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

impl<const N: usize> SequenceLock<N> {
    #[inline]
    pub(crate) fn write(&self, values: [u64; N]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Whoever reads a new word also sees the odd version (fence to fence with `read`).
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    pub(crate) fn read(&self) -> [u64; N] {
        loop {
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let values = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return values;
                }
            }
            crate::sync::spin_loop();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn words_survive() {
        let words = std::array::from_fn(|at| at as u64 + 1);
        assert_eq!(Tally::from_words(words).to_words(), words);
    }

    #[test]
    fn counting_anew_keeps_the_law() {
        let mut tally = Tally {
            rx_packets: 5,
            created: 4,
            tx_packets: 1,
            held: 7,
            ..Tally::default()
        };
        tally.dropped[3] = 1;
        let base = tally.baseline();
        let since = tally.since(&base);
        assert_eq!((since.rx_packets, since.created, since.held), (5, 2, 7));
        assert!(since.is_conserved());
        (tally.held, tally.tx_packets, tally.rx_packets) = (0, 11, 8);
        assert!(tally.is_conserved() && tally.since(&base).is_conserved());
        assert_eq!(tally.since(&base).tx_packets, 10);
    }

    #[test]
    fn names_are_unique_and_ordered() {
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert_eq!(
                Reason::ALL
                    .iter()
                    .filter(|other| other.name() == reason.name())
                    .count(),
                1
            );
        }
    }

    #[test]
    fn every_snapshot_is_conserved_while_a_lane_writes() {
        let counters = Arc::new(Counters::default());
        let writer = Arc::clone(&counters);
        let thread = std::thread::spawn(move || {
            let mut tally = Tally::default();
            for n in 0..200_000u64 {
                tally.received(3, 180);
                tally.sent(1, 60);
                tally.dropped[n as usize % Reason::COUNT] += 1;
                tally.held += 1;
                writer.publish(&tally);
            }
        });
        let mut last = 0;
        while !thread.is_finished() {
            let tally = counters.read();
            assert!(tally.is_conserved(), "{tally:?}");
            assert!(tally.rx_packets >= last);
            last = tally.rx_packets;
        }
        thread.join().unwrap();
        assert_eq!(counters.read().rx_packets, 600_000);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    /// With two words, every interleaving; more words only make more of the same.
    #[test]
    fn a_reader_never_sees_a_mixture() {
        loom::model(|| {
            let lock = Arc::new(SequenceLock::<2>::default());
            let writer = Arc::clone(&lock);
            let thread = loom::thread::spawn(move || {
                writer.write([1, 1]);
            });
            let [a, b] = lock.read();
            assert_eq!(a, b);
            thread.join().unwrap();
            assert_eq!(lock.read(), [1, 1]);
        });
    }
}
