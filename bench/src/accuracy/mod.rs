//! `l2relay-bench link-accuracy`: how exactly the link stage does what it is told, seen from outside; the kernel's TBF, and netem where
//! there is one, beside it.
//!
//! ```text
//! effects   one link: delay, lateness, rate, loss, jitter, queue, a single frame, a step
//! load      a fast link, and a hundred of them
//! line      client, relay with one link, server; stream   what is sent through it; estimate   what its arrivals say
//! ```

mod effects;
mod estimate;
mod line;
mod load;
mod stream;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::machine::Machine;
use crate::run::Run;
use crate::say;
use crate::sys::place;

/// Delay, rate, loss, jitter, queue and steps of emulated links, measured at both ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Seconds of each stream.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=60))]
    seconds: u32,
    /// Only these steps: delay, lateness, rate, loss, jitter, queue, single, step, fast, many.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
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
    skipped: Vec<String>,
}

/// What every step has, and where it writes.
struct Bench<'a> {
    run: &'a Run,
    flags: &'a Flags,
    program: String,
    /// Whether the kernel has netem to compare with.
    has_netem: bool,
    figures: Vec<Figure>,
}

type Step = (&'static str, fn(&mut Bench<'_>) -> Result<()>);

/// Every step, by the name it is chosen by.
const STEPS: [Step; 10] = [
    ("delay", |bench| bench.delay()),
    ("lateness", |bench| bench.lateness()),
    ("rate", |bench| bench.rate()),
    ("loss", |bench| bench.loss()),
    ("jitter", |bench| bench.jitter()),
    ("queue", |bench| bench.queue()),
    ("single", |bench| bench.single()),
    ("step", |bench| bench.step()),
    ("fast", |bench| bench.fast()),
    ("many", |bench| bench.many()),
];

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
    let known = |name: &&String| STEPS.iter().all(|(step, _)| step != name);
    let unknown: Vec<&String> = flags.only.iter().filter(known).collect();
    ensure!(
        unknown.is_empty(),
        "--only {unknown:?}: the steps are {}",
        STEPS.map(|(name, _)| name).join(", ")
    );
    ensure!(
        flags.host_cpu != flags.relay_cpu,
        "--host-cpu and --relay-cpu are the same: the relay needs a CPU of its own, or its lateness is the host's"
    );
    let machine = Machine::facts(run, &program)?;
    // Whatever the bench starts keeps off the relay's CPU, too.
    place::pin(flags.host_cpu)?;
    let mut skipped = Vec::new();
    if let Some(why) = Bench::netem_missing(run)? {
        say::err(&format!("SKIPPED netem: {why}"));
        skipped.push(format!("netem: {why}"));
    }
    let mut bench = Bench {
        run,
        flags,
        program: program.to_string_lossy().into_owned(),
        has_netem: skipped.is_empty(),
        figures: Vec::new(),
    };
    let wanted = |(name, _): &&Step| flags.only.is_empty() || flags.only.iter().any(|o| o == name);
    let steps: Vec<&Step> = STEPS.iter().filter(wanted).collect();
    say::err(&format!(
        "{} steps, about {} s",
        steps.len(),
        steps.len() as u32 * (2 * flags.seconds + 4)
    ));
    for (at, (name, step)) in steps.iter().enumerate() {
        say::err(&format!("[{}/{}] {name}", at + 1, steps.len()));
        step(&mut bench).with_context(|| (*name).to_owned())?;
    }
    for figure in &bench.figures {
        let verdict = match (figure.met, &figure.goal) {
            (Some(true), Some(goal)) => format!("  (goal {goal}, met)"),
            (Some(false), Some(goal)) => format!("  (goal {goal}, MISSED)"),
            _ => String::new(),
        };
        say::out(&format!("{:66} {}{verdict}", figure.what, figure.value));
    }
    let report = Report {
        version: 1,
        machine,
        figures: bench.figures,
        skipped,
    };
    for skipped in &report.skipped {
        say::out(&format!("SKIPPED {skipped}"));
    }
    let text = serde_json::to_string_pretty(&report)? + "\n";
    for path in crate::report::write(&flags.out, [("accuracy.json", text)])? {
        say::err(&format!("wrote {}", path.display()));
    }
    Ok(report
        .figures
        .iter()
        .all(|figure| figure.met != Some(false)))
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
}
