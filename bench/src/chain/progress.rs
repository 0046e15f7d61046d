//! What a chain says on standard error while it runs.

use std::time::{Duration, Instant};

use super::plan::Plan;
use crate::report::{Measurement, Outcome};
use crate::say;
use crate::traffic::Load;

/// Says on standard error what runs, how far it is and how long it will take.
pub(super) struct Progress {
    step: usize,
    steps: usize,
    rounds: usize,
    places: usize,
    started: Instant,
    expected: Duration,
}

impl Progress {
    /// Counts the steps of all plans, each measured so many times in so many places.
    pub(super) fn new(plans: &[Plan], rounds: usize, places: usize) -> Self {
        let times = rounds * places;
        let (mut steps, mut expected) = (0, Duration::ZERO);
        for plan in plans {
            steps += plan.relays.len() * plan.loads.len();
            for _ in &plan.relays {
                expected += plan
                    .loads
                    .iter()
                    .map(|l| l.duration(plan.seconds))
                    .sum::<Duration>();
            }
        }
        Self {
            step: 0,
            rounds,
            places,
            steps: steps * times,
            started: Instant::now(),
            expected: expected * times as u32,
        }
    }

    /// A relay's turn begins.
    pub(super) fn turn(&self, round: usize, place: &str) {
        if self.rounds > 1 || self.places > 1 {
            say::err(&format!(
                "round {} of {}, in {place}",
                round + 1,
                self.rounds
            ));
        }
    }

    /// A measurement begins.
    pub(super) fn step(&mut self, relay: &str, load: &Load) {
        self.step += 1;
        say::err(&format!(
            "[{:2}/{}] {:3.0} s of about {:.0} s  {relay}: {load}",
            self.step,
            self.steps,
            self.started.elapsed().as_secs_f64(),
            self.expected.as_secs_f64()
        ));
    }

    /// These measurements will not be made.
    pub(super) fn skip(&mut self, steps: usize) {
        self.step += steps;
    }

    /// A measurement has ended.
    pub(super) fn result(&self, measurement: &Measurement) {
        match &measurement.outcome {
            Outcome::Measured(figures) => say::err(&format!("        {}", figures.brief())),
            Outcome::NoConnection(why) => say::err(&format!("        no connection: {why}")),
            Outcome::Failed(why) => say::err(&format!("        failed: {why}")),
        }
    }
}
