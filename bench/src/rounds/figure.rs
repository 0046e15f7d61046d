//! Figures of several rounds: what they are called, which way is better, and what is made of them.
//!
//! Pure arithmetic; used by the metrics, the goals and the tables.

use serde::{Deserialize, Serialize};

use super::Bound;

/// One number that a metric gives in every round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figure {
    /// Unique, for JSON and goals.
    pub(crate) key: String,
    /// For people.
    pub(crate) label: String,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// Whether more is better.
    pub(crate) more_is_better: bool,
}

impl Figure {
    /// A figure of which less is better.
    pub(crate) fn less(
        key: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
    ) -> Self {
        let (key, label) = (key.into(), label.into());
        Self {
            key,
            label,
            unit,
            more_is_better: false,
        }
    }

    /// A figure of which more is better.
    pub(crate) fn more(
        key: impl Into<String>,
        label: impl Into<String>,
        unit: &'static str,
    ) -> Self {
        Self {
            more_is_better: true,
            ..Self::less(key, label, unit)
        }
    }

    /// The bound of a goal: at least it where more is better, at most it where less is.
    pub(crate) fn bound(&self, bound: f64) -> Bound {
        match self.more_is_better {
            true => Bound::AtLeast(bound),
            false => Bound::AtMost(bound),
        }
    }

    /// The better of two values.
    fn better(&self, a: f64, b: f64) -> f64 {
        if self.more_is_better {
            a.max(b)
        } else {
            a.min(b)
        }
    }

    /// The best value that any of the rivals has in each round.
    pub(crate) fn best(&self, rivals: &[&[Option<f64>]]) -> Vec<Option<f64>> {
        let rounds = rivals.iter().map(|values| values.len()).max().unwrap_or(0);
        (0..rounds)
            .map(|round| {
                let values = rivals
                    .iter()
                    .filter_map(|values| values.get(round).copied()?);
                values.reduce(|a, b| self.better(a, b))
            })
            .collect()
    }
}

/// Median and range of the rounds that have a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// Smallest.
    pub(crate) min: f64,
    /// Largest.
    pub(crate) max: f64,
    /// How many there are.
    pub(crate) rounds: usize,
}

impl Summary {
    /// Of the values there are; `None` without any.
    pub(crate) fn of(values: &[Option<f64>]) -> Option<Summary> {
        let mut sorted: Vec<f64> = values.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Summary {
            median: f64::midpoint(low, high),
            min,
            max,
            rounds: sorted.len(),
        })
    }

    /// `median (smallest–largest)`, or the value of the only round.
    pub(crate) fn show(&self, number: impl Fn(f64) -> String) -> String {
        let median = number(self.median);
        if self.rounds == 1 {
            return median;
        }
        format!("{median} ({}–{})", number(self.min), number(self.max))
    }
}

/// Round by round, one series as a multiple of another. Rounds that lack either have none.
pub(crate) fn ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Vec<Option<f64>> {
    ours.iter()
        .zip(theirs)
        .map(|(&ours, &theirs)| Some(ours? / theirs.filter(|&theirs| theirs != 0.0)?))
        .collect()
}

/// Round by round, how much more one series is than another. Rounds that lack either have none.
pub(crate) fn differences(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Vec<Option<f64>> {
    ours.iter()
        .zip(theirs)
        .map(|(&ours, &theirs)| Some(ours? - theirs?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_leave_missing_rounds_out() {
        let summary = Summary::of(&[Some(3.0), None, Some(1.0), Some(2.0)]);
        let expected = Summary {
            median: 2.0,
            min: 1.0,
            max: 3.0,
            rounds: 3,
        };
        assert_eq!(summary, Some(expected));
        let even = Summary::of(&[Some(4.0), Some(1.0), Some(2.0), Some(30.0)]).unwrap();
        assert!((even.median - 3.0).abs() < 1e-9);
        assert_eq!(Summary::of(&[None, None]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ours = [Some(2.0), None, Some(9.0), Some(1.0)];
        let theirs = [Some(4.0), Some(1.0), Some(3.0), Some(0.0)];
        assert_eq!(ratios(&ours, &theirs), [Some(0.5), None, Some(3.0), None]);
    }

    #[test]
    fn the_best_rival_may_be_another_in_each_round() {
        let (a, b) = ([Some(1.0), Some(5.0), None], [Some(2.0), Some(4.0), None]);
        let more = Figure::more("k", "l", "kpps").best(&[&a, &b]);
        assert_eq!(more, [Some(2.0), Some(5.0), None]);
        let less = Figure::less("k", "l", "us").best(&[&a, &b]);
        assert_eq!(less, [Some(1.0), Some(4.0), None]);
        assert!(Figure::less("k", "l", "us").best(&[]).is_empty());
    }
}
