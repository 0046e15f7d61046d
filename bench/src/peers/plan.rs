//! What is to be compared: which relays, by which metrics, in how many rounds, and how long that will take.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::Flags;
use super::goal::GOALS;
use super::metric::{self, Metric};
use crate::rivals::{self, Rival};

/// Ready-made selections of relays and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The relays that people choose from, and what tells them apart: some 10 minutes.
    Quick,
    /// Everything that a goal needs, in 15 rounds: hours. The time is said at the start.
    Goals,
    /// Every relay by every metric: most of a day.
    Full,
}

/// Relays and metrics of [`Preset::Quick`].
const QUICK: (&[&str], &[&str]) = (
    &[
        "bridge",
        "testpmd-txoff",
        "testpmd-xdp-txoff",
        "l2relay",
        "l2relay-spin",
        "l2relay-xdp",
        "l2relay-coalesce",
        "l2relay-kernel",
    ],
    &["start", "idle", "ping-pong", "tcp", "flood-64-64", "memory"],
);

/// Rounds where none are asked for; and where every goal is to be judged, some of which want more.
const ROUNDS: u32 = 5;
const GOALS_ROUNDS: u32 = 15;

/// To build the topology, start the relay and remove both; testpmd takes a second more than others.
const OPEN: Duration = Duration::from_millis(1200);

/// What is to be compared.
pub(super) struct Plan {
    pub(super) relays: Vec<Box<dyn Rival>>,
    pub(super) metrics: Vec<Box<dyn Metric>>,
    pub(super) rounds: u32,
    /// Of each measurement.
    pub(super) time: Duration,
}

impl Plan {
    /// As asked for: a preset, in which relays or metrics may be replaced.
    pub(super) fn new(flags: &Flags) -> Result<Plan> {
        Ok(Plan {
            relays: relays(flags)?,
            metrics: metrics(flags)?,
            rounds: flags.rounds.unwrap_or(match flags.preset {
                Preset::Goals => GOALS_ROUNDS,
                Preset::Quick | Preset::Full => ROUNDS,
            }),
            time: Duration::from_secs(flags.seconds.into()),
        })
    }

    /// About how long it takes, if these relays can run.
    pub(super) fn takes(&self, present: &[usize]) -> Duration {
        let each = present.iter().map(|&at| {
            let metrics = self
                .metrics
                .iter()
                .filter(|metric| metric.is_flood() || !self.relays[at].is_limit());
            OPEN + metrics
                .map(|metric| metric.takes(self.time))
                .sum::<Duration>()
        });
        each.sum::<Duration>() * self.rounds
    }
}

/// The relays asked for.
fn relays(flags: &Flags) -> Result<Vec<Box<dyn Rival>>> {
    let mut relays = rivals::all();
    match (flags.only.as_slice(), flags.preset) {
        ([], Preset::Full) => {}
        ([], Preset::Quick) => relays.retain(|relay| QUICK.0.contains(&relay.name())),
        ([], Preset::Goals) => relays.retain(|relay| {
            let name = relay.name();
            GOALS
                .iter()
                .any(|goal| goal.relay == name || goal.against.names().contains(&name))
        }),
        (names, _) => return names.iter().map(|name| rivals::find(name)).collect(),
    }
    Ok(relays)
}

/// The metrics asked for, in the order of measuring.
fn metrics(flags: &Flags) -> Result<Vec<Box<dyn Metric>>> {
    let mut metrics = metric::all();
    let known: Vec<String> = metrics.iter().map(|metric| metric.name()).collect();
    if let Some(unknown) = flags.metrics.iter().find(|name| !known.contains(name)) {
        bail!("no metric named {unknown}; there are: {}", known.join(", "));
    }
    metrics.retain(|metric| match (flags.metrics.as_slice(), flags.preset) {
        ([], Preset::Full) => true,
        ([], Preset::Quick) => QUICK.1.contains(&metric.name().as_str()),
        ([], Preset::Goals) => metric
            .figures()
            .iter()
            .any(|figure| GOALS.iter().any(|goal| goal.figure == figure.key)),
        (names, _) => names.contains(&metric.name()),
    });
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::super::tests::flags;
    use super::*;

    fn plan(line: &str) -> Plan {
        Plan::new(&flags(line)).expect("it can be planned")
    }

    fn names(plan: &Plan) -> (Vec<&str>, Vec<String>) {
        (
            plan.relays.iter().map(|relay| relay.name()).collect(),
            plan.metrics.iter().map(|metric| metric.name()).collect(),
        )
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let error = |line| Plan::new(&flags(line)).err().expect("refused").to_string();
        let metric = error("--metrics flood-64-64,speed");
        assert!(
            metric.contains("speed") && metric.contains("ping-pong"),
            "{metric}"
        );
        let relay = error("--only bridge,cisco");
        assert!(
            relay.contains("cisco") && relay.contains("tx-limit"),
            "{relay}"
        );
    }

    #[test]
    fn presets_are_what_they_say_and_parts_can_be_replaced() {
        let quick = plan("");
        let (relays, metrics) = names(&quick);
        assert_eq!((relays, metrics.len()), (QUICK.0.to_vec(), QUICK.1.len()));
        let (relays, metrics) = (rivals::all().len(), metric::all().len());
        let full = plan("--preset full");
        assert_eq!((full.relays.len(), full.metrics.len()), (relays, metrics));

        let goals = plan("--preset goals");
        let (relays, metrics) = names(&goals);
        assert!(relays.contains(&"tx-limit") && !relays.contains(&"none"));
        for goal in GOALS {
            assert!(relays.contains(&goal.relay), "{}", goal.relay);
            let measured = goals.metrics.iter().flat_map(|metric| metric.figures());
            assert!(
                measured.into_iter().any(|figure| figure.key == goal.figure),
                "{}",
                goal.figure
            );
        }
        assert!(metrics.len() < metric::all().len());
        assert!(
            GOALS
                .iter()
                .all(|goal| goal.rounds <= goals.rounds as usize)
        );

        let some = plan("--metrics flood-64-64,idle --only l2relay,none");
        let (relays, metrics) = names(&some);
        assert_eq!(relays, ["l2relay", "none"]);
        assert_eq!(
            metrics,
            ["idle", "flood-64-64"],
            "in the order of measuring"
        );
    }

    #[test]
    fn the_time_is_estimated() {
        let plan = plan("--rounds 3 --seconds 2 --only bridge,tx-limit --metrics idle,flood-64-1");
        let each = |at| (plan.takes(&[at]) / 3).as_secs_f64();
        assert!((5.0..8.0).contains(&each(0)), "{}", each(0));
        assert!(
            (3.0..5.0).contains(&each(1)),
            "nothing but floods: {}",
            each(1)
        );
        assert_eq!(plan.takes(&[0, 1]), plan.takes(&[0]) + plan.takes(&[1]));
    }
}
