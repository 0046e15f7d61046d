//! `l2relay-bench dumbbell`: DCE Cradle's experiment on the running kernel's TCP, over emulated links.
//!
//! Six hosts a dumbbell, N dumbbells side by side with a seed each, case after case; ns-3's own TCP beside it. Goodput is counted at the
//! receiver. Start reading at [`case::all`].

mod case;
mod expect;
mod net;
mod ns3;
mod plot;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::Signal;

use crate::machine::Machine;
use crate::process::{Process, Program};
use crate::run::{Interrupted, Run};
use crate::say;
use crate::traffic::{Protocol, iperf3, probe};
use case::{Case, RATE_KBPS};
use net::Dumbbells;
use ns3::Ns3;
use report::{Report, Row, Verdict};

/// The dumbbell of DCE Cradle: reno, cubic and bbr over 2 Mbit/s, 100 ms and loss.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Runs of each case, side by side, each with its seed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=40))]
    runs: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(3..=3600))]
    seconds: u32,
    /// The seed of the first run; the others count on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    seed: u32,
    /// Two cases and ns-3, three runs of 10 s: whether it works, in a minute.
    #[arg(long)]
    short: bool,
    /// Only cases with this in their name.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory for dumbbell.json, dumbbell.csv and dumbbell.html.
    #[arg(long, default_value = "report")]
    out: PathBuf,
    /// The program l2relay [default: the one beside this program].
    #[arg(long)]
    l2relay: Option<PathBuf>,
}

/// What a reader must know to read the figures.
const NOTES: [&str; 6] = [
    "A frame is serialised, then delayed, then lost, as in the original's simulator; lost frames have used the line. In the row of the \
     kernel's TBF it shapes before the link stage delays and loses.",
    "Goodput is counted at the receiver. The client's figure counts what it has written to its socket, some of which has not left when \
     it stops; the published figure of the real network is of that kind.",
    "One flow takes 15 % of the line at 5 % loss: such cases test loss and delay, not rate. The case without loss tests the rate: at MSS \
     1448 and 1514 bytes a frame it carries at most 1913 kbit/s.",
    "Mathis: MSS/RTT × 1.22/√p. PFTK: Padhye's formula with one packet an acknowledgement and a timeout of RTT + 200 ms. At 5 % CUBIC is \
     in its Reno-friendly region, so both expect the same.",
    "TCP itself is not repeatable to the packet: the kernel's scheduling has a share in it. The decisions of the links are: same seed, \
     same sequence, same losses.",
    "Published figures: ns-3-dce documentation, read from its plots; 100 runs of 60 s, kernels of 2008 to 2013, two flows at once.",
];

/// The band for Reno and CUBIC at 5 % and 200 ms, in kbit/s: a packet-level model of Linux's sender (262 to 287), three standard errors of
/// ten runs, widened by a tenth.
const BAND_KBPS: [f64; 2] = [220.0, 340.0];
/// The same for three runs of 10 s, whose mean has a standard error of 80 and is higher: until the first loss the window grows fast.
const SHORT_BAND_KBPS: [f64; 2] = [120.0, 700.0];
/// Namespaces and cables, before the first case.
const SET_UP: Duration = Duration::from_secs(10);
/// What fills the line at MSS 1448: that payload in frames of 1514 bytes.
const CEILING_KBPS: f64 = RATE_KBPS as f64 * 1448.0 / 1514.0;

/// Measures, prints and writes the report; false if something of ours failed or missed its goal.
pub(crate) fn dumbbell(run: &Run, flags: &Flags) -> Result<bool> {
    let started = Instant::now();
    let (runs, seconds) = if flags.short {
        (3, 10)
    } else {
        (flags.runs as usize, flags.seconds)
    };
    let l2relay = match &flags.l2relay {
        Some(path) => std::path::absolute(path)?,
        None => std::env::current_exe()?.with_file_name("l2relay"),
    };
    ensure!(
        l2relay.is_file(),
        "{} does not exist (build it, or give its place with --l2relay)",
        l2relay.display()
    );
    let mut cases = case::all(flags.short);
    if let Some(text) = &flags.only {
        cases.retain(|case| case.name.contains(text.as_str()));
        ensure!(!cases.is_empty(), "no case has {text:?} in its name");
    }
    let mut skipped = Vec::new();
    let missing = Ns3::missing();
    let simulate = flags.only.is_none() && missing.is_none();
    if flags.only.is_none()
        && let Some(why) = missing
    {
        say::err(&format!("SKIPPED ns-3: {why}"));
        skipped.push(format!("ns-3: {why}"));
    }
    let mut expected = case::duration(seconds) * cases.len() as u32 + SET_UP;
    if simulate {
        expected += ns3::duration(2 * runs as u32, seconds);
    }
    say::err(&format!(
        "{} cases of {runs} runs side by side, {seconds} s each{}: about {:.0} min",
        cases.len(),
        if simulate { ", and ns-3" } else { "" },
        (expected.as_secs_f64() / 60.0).ceil()
    ));
    let machine = Machine::facts(run, &l2relay)?;
    let dumbbells = Dumbbells::build(run, runs)?;
    let mut rows = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        say::err(&format!(
            "[{:2}/{}] {:4.0} s of about {:.0} s  {}",
            at + 1,
            cases.len(),
            started.elapsed().as_secs_f64(),
            expected.as_secs_f64(),
            case.name
        ));
        let program = l2relay.to_string_lossy();
        let row = measure(run, &dumbbells, &program, case, seconds, flags.seed)
            .with_context(|| case.name.clone())?;
        if let Some(found) = row.received() {
            say::err(&format!("        {:.1} kbit/s", found.mean));
        }
        rows.push(row);
    }
    drop(dumbbells);
    if simulate {
        rows.extend(simulated(run, runs, seconds, flags.seed)?);
    }
    let verdicts = verdicts(&rows, runs, seconds);
    let report = Report {
        version: 1,
        machine,
        took_s: started.elapsed().as_secs_f64(),
        runs,
        seconds,
        seed: flags.seed,
        rows,
        verdicts,
        skipped,
    };
    say::out(&report.text());
    for path in report.write(&flags.out)? {
        say::err(&format!("wrote {}", path.display()));
    }
    let whole = report.rows.iter().all(|row| row.trouble.is_empty());
    Ok(whole && report.verdicts.iter().all(|verdict| verdict.met))
}

/// One case on all dumbbells at once.
fn measure(
    run: &Run,
    dumbbells: &Dumbbells,
    program: &str,
    case: &Case,
    seconds: u32,
    seed: u32,
) -> Result<Row> {
    const PORT: u16 = 5201;
    dumbbells.shape(run, case.bottleneck)?;
    let relay = dumbbells.start_relay(run, program, case, seed)?;
    let mut servers = Vec::new();
    for at in 0..dumbbells.count() {
        for flow in 0..case.flows {
            let (_, receiver) = dumbbells.ends(at, flow);
            servers.push(
                Program::new("iperf3")
                    .args(["-s", "-1"])
                    .within(receiver)
                    .start(run)?,
            );
        }
    }
    for server in &mut servers {
        probe::wait_listening(run, server, Protocol::Tcp, PORT)?;
    }
    let mut clients: Vec<(usize, Process)> = Vec::new();
    for at in 0..dumbbells.count() {
        for flow in 0..case.flows {
            let (sender, _) = dumbbells.ends(at, flow);
            // With timestamps a segment carries twelve bytes less than the MSS that is announced.
            let client = Program::new("iperf3")
                .args([
                    "-J",
                    "-C",
                    case.algorithm,
                    "-c",
                    &Dumbbells::address(flow),
                    "-t",
                ])
                .arg(seconds)
                .args(["-l", "1024", "--connect-timeout", "20000", "-M"])
                .arg(case.mss + 12)
                .within(sender);
            clients.push((flow, client.start(run)?));
        }
    }
    let mut row = Row {
        name: case.name.clone(),
        case: Some(case.clone()),
        received_kbps: Vec::new(),
        sent_kbps: Vec::new(),
        second_kbps: Vec::new(),
        expected_kbps: case.expected(),
        loss_percent: None,
        late_p99_us: None,
        trouble: Vec::new(),
    };
    let limit = Duration::from_secs(u64::from(seconds) + 60);
    for (flow, client) in clients {
        let output = client.wait(run, limit)?;
        match iperf3::parse(&output.stdout) {
            // Of two flows the first is what the original reports; the second stands beside it.
            Ok(goodput) if flow == 0 => {
                row.received_kbps.push(goodput.received_bps / 1e3);
                row.sent_kbps.push(goodput.sent_bps / 1e3);
                let found = goodput.congestion_control.unwrap_or_default();
                if found != case.algorithm {
                    row.trouble
                        .push(format!("the kernel used {found:?} instead"));
                }
            }
            Ok(goodput) => row.second_kbps.push(goodput.received_bps / 1e3),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => row.trouble.push(format!("a run failed: {error:#}")),
        }
    }
    drop(servers);
    let output = relay.stop(Signal::TERM, Duration::from_secs(5));
    output.succeed().context("stopping the relay")?;
    account(&output.stdout, case, &mut row)?;
    Ok(row)
}

/// What the relay's own counters say: whether they are conserved, and what was lost.
fn account(stdout: &str, case: &Case, row: &mut Row) -> Result<()> {
    let last = stdout.lines().rfind(|line| line.starts_with('{'));
    let last: serde_json::Value =
        serde_json::from_str(last.context("the relay printed no statistics")?)?;
    let (mut passed, mut lost, mut late) = ([0; 2], [0; 2], 0);
    for lane in last["lanes"].as_array().into_iter().flatten() {
        let number = |name: &str| lane[name].as_u64().unwrap_or(0);
        let dropped: u64 = lane["dropped"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        if number("rx_packets") + number("created")
            != number("tx_packets") + dropped + number("held")
        {
            row.trouble.push(format!("packets are missing: {lane}"));
        }
        late = late.max(lane["link"]["lateness"]["p99_ns"].as_u64().unwrap_or(0));
        // Data goes from the left, where ports begin with a; acknowledgements come back.
        let data = lane["name"]
            .as_str()
            .is_some_and(|name| name.starts_with('a'));
        let way = usize::from(!data);
        lost[way] += lane["dropped"]["lost"].as_u64().unwrap_or(0);
        passed[way] += number("tx_packets");
    }
    let mut shares = [0.0; 2];
    for (way, name) in ["data", "acknowledgements"].into_iter().enumerate() {
        let all = (passed[way] + lost[way]) as f64;
        let share = lost[way] as f64 / all.max(1.0);
        shares[way] = share * 100.0;
        let p = case.loss_percent[way] / 100.0;
        // Four standard deviations and one packet: a share outside is no chance.
        if (share - p).abs() > 4.0 * (p * (1.0 - p) / all.max(1.0)).sqrt() + 1.0 / all.max(1.0) {
            row.trouble.push(format!(
                "lost {} of {all} packets on the way of the {name}, which are not {} %",
                lost[way], case.loss_percent[way]
            ));
        }
    }
    row.loss_percent = Some(shares);
    row.late_p99_us = Some(late as f64 / 1e3);
    Ok(())
}

/// ns-3's native TCP, as published: MSS 536, and MSS 1448 with an acknowledgement for every segment.
fn simulated(run: &Run, runs: usize, seconds: u32, seed: u32) -> Result<Vec<Row>> {
    say::err("ns-3: building its dumbbell");
    let ns3 = Ns3::build(run)?;
    [(536, 2), (1448, 1)]
        .into_iter()
        .map(|(mss, delack)| {
            let started = Instant::now();
            let values = (0..runs as u32).map(|at| {
                let value = ns3.measure(run, mss, delack, seed + at, seconds);
                say::err(&format!(
                    "ns-3's native TCP, MSS {mss}: {} of {runs} runs, {:.0} s",
                    at + 1,
                    started.elapsed().as_secs_f64()
                ));
                value
            });
            let mut reno = case::all(false).swap_remove(0);
            reno.mss = mss;
            Ok(Row {
                name: format!("ns-3 native, MSS {mss}, delack {delack}"),
                case: None,
                received_kbps: values.collect::<Result<_>>()?,
                sent_kbps: Vec::new(),
                second_kbps: Vec::new(),
                expected_kbps: reno.expected(),
                loss_percent: None,
                late_p99_us: None,
                trouble: Vec::new(),
            })
        })
        .collect()
}

/// The goals, as far as what was measured can judge them.
fn verdicts(rows: &[Row], runs: usize, seconds: u32) -> Vec<Verdict> {
    let whole = runs >= 5 && seconds >= 30;
    let mean = |name: &str| {
        let row = rows.iter().find(|row| row.name == name)?;
        row.received().map(|found| found.mean)
    };
    // A line without loss needs some seconds to be filled.
    let (band, filled) = match whole {
        true => (BAND_KBPS, 0.9),
        false => (SHORT_BAND_KBPS, 0.6),
    };
    let judged = rows.iter().filter_map(|row| {
        let case = row.case.as_ref()?;
        let [low, high] = match case {
            case if case.has_goal() => band,
            case if case.loss_percent == [0.0; 2] => [filled * CEILING_KBPS, CEILING_KBPS],
            _ => return None,
        };
        let found = row.received()?.mean;
        Some(Verdict {
            goal: format!("{}: {low:.0} to {high:.0} kbit/s", row.name),
            found: format!("{found:.1}"),
            met: (low..=high).contains(&found),
        })
    });
    let mut verdicts: Vec<Verdict> = judged.collect();
    if !whole {
        return verdicts;
    }
    for (goal, above, below, low, high) in [
        (
            "RTT 400 to 200 ms",
            "cubic, 5 % both ways, RTT 400 ms",
            "cubic, 5 % both ways",
            0.4,
            0.8,
        ),
        (
            "MSS 536 to 1448",
            "reno, 5 % of data, MSS 536",
            "reno, 5 % of data",
            0.3,
            0.45,
        ),
        (
            "1 % to 5 %, reno",
            "reno, 1 % of data",
            "reno, 5 % of data",
            2.0,
            3.0,
        ),
        (
            "1 % to 5 %, cubic",
            "cubic, 1 % of data",
            "cubic, 5 % of data",
            2.0,
            3.4,
        ),
    ] {
        if let (Some(above), Some(below)) = (mean(above), mean(below)) {
            let ratio = above / below;
            verdicts.push(Verdict {
                goal: format!("{goal}: a ratio of {low} to {high}"),
                found: format!("{ratio:.2}"),
                met: (low..=high).contains(&ratio),
            });
        }
    }
    verdicts
}
