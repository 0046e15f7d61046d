//! Settings that change by themselves: steps, ramps and outages at times from the start of the link.

use std::time::Duration;

use super::settings::Probability;

/// Changes over time, in order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The changes.
    pub changes: Vec<Change>,
    /// After how long they begin anew, with the settings of the start. `None`: never.
    pub repeat: Option<Duration>,
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it begins, from the start of the link.
    pub at: Duration,
    /// How long it takes: a ramp, or 0 for a step.
    pub over: Duration,
    /// What it leads to.
    pub to: Target,
}

/// What a change leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Another rate, in bits per second.
    Rate(u64),
    /// Another delay.
    Delay(Duration),
    /// Another probability of random loss.
    Loss(Probability),
    /// An outage: what comes is dropped.
    Down,
    /// The end of an outage.
    Up,
}

impl Target {
    /// The word in the grammar.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate(_) => "rate",
            Self::Delay(_) => "delay",
            Self::Loss(_) => "loss",
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

/// A value over time, piecewise linear.
#[derive(Clone, Debug)]
pub(super) struct Track {
    base: u64,
    points: Box<[(u64, u64)]>,
    repeat_ns: Option<u64>,
}

impl Track {
    /// A value that is `base` until `schedule` changes it; `pick` finds the changes that are meant.
    pub(super) fn new(
        base: u64,
        schedule: &Schedule,
        pick: impl Fn(Target) -> Option<u64>,
    ) -> Self {
        let (mut points, mut value) = (Vec::new(), base);
        for change in &schedule.changes {
            let Some(to) = pick(change.to) else { continue };
            let (from, until) = (ns(change.at), ns(change.at.saturating_add(change.over)));
            points.extend([(from, value), (until, to)]);
            value = to;
        }
        Self {
            base,
            points: points.into(),
            repeat_ns: schedule.repeat.map(ns),
        }
    }

    /// The value, `since_ns` after the start.
    #[inline]
    pub(super) fn at(&self, since_ns: u64) -> u64 {
        if self.points.is_empty() {
            return self.base;
        }
        let now = self.repeat_ns.map_or(since_ns, |repeat| since_ns % repeat);
        let after = self.points.partition_point(|(time, _)| *time <= now);
        let Some(&(from, low)) = self.points[..after].last() else {
            return self.base;
        };
        let Some(&(until, high)) = self.points.get(after) else {
            return low;
        };
        let part = (i128::from(high) - i128::from(low)) * i128::from(now - from)
            / i128::from(until - from);
        (i128::from(low) + part) as u64
    }

    /// Whether it is always the same.
    pub(super) fn is_constant(&self) -> bool {
        self.points.is_empty()
    }
}

/// Nanoseconds; what doesn't fit is the most that does.
pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_ramps_and_repeats() {
        let change = |at, over, rate| Change {
            at: Duration::from_nanos(at),
            over: Duration::from_nanos(over),
            to: Target::Rate(rate),
        };
        let mut schedule = Schedule {
            changes: vec![change(10, 0, 5), change(20, 10, 105), change(40, 4, 1)],
            repeat: None,
        };
        let pick = |to| match to {
            Target::Rate(rate) => Some(rate),
            _ => None,
        };
        let track = Track::new(50, &schedule, pick);
        let values = [0, 9, 10, 20, 25, 30, 39, 41, 43, 44, 1000].map(|at| track.at(at));
        assert_eq!(values, [50, 50, 5, 5, 55, 105, 105, 79, 27, 1, 1]);
        schedule.repeat = Some(Duration::from_nanos(50));
        let track = Track::new(50, &schedule, pick);
        assert_eq!([49, 50, 60, 75].map(|at| track.at(at)), [1, 50, 5, 55]);
        let other = Track::new(7, &schedule, |_| None);
        assert!(other.is_constant() && other.at(70) == 7);
    }
}
