//! What is to be reached, as a table, and whether it was.

use super::results::Results;
use crate::rounds::figure::{Figure, differences};
use crate::rounds::{Summary, Verdict, ratios};

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Against {
    /// The best of these relays in the same round; the bound is a multiple of it.
    Best(&'static [&'static str]),
    /// Another relay in the same round; the bound is a difference, in the figure's unit.
    Beyond(&'static str),
    /// The best of these relays: in the rounds in which it keeps within the bound, so must this one.
    WhereMet(&'static [&'static str]),
    /// Nothing: the bound is in the figure's unit.
    Nothing,
}

impl Against {
    /// The relays that must be measured for it.
    pub(crate) fn names(&self) -> &[&'static str] {
        match self {
            Against::Best(names) | Against::WhereMet(names) => names,
            Against::Beyond(name) => std::slice::from_ref(name),
            Against::Nothing => &[],
        }
    }
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
    /// In fewer rounds it is not judged.
    pub(crate) rounds: usize,
}

impl Goal {
    /// In the figure's unit.
    const fn to_be(relay: &'static str, figure: &'static str, bound: f64) -> Goal {
        Goal::by(relay, figure, bound, Against::Nothing)
    }

    /// As a multiple of the best of these.
    const fn times(
        relay: &'static str,
        figure: &'static str,
        bound: f64,
        best: &'static [&'static str],
    ) -> Goal {
        Goal::by(relay, figure, bound, Against::Best(best))
    }

    /// So much more than that relay, in the figure's unit.
    const fn beyond(
        relay: &'static str,
        figure: &'static str,
        bound: f64,
        other: &'static str,
    ) -> Goal {
        Goal::by(relay, figure, bound, Against::Beyond(other))
    }

    /// Kept within by this relay wherever the best of those keeps within it.
    const fn where_met(
        relay: &'static str,
        figure: &'static str,
        bound: f64,
        best: &'static [&'static str],
    ) -> Goal {
        Goal::by(relay, figure, bound, Against::WhereMet(best))
    }

    const fn by(relay: &'static str, figure: &'static str, bound: f64, against: Against) -> Goal {
        Goal {
            relay,
            figure,
            against,
            bound,
            rounds: 1,
        }
    }

    /// In so many rounds at least.
    const fn over(self, rounds: usize) -> Goal {
        Goal { rounds, ..self }
    }
}

/// testpmd's ways on af_packet.
const TESTPMD: &[&str] = &["testpmd", "testpmd-txoff"];

/// All of them that change nothing in a frame.
const TESTPMD_ANY: &[&str] = &[
    "testpmd",
    "testpmd-txoff",
    "testpmd-xdp",
    "testpmd-xdp-txoff",
];

/// Those of them on af_xdp.
const TESTPMD_XDP: &[&str] = &["testpmd-xdp", "testpmd-xdp-txoff"];

/// The one whose frames stay in the kernel, with one pair.
const KERNEL: &[&str] = &["l2relay-kernel"];

/// The way of l2relay that merges what it can.
const MERGED: &str = "l2relay-coalesce";

/// Loss that counts as none, in percent: a virtual machine stops now and then.
const NO_LOSS: f64 = 0.1;

/// All goals. "As good as" is 0.97: less than 3 % is noise.
pub(crate) const GOALS: &[Goal] = &[
    Goal::times("l2relay-spin", "ping-pong-p50", 1.1, TESTPMD),
    Goal::times("l2relay-spin", "tcp-goodput", 0.95, &["bridge"]),
    Goal::times("l2relay-spin", "tcp-off-goodput", 2.0, TESTPMD_XDP),
    Goal::times("l2relay-spin", "flood-64-64-delivered", 1.3, TESTPMD),
    Goal::to_be("l2relay", "idle-cpu", 1.0),
    Goal::times("l2relay", "ping-pong-p50", 1.1, &["l2relay-spin"]),
    Goal::to_be("l2relay", "under-load-100-cpu", 10.0),
    Goal::beyond("l2relay", "under-load-100-p50", 100.0, "l2relay-spin"),
    Goal::times("l2relay", "under-load-10000-p50", 1.1, &["l2relay-spin"]),
    Goal::times("l2relay", "under-load-50000-p50", 1.1, &["l2relay-spin"]),
    Goal::to_be("l2relay", "start", 100.0),
    Goal::to_be("l2relay", "memory", 64.0),
    // Whoever looks at it does not slow it down.
    Goal::times(
        "l2relay-watched",
        "flood-64-64-delivered",
        0.97,
        &["l2relay-spin"],
    ),
    // Interfaces that come back, the slowest of several times.
    Goal::to_be("l2relay", "link-up-longest", 50.0),
    Goal::to_be("l2relay", "re-created-longest", 200.0),
    Goal::to_be("l2relay-xdp", "link-up-longest", 50.0),
    Goal::to_be("l2relay-xdp", "re-created-longest", 200.0),
    Goal::to_be("l2relay-kernel", "link-up-longest", 50.0),
    Goal::to_be("l2relay-kernel", "re-created-longest", 200.0),
    // AF_XDP, each frame sent alone.
    Goal::times("l2relay-xdp", "flood-64-64-delivered", 0.97, TESTPMD_ANY),
    Goal::times("l2relay-xdp", "flood-64-64-delivered", 0.9, &["tx-limit"]),
    Goal::times("l2relay-xdp", "transit-p50", 1.05, TESTPMD_ANY).over(15),
    Goal::to_be("l2relay-xdp", "tcp-goodput", 1.5),
    Goal::to_be("l2relay-xdp", "lossless-64-64-overload", 0.9),
    // AF_XDP to receive, AF_PACKET to send, frames merged.
    Goal::times(MERGED, "flood-64-1-delivered", 3.5, TESTPMD_ANY),
    Goal::times(MERGED, "flood-64-64-delivered", 3.5, TESTPMD_ANY),
    Goal::times(MERGED, "flood-64-1024-delivered", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "flood-512-64-delivered", 3.0, TESTPMD_ANY),
    Goal::times(MERGED, "flood-1500-64-delivered", 2.0, TESTPMD_ANY),
    Goal::times(MERGED, "transit-p50", 1.05, &["l2relay-xdp-packet"]).over(15),
    Goal::times(MERGED, "socket-default-64-64-50k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-default-64-64-100k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-default-64-64-200k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-default-64-64-400k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-4m-64-64-50k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-4m-64-64-100k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-4m-64-64-200k-read", 0.97, TESTPMD_ANY),
    Goal::times(MERGED, "socket-4m-64-64-400k-read", 0.97, TESTPMD_ANY),
    Goal::where_met(
        MERGED,
        "socket-default-64-64-50k-lost",
        NO_LOSS,
        TESTPMD_ANY,
    ),
    Goal::where_met(
        MERGED,
        "socket-default-64-64-100k-lost",
        NO_LOSS,
        TESTPMD_ANY,
    ),
    Goal::where_met(
        MERGED,
        "socket-default-64-64-200k-lost",
        NO_LOSS,
        TESTPMD_ANY,
    ),
    Goal::where_met(
        MERGED,
        "socket-default-64-64-400k-lost",
        NO_LOSS,
        TESTPMD_ANY,
    ),
    Goal::where_met(MERGED, "socket-4m-64-64-50k-lost", NO_LOSS, TESTPMD_ANY),
    Goal::where_met(MERGED, "socket-4m-64-64-100k-lost", NO_LOSS, TESTPMD_ANY),
    Goal::where_met(MERGED, "socket-4m-64-64-200k-lost", NO_LOSS, TESTPMD_ANY),
    Goal::where_met(MERGED, "socket-4m-64-64-400k-lost", NO_LOSS, TESTPMD_ANY),
    // Frames that stay in the kernel.
    Goal::times("l2relay-kernel", "ping-pong-p50", 0.9, &["bridge"]),
    Goal::times("l2relay-kernel", "tcp-goodput", 1.1, &["bridge"]),
    Goal::times("l2relay-kernel", "flood-64-64-delivered", 1.5, &["bridge"]),
    Goal::to_be("l2relay-kernel", "idle-cpu", 0.0),
    Goal::times("l2relay-kernel-64", "ping-pong-p50", 1.03, KERNEL).over(5),
    Goal::times("l2relay-kernel-64", "flood-64-64-delivered", 0.97, KERNEL).over(5),
];

impl Goal {
    /// Judges results; `None` where the figure or the relay was not asked for.
    pub(crate) fn judge(&self, results: &Results) -> Option<Verdict> {
        let figure = results.figure(self.figure)?;
        let ours = results.values(self.relay, self.figure)?;
        let bound = figure.bound(self.bound);
        let (sign, _) = bound.words();
        let what = format!("{}, {}", self.relay, figure.label);
        let rounds = match self.rounds {
            1 => String::new(),
            rounds => format!(", in {rounds} rounds at least"),
        };
        let (goal, measured, unit) = match self.against {
            Against::Nothing => {
                let goal = format!("{what} {sign} {} {}{rounds}", self.bound, figure.unit);
                (goal, Summary::of(ours), figure.unit)
            }
            Against::Beyond(name) => {
                let goal = format!(
                    "{what} {sign} {name} + {} {}{rounds}",
                    self.bound, figure.unit
                );
                let theirs = results.values(name, self.figure).unwrap_or_default();
                (goal, Summary::of(&differences(ours, theirs)), figure.unit)
            }
            Against::Best(names) => {
                let (names, best) = best(names, results, figure);
                let goal = format!("{what} {sign} {} × {names}{rounds}", self.bound);
                (goal, Summary::of(&ratios(ours, &best)), "×")
            }
            Against::WhereMet(names) => {
                let (names, best) = best(names, results, figure);
                let goal = format!(
                    "{what} {sign} {} {} where {names} keeps it{rounds}",
                    self.bound, figure.unit
                );
                let kept = |round: usize| best.get(round).copied().flatten();
                let judged: Vec<_> = (0..ours.len())
                    .map(|round| {
                        ours[round].filter(|_| kept(round).is_some_and(|it| bound.holds(it)))
                    })
                    .collect();
                (goal, Summary::of(&judged), figure.unit)
            }
        };
        // Who failed might have been the best.
        let measured = measured.filter(|_| {
            !self
                .against
                .names()
                .iter()
                .any(|name| results.failed(name, self.figure))
        });
        let verdict = Verdict::judge(goal, measured, unit, bound, self.rounds);
        Some(verdict)
    }
}

/// The relays among these that were measured, in words, and the best of them round by round.
fn best(names: &[&str], results: &Results, figure: &Figure) -> (String, Vec<Option<f64>>) {
    let (mut known, mut rivals) = (Vec::new(), Vec::new());
    for &name in names {
        if let Some(values) = results.values(name, &figure.key) {
            known.push(name);
            rivals.push(values);
        }
    }
    let words = if known.is_empty() { names } else { &known };
    (words.join(" or "), figure.best(&rivals))
}

#[cfg(test)]
mod tests {
    use super::super::results::FAILED;
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
        let goal = Goal::times("ours", "rate", 0.97, &["a", "b"]);
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
        let goal = Goal::to_be("ours", "start", 100.0);
        let start = Figure::less("start", "start", "ms");
        let met = |ms| {
            let results = results(start.clone(), &[("ours", &[ms])]);
            goal.judge(&results).unwrap().met
        };
        assert_eq!((met(99.0), met(101.0)), (Some(true), Some(false)));
    }

    #[test]
    fn a_difference_is_judged_in_the_unit() {
        let goal = Goal::beyond("ours", "p50", 100.0, "spin");
        let p50 = Figure::less("p50", "p50", "us");
        // Round by round 90, 40 and 110 more.
        let rows: [(&str, &[f64]); 2] = [
            ("ours", &[100.0, 60.0, 150.0]),
            ("spin", &[10.0, 20.0, 40.0]),
        ];
        let verdict = goal.judge(&results(p50.clone(), &rows)).unwrap();
        assert_eq!(verdict.met, Some(true));
        assert_eq!(verdict.measured.map(|of| of.median), Some(90.0));
        assert_eq!(verdict.goal, "ours, p50 ≤ spin + 100 us");
        let slow: [(&str, &[f64]); 2] = [("ours", &[120.0]), ("spin", &[10.0])];
        let verdict = goal.judge(&results(p50.clone(), &slow)).unwrap();
        assert_eq!(verdict.met, Some(false));
        let alone = goal.judge(&results(p50, &[("ours", &[1.0])])).unwrap();
        assert_eq!(alone.met, None);
    }

    #[test]
    fn loss_is_judged_where_the_others_lose_nothing() {
        let goal = Goal::where_met("ours", "lost", 0.1, &["a", "b"]);
        let lost = Figure::less("lost", "lost", "%");
        let met = |ours: &[f64]| {
            let rows: [(&str, &[f64]); 3] = [
                ("ours", ours),
                ("a", &[0.0, 5.0, 0.05]),
                ("b", &[3.0, 6.0, 0.0]),
            ];
            let verdict = goal.judge(&results(lost.clone(), &rows)).unwrap();
            (verdict.met, verdict.measured.map(|of| of.rounds))
        };
        assert_eq!(met(&[0.0, 9.0, 0.02]), (Some(true), Some(2)));
        assert_eq!(met(&[0.2, 0.0, 0.3]), (Some(false), Some(2)));
        let all_lose = results(lost, &[("ours", &[1.0]), ("a", &[1.0])]);
        assert_eq!(goal.judge(&all_lose).unwrap().met, None);
    }

    #[test]
    fn a_goal_names_whom_it_was_judged_by() {
        let goal = Goal::times("ours", "rate", 1.0, &["a", "b"]);
        let rate = Figure::more("rate", "rate", "kpps");
        let mut results = results(rate, &[("ours", &[2.0]), ("b", &[1.0])]);
        let verdict = goal.judge(&results).unwrap();
        assert_eq!(
            (verdict.goal.as_str(), verdict.met),
            ("ours, rate ≥ 1 × b", Some(true))
        );
        results.lack("a", "rate", "no connection", "no answer");
        assert_eq!(goal.judge(&results).unwrap().met, Some(true));
        results.lack("a", "rate", FAILED, "it ended");
        assert_eq!(goal.judge(&results).unwrap().met, None);
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let goal = Goal::times("ours", "rate", 1.0, &["gone"]);
        let rate = Figure::more("rate", "rate", "kpps");
        let verdict = goal.judge(&results(rate.clone(), &[("ours", &[1.0])]));
        assert_eq!(verdict.unwrap().met, None);
        assert!(goal.judge(&results(rate, &[("other", &[1.0])])).is_none());
    }

    #[test]
    fn too_few_rounds_are_not_judged() {
        let goal = Goal::to_be("ours", "start", 100.0).over(3);
        let start = Figure::less("start", "start", "ms");
        let met = |values: &[f64]| {
            let results = results(start.clone(), &[("ours", values)]);
            goal.judge(&results).unwrap().met
        };
        assert_eq!(met(&[1.0, 2.0]), None);
        assert_eq!(met(&[1.0, 2.0, 3.0]), Some(true));
    }

    #[test]
    fn goals_name_known_relays() {
        let known: Vec<_> = crate::rivals::all().iter().map(|r| r.name()).collect();
        for goal in GOALS {
            assert!(known.contains(&goal.relay), "{}", goal.relay);
            let names = goal.against.names();
            assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
        }
    }
}
