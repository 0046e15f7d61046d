//! What was to be reached and what was, with the words for it.

use serde::{Deserialize, Serialize};

use super::Summary;

/// What a median must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Bound {
    /// As a sign and the number.
    pub(crate) fn words(self) -> (&'static str, f64) {
        match self {
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::AtMost(bound) => ("≤", bound),
        }
    }

    /// Whether a value is within it.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }
}

/// What became of a goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The goal in words.
    pub(crate) goal: String,
    /// What was measured, with the goal's unit (`×` for a multiple).
    pub(crate) measured: Option<Summary>,
    /// Unit of `measured`.
    pub(crate) unit: String,
    /// Whether the median reaches it; nothing if it was not measured.
    pub(crate) met: Option<bool>,
}

impl Verdict {
    /// Judges the median of what was measured, if it was in so many rounds at least.
    pub(crate) fn judge(
        goal: String,
        measured: Option<Summary>,
        unit: &str,
        bound: Bound,
        rounds: usize,
    ) -> Self {
        let enough = measured.filter(|measured| measured.rounds >= rounds);
        Self {
            goal,
            measured,
            unit: unit.into(),
            met: enough.map(|measured| bound.holds(measured.median)),
        }
    }

    /// What was measured and whether it suffices.
    pub(crate) fn words(&self) -> (String, &'static str) {
        let measured = self.measured.map_or_else(
            || "not measured".into(),
            |m| format!("{} {}", m.show(digits), self.unit),
        );
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "–",
        };
        (measured, met)
    }
}

/// Three significant digits, or all before the point.
pub(crate) fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.0, 0.974, 9.994, 12.34, 543.21, 3956.7].map(digits);
        assert_eq!(shown, ["0.00", "0.97", "9.99", "12.3", "543", "3957"]);
    }

    #[test]
    fn the_median_is_judged_if_there_are_enough_rounds() {
        let measured = Summary::of(&[Some(0.5), Some(0.9), Some(1.3)]);
        let met = |bound, rounds| Verdict::judge(String::new(), measured, "×", bound, rounds).met;
        assert_eq!(met(Bound::AtLeast(0.9), 3), Some(true));
        assert_eq!(met(Bound::AtLeast(0.91), 1), Some(false));
        assert_eq!(met(Bound::AtMost(0.9), 1), Some(true));
        assert_eq!(met(Bound::AtMost(0.89), 1), Some(false));
        assert_eq!(met(Bound::AtMost(1.0), 4), None);
        let none = Verdict::judge(String::new(), None, "×", Bound::AtMost(1.0), 1);
        assert_eq!((none.met, none.words().0), (None, "not measured".into()));
    }
}
