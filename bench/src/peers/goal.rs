//! What is to be reached, as a table, and whether it was.

use serde::Serialize;

use super::figure::{Summary, ratios};
use super::results::Results;

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Against {
    /// The best of these relays in the same round; the bound is a multiple of it.
    Best(&'static [&'static str]),
    /// Nothing: the bound is in the figure's unit.
    Nothing,
}

/// Something to reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Goal {
    /// The relay whose goal it is.
    pub(crate) relay: &'static str,
    /// Key of the figure.
    pub(crate) figure: &'static str,
    /// What it is compared with.
    pub(crate) against: Against,
    /// The median must be at least this where more is better, at most this where less is.
    pub(crate) bound: f64,
}

/// Any of testpmd's ways of being run.
const TESTPMD: &[&str] = &["testpmd", "testpmd-txoff"];

/// All goals. "As good as" is 0.97: less than 3 % is noise.
pub(crate) const GOALS: &[Goal] = &[
    Goal {
        relay: "l2relay-spin",
        figure: "ping-pong-p50",
        against: Against::Best(TESTPMD),
        bound: 1.1,
    },
    Goal {
        relay: "l2relay-spin",
        figure: "tcp-goodput",
        against: Against::Best(&["bridge"]),
        bound: 0.9,
    },
    Goal {
        relay: "l2relay-spin",
        figure: "flood-64-64-delivered",
        against: Against::Best(TESTPMD),
        bound: 0.97,
    },
    Goal {
        relay: "l2relay",
        figure: "idle-cpu",
        against: Against::Nothing,
        bound: 1.0,
    },
    Goal {
        relay: "l2relay",
        figure: "ping-pong-p50",
        against: Against::Best(&["l2relay-spin"]),
        bound: 1.1,
    },
    Goal {
        relay: "l2relay",
        figure: "start",
        against: Against::Nothing,
        bound: 100.0,
    },
    Goal {
        relay: "l2relay",
        figure: "memory",
        against: Against::Nothing,
        bound: 64.0,
    },
    Goal {
        relay: "l2relay-kernel",
        figure: "ping-pong-p50",
        against: Against::Best(&["bridge"]),
        bound: 0.9,
    },
    Goal {
        relay: "l2relay-kernel",
        figure: "tcp-goodput",
        against: Against::Best(&["bridge"]),
        bound: 1.1,
    },
    Goal {
        relay: "l2relay-kernel",
        figure: "flood-64-64-delivered",
        against: Against::Best(&["bridge"]),
        bound: 1.5,
    },
    Goal {
        relay: "l2relay-kernel",
        figure: "idle-cpu",
        against: Against::Nothing,
        bound: 0.0,
    },
];

/// What became of a goal.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    /// The goal in words.
    pub(crate) goal: String,
    /// What was measured, with the goal's unit (`×` for a multiple).
    pub(crate) measured: Option<Summary>,
    /// Unit of `measured`.
    pub(crate) unit: &'static str,
    /// Whether the median reaches it; nothing if it was not measured.
    pub(crate) met: Option<bool>,
}

impl Goal {
    /// Judges results; `None` where the figure or the relay was not asked for.
    pub(crate) fn judge(&self, results: &Results) -> Option<Verdict> {
        let figure = results.figure(self.figure)?;
        let ours = results.values(self.relay, self.figure)?;
        let sign = if figure.more_is_better { "≥" } else { "≤" };
        let what = format!("{}, {}", self.relay, figure.label);
        let (goal, measured, unit) = match self.against {
            Against::Nothing => {
                let goal = format!("{what} {sign} {} {}", self.bound, figure.unit);
                (goal, Summary::of(ours), figure.unit)
            }
            Against::Best(names) => {
                let rivals: Vec<_> = names
                    .iter()
                    .filter_map(|name| results.values(name, self.figure))
                    .collect();
                let goal = format!("{what} {sign} {} × {}", self.bound, names.join(" or "));
                let best = figure.best(&rivals);
                (goal, Summary::of(&ratios(ours, &best)), "×")
            }
        };
        let met = measured.map(|measured| {
            if figure.more_is_better {
                measured.median >= self.bound
            } else {
                measured.median <= self.bound
            }
        });
        Some(Verdict {
            goal,
            measured,
            unit,
            met,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::Figure;
    use super::*;

    fn results(figure: Figure, rows: &[(&str, &[f64])]) -> Results {
        let mut results = Results::new(vec![figure.clone()]);
        for (relay, values) in rows {
            for (round, &value) in values.iter().enumerate() {
                results.record(relay, &figure.key, round, value);
            }
        }
        results
    }

    #[test]
    fn a_ratio_is_judged_by_the_median_of_rounds() {
        let goal = Goal {
            relay: "ours",
            figure: "rate",
            against: Against::Best(&["a", "b"]),
            bound: 0.97,
        };
        // Round by round 1.0, 0.5, 2.0 of the best.
        let rate = Figure::more("rate", "rate", "kpps");
        let rows: [(&str, &[f64]); 3] = [
            ("ours", &[5.0, 2.0, 8.0]),
            ("a", &[5.0, 1.0, 4.0]),
            ("b", &[1.0, 4.0, 3.0]),
        ];
        let verdict = goal.judge(&results(rate, &rows)).unwrap();
        assert_eq!(verdict.met, Some(true));
        let measured = verdict.measured.unwrap();
        assert_eq!(
            (measured.median, measured.min, measured.max),
            (1.0, 0.5, 2.0)
        );
    }

    #[test]
    fn an_absolute_goal_is_judged_in_its_unit() {
        let goal = Goal {
            relay: "ours",
            figure: "start",
            against: Against::Nothing,
            bound: 100.0,
        };
        let start = Figure::less("start", "start", "ms");
        let met = |ms| {
            let results = results(start.clone(), &[("ours", &[ms])]);
            goal.judge(&results).unwrap().met
        };
        assert_eq!((met(99.0), met(101.0)), (Some(true), Some(false)));
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let goal = Goal {
            relay: "ours",
            figure: "rate",
            against: Against::Best(&["gone"]),
            bound: 1.0,
        };
        let rate = Figure::more("rate", "rate", "kpps");
        let verdict = goal.judge(&results(rate.clone(), &[("ours", &[1.0])]));
        assert_eq!(verdict.unwrap().met, None);
        assert!(goal.judge(&results(rate, &[("other", &[1.0])])).is_none());
    }

    #[test]
    fn goals_name_known_relays() {
        let known: Vec<_> = crate::rivals::all().iter().map(|r| r.name()).collect();
        for goal in GOALS {
            assert!(known.contains(&goal.relay), "{}", goal.relay);
            if let Against::Best(names) = goal.against {
                assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
            }
        }
    }
}
