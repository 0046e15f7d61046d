//! The cells of a report's tables: every figure of a load, as median and range of the rounds.

use super::{Outcome, Variant};
use crate::rounds::Summary;
use crate::traffic::{Figures, Load};

/// A figure of one round: its name, its value, and how such are written.
type Number = (String, f64, fn(f64) -> String);

/// Every figure of a load, by name.
pub(super) fn of(variant: &Variant, load: Load) -> Vec<(String, String)> {
    let rounds: Vec<_> = variant.of(load).flatten().collect();
    let mut cells = Vec::new();
    if rounds.is_empty() {
        return cells;
    }
    let words: Vec<&str> = rounds.iter().map(|m| word(&m.outcome)).collect();
    cells.push((
        "result".into(),
        match words.iter().filter(|word| **word == words[0]).count() {
            all if all == variant.rounds.len() => words[0].into(),
            _ => {
                let measured = words.iter().filter(|word| **word == "measured").count();
                format!("measured in {measured} of {}", variant.rounds.len())
            }
        },
    ));
    let mut congestion_control = None;
    let mut columns: Vec<(Number, Vec<Option<f64>>)> = Vec::new();
    for measurement in rounds {
        let mut numbers = Vec::new();
        if let Outcome::Measured(figures) = &measurement.outcome {
            numbers = self::numbers(figures);
            if let Figures::Goodput(goodput) = figures {
                congestion_control = goodput.congestion_control.clone();
            }
        }
        let cpu = measurement.relay_cpu_percent;
        numbers.extend(cpu.map(|percent| ("relay's CPU, %".into(), percent, one as _)));
        for number in numbers {
            let value = Some(number.1);
            match columns.iter_mut().find(|(known, _)| known.0 == number.0) {
                Some((_, values)) => values.push(value),
                None => columns.push((number, vec![value])),
            }
        }
    }
    cells.extend(columns.into_iter().filter_map(|((name, _, show), values)| {
        let summary = Summary::of(&values)?;
        Some((name, summary.show(show)))
    }));
    cells.extend(congestion_control.map(|name| ("congestion control".into(), name)));
    cells
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Measured(_) => "measured",
        Outcome::NoConnection(_) => "no connection",
        Outcome::Failed(_) => "failed",
    }
}

/// All that one round has measured.
fn numbers(figures: &Figures) -> Vec<Number> {
    let mut numbers: Vec<Number> = Vec::new();
    let mut add = |name: &str, value: f64, show| numbers.push((name.to_owned(), value, show));
    match figures {
        Figures::Latency(l) => {
            add("average, us", l.avg_us, us);
            add("std-dev, us", l.std_dev_us, us);
            add("MIN, us", l.min_us, us);
            for p in &l.percentiles {
                add(&format!("p{}, us", p.percentile), p.us, us);
            }
            add("MAX, us", l.max_us, us);
            add("observations", l.observations as f64, whole);
            add("sent", l.sent as f64, whole);
            add("received", l.received as f64, whole);
            add("valid duration, s", l.valid_s, three);
            add("sent in it", l.valid_sent as f64, whole);
            add("received in it", l.valid_received as f64, whole);
            add("dropped", l.dropped as f64, whole);
            add("duplicated", l.duplicated as f64, whole);
            add("out-of-order", l.out_of_order as f64, whole);
        }
        Figures::Throughput(t) => {
            add("sent", t.sent as f64, whole);
            add("sent, messages/s", t.sent_mps, whole);
            add("sockperf's BandWidth, Mbps", t.sockperf_mbps, one);
            add("received", t.received as f64, whole);
            add("received, Mbit/s", t.received_mbps, one);
        }
        Figures::Goodput(g) => {
            add("received, Gbit/s", g.received_bps / 1e9, three);
            add("sent, Gbit/s", g.sent_bps / 1e9, three);
            if let Some(lost) = g.lost_percent {
                add("lost, %", lost, |value| format!("{value:.2}"));
            }
            if let Some(jitter) = g.jitter_ms {
                add("jitter, ms", jitter, three);
            }
            if let Some(retransmits) = g.retransmits {
                add("retransmits", retransmits as f64, whole);
            }
        }
    }
    numbers
}

fn us(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn one(value: f64) -> String {
    format!("{value:.1}")
}

fn three(value: f64) -> String {
    format!("{value:.3}")
}
