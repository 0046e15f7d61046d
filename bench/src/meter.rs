//! How much CPU a relay uses while a load runs.
//!
//! The tools start up, sleep and print around the load, so the process's CPU time is read all along, and
//! what counts is the busiest stretch as long as most of the load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the CPU time is read. The kernel counts it in ticks of 10 ms.
const INTERVAL: Duration = Duration::from_millis(50);

type Sample = (Instant, Duration);

/// Reads the CPU time of a process until it is asked for the result, or dropped.
#[derive(Debug)]
pub(crate) struct Meter {
    stop: Arc<AtomicBool>,
    samples: Option<JoinHandle<Vec<Sample>>>,
}

impl Meter {
    /// Begins to read.
    pub(crate) fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let samples = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if let Some(time) = cpu_time(pid) {
                    samples.push((Instant::now(), time));
                }
                std::thread::sleep(INTERVAL);
            }
            samples
        });
        Self {
            stop,
            samples: Some(samples),
        }
    }

    /// CPU use of the busiest stretch of at least `length`, in percent of one CPU; none if the process
    /// was not watched that long.
    pub(crate) fn busiest(mut self, length: Duration) -> Option<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let samples = self.samples.take()?.join().ok()?;
        busiest(&samples, length)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn busiest(samples: &[Sample], length: Duration) -> Option<f64> {
    let mut most: Option<f64> = None;
    for (i, from) in samples.iter().enumerate() {
        let to = samples[i..].iter().find(|to| to.0 - from.0 >= length);
        let Some(to) = to else { break };
        let used = to.1.saturating_sub(from.1).as_secs_f64();
        let percent = 100.0 * used / (to.0 - from.0).as_secs_f64();
        most = Some(most.map_or(percent, |m| m.max(percent)));
    }
    most
}

/// CPU time a process has used so far, all threads, user and kernel.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = parse_stat(&stat)?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// proc_pid_stat(5): the name, in parentheses, may hold anything; utime and stime are fields 14 and 15.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_stretch_counts() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        // Idle for 1 s, half busy for 1 s, idle for 1 s.
        let used = |at: u64| ms((at.clamp(1000, 2000) - 1000) / 2);
        let samples: Vec<Sample> = (0..=30)
            .map(|i| (start + ms(i * 100), used(i * 100)))
            .collect();
        let busy = busiest(&samples, ms(800)).expect("long enough");
        assert!((busy - 50.0).abs() < 0.1, "{busy}");
        assert_eq!(busiest(&samples, ms(4000)), None);
    }

    #[test]
    fn the_name_of_a_process_does_not_confuse() {
        let stat = "7 (a ) 1 2) S 1 7 7 0 -1 4194560 1 2 3 4 30 12 0 0 20 0 1 0 9 1 1";
        assert_eq!(parse_stat(stat), Some(42));
    }
}
