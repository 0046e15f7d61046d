//! What a link does, as typed values: [`Settings`] is immutable, and a running link takes another in its place.
//!
//! Filled by the grammar ([`Settings::parse`]) or by an embedder; [`Settings::mistakes`] finds what can't be.

use std::{sync::Arc, time::Duration};

use super::{
    jitter::Table,
    schedule::Schedule,
    trace::{Trace, read_text},
};
use crate::text::beginning;

/// A line in one direction. The default passes everything at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How fast frames leave. `None`: at once.
    pub server: Option<Server>,
    /// What waits for that, and what is dropped instead.
    pub queue: Queue,
    /// Delivery in batches.
    pub slot: Option<Slot>,
    /// How long each frame is on its way.
    pub delay: Delay,
    /// Frames that skip the delay, and so overtake.
    pub reorder: Option<Reorder>,
    /// Frames that are lost.
    pub loss: Option<Loss>,
    /// Frames that arrive twice.
    pub duplicate: Option<Chance>,
    /// Frames that arrive with one bit wrong, their checksums kept.
    pub corrupt: Option<Chance>,
    /// What changes by itself over time.
    pub schedule: Schedule,
    /// In which order the effects come.
    pub order: [Effect; Effect::COUNT],
    /// What all random decisions derive from. `None`: another one at every start.
    pub seed: Option<u64>,
    /// Most bytes of memory for frames held, their bookkeeping included: 64 KiB to 64 GiB.
    pub memory: u64,
}

/// The effects, in their default order: a frame is serialised, then delayed, then lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Queue and rate (or trace).
    Rate,
    /// Slots.
    Slot,
    /// Delay, jitter and reordering.
    Delay,
    /// Loss.
    Loss,
    /// Duplication.
    Duplicate,
    /// Corruption.
    Corrupt,
}

impl Effect {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
    /// All of them, in the default order.
    pub const ALL: [Self; 6] = [
        Self::Rate,
        Self::Slot,
        Self::Delay,
        Self::Loss,
        Self::Duplicate,
        Self::Corrupt,
    ];

    /// The name in the grammar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Slot => "slot",
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::Duplicate => "duplicate",
            Self::Corrupt => "corrupt",
        }
    }
}

/// How fast frames leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A constant rate.
    Rate(Rate),
    /// Opportunities to send 1500 bytes, from a mahimahi trace.
    Trace {
        /// When they are.
        trace: Arc<Trace>,
        /// Whether the trace ends instead of beginning anew: then nothing leaves any more.
        once: bool,
        /// Which bytes count.
        count: Count,
    },
}

/// A constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In bits per second: 100 to 10^12.
    pub bps: u64,
    /// Which bytes count.
    pub count: Count,
    /// Bytes counted more (or fewer) for each frame: −1000 to 1000.
    pub overhead: i32,
    /// Where frames travel in cells of that many bytes, a part of one costs a whole one (ATM: 53, with 48 of payload).
    pub cell: Option<u32>,
}

/// Which bytes of a frame count for a rate or for a queue in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// The packet in the frame: 1500 for a full one.
    L3,
    /// The frame without its check sequence, as Linux counts: 1514.
    #[default]
    L2,
    /// What it takes on an Ethernet wire, with padding, check sequence, preamble and gap: 1538.
    Wire,
}

/// What waits in front of the rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Most that waits, the frame being sent included. `None`: [`Limit::DEFAULT`], or [`Limit::DEFAULT_TRACE`].
    pub limit: Option<Limit>,
    /// What is dropped, and when.
    pub discipline: Discipline,
}

/// The length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// In packets.
    Packets(u64),
    /// In bytes, as the rate counts them.
    Bytes(u64),
    /// In time: a frame that would wait longer is dropped.
    Time(Duration),
}

impl Limit {
    /// With a rate: a frame waits at most 100 ms, or as long as [`Limit::DEFAULT_LEAST`] frames of full size take, if that is
    /// longer.
    pub const DEFAULT: Self = Self::Time(Duration::from_millis(100));
    /// Below some 1.2 Mbit/s the default is as many frames of full size.
    pub const DEFAULT_LEAST: u64 = 10;
    /// With a trace, whose future rate nobody knows.
    pub const DEFAULT_TRACE: Self = Self::Packets(1000);
}

/// What a queue drops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// The frame that finds it full.
    #[default]
    DropTail,
    /// The frame that has waited longest, when another finds it full.
    DropHead,
    /// Random early detection (Floyd and Jacobson 1993, gentle).
    Red(Red),
    /// Controlled delay (RFC 8289).
    CoDel(CoDel),
    /// Proportional integral controller enhanced (RFC 8033).
    Pie(Pie),
}

/// Random early detection. Between `min` and `max` of the average length the probability grows to `probability`, and
/// from there to twice `max` it grows to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Where early drops begin: packets or bytes.
    pub min: Limit,
    /// Where `probability` is reached, in the same unit.
    pub max: Limit,
    /// The probability at `max`.
    pub probability: Probability,
    /// The weight of a new sample in the average: 0.002 is usual.
    pub weight: Probability,
    /// Mark frames that can be marked instead.
    pub ecn: bool,
}

/// Controlled delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// The standing delay that is tolerated.
    pub target: Duration,
    /// For how long it may be exceeded.
    pub interval: Duration,
    /// Mark frames that can be marked instead.
    pub ecn: bool,
}

impl Default for CoDel {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: false,
        }
    }
}

/// Proportional integral controller enhanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pie {
    /// The delay that is aimed at.
    pub target: Duration,
    /// How often the probability is computed.
    pub update: Duration,
    /// Mark frames that can be marked instead, below a probability of 10 %.
    pub ecn: bool,
}

impl Default for Pie {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(15),
            update: Duration::from_millis(15),
            ecn: false,
        }
    }
}

/// Frames wait for a slot, then leave together. The first that waits asks for one, and gets it after a random time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The shortest time until a slot.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
    /// Most packets in one.
    pub packets: Option<u64>,
    /// Most bytes in one (layer 2).
    pub bytes: Option<u64>,
}

/// How long a frame is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Without jitter: 0 to an hour.
    pub base: Duration,
    /// What varies.
    pub jitter: Option<Jitter>,
}

/// How a delay varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// Half the width of the uniform distribution; the unit of the others (their standard deviation, by and large).
    pub spread: Duration,
    /// How much the next resembles the last. The distribution stays what it is.
    pub correlation: Probability,
    /// The distribution.
    pub shape: Shape,
    /// Whether a frame may overtake another by being delayed less. Otherwise it waits for the one before it.
    pub unordered: bool,
}

/// A distribution of jitter. What would be below zero in all is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Equally likely everywhere.
    #[default]
    Uniform,
    /// The bell.
    Normal,
    /// A long tail: Pareto with shape 3, moved and scaled as in iproute2.
    Pareto,
    /// From a file of iproute2's form: numbers in units of 1/8192 of the spread.
    Table(Arc<Table>),
}

/// Frames that skip the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// How likely.
    pub chance: Chance,
    /// Of that many frames at most the last skips it; 0 and 1: any.
    pub gap: u32,
}

/// Frames that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Which.
    pub model: LossModel,
    /// Mark frames that can be marked instead.
    pub ecn: bool,
}

/// Which frames are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossModel {
    /// Each with the same probability.
    Random(Chance),
    /// Gilbert and Elliott: a good and a bad state, each with its own loss.
    GilbertElliott {
        /// From good to bad.
        p: Probability,
        /// From bad to good.
        r: Probability,
        /// Loss in the bad state (1−h).
        bad: Probability,
        /// Loss in the good state (1−k).
        good: Probability,
    },
    /// Salsano's four states: 1 received in a gap, 2 received in a burst, 3 lost in a burst, 4 lost alone.
    Markov {
        /// From 1 to 3.
        p13: Probability,
        /// From 3 to 1.
        p31: Probability,
        /// From 3 to 2.
        p32: Probability,
        /// From 2 to 3.
        p23: Probability,
        /// From 1 to 4.
        p14: Probability,
    },
    /// By place, over and over.
    Pattern(Arc<Pattern>),
}

/// Which frames are lost, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    words: String,
    lost: Box<[bool]>,
}

impl Pattern {
    /// The longest, in frames.
    const MAX: usize = 1 << 20;

    /// From one character a frame, `1` is lost and `0` is not; or from a file of them: `file:PATH`, with spaces and line
    /// ends as you like.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn parse(words: &str) -> Result<Self, String> {
        let text = match words.strip_prefix("file:") {
            Some(path) => &read_text(path, 2 * Self::MAX as u64, "pattern")?,
            None => words,
        };
        let places = text.bytes().filter(|place| !place.is_ascii_whitespace());
        let lost: Option<Box<[bool]>> = places
            .map(|place| match place {
                b'0' => Some(false),
                b'1' => Some(true),
                _ => None,
            })
            .collect();
        let lost = lost.filter(|lost| (1..=Self::MAX).contains(&lost.len()));
        let lost = lost.ok_or_else(|| {
            format!(
                "pattern {:?}: write 0 and 1, one a frame, 1 is lost (at most {})",
                beginning(words),
                Self::MAX
            )
        })?;
        Ok(Self {
            words: words.to_owned(),
            lost,
        })
    }

    /// As it was written.
    pub(super) fn words(&self) -> &str {
        &self.words
    }

    /// Whether each frame is lost; at least one.
    pub(super) fn lost(&self) -> &[bool] {
        &self.lost
    }
}

/// A probability, in steps of 2⁻³².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u64);

impl Probability {
    /// Certain.
    pub const ONE: Self = Self(1 << 32);
    /// Impossible.
    pub const ZERO: Self = Self(0);

    /// From a number between 0 and 1; `None` outside.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0)
            .contains(&value)
            .then(|| Self((value * 4_294_967_296.0).round() as u64))
    }

    /// As a number between 0 and 1.
    pub fn value(self) -> f64 {
        self.0 as f64 / 4_294_967_296.0
    }

    /// In steps of 2⁻³².
    pub(super) fn raw(self) -> u64 {
        self.0
    }

    /// From steps of 2⁻³²; more than [`Probability::ONE`] is that.
    pub(super) fn from_raw(raw: u64) -> Self {
        Self(raw.min(1 << 32))
    }

    /// Whether an event of this probability happens with this draw.
    #[inline]
    pub(super) fn hits(self, draw: u32) -> bool {
        u64::from(draw) < self.0
    }

    /// What is left to [`Probability::ONE`].
    pub(super) fn complement(self) -> Self {
        Self((1 << 32) - self.0)
    }

    /// Both.
    pub(super) fn times(self, other: Self) -> Self {
        Self(((u128::from(self.0) * u128::from(other.0)) >> 32) as u64)
    }
}

/// How often something happens, and how much that depends on whether it happened to the frame before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance {
    /// In the long run.
    pub probability: Probability,
    /// Between one frame and the next. The long run stays what it is.
    pub correlation: Probability,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: None,
            queue: Queue::default(),
            slot: None,
            delay: Delay::default(),
            reorder: None,
            loss: None,
            duplicate: None,
            corrupt: None,
            schedule: Schedule::default(),
            order: Effect::ALL,
            seed: None,
            memory: Self::MEMORY,
        }
    }
}
