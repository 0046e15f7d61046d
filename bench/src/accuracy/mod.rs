//! `l2relay-bench link-accuracy`: how exactly the link stage does what it is told, seen from outside; the kernel's TBF beside it.

mod stream;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::Signal;
use serde::Serialize;

use crate::machine::Machine;
use crate::process::{Process, Program};
use crate::run::Run;
use crate::say;
use crate::topology::{Shape, Topology};
use stream::{Arrival, Spec, stream};

/// Delay, rate, loss, jitter, queue and steps of emulated links, measured at both ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Seconds of each stream.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Further arguments for `l2relay run`.
    #[arg(long, default_value = "--idle spin", allow_hyphen_values = true)]
    l2relay_args: String,
    /// Directory for accuracy.json.
    #[arg(long, default_value = "report")]
    out: PathBuf,
    /// The program l2relay [default: the one beside this program].
    #[arg(long)]
    l2relay: Option<PathBuf>,
    /// The CPU of sender and receiver.
    #[arg(long, default_value_t = 0)]
    host_cpu: usize,
    /// The CPU of the relay.
    #[arg(long, default_value_t = 1)]
    relay_cpu: usize,
}

/// A figure. `met` where there is a goal.
#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    value: String,
    goal: Option<String>,
    met: Option<bool>,
}

/// `accuracy.json`.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    machine: Machine,
    figures: Vec<Figure>,
}

struct Bench<'a> {
    run: &'a Run,
    flags: &'a Flags,
    program: String,
    figures: Vec<Figure>,
}

/// Measures and prints; false if a goal was missed.
pub(crate) fn accuracy(run: &Run, flags: &Flags) -> Result<bool> {
    let program = match &flags.l2relay {
        Some(path) => std::path::absolute(path)?,
        None => std::env::current_exe()?.with_file_name("l2relay"),
    };
    ensure!(
        program.is_file(),
        "{} does not exist (build it, or give its place with --l2relay)",
        program.display()
    );
    // Sender and receiver are threads of this program.
    core_pin(flags.host_cpu)?;
    let machine = Machine::facts(run, &program)?;
    let mut bench = Bench {
        run,
        flags,
        program: program.to_string_lossy().into_owned(),
        figures: Vec::new(),
    };
    type Step<'a> = (&'static str, fn(&mut Bench<'a>) -> Result<()>);
    let steps: [Step<'_>; 7] = [
        ("delay", Bench::delay),
        ("rate", Bench::rate),
        ("loss", Bench::loss),
        ("jitter", Bench::jitter),
        ("queue", Bench::queue),
        ("single frame", Bench::single),
        ("step", Bench::step),
    ];
    say::err(&format!("seven steps, about {} s", 8 * flags.seconds + 20));
    for (at, (name, step)) in steps.iter().enumerate() {
        say::err(&format!("[{}/7] {name}", at + 1));
        step(&mut bench).with_context(|| name.to_string())?;
    }
    for figure in &bench.figures {
        let verdict = match (figure.met, &figure.goal) {
            (Some(true), Some(goal)) => format!("  (goal {goal}, met)"),
            (Some(false), Some(goal)) => format!("  (goal {goal}, MISSED)"),
            _ => String::new(),
        };
        say::out(&format!("{:60} {}{verdict}", figure.what, figure.value));
    }
    let report = Report {
        version: 1,
        machine,
        figures: bench.figures,
    };
    std::fs::create_dir_all(&flags.out)?;
    let path = flags.out.join("accuracy.json");
    std::fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("writing {}", path.display()))?;
    say::err(&format!("wrote {}", path.display()));
    Ok(report
        .figures
        .iter()
        .all(|figure| figure.met != Some(false)))
}

fn core_pin(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

impl Bench<'_> {
    fn note(&mut self, what: impl Into<String>, value: String) {
        self.figures.push(Figure {
            what: what.into(),
            value,
            goal: None,
            met: None,
        });
    }

    fn judge(&mut self, what: impl Into<String>, value: String, goal: &str, met: bool) {
        self.figures.push(Figure {
            what: what.into(),
            value,
            goal: Some(goal.into()),
            met: Some(met),
        });
    }

    /// A stream through a link; gives what arrived, and the relay's last statistics of that lane.
    fn through(&self, link: &str, spec: Spec) -> Result<(Vec<Arrival>, serde_json::Value)> {
        let topology = Topology::build(self.run, Shape::Pairs, false)?;
        let site = topology.site()?;
        let [a, b] = [site.ports[0], site.ports[1]];
        let mut relay: Process = Program::new(&self.program)
            .args(["run", "--json", "--pair", &format!("{a},{b}"), "--cores"])
            .arg(self.flags.relay_cpu)
            .args(["--link", &format!("{a}>{b} {link}")])
            .args(self.flags.l2relay_args.split_whitespace())
            .within(&site.namespace)
            .start(self.run)?;
        relay.wait_until(
            self.run,
            Duration::from_secs(10),
            "it forwarded (\"ready\")",
            |p| p.written().lines().any(|line| line.trim() == "ready"),
        )?;
        self.introduce(&topology)?;
        let arrivals = stream(self.run, &topology, spec)?;
        let output = relay.stop(Signal::TERM, Duration::from_secs(5));
        output.succeed()?;
        let line = output.stdout.lines().rfind(|line| line.starts_with('{'));
        let last: serde_json::Value = serde_json::from_str(line.context("no statistics")?)?;
        Ok((arrivals, last["lanes"][0].clone()))
    }

    /// The same through the kernel's token bucket, without a relay.
    fn through_tbf(&self, tbf: &str, spec: Spec) -> Result<Vec<Arrival>> {
        let topology = Topology::build(self.run, Shape::Direct, false)?;
        self.introduce(&topology)?;
        Program::new("tc")
            .args("qdisc add dev c0 root tbf".split(' '))
            .args(tbf.split(' '))
            .within(&topology.client.namespace)
            .run(self.run, Duration::from_secs(5))?;
        stream(self.run, &topology, spec)
    }

    /// Makes the hosts know each other's address without ARP, which the link might lose.
    fn introduce(&self, topology: &Topology) -> Result<()> {
        for (host, other) in [
            (&topology.client, &topology.server),
            (&topology.server, &topology.client),
        ] {
            let path = format!("/sys/class/net/{}/address", other.interface);
            let mac = Program::new("cat").arg(path).within(&other.namespace);
            let mac = mac.run(self.run, Duration::from_secs(5))?.stdout;
            Program::new("ip")
                .args([
                    "neigh",
                    "replace",
                    &other.address.to_string(),
                    "lladdr",
                    mac.trim(),
                ])
                .args(["dev", host.interface, "nud", "permanent"])
                .within(&host.namespace)
                .run(self.run, Duration::from_secs(5))?;
        }
        Ok(())
    }

    fn spec(&self, per_second: u32, frame: usize) -> Spec {
        Spec {
            count: (per_second * self.flags.seconds) as usize,
            gap: Duration::from_secs(1) / per_second,
            frame,
            patience: Duration::from_secs(2),
        }
    }

    fn delay(&mut self) -> Result<()> {
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
        let late = |name: &str| lane["link"]["lateness"][name].as_f64().unwrap_or(f64::NAN) / 1e3;
        self.note(
            "  the relay's own lateness, us, p50 / p99",
            format!("{:.1} / {:.1}", late("p50_ns"), late("p99_ns")),
        );
        let apart = p99 - late("p99_ns");
        self.judge(
            "  lateness against the outside, us apart at p99",
            format!("{apart:.1}"),
            "50",
            apart.abs() <= 50.0,
        );
        Ok(())
    }

    fn rate(&mut self) -> Result<()> {
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
            for (window, goal) in [(1.0, Some(0.5)), (0.1, None)] {
                let errors = rate_errors(&arrivals, mbit * 1e6, 1000, window);
                let worst = errors.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                let what = format!("{name}, rate {mbit} Mbit/s over {window} s: largest error");
                match goal {
                    Some(goal) if name == "link" => {
                        self.judge(what, format!("{worst:.3} %"), "0.5 %", worst <= goal)
                    }
                    _ => self.note(what, format!("{worst:.3} %")),
                }
            }
        }
        Ok(())
    }

    fn loss(&mut self) -> Result<()> {
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

    fn jitter(&mut self) -> Result<()> {
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

    fn queue(&mut self) -> Result<()> {
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

    fn single(&mut self) -> Result<()> {
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

    fn step(&mut self) -> Result<()> {
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
