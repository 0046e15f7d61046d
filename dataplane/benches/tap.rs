//! What a capture costs a lane: no lane at all but its two queues (`bare`), a lane without a capture (`off`), one whose filter
//! matches nothing (`other`), and one that copies every frame (`every`).
//!
//! On the memory back end, a turn's 64 frames of 60 bytes. `off` less `bare` is all that a lane adds, of which the place for taps is a
//! part: so it is no less than what a capture costs that is off. Run with `cargo bench -p l2relay --bench tap`.

use criterion::{BatchSize, Criterion, Throughput};
use l2relay::{
    burst::Burst,
    lane::{Lane, Turn},
    memory::{FramePool, PoolSize},
    port::{
        RxQueue, TxQueue,
        memory::{self, Packet, Wire},
    },
    stage::tap::{
        Observer, Point, Tap, TapSettings,
        bpf::{Instruction, Program},
    },
    stats::{Counters, Tally},
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

/// What is turned.
enum Turned {
    Lane(Box<Lane>),
    /// The calls that a lane without stages makes, in a function that knows no taps.
    Bare(Box<Bare>),
}

struct Bare {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    pool: FramePool,
    burst: Burst,
    tally: Tally,
    counters: Counters,
}

impl Bare {
    fn turn(&mut self, now_ns: u64) -> usize {
        let room = self.tx.room();
        let mut turn = Turn {
            pool: &mut self.pool,
            tally: &mut self.tally,
            now_ns,
            room,
        };
        self.rx
            .rx_burst(&mut self.burst, room.min(FRAMES), &mut turn);
        let received = self.burst.len();
        self.tx.tx_burst(&mut self.burst, &mut turn);
        self.counters.publish(&self.tally);
        received
    }
}

struct Scene {
    turned: Turned,
    left: Wire,
    right: Wire,
}

impl Scene {
    fn new(bare: bool) -> Self {
        let (rx, _, left) = memory::port(FRAMES, 1514);
        let (_, tx, right) = memory::port(FRAMES, 1514);
        let (rx, tx) = (Box::new(rx), Box::new(tx));
        let size = PoolSize {
            small: 2 * FRAMES,
            large: 0,
        };
        let pool = FramePool::ordinary(size).expect("memory for a few frames");
        let turned = if bare {
            Turned::Bare(Box::new(Bare {
                rx,
                tx,
                pool,
                burst: Burst::new(),
                tally: Tally::default(),
                counters: Counters::default(),
            }))
        } else {
            Turned::Lane(Box::new(Lane::new(rx, Vec::new(), tx, pool)))
        };
        Self {
            turned,
            left,
            right,
        }
    }
}

/// A UDP frame over IPv4.
fn frame() -> Packet {
    let mut bytes = [0; 60];
    bytes[12..14].copy_from_slice(&[8, 0]);
    (bytes[14], bytes[23]) = (0x45, 17);
    Packet::new(&bytes)
}

fn measure(criterion: &mut Criterion, name: &str, bare: bool, settings: Option<TapSettings>) {
    let Scene {
        mut turned,
        mut left,
        mut right,
    } = Scene::new(bare);
    let mut observer: Option<Observer> = None;
    if let (Turned::Lane(lane), Some(settings)) = (&mut turned, settings) {
        let (tap, other) = Tap::open(Point::Before, settings);
        lane.add_tap(tap);
        observer = Some(other);
    }
    let mut group = criterion.benchmark_group("tap");
    group.throughput(Throughput::Elements(FRAMES as u64));
    let mut now_ns = 0;
    group.bench_function(name, |bencher| {
        bencher.iter_batched(
            || {
                while right.receive().is_some() {}
                while observer
                    .as_mut()
                    .is_some_and(|observer| observer.receive().is_some())
                {}
                for _ in 0..FRAMES {
                    left.send(frame()).expect("the last turn took all");
                }
                now_ns += 1;
                now_ns
            },
            |now_ns| {
                let moved = match &mut turned {
                    Turned::Lane(lane) => lane.turn(now_ns),
                    Turned::Bare(bare) => bare.turn(now_ns),
                };
                assert_eq!(moved, FRAMES);
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn main() {
    let criterion = &mut Criterion::default().configure_from_args();
    let code = TCP_PORT_80.map(Instruction::from);
    let filter = Program::new(&code).expect("it is what tcpdump prints");
    let other = TapSettings {
        filter: Some(filter),
        ..TapSettings::default()
    };
    measure(criterion, "bare", true, None);
    measure(criterion, "off", false, None);
    measure(criterion, "other", false, Some(other));
    measure(criterion, "every", false, Some(TapSettings::default()));
    criterion.final_summary();
}
