//! What a capture costs a lane: a lane without a place for captures (`bare`), one without a capture (`off`), one whose filter matches
//! nothing (`other`), and one that copies every frame (`every`).
//!
//! On the memory back end, a turn's 64 frames of 60 bytes. All four are one lane and one function ([`Lane::turn_by`]), by turns in short
//! batches, so that what else the machine does meets them alike; told are medians over the batches, of each and of its difference to
//! `bare` in the same batch. The lane is made anew several times: where its memory lies is worth some ns.
//! Run with `cargo bench -p l2relay --bench tap`.

use std::{
    array, env,
    time::{Duration, Instant},
};

use l2relay::{
    burst::Burst,
    lane::Lane,
    memory::{FramePool, PoolSize},
    port::memory::{self, Packet, Wire},
    stage::tap::{
        Observer, Point, Tap, TapSettings,
        bpf::{Instruction, Program},
    },
};

/// `tcpdump -ddd 'tcp port 80'`: what a UDP frame runs through before it is rejected.
const TCP_PORT_80: [(u16, u8, u8, u32); 20] = [
    (40, 0, 0, 12),
    (21, 0, 6, 34525),
    (48, 0, 0, 20),
    (21, 0, 15, 6),
    (40, 0, 0, 54),
    (21, 12, 0, 80),
    (40, 0, 0, 56),
    (21, 10, 11, 80),
    (21, 0, 10, 2048),
    (48, 0, 0, 23),
    (21, 0, 8, 6),
    (40, 0, 0, 20),
    (69, 6, 0, 8191),
    (177, 0, 0, 14),
    (72, 0, 0, 14),
    (21, 2, 0, 80),
    (72, 0, 0, 16),
    (21, 0, 1, 80),
    (6, 0, 0, 262144),
    (6, 0, 0, 0),
];

/// Frames that a lane takes in a turn.
const FRAMES: usize = Burst::MIN;
/// Turns of a batch.
const TURNS: u32 = 16;
/// Batches of each variant with one lane.
const BATCHES: usize = 250;
/// Lanes made, one after another.
const LANES: usize = 16;

const VARIANTS: [&str; 4] = ["bare", "off", "other", "every"];
const BARE: usize = 0;

/// A lane and its surroundings.
struct Scene {
    lane: Lane,
    left: Wire,
    right: Wire,
    now_ns: u64,
    /// Those of the variants that have one.
    taps: [Option<Tap>; VARIANTS.len()],
    observers: Vec<Observer>,
}

impl Scene {
    fn new(filter: &Program) -> Self {
        let (rx, _, left) = memory::port(FRAMES, 1514);
        let (_, tx, right) = memory::port(FRAMES, 1514);
        let size = PoolSize {
            small: 2 * FRAMES,
            large: 0,
        };
        let pool = FramePool::ordinary(size).expect("memory for a few frames");
        let settings = |filter| TapSettings {
            filter,
            buffer: 1 << 20,
            ..TapSettings::default()
        };
        let taps = [Some(filter.clone()), None].map(settings);
        let [(other, looks), (every, takes)] =
            taps.map(|settings| Tap::open(Point::Before, settings));
        Self {
            lane: Lane::new(Box::new(rx), Vec::new(), Box::new(tx), pool),
            left,
            right,
            now_ns: 0,
            taps: [None, None, Some(other), Some(every)],
            observers: vec![looks, takes],
        }
    }

    /// A batch of one variant, in ns a frame. Only the turns are timed.
    fn batch(&mut self, variant: usize) -> f64 {
        let tap = self.taps[variant].take();
        let id = tap.as_ref().map(Tap::id);
        tap.into_iter().for_each(|tap| self.lane.add_tap(tap));
        let took: Duration = (0..TURNS).map(|_| self.turn(variant == BARE)).sum();
        self.taps[variant] = id.and_then(|id| self.lane.remove_tap(id));
        took.as_nanos() as f64 / f64::from(TURNS) / FRAMES as f64
    }

    fn turn(&mut self, bare: bool) -> Duration {
        for _ in 0..FRAMES {
            self.left.send(frame()).expect("the last turn took all");
        }
        self.now_ns += 1;
        let start = Instant::now();
        let moved = if bare {
            self.lane.turn_by::<false>(self.now_ns)
        } else {
            self.lane.turn_by::<true>(self.now_ns)
        };
        let took = start.elapsed();
        assert_eq!(moved, FRAMES);
        while self.right.receive().is_some() {}
        for observer in &mut self.observers {
            while observer.receive().is_some() {}
        }
        took
    }
}

/// A UDP frame over IPv4.
fn frame() -> Packet {
    let mut bytes = [0; 60];
    bytes[12..14].copy_from_slice(&[8, 0]);
    (bytes[14], bytes[23]) = (0x45, 17);
    Packet::new(&bytes)
}

/// The quartiles, and how far the median may be from the true one (95 %, by the ranks of the binomial distribution).
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let at = |rank: f64| values[(rank.max(0.0) as usize).min(values.len() - 1)];
    let half = 0.98 * count.sqrt();
    let [low, median, high] = [count / 2.0 - half, count / 2.0, count / 2.0 + half].map(at);
    let [first, third] = [count / 4.0, count * 3.0 / 4.0].map(at);
    format!(
        "{median:7.2} ns a frame (95 %: {low:.2} to {high:.2}; quartiles {first:.2} and {third:.2})"
    )
}

fn main() {
    // Without the argument that `cargo bench` gives, it only shows that it works.
    let (lanes, batches) = match env::args().any(|argument| argument == "--bench") {
        true => (LANES, BATCHES),
        false => (1, 4),
    };
    let code = TCP_PORT_80.map(Instruction::from);
    let filter = Program::new(&code).expect("it is what tcpdump prints");
    let mut rows: Vec<[f64; VARIANTS.len()]> = Vec::new();
    for _ in 0..lanes {
        let mut scene = Scene::new(&filter);
        // The first time, nothing is where it will be.
        for variant in 0..VARIANTS.len() {
            scene.batch(variant);
        }
        for batch in 0..batches {
            let mut row = [0.0; VARIANTS.len()];
            for turn in 0..VARIANTS.len() {
                // Each is first as often as the others.
                let variant = (batch + turn) % VARIANTS.len();
                row[variant] = scene.batch(variant);
            }
            rows.push(row);
        }
        let [other, every] = array::from_fn(|at| scene.observers[at].counts());
        let passed = (batches + 1) as u64 * u64::from(TURNS) * FRAMES as u64;
        assert_eq!((other.seen, other.matched), (passed, 0));
        assert_eq!((every.matched, every.lost), (passed, 0));
    }
    for (variant, name) in VARIANTS.iter().enumerate() {
        let values = rows.iter().map(|row| row[variant]).collect();
        println!("{name:<12} {}", spread(values));
        if variant != BARE {
            let values = rows.iter().map(|row| row[variant] - row[BARE]).collect();
            println!("{name:<5} - bare {}", spread(values));
        }
    }
}
