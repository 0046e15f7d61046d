//! sockperf: its servers, its clients, and all the figures of its report.
//!
//! What one must know about sockperf 3.7: it prints **half the round trip** and calls it latency; it
//! leaves the first 400 ms and the last 50 ms of a run out ("valid duration"); it ends with status 0
//! also when nothing was measured; its MBps and Mbps count in 1024 × 1024; and in under-load it counts
//! messages whose answer is still on its way when the test ends as dropped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::{Figures, Load, Place, Protocol, SLACK, probe};
use crate::process::{Process, Program};

/// sockperf's own port.
pub(crate) const PORT: u16 = 11111;

/// Points of a [`Latency::curve`] for each nine.
const POINTS_A_NINE: u32 = 20;

/// Time the server gets to say how much it received.
const STOP: Duration = Duration::from_secs(3);

/// sockperf's block of latency figures, in microseconds of half a round trip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Mean.
    pub(crate) avg_us: f64,
    /// Standard deviation.
    pub(crate) std_dev_us: f64,
    /// Smallest.
    pub(crate) min_us: f64,
    /// Percentile (25 … 99.999) and its latency, ascending.
    pub(crate) percentiles: Vec<Point>,
    /// Largest.
    pub(crate) max_us: f64,
    /// Latencies that the percentiles are made of.
    pub(crate) observations: u64,
    /// Messages sent in the whole run.
    pub(crate) sent: u64,
    /// Answers received in the whole run.
    pub(crate) received: u64,
    /// Seconds of the valid duration.
    pub(crate) valid_s: f64,
    /// Messages sent in the valid duration.
    pub(crate) valid_sent: u64,
    /// Answers received in the valid duration.
    pub(crate) valid_received: u64,
    /// Messages without an answer; in under-load also those whose answer was still on its way.
    pub(crate) dropped: u64,
    /// Answers that came twice.
    pub(crate) duplicated: u64,
    /// Answers that came late.
    pub(crate) out_of_order: u64,
    /// From sockperf's full log: more points of the same distribution, for the plot.
    #[serde(default)]
    pub(crate) curve: Vec<Point>,
}

/// A point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// 0 to 100.
    pub(crate) percentile: f64,
    /// Microseconds.
    pub(crate) us: f64,
}

/// sockperf's throughput: what the sender sent, and what the server counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Throughput {
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Seconds the sender sent.
    pub(crate) seconds: f64,
    /// Messages sent.
    pub(crate) sent: u64,
    /// sockperf's message rate, of the sender.
    pub(crate) sent_mps: f64,
    /// sockperf's bandwidth, of the sender, as it prints it (in 1024 × 1024 bits).
    pub(crate) sockperf_mbps: f64,
    /// Messages that the server received.
    pub(crate) received: u64,
    /// Payload that the server received, in 10⁶ bit/s.
    pub(crate) received_mbps: f64,
}

/// Runs server and client; gives the client's command and the figures.
pub(super) fn measure(place: &Place<'_>, load: &Load, seconds: u32) -> Result<(String, Figures)> {
    let server = start_server(place, load.protocol())?;
    let log = load
        .is_latency()
        .then(|| ScratchFile::new(&place.run.name("full-log.csv")));
    let client = client(place, load, seconds);
    let command = client.command_line();
    let logged = match &log {
        Some(log) => client.args(["--full-log", &log.0.to_string_lossy()]),
        None => client,
    };
    let output = logged.run(place.run, Duration::from_secs(seconds.into()) + SLACK)?;
    let served = server.stop(Signal::INT, STOP).stdout;

    let figures = match *load {
        Load::Throughput { size, .. } => {
            Figures::Throughput(parse_throughput(&output.stdout, &served, size)?)
        }
        _ => {
            let mut latency = parse_latency(&output.stdout)
                .with_context(|| format!("`{command}`{}", output.tail()))?;
            if let Some(log) = &log {
                latency.curve = curve(&read_log(&log.0)?);
            }
            Figures::Latency(latency)
        }
    };
    Ok((command, figures))
}

fn start_server(place: &Place<'_>, protocol: Protocol) -> Result<Process> {
    let server = &place.topology.server;
    let mut process = Program::new("sockperf")
        .args(["server", "-i", &server.address.to_string()])
        .args((protocol == Protocol::Tcp).then_some("--tcp"))
        .within(&server.namespace)
        .on_cpu(place.cpu)
        .start(place.run)?;
    probe::wait_listening(place.run, &mut process, protocol, PORT)?;
    Ok(process)
}

fn client(place: &Place<'_>, load: &Load, seconds: u32) -> Program {
    let mode = match load {
        Load::PingPong { .. } => "ping-pong",
        Load::UnderLoad { .. } => "under-load",
        _ => "throughput",
    };
    let sockperf = Program::new("sockperf")
        .args([mode, "-i", &place.topology.server.address.to_string()])
        .arg("-t")
        .arg(seconds)
        .args((load.protocol() == Protocol::Tcp).then_some("--tcp"));
    let sockperf = match load {
        Load::UnderLoad { mps, .. } => sockperf
            .args(["--mps", &mps.to_string()])
            .args(["--reply-every", "1"]),
        Load::Throughput { size, .. } => sockperf.arg("-m").arg(size),
        _ => sockperf,
    };
    sockperf
        .within(&place.topology.client.namespace)
        .on_cpu(place.cpu)
}

/// Parses what ping-pong and under-load print.
pub(crate) fn parse_latency(text: &str) -> Result<Latency> {
    if text.contains("No messages were received") {
        bail!("no message was answered");
    }
    if let Some(error) = text.lines().find_map(|l| l.split_once("ERROR: ")) {
        bail!("sockperf: {}", error.1.trim());
    }
    let text = plain(text);
    let mut percentiles: Vec<Point> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("---> percentile ") {
            let (percentile, us) = rest
                .split_once('=')
                .ok_or_else(|| anyhow!("a percentile without a value: {line}"))?;
            percentiles.push(Point {
                percentile: percentile.trim().parse().context("a percentile")?,
                us: us.trim().parse().context("a percentile's latency")?,
            });
        }
    }
    percentiles.sort_by(|a, b| a.percentile.total_cmp(&b.percentile));
    let total = line_with(&text, "[Total Run]")?;
    let valid = line_with(&text, "[Valid Duration]")?;
    Ok(Latency {
        avg_us: number(&text, "avg-latency=")?,
        std_dev_us: number(&text, "std-dev=")?,
        min_us: number(&text, "<MIN> observation =")?,
        percentiles,
        max_us: number(&text, "<MAX> observation =")?,
        observations: count(line_with(&text, " observations; each")?, "Total ")?,
        sent: count(total, "SentMessages=")?,
        received: count(total, "ReceivedMessages=")?,
        valid_s: number(valid, "RunTime=")?,
        valid_sent: count(valid, "SentMessages=")?,
        valid_received: count(valid, "ReceivedMessages=")?,
        dropped: count(&text, "# dropped messages =")?,
        duplicated: count(&text, "# duplicated messages =")?,
        out_of_order: count(&text, "# out-of-order messages =")?,
        curve: Vec::new(),
    })
}

/// Parses what throughput prints, and what its server printed when it was stopped.
pub(crate) fn parse_throughput(client: &str, server: &str, size: u32) -> Result<Throughput> {
    let (client, server) = (plain(client), plain(server));
    let total = line_with(&client, "Total of ")?;
    let seconds = number(total, "messages sent in ")?;
    let received = count(line_with(&server, "received and handled")?, "Total ")?;
    Ok(Throughput {
        size,
        seconds,
        sent: count(total, "Total of ")?,
        sent_mps: number(&client, "Message Rate is ")?,
        sockperf_mbps: number(line_with(&client, "BandWidth is ")?, "MBps (")?,
        received,
        received_mbps: received as f64 * f64::from(size) * 8.0 / seconds / 1e6,
    })
}

/// Latencies, in microseconds, of a full log.
fn read_log(path: &Path) -> Result<Vec<f64>> {
    let log = std::fs::read_to_string(path)
        .with_context(|| format!("reading sockperf's log {}", path.display()))?;
    parse_log(&log)
}

fn parse_log(log: &str) -> Result<Vec<f64>> {
    log.lines()
        .skip_while(|line| !line.starts_with("packet,"))
        .skip(1)
        .take_while(|line| !line.starts_with('-'))
        .map(|line| {
            let latency = line.rsplit(',').next().unwrap_or_default();
            latency
                .trim()
                .parse()
                .with_context(|| format!("sockperf's log: {line}"))
        })
        .collect()
}

/// The distribution at points evenly spaced on the scale of nines (0, 90, 99, 99.9 …), to the largest.
fn curve(latencies: &[f64]) -> Vec<Point> {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let mut points: Vec<Point> = Vec::new();
    for step in 0.. {
        let above = 10f64.powf(-f64::from(step) / f64::from(POINTS_A_NINE));
        if above * count < 1.0 {
            break;
        }
        let rank = ((1.0 - above) * count) as usize;
        points.push(Point {
            percentile: 100.0 * (1.0 - above),
            us: sorted[rank.min(sorted.len() - 1)],
        });
    }
    if let Some(largest) = sorted.last() {
        points.push(Point {
            percentile: 100.0 * (1.0 - 1.0 / count),
            us: *largest,
        });
    }
    points
}

/// sockperf colours its lines.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

fn line_with<'a>(text: &'a str, what: &str) -> Result<&'a str> {
    text.lines()
        .find(|line| line.contains(what))
        .ok_or_else(|| anyhow!("sockperf did not print \"{}\"", what.trim()))
}

/// The number after `label`.
fn number(text: &str, label: &str) -> Result<f64> {
    let (_, rest) = text
        .split_once(label)
        .ok_or_else(|| anyhow!("sockperf did not print \"{}\"", label.trim()))?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .with_context(|| format!("sockperf's \"{}\"", label.trim()))
}

fn count(text: &str, label: &str) -> Result<u64> {
    Ok(number(text, label)? as u64)
}

/// A file under the system's temporary directory, removed on drop.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // Not there if sockperf never wrote it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(points: &[Point], percentile: f64) -> f64 {
        let found = points
            .iter()
            .min_by(|a, b| {
                let distance = |p: &Point| (p.percentile - percentile).abs();
                distance(a).total_cmp(&distance(b))
            })
            .expect("there are points");
        found.us
    }

    #[test]
    fn ping_pong_is_parsed() {
        let latency = parse_latency(include_str!("fixtures/ping-pong-udp.txt")).expect("it parses");
        let pairs: Vec<(f64, f64)> = latency
            .percentiles
            .iter()
            .map(|p| (p.percentile, p.us))
            .collect();
        assert_eq!(
            pairs,
            [
                (25.0, 9.707),
                (50.0, 12.092),
                (75.0, 12.648),
                (90.0, 13.434),
                (99.0, 31.548),
                (99.9, 2181.654),
                (99.99, 2669.424),
                (99.999, 2730.127),
            ]
        );
        let expected = Latency {
            avg_us: 18.251,
            std_dev_us: 108.756,
            min_us: 9.387,
            percentiles: latency.percentiles.clone(),
            max_us: 2730.127,
            observations: 15061,
            sent: 27595,
            received: 27594,
            valid_s: 0.551,
            valid_sent: 15061,
            valid_received: 15061,
            dropped: 0,
            duplicated: 0,
            out_of_order: 0,
            curve: vec![],
        };
        assert_eq!(latency, expected);
    }

    #[test]
    fn under_load_counts_what_is_on_its_way_as_dropped() {
        let latency =
            parse_latency(include_str!("fixtures/under-load-delayed.txt")).expect("it parses");
        assert_eq!(
            (latency.sent, latency.received, latency.dropped),
            (150, 140, 7)
        );
        assert_eq!((latency.min_us, latency.max_us), (100_071.068, 116_611.221));
    }

    #[test]
    fn the_log_agrees_with_the_percentiles() {
        let latency =
            parse_latency(include_str!("fixtures/under-load-delayed.txt")).expect("it parses");
        let log = parse_log(include_str!("fixtures/full-log.csv")).expect("it parses");
        let curve = curve(&log);
        assert!(curve.len() > 30, "{}", curve.len());
        assert!((curve[0].us - latency.min_us).abs() < 0.01);
        let last = curve.last().expect("there are points");
        assert!((last.us - latency.max_us).abs() < 0.01);
        assert!(curve.is_sorted_by(|a, b| a.percentile <= b.percentile && a.us <= b.us));
        for wanted in [50.0, 90.0] {
            let (a, b) = (at(&curve, wanted), at(&latency.percentiles, wanted));
            assert!((a - b).abs() < 0.01 * b, "p{wanted}: {a} and {b}");
        }
    }

    #[test]
    fn nothing_has_no_curve() {
        assert_eq!(curve(&[]), []);
    }

    #[test]
    fn throughput_is_what_the_server_counted() {
        let client = include_str!("fixtures/throughput-udp.txt");
        let server = include_str!("fixtures/throughput-server.txt");
        let t = parse_throughput(client, server, 1400).expect("it parses");
        assert_eq!((t.sent, t.received), (59907, 42843));
        assert_eq!((t.sent_mps, t.sockperf_mbps), (59879.0, 639.577));
        assert!(
            (t.received_mbps - 479.84).abs() < 0.01,
            "{}",
            t.received_mbps
        );
    }

    #[test]
    fn failures_say_what_happened() {
        let error = |text: &str| parse_latency(text).expect_err("no figures").to_string();
        let silent = error(include_str!("fixtures/no-answer.txt"));
        assert!(silent.contains("no message was answered"), "{silent}");
        let refused = error(include_str!("fixtures/refused.txt"));
        assert!(refused.contains("Connection refused"), "{refused}");
        let empty = error("");
        assert!(empty.contains("did not print"), "{empty}");
    }
}
