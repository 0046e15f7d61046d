//! What a cache line costs that another CPU has written last.
//!
//! A relay reads what the sender's CPU has written. On a virtual machine that costs several times as much in one second as in another, and floods are the
//! slower for it: so they tell this beside their figures.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::sys::place;

/// Lines that are written and then read: 1 MiB, which no CPU's own cache may hold as a whole, as it is with the frames of a flood.
const LINES: usize = 16 << 10;
/// How often; the median counts, since other programs use the CPUs, too.
const PASSES: usize = 9;

/// A line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

/// Time to read a line on CPU `to` that CPU `from` has written, in ns; lines lie one behind the other.
pub(crate) fn cost_ns(from: usize, to: usize) -> Result<f64> {
    let lines: Vec<Line> = (0..LINES).map(|_| Line(AtomicU64::new(0))).collect();
    // Even: to be written; odd: to be read.
    let turn = AtomicUsize::new(0);
    let wait_for = |number| {
        while turn.load(Ordering::Acquire) != number {
            // Not giving way: what is read late, when a relay has had the CPU meanwhile, is dearer than in a flood.
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pinned = place::pin(from);
            for pass in 0..PASSES {
                wait_for(2 * pass);
                for line in &lines {
                    line.0.store(pass as u64, Ordering::Relaxed);
                }
                turn.store(2 * pass + 1, Ordering::Release);
            }
            pinned
        });
        let reader = scope.spawn(|| {
            let pinned = place::pin(to);
            let mut times = [0.0; PASSES];
            for (pass, time) in times.iter_mut().enumerate() {
                wait_for(2 * pass + 1);
                let start = Instant::now();
                let loads = lines.iter().map(|line| line.0.load(Ordering::Relaxed));
                std::hint::black_box(loads.sum::<u64>());
                *time = start.elapsed().as_nanos() as f64 / LINES as f64;
                turn.store(2 * pass + 2, Ordering::Release);
            }
            times.sort_by(f64::total_cmp);
            pinned.map(|()| times[PASSES / 2])
        });
        let ended = |_| anyhow!("a thread that measures memory has ended");
        writer.join().map_err(ended)??;
        reader.join().map_err(ended)?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_cpu_has_written_takes_time() {
        let cost = cost_ns(0, 0).unwrap();
        assert!(cost > 0.0 && cost < 1e6, "{cost}");
    }
}
