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
    /// Room for copies that nobody has taken yet, in bytes; each tap has at least [`TapSettings::BUFFER_MIN`].
    pub buffer: usize,
}

impl TapSettings {
    /// Least room: one frame of any length fits.
    pub const BUFFER_MIN: usize = LARGE_FRAME + HEADER;
    /// Room if nothing else is said: 160 ms of a million small frames a second.
    pub const BUFFER: usize = 16 << 20;
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
/// When all copies have been taken, `matched` is what was taken and what was lost. At a port of a pair that the kernel carries, what the
/// filter rejects stays in the kernel, uncounted.
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
    /// Frames bear the time at which they passed, whichever the point.
    stamped: bool,
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
        let mut page = [0; 4096];
        while producer.push_entire_slice(&page).is_ok() {}
        while consumer.pop_entire_slice(&mut page).is_ok() {}
        let shared = Arc::<Shared>::default();
        let tap = Self {
            id,
            point,
            filter: settings.filter,
            snaplen: settings.snaplen,
            ring: producer,
            stamped: false,
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

    /// The filter.
    pub(crate) fn filter(&self) -> Option<&Program> {
        self.filter.as_ref()
    }

    /// For a tap that is no lane's: the arrival of its frames is when they passed.
    pub(crate) fn at_arrival(mut self) -> Self {
        self.stamped = true;
        self
    }

    /// Whether nobody looks any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Counts frames that matched and got lost before they came here.
    pub(crate) fn miss(&mut self, frames: u64) {
        if frames > 0 {
            self.counts.seen += frames;
            self.counts.matched += frames;
            self.counts.lost += frames;
            self.publish();
        }
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
        self.publish();
    }

    fn publish(&self) {
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
            Point::After if !self.stamped => now_ns,
            Point::Before | Point::After => meta.arrival_ns,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lane::Lane,
        memory::{FramePool, PoolSize},
        port::memory::{self, Packet, Wire},
        stage::{
            link::{Link, Settings},
            mac::Rewrite,
        },
        stats::Tally,
    };
    use bpf::Instruction;

    struct Scene {
        lane: Lane,
        left: Wire,
        right: Wire,
    }

    fn scene(stages: Vec<Box<dyn Stage>>) -> Scene {
        let (rx, _, left) = memory::port(64, 70_000);
        let (_, tx, right) = memory::port(64, 70_000);
        let size = PoolSize {
            small: 128,
            large: 8,
        };
        let pool = FramePool::ordinary(size).unwrap();
        Scene {
            lane: Lane::new(Box::new(rx), stages, Box::new(tx), pool),
            left,
            right,
        }
    }

    impl Scene {
        fn tap(&mut self, point: Point, settings: TapSettings) -> Observer {
            let (tap, observer) = Tap::open(point, settings);
            self.lane.add_tap(tap);
            observer
        }

        fn send(&mut self, frames: &[Packet]) {
            for frame in frames {
                self.left.send(frame.clone()).unwrap();
            }
        }

        /// All that left the lane, which has kept nothing and counted everything.
        fn sent(&mut self) -> usize {
            let tally: Tally = self.lane.counters().read();
            assert!(tally.is_conserved() && self.lane.pool().outstanding() == 0);
            std::iter::from_fn(|| self.right.receive()).count()
        }
    }

    fn all(observer: &mut Observer) -> Vec<Copied> {
        std::iter::from_fn(|| observer.receive()).collect()
    }

    #[test]
    fn taps_see_what_comes_and_what_goes() {
        let mut scene = scene(vec![
            Box::new(Rewrite::Swap),
            Box::new(Link::new(Settings::parse("delay 0.5us").unwrap(), "a>b")),
        ]);
        let mut before = scene.tap(Point::Before, TapSettings::default());
        let mut after = scene.tap(Point::After, TapSettings::default());
        let bytes: Vec<u8> = (0..100).collect();
        scene.send(&[Packet::new(&bytes)]);
        scene.lane.turn(1000);
        assert_eq!((all(&mut before).len(), all(&mut after).len()), (1, 0));
        scene.lane.turn(1600);
        let [copy] = &all(&mut after)[..] else {
            panic!("one frame")
        };
        assert_eq!((copy.time_ns, copy.len), (1600, 100));
        assert_eq!(
            copy.bytes,
            [&bytes[6..12], &bytes[..6], &bytes[12..]].concat()
        );
        assert_eq!((before.counts().seen, after.counts().seen), (1, 1));
        assert_eq!(scene.sent(), 1);
    }

    #[test]
    fn a_super_frame_keeps_its_length_and_says_what_it_is() {
        let mut scene = scene(Vec::new());
        let settings = TapSettings {
            snaplen: 54,
            ..TapSettings::default()
        };
        let mut observer = scene.tap(Point::Before, settings);
        let offload = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: 1,
            gso_size: 1448,
            hdr_len: 54,
            csum_start: 34,
            csum_offset: 16,
        };
        let mut bytes = vec![0; 54 + 10 * 1448];
        (bytes[12], bytes[14], bytes[46]) = (8, 0x45, 0x50);
        scene.send(&[Packet { bytes, offload }]);
        scene.lane.turn(0);
        let copy = observer.receive().unwrap();
        assert_eq!((copy.bytes.len(), copy.len), (54, 54 + 10 * 1448));
        assert_eq!((copy.segments, copy.offload), (10, offload));
        assert_eq!(scene.sent(), 1);
    }

    #[test]
    fn a_full_ring_loses_copies_and_no_frame() {
        let mut scene = scene(Vec::new());
        let small = TapSettings {
            buffer: 0,
            ..TapSettings::default()
        };
        let mut observer = scene.tap(Point::After, small);
        let mut sent = 0;
        for now_ns in 0..200 {
            scene.send(&vec![Packet::new(&[7; 1000]); 16]);
            scene.lane.turn(now_ns);
            sent += scene.sent();
        }
        let copies = all(&mut observer);
        let TapCounts {
            seen,
            matched,
            lost,
        } = observer.counts();
        assert_eq!((sent, seen, matched), (3200, 3200, 3200));
        assert_eq!(lost, 3200 - copies.len() as u64);
        assert_eq!(copies.len(), TapSettings::BUFFER_MIN / (HEADER + 1000));
        // And there is room again.
        scene.send(&[Packet::new(&[8; 60])]);
        scene.lane.turn(200);
        assert_eq!(all(&mut observer)[0].bytes, [8; 60]);
    }

    #[test]
    fn several_at_once_each_with_its_filter() {
        let mut scene = scene(Vec::new());
        // The frame's first byte is 7: ldb [0]; jeq #7; ret; ret.
        let code = [(0x30, 0, 0, 0), (0x15, 0, 1, 7), (6, 0, 0, 9), (6, 0, 0, 0)];
        let filter = Program::new(&code.map(Instruction::from)).unwrap();
        let sevens = TapSettings {
            filter: Some(filter),
            ..TapSettings::default()
        };
        let mut some = scene.tap(Point::Before, sevens);
        let mut every = scene.tap(Point::Before, TapSettings::default());
        let frames: Vec<Packet> = (0..14).map(|first| Packet::new(&[first; 60])).collect();
        scene.send(&frames);
        scene.lane.turn(0);
        // What a filter returns is a limit too.
        assert_eq!(
            all(&mut some)
                .iter()
                .map(|copy| &copy.bytes[..])
                .collect::<Vec<_>>(),
            [[7; 9]]
        );
        assert_eq!(
            some.counts(),
            TapCounts {
                seen: 14,
                matched: 1,
                lost: 0
            }
        );
        assert_eq!(all(&mut every).len(), 14);

        // One is taken out, the other's observer goes away: nothing is copied for either.
        drop(scene.lane.remove_tap(some.tap()).unwrap());
        assert!(some.is_abandoned() && scene.lane.remove_tap(some.tap()).is_none());
        let gone = every.tap();
        drop(every);
        scene.send(&frames);
        scene.lane.turn(1);
        assert_eq!(some.counts().seen, 14);
        assert_eq!(scene.lane.remove_tap(gone).unwrap().counts.seen, 14);
        assert_eq!(scene.sent(), 28);
    }

    /// The other end reads while the tap writes: whole copies, in order, and every one or counted.
    #[test]
    fn copies_arrive_whole_while_they_are_made() {
        const FRAMES: u64 = 20_000;
        let mut scene = scene(Vec::new());
        let settings = TapSettings {
            buffer: 0,
            ..TapSettings::default()
        };
        let mut observer = scene.tap(Point::Before, settings);
        let reader = std::thread::spawn(move || {
            let (mut last, mut taken) = (None, 0);
            loop {
                let over = observer.is_abandoned();
                match observer.receive() {
                    Some(copy) => {
                        let number = copy.time_ns;
                        assert!(last < Some(number));
                        assert!(copy.bytes.iter().all(|byte| *byte == number as u8));
                        assert_eq!(copy.bytes.len() as u64, 60 + number % 900);
                        (last, taken) = (Some(number), taken + 1);
                    }
                    None if over => return (taken, observer.counts()),
                    None => std::thread::yield_now(),
                }
            }
        });
        for number in 0..FRAMES {
            let size = 60 + (number % 900) as usize;
            scene.send(&[Packet::new(&vec![number as u8; size])]);
            scene.lane.turn(number);
            assert_eq!(scene.sent(), 1);
        }
        drop(scene.lane);
        let (taken, counts) = reader.join().unwrap();
        assert_eq!((counts.seen, counts.matched), (FRAMES, FRAMES));
        assert_eq!(taken + counts.lost, FRAMES);
        assert!(taken > 0);
    }
}
