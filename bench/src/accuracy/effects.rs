//! One link, one property at a time.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::estimate::{
    Bursts, fast_for_ns, kolmogorov, mean_bps, normal, pareto, quantile, rate_errors, step_ns,
    uniform, worst,
};
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
