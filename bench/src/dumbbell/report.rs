//! The dumbbell's results: a table in text, CSV, JSON, and a page with one plot with error bars.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

use super::case::Case;
use super::expect::{PUBLISHED, Summary, summary};
use super::plot;
use crate::machine::Machine;
use crate::report::html::{STYLE, facts};
use crate::report::plot::escape;

/// Everything; `dumbbell.json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    pub(super) machine: Machine,
    pub(super) took_s: f64,
    pub(super) runs: usize,
    pub(super) seconds: u32,
    pub(super) seed: u32,
    pub(super) rows: Vec<Row>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) skipped: Vec<String>,
}

/// A case and what came out.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) case: Option<Case>,
    /// Goodput at the receiver of the first flow, in kbit/s, one a run.
    pub(super) received_kbps: Vec<f64>,
    /// What the sender's side says.
    pub(super) sent_kbps: Vec<f64>,
    /// Where there are two flows, goodput of the second at its receiver.
    pub(super) second_kbps: Vec<f64>,
    /// Mathis and PFTK.
    pub(super) expected_kbps: Option<[f64; 2]>,
    /// Loss that the relay counted on the way of the data and of the acknowledgements, in per cent; lateness at the 99th percentile, in us: the
    /// largest of all lines.
    pub(super) loss_percent: Option<[f64; 2]>,
    pub(super) late_p99_us: Option<f64>,
    pub(super) trouble: Vec<String>,
}

/// A goal, and whether it was met.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) goal: String,
    pub(super) found: String,
    pub(super) met: bool,
}

impl Row {
    pub(super) fn received(&self) -> Option<Summary> {
        summary(&self.received_kbps)
    }
}

const HEADS: [&str; 11] = [
    "case",
    "runs",
    "mean kbit/s",
    "sd",
    "95 % ±",
    "client says",
    "2nd flow",
    "Mathis",
    "PFTK",
    "loss %, data acks",
    "late p99 us",
];

impl Report {
    /// Cells of the table, published figures below.
    fn table(&self) -> Vec<[String; 11]> {
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.1}"));
        let own = self.rows.iter().map(|row| {
            let (received, sent) = (row.received(), summary(&row.sent_kbps));
            [
                row.name.clone(),
                row.received_kbps.len().to_string(),
                number(received.map(|r| r.mean)),
                number(received.and_then(|r| r.sd)),
                number(received.and_then(|r| r.ci)),
                number(sent.map(|s| s.mean)),
                number(summary(&row.second_kbps).map(|s| s.mean)),
                number(row.expected_kbps.map(|e| e[0])),
                number(row.expected_kbps.map(|e| e[1])),
                row.loss_percent
                    .map_or("–".into(), |[data, acks]| format!("{data:.2} {acks:.2}")),
                number(row.late_p99_us),
            ]
        });
        let published = PUBLISHED.iter().map(|(name, mean, sd)| {
            let mut cells: [String; 11] = std::array::from_fn(|_| "–".to_owned());
            cells[0] = format!("published: {name}");
            cells[1] = "100".into();
            cells[2] = format!("{mean:.1}");
            cells[3] = format!("{sd:.1}");
            cells
        });
        own.chain(published).collect()
    }

    /// The table in text, and the verdicts.
    pub(super) fn text(&self) -> String {
        let rows = self.table();
        let widths: Vec<usize> = (0..HEADS.len())
            .map(|at| {
                let cells = rows.iter().map(|row| row[at].chars().count());
                cells.chain([HEADS[at].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[String]| {
            let cells = cells
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(at, (cell, width))| match at {
                    0 => format!("{cell:width$}"),
                    _ => format!("{cell:>width$}"),
                });
            cells.collect::<Vec<_>>().join("  ") + "\n"
        };
        let mut text = line(&HEADS.map(str::to_owned));
        rows.iter().for_each(|row| text += &line(row));
        for row in &self.rows {
            for trouble in &row.trouble {
                let _ = writeln!(text, "{}: {trouble}", row.name);
            }
        }
        for verdict in &self.verdicts {
            let met = if verdict.met { "met" } else { "MISSED" };
            let _ = writeln!(text, "{}: {}, {met}", verdict.goal, verdict.found);
        }
        for skipped in &self.skipped {
            let _ = writeln!(text, "SKIPPED {skipped}");
        }
        text
    }

    fn csv(&self) -> String {
        let mut csv = String::from("case,run,seed,received_kbps,client_kbps,second_kbps\n");
        for row in &self.rows {
            for (at, received) in row.received_kbps.iter().enumerate() {
                let other = |list: &[f64]| {
                    let value = list.get(at);
                    value.map_or(String::new(), |value| format!("{value:.3}"))
                };
                let _ = writeln!(
                    csv,
                    "\"{}\",{},{},{received:.3},{},{}",
                    row.name,
                    at + 1,
                    self.seed + at as u32,
                    other(&row.sent_kbps),
                    other(&row.second_kbps)
                );
            }
        }
        csv
    }

    fn html(&self) -> String {
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <title>l2relay-bench dumbbell</title>\n<style>\n{STYLE}</style>\n<main>\n\
             <h1>The dumbbell of DCE Cradle</h1>\n<p class=sub>{} · {} · {} runs of {} s, seeds from {}</p>\n",
            escape(&self.machine.date),
            escape(&self.machine.cpu_model),
            self.runs,
            self.seconds,
            self.seed
        );
        page += "<figure><figcaption>Goodput at the receiver, kbit/s<small>bars: mean</small></figcaption>\n";
        page += &plot::keys();
        page += &plot::svg(self);
        page += "</figure>\n<table>\n<tr>";
        for head in HEADS {
            let _ = write!(page, "<th>{head}</th>");
        }
        page += "</tr>\n";
        for row in self.table() {
            page += "<tr>";
            for (at, cell) in row.iter().enumerate() {
                let tag = if at == 0 { "th" } else { "td" };
                let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
            }
            page += "</tr>\n";
        }
        page += "</table>\n<h2>How to read this</h2>\n<ul>\n";
        let goals = self.verdicts.iter().map(|verdict| {
            let met = if verdict.met { "met" } else { "missed" };
            format!("{}: {}, {met}.", verdict.goal, verdict.found)
        });
        let skipped = self
            .skipped
            .iter()
            .map(|skipped| format!("Skipped: {skipped}."));
        for note in goals.chain(skipped).chain(super::NOTES.map(str::to_owned)) {
            let _ = writeln!(page, "<li>{}</li>", escape(&note));
        }
        page += "</ul>\n<h2>Machine</h2>\n<table class=facts>\n";
        for (name, value) in facts(&self.machine) {
            let _ = writeln!(
                page,
                "<tr><th>{}</th><td>{}</td></tr>",
                escape(&name),
                escape(&value)
            );
        }
        page + "</table>\n</main>\n</html>\n"
    }

    /// Writes the files.
    pub(super) fn write(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let files = [
            ("dumbbell.json", serde_json::to_string_pretty(self)? + "\n"),
            ("dumbbell.csv", self.csv()),
            ("dumbbell.html", self.html()),
        ];
        crate::report::write(dir, files)
    }
}
