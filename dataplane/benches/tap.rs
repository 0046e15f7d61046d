//! What a capture costs a lane: none, one whose filter matches nothing, and one that copies every frame.
//!
//! On the memory back end, a burst of 60-byte frames a turn. Run with `cargo bench -p l2relay --bench tap`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput};
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

struct Scene {
    lane: Lane,
    left: Wire,
    right: Wire,
}

fn scene() -> Scene {
    let (rx, _, left) = memory::port(Burst::MAX, 1514);
    let (_, tx, right) = memory::port(Burst::MAX, 1514);
    let size = PoolSize {
        small: 2 * Burst::MAX,
        large: 0,
    };
    let pool = FramePool::ordinary(size).expect("memory for a few frames");
    Scene {
        lane: Lane::new(Box::new(rx), Vec::new(), Box::new(tx), pool),
        left,
        right,
    }
}

/// A UDP frame over IPv4.
fn frame() -> Packet {
    let mut bytes = [0; 60];
    bytes[12..14].copy_from_slice(&[8, 0]);
    (bytes[14], bytes[23]) = (0x45, 17);
    Packet::new(&bytes)
}

fn measure(criterion: &mut Criterion, name: &str, settings: Option<TapSettings>) {
    let mut scene = scene();
    let mut observer: Option<Observer> = settings.map(|settings| {
        let (tap, observer) = Tap::open(Point::Before, settings);
        scene.lane.add_tap(tap);
        observer
    });
    let mut group = criterion.benchmark_group("tap");
    group.throughput(Throughput::Elements(Burst::MAX as u64));
    let mut now_ns = 0;
    group.bench_function(name, |bencher| {
        bencher.iter_batched(
            || {
                while scene.right.receive().is_some() {}
                while observer
                    .as_mut()
                    .is_some_and(|observer| observer.receive().is_some())
                {}
                for _ in 0..Burst::MAX {
                    scene.left.send(frame()).expect("the queue is empty");
                }
                now_ns += 1;
                now_ns
            },
            |now_ns| black_box(scene.lane.turn(now_ns)),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn main() {
    let criterion = &mut Criterion::default().configure_from_args();
    let code = TCP_PORT_80.map(Instruction::from);
    let filter = Program::new(&code).expect("it is what tcpdump prints");
    measure(criterion, "off", None);
    let other = TapSettings {
        filter: Some(filter),
        ..TapSettings::default()
    };
    measure(criterion, "other", Some(other));
    measure(criterion, "every", Some(TapSettings::default()));
    criterion.final_summary();
}
