//! What a chain measured, and how it is told: `report.json`, `report.md` and `report.html`.
//!
//! The JSON is the report; the other two are made from it and say nothing more.

mod cells;
pub(crate) mod html;
mod markdown;
pub(crate) mod plot;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::rounds::{Summary, Verdict};
use crate::traffic::{Figures, Load};

/// Version of the JSON's layout.
pub(crate) const VERSION: u32 = 2;

/// One invocation of the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Layout of this structure.
    pub(crate) version: u32,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// How long all of it took.
    pub(crate) took_s: f64,
    /// In so many rounds; in each, every relay was measured once in every place.
    pub(crate) rounds: u32,
    /// Measurements that belong together.
    pub(crate) sections: Vec<Section>,
    /// What was to be reached; empty without containers.
    #[serde(default)]
    pub(crate) goals: Vec<Verdict>,
    /// What a reader must know to read the figures.
    pub(crate) notes: Vec<String>,
}

/// Several relays under the same loads in the same topology.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Section {
    /// Topology and delay, in words.
    pub(crate) title: String,
    /// `pairs` or `hairpin`.
    pub(crate) topology: String,
    /// Where client, relay and server run: `namespaces` or `containers`.
    #[serde(default = "namespaces")]
    pub(crate) place: String,
    /// One-way delay of the client's and of the server's link.
    pub(crate) delay_ms: f64,
    /// The CPU of client and server.
    pub(crate) host_cpu: usize,
    /// The CPU of the relay.
    pub(crate) relay_cpu: usize,
    /// Seconds of one measurement.
    pub(crate) seconds: u32,
    /// One for each relay.
    pub(crate) variants: Vec<Variant>,
}

/// One relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Variant {
    /// Its name.
    pub(crate) name: String,
    /// What it is.
    pub(crate) about: String,
    /// The command that started it; empty if it is no program.
    pub(crate) command: String,
    /// Why it was not measured at all, if so.
    pub(crate) trouble: Option<String>,
    /// One for each round; empty if it was not measured.
    pub(crate) rounds: Vec<Pass>,
}

/// One relay in one round: started, measured under all loads, stopped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pass {
    /// From its start until it said that it forwards.
    pub(crate) start_ms: f64,
    /// From its start until a frame had crossed it; none if that was not looked at.
    pub(crate) first_frame_ms: Option<f64>,
    /// How often a CPU quota stopped it during its loads; none if its control group counts that not.
    pub(crate) throttled: Option<Throttled>,
    /// Why it was not measured to the end, if so.
    pub(crate) trouble: Option<String>,
    /// The relay's own last statistics, if it prints them as JSON.
    pub(crate) statistics: Option<serde_json::Value>,
    /// In the order in which they were made.
    pub(crate) measurements: Vec<Measurement>,
}

/// What a control group counts of its CPU quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Throttled {
    /// Periods in which it ran.
    pub(crate) periods: u64,
    /// Those of them in which the quota was used up.
    pub(crate) throttled_periods: u64,
    /// How long its threads stood still for that, added up.
    pub(crate) throttled_us: u64,
}

/// One load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// What was sent.
    pub(crate) load: Load,
    /// The client's command; empty if there was no connection.
    pub(crate) command: String,
    /// What came of it.
    pub(crate) outcome: Outcome,
    /// CPU time the relay's process used, in percent of one CPU; none if it is no process.
    pub(crate) relay_cpu_percent: Option<f64>,
}

/// What came of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Figures.
    Measured(Figures),
    /// Nothing came through, and why.
    NoConnection(String),
    /// The tools failed, and how.
    Failed(String),
}

fn namespaces() -> String {
    "namespaces".into()
}

/// Writes files into a directory, which is made if it is not there; gives their paths.
pub(crate) fn write(
    dir: &Path,
    files: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    files
        .into_iter()
        .map(|(name, text)| {
            let path = dir.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        })
        .collect()
}

impl Report {
    /// Writes all three files into `dir`; gives their paths.
    pub(crate) fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let json = serde_json::to_string_pretty(self).context("the report as JSON")?;
        let files = [
            ("report.json", json + "\n"),
            ("report.md", self.markdown()),
            ("report.html", self.html()),
        ];
        write(dir, files)
    }

    /// Everything, for people.
    pub(crate) fn markdown(&self) -> String {
        markdown::whole(self)
    }

    /// The short table, for the terminal.
    pub(crate) fn summary(&self) -> String {
        markdown::summary(self)
    }

    /// A page that needs nothing but itself.
    pub(crate) fn html(&self) -> String {
        html::page(self)
    }
}

impl Section {
    /// The loads, in the order of the report.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let mut loads = Vec::new();
        let passes = self.variants.iter().flat_map(|v| &v.rounds);
        for measurement in passes.flat_map(|pass| &pass.measurements) {
            if !loads.contains(&measurement.load) {
                loads.push(measurement.load);
            }
        }
        loads
    }

    /// The client's command of a load.
    fn command(&self, load: Load) -> Option<&str> {
        self.variants
            .iter()
            .flat_map(|v| v.of(load))
            .flatten()
            .map(|m| m.command.as_str())
            .find(|c| !c.is_empty())
    }
}

impl Variant {
    /// What came of a load, round by round.
    pub(crate) fn of(&self, load: Load) -> impl Iterator<Item = Option<&Measurement>> {
        self.rounds.iter().map(move |pass| pass.of(load))
    }

    /// A figure of a load, round by round.
    pub(crate) fn series(
        &self,
        load: Load,
        figure: impl Fn(&Figures) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        self.of(load)
            .map(|measurement| match &measurement?.outcome {
                Outcome::Measured(figures) => figure(figures),
                Outcome::NoConnection(_) | Outcome::Failed(_) => None,
            })
            .collect()
    }

    /// From its start until it said that it forwards, in milliseconds.
    fn start_ms(&self) -> Option<Summary> {
        let starts: Vec<_> = self.rounds.iter().map(|pass| Some(pass.start_ms)).collect();
        Summary::of(&starts)
    }

    /// From its start until a frame had crossed it, in milliseconds, round by round.
    pub(crate) fn first_frames_ms(&self) -> Vec<Option<f64>> {
        self.rounds.iter().map(|pass| pass.first_frame_ms).collect()
    }

    /// What else is to be said of it: its start, its CPU quota, its own count.
    fn remarks(&self) -> Vec<String> {
        let ms = |value: f64| format!("{value:.0}");
        let start = self.start_ms().filter(|_| !self.command.is_empty());
        let first = Summary::of(&self.first_frames_ms());
        let mut remarks = Vec::new();
        remarks.extend(start.map(|start| format!("ready after {} ms", start.show(ms))));
        remarks
            .extend(first.map(|first| format!("first frame across after {} ms", first.show(ms))));
        remarks.extend(self.throttled());
        remarks.extend(self.counted());
        remarks
    }

    /// How often a CPU quota stopped it in all rounds, in words; nothing without a quota.
    fn throttled(&self) -> Option<String> {
        let passes = self.rounds.iter().filter_map(|pass| pass.throttled);
        let all = passes.reduce(|a, b| Throttled {
            periods: a.periods + b.periods,
            throttled_periods: a.throttled_periods + b.throttled_periods,
            throttled_us: a.throttled_us + b.throttled_us,
        });
        all.and_then(Throttled::words)
    }

    /// What it counted itself in all rounds, in words; nothing if it does not.
    fn counted(&self) -> Option<String> {
        counted(self.rounds.iter().map(|pass| pass.statistics.as_ref()))
    }

    /// The first thing that went wrong, if anything did.
    pub(crate) fn failure(&self) -> Option<String> {
        let failed = |(at, pass): (usize, &Pass)| {
            let why = pass.failure()?;
            Some(match self.rounds.len() {
                1 => why,
                _ => format!("round {}: {why}", at + 1),
            })
        };
        let first = self.rounds.iter().enumerate().find_map(failed);
        self.trouble.clone().or(first)
    }
}

impl Pass {
    /// What came of a load.
    fn of(&self, load: Load) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.load == load)
    }

    /// The first thing that went wrong, if anything did.
    fn failure(&self) -> Option<String> {
        let failed = |m: &Measurement| match &m.outcome {
            Outcome::Measured(_) => None,
            Outcome::NoConnection(why) | Outcome::Failed(why) => Some(format!("{}: {why}", m.load)),
        };
        let first = self.measurements.iter().find_map(failed);
        self.trouble.clone().or(first)
    }
}

/// What a relay of ours counted, from its last statistics of each round: frames in and out, and those dropped, by reason.
fn counted<'a>(statistics: impl Iterator<Item = Option<&'a serde_json::Value>>) -> Option<String> {
    let (mut received, mut sent, mut kernel) = (0, 0, 0);
    let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
    let mut any = false;
    for statistics in statistics.flatten() {
        any = true;
        for lane in statistics["lanes"].as_array()? {
            received += lane["rx_packets"].as_u64()?;
            sent += lane["tx_packets"].as_u64()?;
            for (reason, count) in lane["dropped"].as_object()? {
                *dropped.entry(reason.clone()).or_default() += count.as_u64()?;
            }
        }
        let ports = statistics["ports"].as_array()?.iter();
        kernel += ports
            .filter_map(|p| p["kernel_drops"].as_u64())
            .sum::<u64>();
    }
    if !any {
        return None;
    }
    dropped.insert("by the kernel before it".into(), kernel);
    dropped.retain(|_, count| *count > 0);
    let reasons: Vec<String> = dropped
        .iter()
        .map(|(why, n)| format!("{n} {why}"))
        .collect();
    let dropped = match &reasons[..] {
        [] => "none dropped".into(),
        _ => format!("dropped: {}", reasons.join(", ")),
    };
    Some(format!(
        "it counted {received} packets in, {sent} out, {dropped}"
    ))
}

impl Throttled {
    /// For people; nothing if there is no quota.
    fn words(self) -> Option<String> {
        (self.periods > 0).then(|| {
            format!(
                "its CPU quota was used up in {} of {} periods, for {:.1} ms in all",
                self.throttled_periods,
                self.periods,
                self.throttled_us as f64 / 1e3
            )
        })
    }
}

/// One figure of a load: its name, and how it is written for each variant.
struct Row {
    name: String,
    cells: Vec<String>,
}

/// Every figure of a load as rows, one cell for each variant: median and range of the rounds.
fn rows(section: &Section, load: Load) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (at, variant) in section.variants.iter().enumerate() {
        for (name, cell) in cells::of(variant, load) {
            let row = rows.iter().position(|r| r.name == name).unwrap_or_else(|| {
                let cells = vec![String::from("–"); section.variants.len()];
                rows.push(Row { name, cells });
                rows.len() - 1
            });
            rows[row].cells[at] = cell;
        }
    }
    rows
}

/// The rows of a load that a summary shows. Where there is no figure, the first says why.
fn short_rows(section: &Section, load: Load) -> Vec<Row> {
    let wanted: &[&str] = match load {
        Load::PingPong { .. } | Load::UnderLoad { .. } => {
            &["p50, us", "p99, us", "p99.9, us", "relay's CPU, %"]
        }
        Load::Throughput { .. } => &["received, Mbit/s"],
        Load::Iperf3 { .. } => &["received, Gbit/s", "lost, %"],
    };
    let (results, figures): (Vec<Row>, Vec<Row>) = rows(section, load)
        .into_iter()
        .filter(|r| r.name == "result" || wanted.contains(&r.name.as_str()))
        .partition(|r| r.name == "result");
    let mut short = if figures.is_empty() {
        results
    } else {
        let mut figures = figures;
        for result in results {
            for (cell, result) in figures[0].cells.iter_mut().zip(result.cells) {
                if result != "measured" && cell == "–" {
                    *cell = result;
                }
            }
        }
        figures
    };
    short.truncate(wanted.len());
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Protocol, iperf3::Goodput, sockperf};

    const PING_PONG: Load = Load::PingPong {
        protocol: Protocol::Udp,
    };
    const TCP: Load = Load::Iperf3 {
        protocol: Protocol::Tcp,
        streams: 1,
    };

    fn measured(load: Load, figures: Figures) -> Measurement {
        Measurement {
            load,
            command: "sockperf ping-pong -i 10.0.0.200".into(),
            outcome: Outcome::Measured(figures),
            relay_cpu_percent: Some(99.5),
        }
    }

    fn variant(name: &str, measurements: Vec<Measurement>) -> Variant {
        Variant {
            name: name.into(),
            about: "a <relay> & more".into(),
            command: String::new(),
            trouble: None,
            rounds: vec![Pass {
                start_ms: 12.0,
                first_frame_ms: Some(11.0),
                throttled: Some(Throttled {
                    periods: 40,
                    throttled_periods: 3,
                    throttled_us: 120,
                }),
                measurements,
                ..Pass::default()
            }],
        }
    }

    fn report() -> Report {
        let text = include_str!("../traffic/fixtures/ping-pong-udp.txt");
        let latency = sockperf::parse_latency(text).expect("the fixture parses");
        let goodput = Goodput {
            received_bps: 21.5e9,
            sent_bps: 21.6e9,
            retransmits: Some(7),
            lost_percent: None,
            jitter_ms: None,
            congestion_control: Some("cubic".into()),
        };
        let silent = Measurement {
            load: TCP,
            command: String::new(),
            outcome: Outcome::NoConnection("no TCP answer".into()),
            relay_cpu_percent: None,
        };
        Report {
            version: VERSION,
            machine: Machine {
                date: "2026-01-02T03:04:05Z".into(),
                cpu_model: "A CPU".into(),
                cpus: 2,
                virtual_machine: true,
                memory_mib: 1024,
                kernel: "Linux 6".into(),
                system: "Debian".into(),
                load_before: 0.1,
                versions: vec![("sockperf".into(), "3.7".into())],
                command: "l2relay-bench chain".into(),
            },
            took_s: 60.0,
            rounds: 1,
            goals: vec![Verdict {
                goal: "first frame ≤ 500 ms".into(),
                measured: Summary::of(&[Some(11.0)]),
                unit: "ms".into(),
                met: Some(true),
            }],
            sections: vec![Section {
                title: "Two ports".into(),
                topology: "pairs".into(),
                place: namespaces(),
                delay_ms: 0.0,
                host_cpu: 0,
                relay_cpu: 1,
                seconds: 3,
                variants: vec![
                    variant(
                        "none",
                        vec![
                            measured(PING_PONG, Figures::Latency(latency.clone())),
                            measured(TCP, Figures::Goodput(goodput)),
                        ],
                    ),
                    variant(
                        "other",
                        vec![measured(PING_PONG, Figures::Latency(latency)), silent],
                    ),
                ],
            }],
            notes: vec!["a note".into()],
        }
    }

    /// Every figure of sockperf's block in the fixture, and iperf3's.
    const FIGURES: [&str; 14] = [
        "18.25", "108.8", "9.39", "9.71", "12.09", "12.65", "13.43", "31.55", "2182", "2669",
        "2730", "27595", "15061", "21.500",
    ];

    #[test]
    fn the_page_holds_all_figures_and_needs_nothing_else() {
        let page = report().html();
        for figure in FIGURES {
            assert!(page.contains(figure), "{figure} is missing");
        }
        assert!(page.contains("no connection") && page.contains("no TCP answer"));
        assert!(page.contains("a &lt;relay&gt; &amp; more"));
        assert_eq!(page.matches("<polyline").count(), 2);
        for outside in [
            "http:", "https:", "//", "src=", "href=", "url(", "@import", "<script",
        ] {
            assert!(!page.contains(outside), "the page names {outside}");
        }
    }

    #[test]
    fn markdown_holds_all_figures() {
        let markdown = report().markdown();
        for figure in FIGURES {
            assert!(markdown.contains(figure), "{figure} is missing");
        }
        let summary = report().summary();
        let tcp = summary
            .lines()
            .find(|l| l.contains("iperf3 TCP"))
            .expect("a row");
        assert!(
            tcp.contains("21.500") && tcp.contains("no connection"),
            "{tcp}"
        );
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let json = serde_json::to_string(&report()).expect("it is written");
        let back: Report = serde_json::from_str(&json).expect("it is read");
        assert_eq!(back, report());
    }

    #[test]
    fn a_relays_own_count_is_told() {
        let statistics = serde_json::json!({
            "ports": [{"name": "a", "kernel_drops": 3}, {"name": "b", "kernel_drops": 0}],
            "lanes": [
                {"rx_packets": 10, "tx_packets": 9, "dropped": {"tx_full": 1}},
                {"rx_packets": 5, "tx_packets": 5, "dropped": {"tx_full": 0}},
            ],
        });
        assert_eq!(
            counted([Some(&statistics), None].into_iter()).as_deref(),
            Some("it counted 15 packets in, 14 out, dropped: 3 by the kernel before it, 1 tx_full")
        );
        assert_eq!(
            counted([Some(&statistics); 2].into_iter()).as_deref(),
            Some("it counted 30 packets in, 28 out, dropped: 6 by the kernel before it, 2 tx_full")
        );
        assert_eq!(counted([None].into_iter()), None);
        let other = serde_json::json!({"lanes": 1});
        assert_eq!(counted([Some(&other)].into_iter()), None);
    }

    #[test]
    fn a_failure_is_found() {
        let mut report = report();
        let [none, other] = &mut report.sections[0].variants[..] else {
            panic!("two variants");
        };
        assert_eq!(none.failure(), None);
        assert!(other.failure().is_some_and(|f| f.contains("no TCP answer")));
        none.rounds.push(Pass {
            trouble: Some("it died".into()),
            ..Pass::default()
        });
        assert_eq!(none.failure().as_deref(), Some("round 2: it died"));
        none.trouble = Some("skipped".into());
        assert_eq!(none.failure().as_deref(), Some("skipped"));
    }

    #[test]
    fn rounds_are_told_by_median_and_range() {
        let mut report = report();
        report.rounds = 3;
        let none = &mut report.sections[0].variants[0];
        let first = none.rounds[0].clone();
        for gbps in [10.0, 30.0] {
            let mut pass = first.clone();
            for measurement in &mut pass.measurements {
                if let Outcome::Measured(Figures::Goodput(goodput)) = &mut measurement.outcome {
                    goodput.received_bps = gbps * 1e9;
                }
            }
            none.rounds.push(pass);
        }
        none.rounds[2].measurements.remove(0);
        let page = report.html();
        for text in [report.markdown(), report.summary(), page.clone()] {
            assert!(text.contains("21.500 (10.000–30.000)"), "{text}");
            assert!(text.contains("3 rounds"), "{text}");
        }
        assert!(report.markdown().contains("measured in 2 of 3"));
        assert_eq!(page.matches("<polyline").count(), 2, "one curve each");
        assert!(
            page.contains("used up in 9 of 120 periods"),
            "all rounds count"
        );
    }
}
