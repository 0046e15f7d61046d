//! What was measured: a value for each relay, figure and round, or the reason why there is none.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::rounds::Summary;
use crate::rounds::figure::Figure;
use crate::rounds::verdict::{Verdict, digits};

/// Why a relay has no value that went wrong, in a word.
pub(crate) const FAILED: &str = "failed";

/// Values of all rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    figures: Vec<Figure>,
    /// In the order in which they were first measured.
    relays: Vec<String>,
    /// Relay, then key of the figure, then round.
    values: BTreeMap<String, BTreeMap<String, Vec<Option<f64>>>>,
    /// Relay, then key of the figure: why a round has no value (the last time).
    lacks: BTreeMap<String, BTreeMap<String, Lack>>,
}

/// Why a value is missing.
#[derive(Debug, Clone, Serialize)]
struct Lack {
    /// In a word, for the cell.
    word: &'static str,
    /// At length.
    reason: String,
}

impl Results {
    /// None yet, of these figures.
    pub(crate) fn new(figures: Vec<Figure>) -> Self {
        Self {
            figures,
            relays: Vec::new(),
            values: BTreeMap::new(),
            lacks: BTreeMap::new(),
        }
    }

    /// The relay will be in the table.
    pub(crate) fn enter(&mut self, relay: &str) {
        if !self.relays.iter().any(|known| known == relay) {
            self.relays.push(relay.into());
        }
    }

    /// Notes a value.
    pub(crate) fn record(&mut self, relay: &str, key: &str, round: usize, value: f64) {
        self.enter(relay);
        let figures = self.values.entry(relay.into()).or_default();
        let rounds = figures.entry(key.into()).or_default();
        if rounds.len() <= round {
            rounds.resize(round + 1, None);
        }
        rounds[round] = Some(value);
    }

    /// Notes why there is no value.
    pub(crate) fn lack(&mut self, relay: &str, key: &str, word: &'static str, reason: &str) {
        self.enter(relay);
        let figures = self.lacks.entry(relay.into()).or_default();
        let reason = reason.into();
        figures.insert(key.into(), Lack { word, reason });
    }

    /// The figure of this key.
    pub(crate) fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// A relay's values, round by round.
    pub(crate) fn values(&self, relay: &str, key: &str) -> Option<&[Option<f64>]> {
        self.values.get(relay)?.get(key).map(Vec::as_slice)
    }

    /// All figures, in the order of the table.
    pub(crate) fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// One cell: median and range, or a dash.
    fn cell(&self, relay: &str, key: &str) -> String {
        match self.values(relay, key).and_then(Summary::of) {
            Some(summary) => summary.show(digits),
            None => self.lack_word(relay, key).unwrap_or("–").into(),
        }
    }

    /// Why a value is missing, in a word.
    pub(crate) fn lack_word(&self, relay: &str, key: &str) -> Option<&'static str> {
        self.lacking(relay, key).map(|lack| lack.word)
    }

    /// Whether a relay went wrong at this figure, in some round.
    pub(crate) fn failed(&self, relay: &str, key: &str) -> bool {
        self.lack_word(relay, key) == Some(FAILED)
    }

    fn lacking(&self, relay: &str, key: &str) -> Option<&Lack> {
        self.lacks.get(relay)?.get(key)
    }

    /// Headings and rows of the table: a row for each figure, a column for each relay.
    pub(crate) fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut heads = vec![String::new()];
        heads.extend(self.relays.iter().cloned());
        let rows = self.figures.iter().map(|figure| {
            let mut row = vec![format!("{}, {}", figure.label, figure.unit)];
            row.extend(
                self.relays
                    .iter()
                    .map(|relay| self.cell(relay, &figure.key)),
            );
            row
        });
        (heads, rows.collect())
    }

    /// Why cells are empty, a line for each relay and reason.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for relay in &self.relays {
            let mut labels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for figure in &self.figures {
                if let Some(lack) = self.lacking(relay, &figure.key) {
                    let line = lack.reason.lines().next().unwrap_or_default();
                    labels.entry(line).or_default().push(&figure.label);
                }
            }
            notes.extend(
                labels
                    .iter()
                    .map(|(reason, labels)| format!("{relay}, {}: {reason}", labels.join(", "))),
            );
        }
        notes
    }
}

/// Table and goals as Markdown.
pub(crate) fn markdown(results: &Results, verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let (heads, rows) = results.table();
    let _ = writeln!(text, "| {} |", heads.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(heads.len() - 1));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let notes = results.notes();
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        let _ = writeln!(text, "- {note}");
    }
    if !verdicts.is_empty() {
        let _ = writeln!(text, "\n| goal | measured | met |\n|---|---|---|");
    }
    for verdict in verdicts {
        let (measured, met) = verdict.words();
        let _ = writeln!(text, "| {} | {measured} | {met} |", verdict.goal);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_medians_dashes_and_reasons() {
        let mut results = Results::new(vec![
            Figure::more("rate", "rate", "kpps"),
            Figure::more("tcp", "TCP", "Gbit/s"),
        ]);
        results.enter("bridge");
        for (round, value) in [500.0, 510.0, 540.0].into_iter().enumerate() {
            results.record("testpmd", "rate", round, value);
        }
        results.lack("testpmd", "tcp", "no connection", "silence\nand more");
        let text = markdown(&results, &[]);
        let expected = "|  | bridge | testpmd |\n|---|---|---|\n\
                        | rate, kpps | – | 510 (500–540) |\n\
                        | TCP, Gbit/s | – | no connection |\n\
                        \n- testpmd, TCP: silence\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_round_without_a_value_stays_empty() {
        let mut results = Results::new(vec![Figure::more("rate", "rate", "kpps")]);
        results.record("a", "rate", 2, 1.0);
        assert_eq!(
            results.values("a", "rate"),
            Some(&[None, None, Some(1.0)][..])
        );
        assert_eq!(results.values("b", "rate"), None);
    }

    #[test]
    fn verdicts_are_told() {
        let measured = Summary::of(&[Some(0.5), Some(0.9), Some(0.7)]);
        let verdict = Verdict {
            goal: "rate ≥ 1 ×".into(),
            measured,
            unit: "×".into(),
            met: Some(false),
        };
        let text = markdown(&Results::new(vec![]), &[verdict]);
        assert!(
            text.ends_with("| rate ≥ 1 × | 0.70 (0.50–0.90) × | NO |\n"),
            "{text}"
        );
    }
}
