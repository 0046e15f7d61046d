//! One link, one property at a time.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::line::late_us;
use super::stream::{Arrival, PORT, Spec};
use crate::process::Program;
use crate::transit::Stamps;

impl Bench<'_> {
    pub(super) fn delay(&mut self) -> Result<()> {
        let spec = self.spec(10_000, 200);
        let (arrivals, lane) = self.through("delay 50ms", spec)?;
        let what = "delay 50 ms, 10k packets/s: error in us";
        let [median, p99] = self.delay_errors(what, &arrivals);
        // NaN, where nothing arrived, is not below anything.
        for (name, found, goal) in [("median", median.abs(), 50.0), ("p99", p99, 500.0)] {
            self.judge(
                format!("{what}, {name}"),
                format!("{found:.1}"),
                &format!("{goal:.0}"),
                found <= goal,
            );
        }
        let lost = spec.count - arrivals.len();
        self.judge(
            "delay 50 ms: packets lost",
            lost.to_string(),
            "0",
            lost == 0,
        );
        self.note_lateness(&lane);
        if self.has_netem {
            let arrivals = self.through_qdisc("netem delay 50ms limit 100000", spec)?;
            self.delay_errors(&format!("netem, {what}"), &arrivals);
        }
        Ok(())
    }

    /// Notes by how much delays of 50 ms were off; gives the median and the 99th percentile.
    fn delay_errors(&mut self, what: &str, arrivals: &[Arrival]) -> [f64; 2] {
        let mut errors: Vec<f64> = arrivals
            .iter()
            .map(|arrival| arrival.took_us() - 50_000.0)
            .collect();
        errors.sort_by(f64::total_cmp);
        let [min, q1, median, q3, p99, max] =
            [0.0, 0.25, 0.5, 0.75, 0.99, 1.0].map(|share| quantile(&errors, share));
        self.note(
            format!("{what}, min / quartiles / p99 / max"),
            format!("{min:.1} / {q1:.1} {median:.1} {q3:.1} / {p99:.1} / {max:.1}"),
        );
        [median, p99]
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
        for mbit in [10.0, 100.0] {
            // Half more than the line carries, in frames of 1000 bytes.
            let spec = self.spec((mbit * 1e6 * 1.5 / 8000.0) as u32, 1000);
            let link = format!("rate {mbit}mbit limit 100p");
            let mut found = vec![("link", self.through(&link, spec)?.0)];
            let tbf = format!("tbf rate {mbit}mbit burst 10k limit 100k");
            found.push(("TBF", self.through_qdisc(&tbf, spec)?));
            if self.has_netem {
                let netem = format!("netem rate {mbit}mbit limit 100");
                found.push(("netem", self.through_qdisc(&netem, spec)?));
            }
            for (name, arrivals) in found {
                for window in [1.0, 0.1] {
                    let what = format!("{name}, rate {mbit} Mbit/s over {window} s: largest error");
                    let worst = worst(&rate_errors(&arrivals, mbit * 1e6, 1000, window));
                    let value = worst.map_or("too few arrived".to_owned(), |w| format!("{w:.3} %"));
                    match name {
                        "link" => {
                            let met = worst.is_some_and(|worst| worst <= 0.5);
                            self.judge(what, value, "0.5 %", met);
                        }
                        _ => self.note(what, value),
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn loss(&mut self) -> Result<()> {
        let spec = self.spec(5000, 100);
        let mut found = vec![("link", self.through("loss 5% seed 1", spec)?.0)];
        if self.has_netem {
            found.push((
                "netem",
                self.through_qdisc("netem loss 5% limit 100000", spec)?,
            ));
        }
        for (name, arrivals) in found {
            let share = 1.0 - arrivals.len() as f64 / spec.count as f64;
            let bound = 2.58 * (0.05 * 0.95 / spec.count as f64).sqrt();
            let what = format!("{name}, loss 5 %, within 99 % of the binomial distribution");
            let value = format!("{:.3} %", share * 100.0);
            match name {
                "link" => self.judge(
                    what,
                    value,
                    &format!("5 ± {:.3} %", bound * 100.0),
                    (share - 0.05).abs() <= bound,
                ),
                _ => self.note(what, value),
            }
        }
        let (arrivals, _) = self.through("loss gemodel 1% 25% seed 1", spec)?;
        let bursts = Bursts::new(&arrivals);
        // Geometric with mean 4: its standard deviation is √12.
        let bound = 2.58 * (12.0 / f64::from(bursts.count.max(1))).sqrt();
        self.judge(
            "Gilbert–Elliott 1 % 25 %: mean length of bursts",
            format!("{:.2} ({} bursts)", bursts.mean(), bursts.count),
            &format!("4 ± {bound:.2}, 50 bursts at least"),
            bursts.count >= 50 && (bursts.mean() - 4.0).abs() <= bound,
        );
        // A chain with two states of which the lossy one has a share of 1/26; one packet resembles the next by 1 - 0.01 - 0.25.
        let (share, like) = (0.01 / 0.26, 0.74_f64);
        let spread = f64::sqrt(share * (1.0 - share) * (1.0 + like) / (1.0 - like));
        let bound = 2.58 * spread / (spec.count as f64).sqrt();
        let found = 1.0 - arrivals.len() as f64 / spec.count as f64;
        self.judge(
            "Gilbert–Elliott 1 % 25 %: share lost",
            format!("{:.3} %", found * 100.0),
            &format!("{:.3} ± {:.3} %", share * 100.0, bound * 100.0),
            !arrivals.is_empty() && (found - share).abs() <= bound,
        );
        Ok(())
    }

    pub(super) fn jitter(&mut self) -> Result<()> {
        let spec = self.spec(1000, 100);
        for (name, cdf) in [
            ("uniform", uniform as fn(f64) -> f64),
            ("normal", normal),
            ("pareto", pareto),
        ] {
            let words = format!("delay 50ms 5ms distribution {name} unordered seed 1");
            let (arrivals, _) = self.through(&words, spec)?;
            let (distance, bound) = kolmogorov(&arrivals, cdf);
            // One in a hundred of a hundred is one: fewer say nothing.
            let enough = arrivals.len() >= 100;
            self.judge(
                format!("jitter, {name} ± 5 ms: Kolmogorov–Smirnov distance"),
                format!("{distance:.4} ({} packets)", arrivals.len()),
                &format!("{bound:.4} (1 %)"),
                enough && distance <= bound,
            );
        }
        if self.has_netem {
            let arrivals = self.through_qdisc("netem delay 50ms 5ms limit 100000", spec)?;
            let (distance, _) = kolmogorov(&arrivals, uniform);
            self.note(
                "netem, uniform ± 5 ms: Kolmogorov–Smirnov distance",
                format!("{distance:.4}"),
            );
        }
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
        let arrivals = self.through_qdisc("tbf rate 1mbit burst 10k limit 100k", spec)?;
        self.note("TBF: the same, ms", format!("{:.3}", median(&arrivals)));
        Ok(())
    }

    /// From 10 to 20 Mbit/s and back by a schedule, and once by `set`.
    pub(super) fn step(&mut self) -> Result<()> {
        let spec = Spec {
            count: 3750 * 5,
            gap: Duration::from_secs(1) / 3750,
            frame: 1000,
            patience: Duration::from_secs(1),
        };
        // The schedule runs from the relay's start, the stream begins a little later: a second between two steps says how well
        // their times are kept.
        let words = "rate 10mbit limit 50p at 2s rate 20mbit at 3s rate 10mbit";
        let (arrivals, _) = self.through(words, spec)?;
        let error_ms = fast_for_ns(&arrivals).map(|ns| ns / 1e6 - 1000.0);
        self.judge(
            "steps to 20 Mbit/s and back, 1 s apart: error of the time, ms",
            error_ms.map_or(TOO_FEW.into(), |ms| format!("{ms:.3}")),
            "a frame: 0.8",
            error_ms.is_some_and(|ms| ms.abs() <= 0.8),
        );

        let name = self.run.name("step");
        let line = self.line_with("rate 10mbit limit 50p", &["--name", &name])?;
        let link = format!("{} rate 20mbit limit 50p", line.way);
        let script =
            "sleep 2.5; date +%s%N; \"$0\" set --name \"$1\" --link \"$2\" > /dev/null; date +%s%N";
        let setting = Program::new("sh")
            .args(["-c", script, &self.program, &name, &link])
            .start(self.run)?;
        let arrivals = self.stream(&line.topology, spec)?;
        let said = setting.wait(self.run, Duration::from_secs(10))?;
        said.succeed()?;
        let stamps: Vec<u64> = said.stdout.lines().filter_map(|l| l.parse().ok()).collect();
        line.stop()?;
        let (&[asked, done], Some(step_ns)) = (&stamps[..], step_ns(&arrivals)) else {
            let what = "step by set under load";
            self.judge(what, TOO_FEW.into(), "a step", false);
            return Ok(());
        };
        let [seen_ms, done_ms] = [step_ns, done as f64].map(|ns| (ns - asked as f64) / 1e6);
        self.judge(
            "step by set under load: seen / command done, ms after it was begun",
            format!("{seen_ms:.1} / {done_ms:.1}"),
            "between, but for 20 ms",
            (-20.0..=done_ms + 20.0).contains(&seen_ms),
        );
        let at = arrivals.partition_point(|arrival| (arrival.received_ns as f64) < step_ns);
        // Frames beside the step are of both.
        let before = &arrivals[at.saturating_sub(1000)..at.saturating_sub(10)];
        let after = &arrivals[(at + 10).min(arrivals.len())..(at + 2000).min(arrivals.len())];
        for (name, part, mbit) in [("before", before, 10.0), ("after", after, 20.0)] {
            let found = mean_bps(part, mbit * 1e6).map(|bps| bps / 1e6);
            self.judge(
                format!("step by set, {name}"),
                found.map_or(TOO_FEW.into(), |found| format!("{found:.3} Mbit/s")),
                "0.5 %",
                found.is_some_and(|found| (found / mbit - 1.0).abs() <= 0.005),
            );
        }
        Ok(())
    }
}

const TOO_FEW: &str = "too few arrived";

/// Losses one behind the other.
struct Bursts {
    count: u32,
    packets: u32,
}

impl Bursts {
    fn new(arrivals: &[Arrival]) -> Self {
        let gaps = arrivals
            .windows(2)
            .map(|pair| pair[1].serial.saturating_sub(pair[0].serial + 1))
            .filter(|gap| *gap > 0);
        let (mut count, mut packets) = (0, 0);
        for gap in gaps {
            (count, packets) = (count + 1, packets + gap);
        }
        Self { count, packets }
    }

    /// Not a number without any.
    fn mean(&self) -> f64 {
        f64::from(self.packets) / f64::from(self.count)
    }
}

/// The largest distance between what arrived and a distribution of jitter, and what one in a hundred samples of it exceeds. The delay is
/// 50 ms, the unit of `cdf` 5 ms.
fn kolmogorov(arrivals: &[Arrival], cdf: fn(f64) -> f64) -> (f64, f64) {
    let mut delays: Vec<f64> = arrivals.iter().map(Arrival::took_us).collect();
    delays.sort_by(f64::total_cmp);
    let count = delays.len() as f64;
    let distance = delays.iter().enumerate().map(|(at, delay)| {
        let p = cdf((delay - 50_000.0) / 5_000.0);
        (p - at as f64 / count)
            .abs()
            .max((p - (at + 1) as f64 / count).abs())
    });
    (distance.fold(0.0, f64::max), 1.63 / count.sqrt())
}

fn uniform(z: f64) -> f64 {
    ((z + 1.0) / 2.0).clamp(0.0, 1.0)
}

/// By Abramowitz and Stegun, 26.2.17: off by less than 7.5e-8.
fn normal(z: f64) -> f64 {
    const B: [f64; 5] = [
        1.330274429,
        -1.821255978,
        1.781477937,
        -0.356563782,
        0.319381530,
    ];
    let t = 1.0 / (1.0 + 0.2316419 * z.abs());
    let tail = B.iter().fold(0.0, |sum, b| (sum + b) * t) * (-z * z / 2.0).exp()
        / (2.0 * std::f64::consts::PI).sqrt();
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// Shape 3, its mean moved to 0, scaled as in iproute2, whose tables end at four units.
fn pareto(z: f64) -> f64 {
    match z {
        _ if z >= 4.0 => 1.0,
        _ => (1.0 - (0.75 * z + 1.5).max(1.0).powi(-3)).max(0.0),
    }
}

/// Between frames of 1000 bytes at 10 and at 20 Mbit/s.
const GAPS_NS: [f64; 2] = [800_000.0, 400_000.0];
/// Arrivals of which the median is taken: a frame may be late, half of these are not.
const MANY: usize = 1000;

/// When the first frame would have come of a line that had always sent one each `gap_ns`: the median over arrivals of that line, which
/// begin with number `first`. In ns after `from_ns`.
fn line_ns(arrivals: &[Arrival], first: usize, gap_ns: f64, from_ns: u64) -> f64 {
    let since = |arrival: &Arrival| arrival.received_ns as f64 - from_ns as f64;
    let mut starts: Vec<f64> = arrivals
        .iter()
        .zip(first..)
        .map(|(arrival, number)| since(arrival) - number as f64 * gap_ns)
        .collect();
    starts.sort_by(f64::total_cmp);
    quantile(&starts, 0.5)
}

/// For how long a full line was at 20 Mbit/s that began and ended at 10: it gained half of each of its frames' time there, so as much as
/// that time.
fn fast_for_ns(arrivals: &[Arrival]) -> Option<f64> {
    let from_ns = arrivals.first()?.received_ns;
    let end = arrivals
        .len()
        .checked_sub(MANY)
        .filter(|end| *end >= MANY)?;
    let [first, last] =
        [0, end].map(|at| line_ns(&arrivals[at..at + MANY], at, GAPS_NS[0], from_ns));
    Some(first - last)
}

/// When a full line went from 10 to 20 Mbit/s, by its clock: where the lines through its first and its last arrivals cross.
fn step_ns(arrivals: &[Arrival]) -> Option<f64> {
    let from_ns = arrivals.first()?.received_ns;
    let end = arrivals
        .len()
        .checked_sub(MANY)
        .filter(|end| *end >= MANY)?;
    let slow = line_ns(&arrivals[..MANY], 0, GAPS_NS[0], from_ns);
    let fast = line_ns(&arrivals[end..], end, GAPS_NS[1], from_ns);
    let number = (fast - slow) / (GAPS_NS[0] - GAPS_NS[1]);
    // Without a step they cross among the last.
    let is_inside = (0.0..end as f64).contains(&number);
    is_inside.then(|| from_ns as f64 + slow + number * GAPS_NS[0])
}

/// The mean rate of a full line of frames of 1000 bytes that should be at `bps`: from the median of its first tenth to that of its last.
fn mean_bps(arrivals: &[Arrival], bps: f64) -> Option<f64> {
    let (tenth, gap_ns) = (arrivals.len() / 10, 8000.0 / bps * 1e9);
    let from_ns = arrivals.first().filter(|_| tenth >= 10)?.received_ns;
    let end = arrivals.len() - tenth;
    let first = line_ns(&arrivals[..tenth], 0, gap_ns, from_ns);
    let last = line_ns(&arrivals[end..], end, gap_ns, from_ns);
    Some(8000.0 / (gap_ns + (last - first) / end as f64) * 1e9)
}

/// Errors in per cent of the rate over windows, the first left out. A window begins with an arrival and ends with the first that is not
/// within it any more, so no part of a frame is counted or left out.
fn rate_errors(arrivals: &[Arrival], bps: f64, frame: usize, window_s: f64) -> Vec<f64> {
    let mut errors = Vec::new();
    let mut from = 0;
    for at in 1..arrivals.len() {
        // Stamps of two CPUs may be out of order.
        let since_ns = arrivals[at]
            .received_ns
            .saturating_sub(arrivals[from].received_ns);
        let seconds = since_ns as f64 / 1e9;
        if seconds >= window_s {
            let bits = (at - from) as f64 * frame as f64 * 8.0;
            errors.push((bits / seconds / bps - 1.0) * 100.0);
            from = at;
        }
    }
    errors.drain(..errors.len().min(1));
    errors
}

/// The largest error, if there are enough to tell.
fn worst(errors: &[f64]) -> Option<f64> {
    let worst = errors.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    (!errors.is_empty()).then_some(worst)
}

/// The value at this share of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(serial: u32, received_ns: u64) -> Arrival {
        Arrival {
            serial,
            sent_ns: 0,
            received_ns,
        }
    }

    /// `count` arrivals, one each `ns`.
    fn each(ns: u64, count: u32) -> Vec<Arrival> {
        (0..count).map(|n| arrival(n, u64::from(n) * ns)).collect()
    }

    #[test]
    fn windows_are_from_arrival_to_arrival() {
        // A frame of 125 bytes each millisecond is 1 Mbit/s.
        let exact = each(1_000_000, 5000);
        assert_eq!(rate_errors(&exact, 1e6, 125, 1.0), [0.0; 3]);
        assert_eq!(rate_errors(&exact, 2e6, 125, 1.0), [-50.0; 3]);
        // What does not divide a window is no error, and what is off by a part of a frame is one.
        for (ns, error) in [(700_000, 0.0), (703_500, -0.4975)] {
            let errors = rate_errors(&each(ns, 5000), 1e6 / 0.7, 125, 0.1);
            assert!(errors.len() > 30);
            assert!(
                errors.iter().all(|e| (e - error).abs() < 0.001),
                "{errors:?}"
            );
        }
        assert_eq!(worst(&[0.1, -0.3]), Some(0.3));
        assert_eq!(
            [0.0, 0.5, 1.0].map(|share| quantile(&[1.0, 2.0, 9.0], share)),
            [1.0, 2.0, 9.0]
        );
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        for few in [vec![], each(1_000_000, 1), each(1_000_000, 1900)] {
            assert_eq!(worst(&rate_errors(&few, 1e6, 125, 1.0)), None);
        }
        for few in [vec![], each(800_000, 1), each(800_000, 99)] {
            assert_eq!(mean_bps(&few, 10e6), None);
            assert_eq!((fast_for_ns(&few), step_ns(&few)), (None, None));
        }
        // A line that stays as it is has no step.
        assert_eq!(step_ns(&each(800_000, 5000)), None);
        assert_eq!(fast_for_ns(&each(800_000, 5000)), Some(0.0));
        let bursts = Bursts::new(&[]);
        assert!(bursts.count == 0 && bursts.mean().is_nan());
        assert!(quantile(&[], 0.5).is_nan());
        assert!(kolmogorov(&[], uniform).1.is_infinite());
    }

    #[test]
    fn bursts_are_what_is_missing_in_a_row() {
        let serials = [0, 1, 4, 5, 9, 10];
        let arrivals: Vec<Arrival> = serials.iter().map(|n| arrival(*n, 0)).collect();
        let bursts = Bursts::new(&arrivals);
        assert_eq!((bursts.count, bursts.mean()), (2, 2.5));
    }

    #[test]
    fn steps_are_found_where_they_are() {
        let line = |fast: std::ops::Range<u32>| {
            let mut now = 7_000_000;
            let times = (0..6000).map(|n| {
                now += if fast.contains(&n) { 400_000 } else { 800_000 };
                now
            });
            let mut arrivals: Vec<Arrival> = times.map(|ns| arrival(0, ns)).collect();
            // The machine was away for 20 ms, over and over.
            for late in (100..6000).step_by(300) {
                let until = arrivals[late].received_ns + 20_000_000;
                for arrival in &mut arrivals[late..] {
                    arrival.received_ns = arrival.received_ns.max(until);
                }
            }
            arrivals
        };
        let found = fast_for_ns(&line(2000..4500)).unwrap();
        assert!((found - 1e9).abs() < 1000.0, "{found}");
        let arrivals = line(2500..6000);
        let found = step_ns(&arrivals).unwrap();
        assert!((found - (7e6 + 2500.0 * 8e5)).abs() < 800_000.0, "{found}");
        for (part, bps) in [(&arrivals[..2500], 10e6), (&arrivals[2500..], 20e6)] {
            let found = mean_bps(part, bps).unwrap();
            assert!((found / bps - 1.0).abs() < 1e-3, "{found}");
            assert!((mean_bps(part, bps * 1.1).unwrap() / bps - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn distributions_are_those_of_the_textbook() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.841_345),
            (-1.96, 0.024_998),
            (3.0, 0.998_650),
        ] {
            assert!((normal(z) - p).abs() < 1e-6, "{z}");
        }
        assert_eq!([-2.0, -0.5, 0.0, 1.5].map(uniform), [0.0, 0.25, 0.5, 1.0]);
        // It begins at two thirds below its mean, which is at 1 - (2/3)^3.
        assert_eq!([-1.0, -2.0 / 3.0, 4.0].map(pareto), [0.0, 0.0, 1.0]);
        assert!((pareto(0.0) - (1.0 - 8.0 / 27.0)).abs() < 1e-12);
        // 1000 quantiles of a distribution are of it, and not of another.
        let of = |z: f64| Arrival {
            serial: 0,
            sent_ns: 0,
            received_ns: (50e6 + z * 5e6) as u64,
        };
        let arrivals: Vec<Arrival> = (0..1000)
            .map(|n| of((n as f64 + 0.5) / 500.0 - 1.0))
            .collect();
        let (own, bound) = kolmogorov(&arrivals, uniform);
        assert!(
            own < 0.001 && kolmogorov(&arrivals, normal).0 > bound,
            "{own}"
        );
    }
}
