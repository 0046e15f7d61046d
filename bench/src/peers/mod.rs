//! `l2relay-bench peers`: relays side by side, in interleaved rounds.
//!
//! A table of relays ([`crate::rivals::all`]) times a table of metrics ([`metric::all`]). Every relay is started anew in a topology of its
//! own in each round, and each round begins with another relay, so that neither the machine's mood nor the order favours one. Client,
//! server and flood share a CPU, the relay has the other. Results are medians and ranges; goals are judged by ratios within a round.

mod figure;
mod goal;
mod html;
mod metric;
mod results;
mod scene;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::machine::Machine;
use crate::rivals::{self, Rival, Setup};
use crate::run::{Interrupted, Run};
use crate::say;
use figure::Figure;
use goal::{GOALS, Verdict};
use metric::{Metric, Outcome};
use results::Results;
use scene::Scene;

/// Compares relays: latency, TCP, flood, idle CPU, start, memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Rounds; in each every relay is measured once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Only these relays.
    #[arg(long, value_delimiter = ',', value_name = "RELAY,…")]
    only: Vec<String>,
    /// Only these metrics.
    #[arg(long, value_delimiter = ',', value_name = "METRIC,…")]
    metrics: Vec<String>,
    /// Directory for peers.json, peers.md and peers.html.
    #[arg(long, default_value = "report")]
    out: PathBuf,
    /// The program l2relay [default: the one beside this program].
    #[arg(long)]
    l2relay: Option<PathBuf>,
    /// Further arguments for `l2relay run`.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    l2relay_args: String,
    /// The CPU of client, server and flood.
    #[arg(long, default_value_t = 0)]
    host_cpu: usize,
    /// The CPU of the relay.
    #[arg(long, default_value_t = 1)]
    relay_cpu: usize,
}

/// What a reader must know to read the figures.
const NOTES: [&str; 6] = [
    "Client, server and flood run on one CPU, the relay on another; a kernel relay (bridge) runs on the sender's.",
    "Each relay is started anew in each round, and rounds begin with another relay each. A ratio is taken within a round; a goal is \
     judged by the median of ratios.",
    "Floods are XDP frames that no socket sends, as fast as the sender's CPU can make them beside the receiving it pays for; GRO is on \
     at all ends for them. What is offered is what the relay's interface took.",
    "Delivered datagrams are counted at the ingress of the server's interface, segments of super-frames one by one, and go no further.",
    "A frame's size is counted from the Ethernet header to the payload's end, without the check sequence.",
    "The start includes what starting a program in a namespace takes (ip, setpriv), some milliseconds.",
];

/// Everything of one comparison; `peers.json`.
#[derive(Debug, Serialize)]
struct Report {
    version: u32,
    machine: Machine,
    rounds: u32,
    seconds: u32,
    relays: Vec<Entrant>,
    results: Results,
    goals: Vec<Verdict>,
}

/// A relay of the comparison.
#[derive(Debug, Serialize)]
struct Entrant {
    name: &'static str,
    about: &'static str,
    /// The command that started it; empty if it is no program.
    command: String,
    /// Why it was not measured.
    skipped: Option<String>,
}

/// Measures, prints the table and writes the files; false if a relay failed.
pub(crate) fn peers(run: &Run, flags: &Flags) -> Result<bool> {
    let setup = &setup(flags)?;
    let (relays, metrics) = (relays(flags)?, metrics(flags)?);
    let machine = Machine::facts(run, &setup.l2relay)?;
    if machine.load_before > 0.5 {
        say::err(&format!(
            "the machine is not idle (load average {:.2}): other programs disturb the figures",
            machine.load_before
        ));
    }
    let mut entrants: Vec<Entrant> = relays
        .iter()
        .map(|relay| Entrant {
            name: relay.name(),
            about: relay.about(),
            command: String::new(),
            skipped: relay.missing(setup),
        })
        .collect();
    for entrant in &entrants {
        if let Some(reason) = &entrant.skipped {
            say::err(&format!("SKIPPED {}: {reason}", entrant.name));
        }
    }
    let figures = metrics.iter().flat_map(|metric| metric.figures()).collect();
    let mut results = Results::new(figures);
    let present: Vec<usize> = (0..relays.len())
        .filter(|&at| entrants[at].skipped.is_none())
        .collect();
    ensure!(
        !present.is_empty(),
        "none of the relays asked for can run here"
    );
    for &at in &present {
        results.enter(relays[at].name());
    }

    let mut failed = false;
    let time = Duration::from_secs(flags.seconds.into());
    for round in 0..flags.rounds as usize {
        for turn in 0..present.len() {
            let at = present[(round + turn) % present.len()];
            let relay = relays[at].as_ref();
            say::err(&format!(
                "round {} of {}: {} ({} of {})",
                round + 1,
                flags.rounds,
                relay.name(),
                turn + 1,
                present.len()
            ));
            let mut scene = match Scene::open(run, relay, setup, time) {
                Ok(scene) => scene,
                Err(error) => {
                    failed = true;
                    let figures = metrics.iter().flat_map(|metric| metric.figures());
                    fail(&mut results, relay, figures, error)?;
                    continue;
                }
            };
            entrants[at].command = scene.command().into();
            for metric in &metrics {
                failed |= !measure(&mut results, &mut scene, relay, metric.as_ref(), round)?;
            }
        }
    }

    let goals: Vec<Verdict> = GOALS
        .iter()
        .filter_map(|goal| goal.judge(&results))
        .collect();
    let report = Report {
        version: 1,
        machine,
        rounds: flags.rounds,
        seconds: flags.seconds,
        relays: entrants,
        results,
        goals,
    };
    publish(&report, flags)?;
    Ok(!failed)
}

fn setup(flags: &Flags) -> Result<Setup> {
    let l2relay = match &flags.l2relay {
        Some(path) => std::path::absolute(path)?,
        None => std::env::current_exe()
            .context("finding this program")?
            .with_file_name("l2relay"),
    };
    let words = flags.l2relay_args.split_whitespace();
    Ok(Setup {
        relay_cpu: flags.relay_cpu,
        other_cpu: flags.host_cpu,
        l2relay,
        l2relay_args: words.map(Into::into).collect(),
    })
}

/// One metric of one relay in one round; false if it failed, which is noted aloud, and the others go on.
fn measure(
    results: &mut Results,
    scene: &mut Scene<'_>,
    relay: &dyn Rival,
    metric: &dyn Metric,
    round: usize,
) -> Result<bool> {
    let figures = metric.figures();
    let outcome = match scene.check().and_then(|()| metric.measure(scene)) {
        Ok(outcome) => outcome,
        Err(error) => {
            fail(results, relay, figures, error)?;
            return Ok(false);
        }
    };
    match outcome {
        Outcome::Values(values) => {
            let shown: Vec<_> = figures
                .iter()
                .zip(&values)
                .map(|(figure, value)| format!("{} {value:.2} {}", figure.key, figure.unit))
                .collect();
            say::err(&format!("  {}", shown.join(", ")));
            for (figure, value) in figures.iter().zip(values) {
                results.record(relay.name(), &figure.key, round, value);
            }
        }
        Outcome::NoConnection(how) => {
            say::err(&format!("  {}: no connection: {how}", metric.name()));
            for figure in figures {
                results.lack(relay.name(), &figure.key, "no connection", &how);
            }
        }
        Outcome::NoProgram => {}
    }
    Ok(true)
}

/// Notes a failure aloud; an interruption goes on.
fn fail(
    results: &mut Results,
    relay: &dyn Rival,
    figures: impl IntoIterator<Item = Figure>,
    error: anyhow::Error,
) -> Result<()> {
    if error.is::<Interrupted>() {
        return Err(error);
    }
    let reason = format!("{error:#}");
    say::err(&format!("  FAILED: {reason}"));
    for figure in figures {
        results.lack(relay.name(), &figure.key, "failed", &reason);
    }
    Ok(())
}

/// The relays asked for.
fn relays(flags: &Flags) -> Result<Vec<Box<dyn Rival>>> {
    match flags.only.as_slice() {
        [] => Ok(rivals::all()),
        names => names.iter().map(|name| rivals::find(name)).collect(),
    }
}

/// The metrics asked for.
fn metrics(flags: &Flags) -> Result<Vec<Box<dyn Metric>>> {
    let mut metrics = metric::all();
    let known: Vec<String> = metrics.iter().map(|metric| metric.name()).collect();
    if let Some(unknown) = flags.metrics.iter().find(|name| !known.contains(name)) {
        bail!("no metric named {unknown}; there are: {}", known.join(", "));
    }
    if !flags.metrics.is_empty() {
        metrics.retain(|metric| flags.metrics.contains(&metric.name()));
    }
    Ok(metrics)
}

fn publish(report: &Report, flags: &Flags) -> Result<()> {
    let table = results::markdown(&report.results, &report.goals);
    say::out(&table);
    let machine = &report.machine;
    let mut page = format!(
        "# Relays side by side\n\n{} · {} · {}\n\n`{}`\n\nMedian (smallest–largest) of {} rounds, {} s each measurement.\n\n{table}\n",
        machine.date,
        machine.cpu_model,
        machine.kernel,
        machine.command,
        report.rounds,
        report.seconds
    );
    for note in NOTES {
        page += &format!("- {note}\n");
    }
    std::fs::create_dir_all(&flags.out)
        .with_context(|| format!("making {}", flags.out.display()))?;
    let json = serde_json::to_string_pretty(report)?;
    for (name, text) in [
        ("peers.json", json),
        ("peers.md", page),
        ("peers.html", html::page(report)),
    ] {
        let path = flags.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        say::err(&format!("wrote {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(line: &str) -> Flags {
        Line::parse_from(std::iter::once("peers").chain(line.split_whitespace())).flags
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let error = metrics(&flags("--metrics flood-64-64,speed")).err();
        let error = error.expect("it is unknown").to_string();
        assert!(
            error.contains("speed") && error.contains("ping-pong"),
            "{error}"
        );
        assert!(relays(&flags("--only bridge,cisco")).is_err());
        let some = metrics(&flags("--metrics idle,flood-64-64")).expect("known");
        let names: Vec<_> = some.iter().map(|metric| metric.name()).collect();
        assert_eq!(names, ["idle", "flood-64-64"]);
    }

    #[test]
    fn a_bridge_is_measured_and_reported() {
        let Some(run) = crate::run::for_test("a_bridge_is_measured_and_reported") else {
            return;
        };
        let out = std::env::temp_dir().join(run.name("peers"));
        let mut flags =
            flags("--rounds 1 --seconds 1 --only bridge --metrics start,flood-64-64 --relay-cpu 0");
        flags.out.clone_from(&out);
        assert!(peers(&run, &flags).expect("a comparison"));
        let json = std::fs::read_to_string(out.join("peers.json")).expect("a report");
        let pages = ["peers.md", "peers.html"].map(|name| out.join(name).is_file());
        std::fs::remove_dir_all(&out).expect("it is removed");
        assert_eq!(pages, [true, true]);
        let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let values = &report["results"]["values"]["bridge"];
        let value = |key: &str| values[key][0].as_f64().unwrap_or(0.0);
        let (offered, delivered) = (value("flood-64-64-offered"), value("flood-64-64-delivered"));
        assert!(delivered > 1.0, "{values}");
        // The bridge runs on the sender's CPU: what is offered is delivered.
        assert!((delivered / offered - 1.0).abs() < 0.3, "{values}");
        assert!(values["start"].is_null(), "it is no program");
    }
}
