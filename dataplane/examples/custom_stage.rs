//! A stage of one's own, on ports in memory: no root, no interfaces.
//!
//! ```text
//! cargo run --example custom_stage
//! ```

use l2relay::{
    burst::Burst,
    lane::{Lane, Turn},
    memory::{FramePool, PoolSize},
    port::memory::{self, Packet},
    stage::Stage,
    stats::Reason,
};

/// Lets every n-th frame pass and no other.
struct Sample {
    every: u64,
    seen: u64,
}

impl Stage for Sample {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        burst.filter(turn, Reason::Filtered, |_, _| {
            self.seen += 1;
            self.seen.is_multiple_of(self.every)
        });
    }
}

fn main() -> l2relay::error::Result<()> {
    // A port has a receive half, a transmit half, and the wire that we hold in place of a cable.
    let (rx, _, mut left) = memory::port(64, 1514);
    let (_, tx, mut right) = memory::port(64, 1514);
    let pool = FramePool::ordinary(PoolSize {
        small: 128,
        large: 0,
    })?;
    let sample = Sample { every: 4, seen: 0 };
    let mut lane = Lane::new(Box::new(rx), vec![Box::new(sample)], Box::new(tx), pool);

    for serial in 1..=12 {
        left.send(Packet::new(&[serial; 60]))
            .expect("the wire takes 64 frames");
    }
    lane.turn(0);

    let passed: Vec<u8> = std::iter::from_fn(|| right.receive())
        .map(|packet| packet.bytes[0])
        .collect();
    assert_eq!(passed, [4, 8, 12]);

    // Nothing disappears uncounted: 12 came, 3 left, 9 were filtered, and every buffer is back in the pool.
    let tally = lane.counters().read();
    assert!(tally.is_conserved());
    assert_eq!((tally.rx_packets, tally.tx_packets), (12, 3));
    assert_eq!(tally.dropped_for(Reason::Filtered), 9);
    assert_eq!(lane.pool().outstanding(), 0);

    println!(
        "{} frames came, {} were filtered, these left: {passed:?}",
        tally.rx_packets,
        tally.dropped_for(Reason::Filtered)
    );
    Ok(())
}
