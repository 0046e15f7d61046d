//! Taps: copies of the frames that pass a point of a lane, for captures and observers.
//!
//! A [`Tap`] sits in a lane, before its other stages or behind them, and copies what its filter matches into a ring of bytes; an
//! [`Observer`] in another thread takes the copies out. Forwarding never waits for it: when the ring is full the copy is lost and
//! counted, and the frame goes on. A lane without a tap runs no code for it.
//!
//! ```
//! use l2relay::{
//!     lane::Lane, memory::{FramePool, PoolSize}, port::memory::{self, Packet}, stage::tap::{Point, Tap, TapSettings},
//! };
//!
//! let (rx, _, mut left) = memory::port(16, 1514);
//! let (_, tx, right) = memory::port(16, 1514);
//! let pool = FramePool::ordinary(PoolSize { small: 64, large: 0 })?;
//! let mut lane = Lane::new(Box::new(rx), Vec::new(), Box::new(tx), pool);
//!
//! let (tap, mut observer) = Tap::open(Point::Before, TapSettings { snaplen: 14, ..TapSettings::default() });
//! lane.add_tap(tap);
//! left.send(Packet::new(&[7; 60])).unwrap();
//! lane.turn(1_000);
//!
//! let copy = observer.receive().unwrap();
//! assert_eq!((copy.time_ns, copy.len, &copy.bytes[..]), (1_000, 60, &[7; 14][..]));
//! # let _ = right;
//! # Ok::<(), l2relay::error::Error>(())
//! ```

pub mod bpf;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crossbeam::utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};

use self::bpf::Program;
use super::Stage;
use crate::{
    burst::Burst,
    lane::Turn,
    memory::{LARGE_FRAME, Meta, Offload},
};

/// Where in a lane a tap sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the other stages: frames as they were received, with the time of their arrival.
    Before,
    /// Behind them: frames as they are handed over to be sent, with the time of that. Some may be discarded yet, if the port can't send
    /// them.
    After,
}

/// What a tap copies.
#[derive(Clone, Debug)]
pub struct TapSettings {
    /// Which frames; `None`: all.
    pub filter: Option<Program>,
    /// How much of each, in bytes.
    pub snaplen: u32,
    /// Room for copies that nobody has taken yet, in bytes; at least [`TapSettings::BUFFER_MIN`].
    pub buffer: usize,
}

impl TapSettings {
    /// Least room: one frame of any length fits.
    pub const BUFFER_MIN: usize = LARGE_FRAME + HEADER;
    /// Room if nothing else is said: 40 ms of a million small frames a second.
    pub const BUFFER: usize = 4 << 20;
}

impl Default for TapSettings {
    fn default() -> Self {
        Self {
            filter: None,
            snaplen: u32::MAX,
            buffer: Self::BUFFER,
        }
    }
}

/// A copy of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When it passed, in ns of the lane's clock.
    pub time_ns: u64,
    /// Its beginning, as much as was wanted.
    pub bytes: Vec<u8>,
    /// Its whole length in bytes. A super-frame has its own.
    pub len: u32,
    /// Packets that it stands for: 1, or the segments of a super-frame.
    pub segments: u32,
    /// What was left to do for its checksum and its segmentation.
    pub offload: Offload,
}

/// What a tap has counted, in frames: a super-frame is one.
///
/// When all copies have been taken, `matched` is what was taken and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounts {
    /// Frames that passed.
    pub seen: u64,
    /// Those that the filter matched.
    pub matched: u64,
    /// Those of them of which no copy could be made, because the ring was full.
    pub lost: u64,
}

/// The end in the lane.
#[derive(Debug)]
pub struct Tap {
    id: u64,
    point: Point,
    filter: Option<Program>,
    snaplen: u32,
    ring: Producer<u8>,
    counts: TapCounts,
    shared: Arc<Shared>,
}

/// The end of whoever looks.
#[derive(Debug)]
pub struct Observer {
    tap: u64,
    ring: Consumer<u8>,
    /// Of a copy whose bytes are still being written.
    header: Option<[u8; HEADER]>,
    shared: Arc<Shared>,
}

/// Written by the tap alone.
type Shared = CachePadded<[AtomicU64; 3]>;

/// Bytes in front of each copy in the ring: length of the copy, length of the frame, time, segments, offload state.
const HEADER: usize = 20 + Offload::LEN;

impl Tap {
    /// Both ends.
    pub fn open(point: Point, settings: TapSettings) -> (Self, Observer) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (mut producer, mut consumer) =
            RingBuffer::new(settings.buffer.max(TapSettings::BUFFER_MIN));
        // Every page is touched here: the worker would pay for each fault.
        if let Ok(all) = producer.write_chunk(producer.slots()) {
            all.commit_all();
        }
        if let Ok(all) = consumer.read_chunk(consumer.slots()) {
            all.commit_all();
        }
        let shared = Arc::<Shared>::default();
        let tap = Self {
            id,
            point,
            filter: settings.filter,
            snaplen: settings.snaplen,
            ring: producer,
            counts: TapCounts::default(),
            shared: Arc::clone(&shared),
        };
        let observer = Observer {
            tap: id,
            ring: consumer,
            header: None,
            shared,
        };
        (tap, observer)
    }

    /// Unlike that of any other tap of this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it belongs.
    pub fn point(&self) -> Point {
        self.point
    }

    /// Copies what matches. Once nobody looks any more, nothing does.
    pub fn copy(&mut self, burst: &Burst, turn: &Turn) {
        if burst.is_empty() || self.ring.is_abandoned() {
            return;
        }
        for frame in burst.iter() {
            let bytes = turn.pool.bytes(frame);
            let wanted = match &self.filter {
                Some(filter) => filter.run(bytes, bytes.len()).min(self.snaplen),
                None => self.snaplen,
            };
            if wanted > 0 {
                self.push(bytes, wanted as usize, turn.pool.meta(frame), turn.now_ns);
            }
        }
        self.counts.seen += burst.len() as u64;
        let TapCounts {
            seen,
            matched,
            lost,
        } = self.counts;
        for (shared, count) in self.shared.iter().zip([seen, matched, lost]) {
            shared.store(count, Ordering::Release);
        }
    }

    fn push(&mut self, frame: &[u8], wanted: usize, meta: &Meta, now_ns: u64) {
        self.counts.matched += 1;
        let bytes = &frame[..wanted.min(frame.len())];
        if self.ring.slots() < HEADER + bytes.len() {
            self.counts.lost += 1;
            return;
        }
        let time_ns = match self.point {
            Point::Before => meta.arrival_ns,
            Point::After => now_ns,
        };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        header[8..16].copy_from_slice(&time_ns.to_ne_bytes());
        header[16..20].copy_from_slice(&meta.segments.to_ne_bytes());
        header[20..].copy_from_slice(&meta.offload.to_bytes());
        // There is room for both: only this end adds.
        let _ = self.ring.push_entire_slice(&header);
        let _ = self.ring.push_entire_slice(bytes);
    }
}

/// For lanes that are built with it: it changes nothing.
impl Stage for Tap {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        self.copy(burst, turn);
    }
}

impl Observer {
    /// The [id](Tap::id) of the other end.
    pub fn tap(&self) -> u64 {
        self.tap
    }

    /// The oldest copy that was not taken yet; `None`: there is none now.
    pub fn receive(&mut self) -> Option<Copied> {
        let header = match self.header.take() {
            Some(header) => header,
            None => {
                let mut header = [0; HEADER];
                self.ring.pop_entire_slice(&mut header).ok()?;
                header
            }
        };
        let number =
            |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte: usize| header[at + byte]));
        let mut bytes = vec![0; number(0) as usize];
        if self.ring.pop_entire_slice(&mut bytes).is_err() {
            self.header = Some(header);
            return None;
        }
        let time_ns = [0, 1, 2, 3, 4, 5, 6, 7].map(|byte: usize| header[8 + byte]);
        let mut offload = [0; Offload::LEN];
        offload.copy_from_slice(&header[20..]);
        Some(Copied {
            time_ns: u64::from_ne_bytes(time_ns),
            bytes,
            len: number(4),
            segments: number(16),
            offload: Offload::from_bytes(&offload),
        })
    }

    /// Whether the tap is gone. What it copied before can still be taken.
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// What the tap has counted.
    pub fn counts(&self) -> TapCounts {
        let [seen, matched, lost] =
            [0, 1, 2].map(|at: usize| self.shared[at].load(Ordering::Acquire));
        TapCounts {
            seen,
            matched,
            lost,
        }
    }
}
