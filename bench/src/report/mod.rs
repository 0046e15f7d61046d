//! What a chain measured, and how it is told: `report.json`, `report.md` and `report.html`.
//!
//! The JSON is the report; the other two are made from it and say nothing more.

pub(crate) mod html;
mod markdown;
pub(crate) mod plot;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::traffic::{Figures, Load};

/// Version of the JSON's layout.
pub(crate) const VERSION: u32 = 1;

/// One invocation of the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Layout of this structure.
    pub(crate) version: u32,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// How long all of it took.
    pub(crate) took_s: f64,
    /// Measurements that belong together.
    pub(crate) sections: Vec<Section>,
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
    /// From its start until it said that it forwards.
    pub(crate) start_ms: f64,
    /// Why it was not measured to the end, if so.
    pub(crate) trouble: Option<String>,
    /// The relay's own last statistics, if it prints them as JSON.
    #[serde(default)]
    pub(crate) statistics: Option<serde_json::Value>,
    /// In the order in which they were made.
    pub(crate) measurements: Vec<Measurement>,
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

impl Report {
    /// Writes all three files into `dir`; gives their paths.
    pub(crate) fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self).context("the report as JSON")?;
        let files = [
            ("report.json", json + "\n"),
            ("report.md", self.markdown()),
            ("report.html", self.html()),
        ];
        files
            .into_iter()
            .map(|(name, text)| {
                let path = dir.join(name);
                std::fs::write(&path, text)
                    .with_context(|| format!("writing {}", path.display()))?;
                Ok(path)
            })
            .collect()
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
        for measurement in self.variants.iter().flat_map(|v| &v.measurements) {
            if !loads.contains(&measurement.load) {
                loads.push(measurement.load);
            }
        }
        loads
    }
}

impl Variant {
    /// What came of a load.
    pub(crate) fn of(&self, load: Load) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.load == load)
    }

    /// The first thing that went wrong, if anything did.
    pub(crate) fn failure(&self) -> Option<String> {
        let failed = |m: &Measurement| match &m.outcome {
            Outcome::Measured(_) => None,
            Outcome::NoConnection(why) | Outcome::Failed(why) => Some(format!("{}: {why}", m.load)),
        };
        let first = self.measurements.iter().find_map(failed);
        self.trouble.clone().or(first)
    }
}

/// One figure of a load: its name, and how it is written for each variant.
struct Row {
    name: String,
    cells: Vec<String>,
}

/// Every figure of a load as rows, one cell for each variant.
fn rows(section: &Section, load: Load) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (at, variant) in section.variants.iter().enumerate() {
        for (name, cell) in cells(variant, load) {
            let row = match rows.iter().position(|r| r.name == name) {
                Some(row) => &mut rows[row],
                None => {
                    let cells = vec![String::from("–"); section.variants.len()];
                    rows.push(Row { name, cells });
                    rows.last_mut().expect("it was pushed")
                }
            };
            row.cells[at] = cell;
        }
    }
    rows
}

fn cells(variant: &Variant, load: Load) -> Vec<(String, String)> {
    let Some(measurement) = variant.of(load) else {
        return Vec::new();
    };
    let mut cells: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, cell: String| cells.push((name.to_owned(), cell));
    match &measurement.outcome {
        Outcome::NoConnection(_) => add("result", "no connection".into()),
        Outcome::Failed(_) => add("result", "failed".into()),
        Outcome::Measured(figures) => {
            add("result", "measured".into());
            match figures {
                Figures::Latency(l) => {
                    add("average, us", us(l.avg_us));
                    add("std-dev, us", us(l.std_dev_us));
                    add("MIN, us", us(l.min_us));
                    for p in &l.percentiles {
                        add(&format!("p{}, us", p.percentile), us(p.us));
                    }
                    add("MAX, us", us(l.max_us));
                    add("observations", l.observations.to_string());
                    add("sent", l.sent.to_string());
                    add("received", l.received.to_string());
                    add("valid duration, s", format!("{:.3}", l.valid_s));
                    add("sent in it", l.valid_sent.to_string());
                    add("received in it", l.valid_received.to_string());
                    add("dropped", l.dropped.to_string());
                    add("duplicated", l.duplicated.to_string());
                    add("out-of-order", l.out_of_order.to_string());
                }
                Figures::Throughput(t) => {
                    add("sent", t.sent.to_string());
                    add("sent, messages/s", format!("{:.0}", t.sent_mps));
                    add(
                        "sockperf's BandWidth, Mbps",
                        format!("{:.1}", t.sockperf_mbps),
                    );
                    add("received", t.received.to_string());
                    add("received, Mbit/s", format!("{:.1}", t.received_mbps));
                }
                Figures::Goodput(g) => {
                    add("received, Gbit/s", gbps(g.received_bps));
                    add("sent, Gbit/s", gbps(g.sent_bps));
                    if let Some(lost) = g.lost_percent {
                        add("lost, %", format!("{lost:.2}"));
                    }
                    if let Some(jitter) = g.jitter_ms {
                        add("jitter, ms", format!("{jitter:.3}"));
                    }
                    if let Some(retransmits) = g.retransmits {
                        add("retransmits", retransmits.to_string());
                    }
                    if let Some(congestion) = &g.congestion_control {
                        add("congestion control", congestion.clone());
                    }
                }
            }
        }
    }
    if let Some(percent) = measurement.relay_cpu_percent {
        add("relay's CPU, %", format!("{percent:.1}"));
    }
    cells
}

/// The figures of a load that a summary shows.
fn summary_rows(load: Load) -> &'static [&'static str] {
    match load {
        Load::PingPong { .. } | Load::UnderLoad { .. } => {
            &["p50, us", "p99, us", "p99.9, us", "relay's CPU, %"]
        }
        Load::Throughput { .. } => &["received, Mbit/s"],
        Load::Iperf3 { .. } => &["received, Gbit/s", "lost, %"],
    }
}

fn us(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn gbps(bps: f64) -> String {
    format!("{:.3}", bps / 1e9)
}
