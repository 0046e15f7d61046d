//! What a lane itself costs: a turn between a port that makes frames of nothing and one that frees them.
//!
//! Keeps "dynamic dispatch once a burst" honest: the same work with every call known to the compiler stands beside it.
//! Run with `cargo bench -p l2relay`.

use std::{hint::black_box, os::fd::BorrowedFd, time::Instant};

use l2relay::{
    burst::Burst,
    lane::{Lane, Turn},
    memory::{FramePool, PoolSize},
    port::{RxQueue, TxQueue},
    stage::{Stage, mac::Rewrite},
    stats::{Counters, Tally},
};

struct Source {
    burst: usize,
}

impl RxQueue for Source {
    fn rx_burst(&mut self, burst: &mut Burst, limit: usize, turn: &mut Turn) {
        for _ in 0..limit.min(self.burst) {
            let Some(frame) = turn.pool.alloc(60) else {
                return;
            };
            turn.tally.received(1, 60);
            burst.push(frame);
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn close(&mut self) {}
}

struct Sink;

impl TxQueue for Sink {
    fn room(&mut self) -> usize {
        Burst::MIN
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        for frame in burst.drain() {
            turn.tally.sent(1, turn.pool.len(&frame));
            turn.pool.free(frame);
        }
    }

    fn abandon(&mut self, _turn: &mut Turn) {}
}

/// Nanoseconds per frame: the best of several rounds, because disturbance only ever adds.
fn measure(burst: usize, mut turn: impl FnMut(u64)) -> f64 {
    const TURNS: u64 = 100_000;
    let round = |turn: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        (0..TURNS).for_each(&mut *turn);
        start.elapsed().as_nanos() as f64 / (TURNS * burst as u64) as f64
    };
    (0..7)
        .map(|_| round(&mut turn))
        .fold(f64::INFINITY, f64::min)
}

fn pool() -> FramePool {
    FramePool::ordinary(PoolSize {
        small: 256,
        large: 0,
    })
    .expect("memory for 256 small frames")
}

fn main() {
    println!(
        "{:>5} {:>14} {:>14}   ns per frame, MAC addresses swapped",
        "burst", "lane", "static calls"
    );
    for burst in [1, 8, 32, Burst::MIN] {
        let stages: Vec<Box<dyn Stage>> = vec![Box::new(Rewrite::Swap)];
        let mut lane = Lane::new(Box::new(Source { burst }), stages, Box::new(Sink), pool());
        let dynamic = measure(burst, |now_ns| {
            black_box(lane.turn(now_ns));
        });

        let (mut rx, mut stage, mut tx) = (Source { burst }, Rewrite::Swap, Sink);
        let (mut pool, mut frames, mut tally, counters) =
            (pool(), Burst::new(), Tally::default(), Counters::default());
        let direct = measure(burst, |now_ns| {
            let mut turn = Turn {
                pool: &mut pool,
                tally: &mut tally,
                now_ns,
                room: Burst::MIN,
            };
            rx.rx_burst(&mut frames, Burst::MIN, &mut turn);
            stage.process(&mut frames, &mut turn);
            tx.tx_burst(&mut frames, &mut turn);
            counters.publish(black_box(&tally));
        });
        println!("{burst:>5} {dynamic:>14.1} {direct:>14.1}");
    }
}
