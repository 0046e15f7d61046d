//! `l2relay-bench peers`: relays side by side, in interleaved rounds.
//!
//! A table of relays ([`crate::rivals::all`]) times a table of metrics ([`metric::all`]), of which a [`plan::Plan`] takes some. Every relay is started anew in a topology of its
//! own in each round, and each round begins with another relay, so that neither the machine's mood nor the order favours one. Client,
//! server and flood share a CPU, the relay has the other. Results are medians and ranges; goals are judged by ratios within a round.

mod goal;
mod html;
mod metric;
mod plan;
mod results;
mod scene;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::machine::Machine;
use crate::rivals::{Rival, Setup};
use crate::rounds::figure::Figure;
use crate::rounds::{self, Verdict};
use crate::run::{Interrupted, Run};
use crate::say;
use goal::GOALS;
use metric::{Metric, Outcome};
use plan::{Plan, Preset};
use results::{FAILED, Results};
use scene::Scene;

/// What to compare, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Which relays and metrics, where --only and --metrics do not say.
    #[arg(long, value_enum, default_value_t = Preset::Quick)]
    preset: Preset,
    /// Rounds; in each every relay is measured once [default: 5; 15 with --preset goals, as some goals need].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
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
const NOTES: [&str; 10] = [
    "Client, server and flood run on one CPU, the relay on another; a kernel relay (bridge) runs on the sender's.",
    "Each relay is started anew in each round, and rounds begin with another relay each. A ratio is taken within a round; a goal is \
     judged by the median of ratios.",
    "Floods are XDP frames that no socket sends, as fast as the sender's CPU can make them beside the receiving it pays for; GRO is on \
     at all ends for them. What is offered is what the relay's interface took.",
    "Delivered datagrams are counted at the ingress of the server's interface, segments of super-frames one by one, and go no further. \
     Every socket buffer's segment size is compared with the payload sent, and some payloads are compared byte by byte.",
    "A socket's datagrams are paced and numbered, and read by one thread of the server that goes before the flood on their CPU.",
    "Transit time is taken by the kernel's clock from the egress of the client's interface to the ingress of the server's, frame by frame, \
     while sockperf sends one message there and back at a time.",
    "A relay that swaps MAC addresses stands between hosts that have the same one, or nobody would accept what it forwards.",
    "A frame's size is counted from the Ethernet header to the payload's end, without the check sequence.",
    "The start includes what starting a program in a namespace takes (ip, setpriv), some milliseconds.",
    "An interface that comes back does so by commands (ip), whose milliseconds count; a datagram is sent every half millisecond until one \
     is counted at the server's interface.",
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
    let plan = Plan::new(flags)?;
    let (relays, metrics) = (&plan.relays, &plan.metrics);
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
    say::err(&format!(
        "{} relays, {} metrics, {} rounds: about {}",
        present.len(),
        metrics.len(),
        plan.rounds,
        minutes(plan.takes(&present))
    ));

    let mut failed = false;
    for round in 0..plan.rounds as usize {
        for (turn, at) in rounds::order(round, present.len()).enumerate() {
            let at = present[at];
            let relay = relays[at].as_ref();
            say::err(&format!(
                "round {} of {}: {} ({} of {})",
                round + 1,
                plan.rounds,
                relay.name(),
                turn + 1,
                present.len()
            ));
            let mut scene = match Scene::open(run, relay, setup, plan.time) {
                Ok(scene) => scene,
                Err(error) => {
                    failed = true;
                    let figures = metrics.iter().flat_map(|metric| metric.figures());
                    fail(&mut results, relay, figures, error)?;
                    continue;
                }
            };
            entrants[at].command = scene.command().into();
            for metric in metrics {
                if relay.is_limit() && !metric.is_flood() {
                    continue;
                }
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
        rounds: plan.rounds,
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
        confined: false,
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
                .filter_map(|(figure, value)| {
                    Some(format!("{} {:.2} {}", figure.key, (*value)?, figure.unit))
                })
                .collect();
            say::err(&format!("  {}", shown.join(", ")));
            for (figure, value) in figures.iter().zip(values) {
                if let Some(value) = value {
                    results.record(relay.name(), &figure.key, round, value);
                }
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
        results.lack(relay.name(), &figure.key, FAILED, &reason);
    }
    Ok(())
}

/// A time for people who wait.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6000 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
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
    for entrant in &report.relays {
        if let Some(reason) = &entrant.skipped {
            page += &format!("- {} was skipped: {reason}\n", entrant.name);
        }
    }
    for note in NOTES {
        page += &format!("- {note}\n");
    }
    let json = serde_json::to_string_pretty(report)?;
    let files = [
        ("peers.json", json),
        ("peers.md", page),
        ("peers.html", html::page(report)),
    ];
    for path in crate::report::write(&flags.out, files)? {
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

    pub(super) fn flags(line: &str) -> Flags {
        Line::parse_from(std::iter::once("peers").chain(line.split_whitespace())).flags
    }

    #[test]
    fn times_are_for_people() {
        let said = [5, 99, 100, 5999, 6000].map(|seconds| minutes(Duration::from_secs(seconds)));
        assert_eq!(said, ["5 s", "99 s", "2 min", "100 min", "1.7 h"]);
    }

    /// The report of a comparison, as JSON; the other files must be there too.
    fn compared(run: &Run, line: &str) -> serde_json::Value {
        let out = std::env::temp_dir().join(run.name("peers"));
        let mut flags = flags(line);
        flags.out.clone_from(&out);
        assert!(peers(run, &flags).expect("a comparison"));
        let json = std::fs::read_to_string(out.join("peers.json")).expect("a report");
        let pages = ["peers.md", "peers.html"].map(|name| out.join(name).is_file());
        std::fs::remove_dir_all(&out).expect("it is removed");
        assert_eq!(pages, [true, true]);
        serde_json::from_str(&json).expect("JSON")
    }

    #[test]
    fn every_kind_is_measured_and_reported() {
        let Some(run) = crate::run::for_test("every_kind_is_measured_and_reported") else {
            return;
        };
        let report = compared(
            &run,
            "--rounds 1 --seconds 1 --only bridge --relay-cpu 0 --metrics start,transit,under-load-1000,throughput-64,udp,tcp-off-8,\
             flood-64-64,lossless-64-64,socket-4m-64-64,link-up,re-created",
        );
        let values = &report["results"]["values"]["bridge"];
        let value = |key: &str| {
            values[key][0]
                .as_f64()
                .unwrap_or_else(|| panic!("no {key}: {}", report["results"]))
        };
        assert!(value("flood-64-64-delivered") > 1.0, "{values}");
        // The bridge runs on the sender's CPU: what is offered is delivered.
        let share = value("flood-64-64-delivered") / value("flood-64-64-offered");
        assert!((share - 1.0).abs() < 0.3, "{values}");
        assert!(value("transit-p50") > 0.0 && value("transit-p50") <= value("transit-p99"));
        assert!(
            value("under-load-1000-p50") > value("transit-p50"),
            "{values}"
        );
        for more_than_nothing in [
            "throughput-64-received",
            "udp-goodput",
            "tcp-off-8-goodput",
            "lossless-64-64-overload",
            "socket-4m-64-64-50k-read",
            "link-up",
        ] {
            assert!(
                value(more_than_nothing) > 0.0,
                "{more_than_nothing}: {values}"
            );
        }
        let lost = value("socket-4m-64-64-50k-lost");
        assert!((0.0..100.0).contains(&lost), "{values}");
        assert!(value("link-up") <= value("link-up-longest"), "{values}");
        for no_program in ["start", "under-load-1000-cpu", "re-created"] {
            assert!(values[no_program].is_null(), "{values}");
        }
    }

    #[test]
    fn the_limit_is_measured_by_floods_alone() {
        let Some(run) = crate::run::for_test("the_limit_is_measured_by_floods_alone") else {
            return;
        };
        let report = compared(
            &run,
            "--rounds 1 --seconds 1 --only tx-limit --relay-cpu 0 --metrics idle,flood-512-64",
        );
        let values = &report["results"]["values"]["tx-limit"];
        let value = |key: &str| values[key][0].as_f64().unwrap_or(0.0);
        let (sent, arrived) = (
            value("flood-512-64-offered"),
            value("flood-512-64-delivered"),
        );
        assert!(
            arrived > 1.0 && (arrived / sent - 1.0).abs() < 0.3,
            "{report}"
        );
        assert!(values["idle-cpu"].is_null(), "{values}");
    }
}
