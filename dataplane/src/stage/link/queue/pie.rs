//! Proportional integral controller enhanced: RFC 8033, sections 4 and 5, with the delay that the queue's length means.

use super::Verdict;
use crate::stage::link::{schedule::ns, seed::Draws, settings::Pie as Settings};

/// No drops for that long after an idle time (MAX_BURST).
const BURST_NS: u64 = 150_000_000;
/// Two frames of full size are no queue.
const SHORT: u64 = 2 * 1514;
/// Updates that are made up for after a silence. More of them change nothing any more.
const CATCH_UP: u64 = 2000;

#[derive(Debug)]
pub(super) struct Pie {
    target: f64,
    update_ns: u64,
    ecn: bool,
    probability: f64,
    accumulated: f64,
    burst_ns: u64,
    /// In seconds: at the last update.
    delay: f64,
    next_ns: u64,
}

impl Pie {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            target: settings.target.as_secs_f64(),
            update_ns: ns(settings.update).max(1),
            ecn: settings.ecn,
            probability: 0.0,
            accumulated: 0.0,
            burst_ns: BURST_NS,
            delay: 0.0,
            next_ns: 0,
        }
    }

    /// Judges a frame that comes.
    pub(super) fn judge(
        &mut self,
        bytes: u64,
        at_ns: u64,
        wait_ns: u64,
        draws: &mut Draws,
    ) -> Verdict {
        let wait = wait_ns as f64 / 1e9;
        let missed = (at_ns + self.update_ns).saturating_sub(self.next_ns) / self.update_ns;
        // The line has been at work since: what waits now is what waited then, or more.
        for _ in 0..missed.min(CATCH_UP) {
            self.update(wait);
        }
        self.next_ns += missed * self.update_ns;

        let draw = f64::from(draws.next()) / 4_294_967_296.0;
        if self.burst_ns > 0
            || (self.delay < self.target / 2.0 && self.probability < 0.2)
            || bytes <= SHORT
        {
            return Verdict::Keep;
        }
        self.accumulated += self.probability;
        let drops = if self.accumulated < 0.85 {
            false
        } else {
            self.accumulated >= 8.5 || draw < self.probability
        };
        if !drops {
            return Verdict::Keep;
        }
        self.accumulated = 0.0;
        if self.ecn && self.probability < 0.1 {
            Verdict::Mark
        } else {
            Verdict::Drop
        }
    }

    fn update(&mut self, wait: f64) {
        const ALPHA: f64 = 0.125;
        const BETA: f64 = 1.25;
        let mut change = ALPHA * (wait - self.target) + BETA * (wait - self.delay);
        // Small probabilities take small steps.
        change /= match self.probability {
            p if p < 0.000_001 => 2048.0,
            p if p < 0.000_01 => 512.0,
            p if p < 0.000_1 => 128.0,
            p if p < 0.001 => 32.0,
            p if p < 0.01 => 8.0,
            p if p < 0.1 => 2.0,
            _ => 1.0,
        };
        if self.probability >= 0.1 {
            change = change.min(0.02);
        }
        self.probability += change;
        if wait == 0.0 && self.delay == 0.0 {
            self.probability *= 0.98;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        let calm = wait < self.target / 2.0 && self.delay < self.target / 2.0;
        self.delay = wait;
        self.burst_ns = self.burst_ns.saturating_sub(self.update_ns);
        if self.probability == 0.0 && calm {
            self.burst_ns = BURST_NS;
            self.accumulated = 0.0;
        }
    }
}
