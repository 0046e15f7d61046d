//! One link, one property at a time.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::line::late_us;
use super::stream::{Arrival, PORT, Spec};
use crate::transit::Stamps;

impl Bench<'_> {
    pub(super) fn delay(&mut self) -> Result<()> {
        let spec = self.spec(10_000, 200);
        let (arrivals, lane) = self.through("delay 50ms", spec)?;
        let mut errors: Vec<f64> = arrivals
            .iter()
            .map(|arrival| arrival.took_us() - 50_000.0)
            .collect();
        errors.sort_by(f64::total_cmp);
        let [min, q1, median, q3, p99, max] =
            [0.0, 0.25, 0.5, 0.75, 0.99, 1.0].map(|share| quantile(&errors, share));
        let what = "delay 50 ms, 10k packets/s: error in us";
        self.note(
            format!("{what}, min / quartiles / p99 / max"),
            format!("{min:.1} / {q1:.1} {median:.1} {q3:.1} / {p99:.1} / {max:.1}"),
        );
        self.judge(
            format!("{what}, median"),
            format!("{median:.1}"),
            "50",
            median.abs() <= 50.0,
        );
        self.judge(
            format!("{what}, p99"),
            format!("{p99:.1}"),
            "500",
            p99 <= 500.0,
        );
        let lost = spec.count - arrivals.len();
        self.judge(
            "delay 50 ms: packets lost",
            lost.to_string(),
            "0",
            lost == 0,
        );
        self.note_lateness(&lane);
        Ok(())
    }

    /// What the relay says of itself against stamps of the kernel at both far ends, which see no socket and no program.
    pub(super) fn lateness(&mut self) -> Result<()> {
        // The stamps' histogram ends at 3.2 ms.
        const DELAY_US: f64 = 1000.0;
        let line = self.line(&format!("delay {DELAY_US}us"))?;
        let (client, server) = (&line.topology.client, &line.topology.server);
        let stamps = Stamps::attach(self.run, client, server, PORT)?;
        self.stream(&line.topology, self.spec(10_000, 200))?;
        let times = stamps.read()?;
        let lane = line.stop()?;
        for (share, name, goal) in [(0.5, "p50_ns", None), (0.99, "p99_ns", Some(50.0))] {
            let outside = times.quantile_us(share).unwrap_or(f64::NAN) - DELAY_US;
            let (own, percent) = (late_us(&lane, name), share * 100.0);
            let what = format!("lateness p{percent:.0}: stamps at both ends / the relay's own, us");
            let value = format!("{outside:.1} / {own:.1}");
            match goal {
                Some(goal) => self.judge(
                    what,
                    value,
                    &format!("within {goal:.0}"),
                    (outside - own).abs() <= goal,
                ),
                None => self.note(what, value),
            }
        }
        Ok(())
    }

    pub(super) fn rate(&mut self) -> Result<()> {
        for (name, mbit) in [
            ("link", 10.0),
            ("TBF", 10.0),
            ("link", 100.0),
            ("TBF", 100.0),
        ] {
            // Half more than the line carries, in frames of 1000 bytes.
            let spec = self.spec((mbit * 1e6 * 1.5 / 8000.0) as u32, 1000);
            let arrivals = match name {
                "link" => {
                    self.through(&format!("rate {mbit}mbit limit 100p"), spec)?
                        .0
                }
                _ => self.through_tbf(&format!("rate {mbit}mbit burst 10k limit 100k"), spec)?,
            };
            for window in [1.0, 0.1] {
                let errors = rate_errors(&arrivals, mbit * 1e6, 1000, window);
                let worst = errors.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let what = format!("{name}, rate {mbit} Mbit/s over {window} s: largest error");
                let value = format!("{worst:.3} %");
                match name {
                    "link" => self.judge(what, value, "0.5 %", worst <= 0.5),
                    _ => self.note(what, value),
                }
            }
        }
        Ok(())
    }

    pub(super) fn loss(&mut self) -> Result<()> {
        let spec = self.spec(5000, 100);
        let (arrivals, _) = self.through("loss 5% seed 1", spec)?;
        let share = 1.0 - arrivals.len() as f64 / spec.count as f64;
        let bound = 2.58 * (0.05 * 0.95 / spec.count as f64).sqrt();
        self.judge(
            "loss 5 %, within 99 % of the binomial distribution",
            format!("{:.3} %", share * 100.0),
            &format!("5 ± {:.3} %", bound * 100.0),
            (share - 0.05).abs() <= bound,
        );
        let (arrivals, _) = self.through("loss gemodel 1% 25% seed 1", spec)?;
        let gaps: Vec<u32> = arrivals
            .windows(2)
            .map(|pair| pair[1].serial.saturating_sub(pair[0].serial + 1))
            .filter(|gap| *gap > 0)
            .collect();
        let mean = f64::from(gaps.iter().sum::<u32>()) / gaps.len().max(1) as f64;
        // Geometric with mean 4: its standard deviation is √12.
        let bound = 2.58 * 12f64.sqrt() / (gaps.len().max(1) as f64).sqrt();
        self.judge(
            "Gilbert–Elliott 1 % 25 %: mean length of bursts",
            format!("{mean:.2} ({} bursts)", gaps.len()),
            &format!("4 ± {bound:.2}"),
            (mean - 4.0).abs() <= bound,
        );
        Ok(())
    }

    pub(super) fn jitter(&mut self) -> Result<()> {
        let (arrivals, _) =
            self.through("delay 20ms 5ms unordered seed 1", self.spec(1000, 100))?;
        let mut delays: Vec<f64> = arrivals.iter().map(Arrival::took_us).collect();
        delays.sort_by(f64::total_cmp);
        let count = delays.len() as f64;
        let distance = delays.iter().enumerate().map(|(at, delay)| {
            let p = ((delay - 15_000.0) / 10_000.0).clamp(0.0, 1.0);
            (p - at as f64 / count)
                .abs()
                .max((p - (at + 1) as f64 / count).abs())
        });
        let distance = distance.fold(0.0, f64::max);
        let bound = 1.63 / count.sqrt();
        self.judge(
            "jitter, uniform ± 5 ms: Kolmogorov–Smirnov distance",
            format!("{distance:.4}"),
            &format!("{bound:.4} (1 %)"),
            distance <= bound,
        );
        Ok(())
    }

    pub(super) fn queue(&mut self) -> Result<()> {
        let spec = Spec {
            count: 200,
            gap: Duration::ZERO,
            frame: 1000,
            patience: Duration::from_secs(2),
        };
        let (arrivals, _) = self.through("rate 1mbit limit 50p", spec)?;
        self.judge(
            "a burst of 200 into a queue of 50 packets: arrived",
            arrivals.len().to_string(),
            "50",
            arrivals.len() == 50,
        );
        Ok(())
    }

    pub(super) fn single(&mut self) -> Result<()> {
        let spec = Spec {
            count: 5,
            gap: Duration::from_millis(300),
            frame: 1250,
            patience: Duration::from_secs(1),
        };
        let median = |arrivals: &[Arrival]| {
            let mut times: Vec<f64> = arrivals.iter().map(Arrival::took_us).collect();
            times.sort_by(f64::total_cmp);
            quantile(&times, 0.5) / 1e3
        };
        let (arrivals, _) = self.through("rate 1mbit", spec)?;
        let found = median(&arrivals);
        self.judge(
            "link: one frame of 1250 bytes after idle at 1 Mbit/s, ms",
            format!("{found:.3}"),
            "10 ± 0.5",
            (found - 10.0).abs() <= 0.5,
        );
        let arrivals = self.through_tbf("rate 1mbit burst 10k limit 100k", spec)?;
        self.note("TBF: the same, ms", format!("{:.3}", median(&arrivals)));
        Ok(())
    }

    pub(super) fn step(&mut self) -> Result<()> {
        // The schedule runs from the relay's start, the stream begins a little later: look well beside the step.
        let spec = Spec {
            count: 3750 * 4,
            gap: Duration::from_secs(1) / 3750,
            frame: 1000,
            patience: Duration::from_secs(1),
        };
        let (arrivals, _) = self.through("rate 10mbit limit 50p at 2s rate 20mbit", spec)?;
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
            anyhow::bail!("nothing arrived");
        };
        let within = |from_ns: u64, until_ns: u64| {
            let inside = |arrival: &&Arrival| (from_ns..until_ns).contains(&arrival.received_ns);
            let seconds = (until_ns - from_ns) as f64 / 1e9;
            arrivals.iter().filter(inside).count() as f64 * 8000.0 / seconds / 1e6
        };
        let second = 1_000_000_000;
        let before = within(first.received_ns, first.received_ns + second);
        let after = within(last.received_ns - second, last.received_ns);
        for (what, found, wanted) in [("before", before, 10.0), ("after", after, 20.0)] {
            let error = (found / wanted - 1.0) * 100.0;
            self.judge(
                format!("step from 10 to 20 Mbit/s under load, {what}"),
                format!("{found:.3} Mbit/s"),
                "0.5 %",
                error.abs() <= 0.5,
            );
        }
        Ok(())
    }
}

/// Errors in per cent of the rate over windows, without the first and the last.
fn rate_errors(arrivals: &[Arrival], bps: f64, frame: usize, window_s: f64) -> Vec<f64> {
    let Some(first) = arrivals.first() else {
        return vec![-100.0];
    };
    let mut counts: Vec<u64> = Vec::new();
    for arrival in arrivals {
        let at = ((arrival.received_ns - first.received_ns) as f64 / 1e9 / window_s) as usize;
        counts.resize(counts.len().max(at + 1), 0);
        counts[at] += 1;
    }
    // A window begins and ends within a frame: one more or less is no error.
    let frame_bits = frame as f64 * 8.0;
    let wanted = bps * window_s / frame_bits;
    let inner = counts.len().saturating_sub(1);
    counts[..inner]
        .iter()
        .skip(1)
        .map(|count| {
            let off = *count as f64 - wanted;
            let off = off.signum() * (off.abs() - 1.0).max(0.0);
            off / wanted * 100.0
        })
        .collect()
}

/// The value at this share of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_count_frames() {
        let arrival = |n: u64| Arrival {
            serial: n as u32,
            sent_ns: 0,
            received_ns: n * 1_000_000,
        };
        // A frame of 125 bytes each millisecond is 1 Mbit/s.
        let exact: Vec<Arrival> = (0..5000).map(arrival).collect();
        assert!(
            rate_errors(&exact, 1e6, 125, 1.0)
                .iter()
                .all(|error| *error == 0.0)
        );
        let errors = rate_errors(&exact, 2e6, 125, 1.0);
        assert!(
            errors.len() == 3 && errors.iter().all(|error| (*error + 49.95).abs() < 0.1),
            "{errors:?}"
        );
        assert_eq!(rate_errors(&[], 1e6, 125, 1.0), [-100.0]);
        assert_eq!(
            [0.0, 0.5, 1.0].map(|share| quantile(&[1.0, 2.0, 9.0], share)),
            [1.0, 2.0, 9.0]
        );
    }
}
