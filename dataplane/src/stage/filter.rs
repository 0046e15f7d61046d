//! Discarding frames by what they are, or how many come.

use super::Stage;
use crate::{burst::Burst, lane::Turn, stats::Reason};

/// Lets no multicast or broadcast frame pass.
///
/// For hairpins: a host that sees its own multicast come back takes it for another's. IPv6 duplicate address detection
/// then finds every address taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnicastOnly;

impl Stage for UnicastOnly {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        burst.filter(turn, Reason::Filtered, |pool, frame| {
            pool.bytes(frame).first().is_some_and(|byte| byte & 1 == 0)
        });
    }
}

/// Lets a number of multicast and broadcast packets pass in a second, as the storm control of switches does: two ports that are
/// joined elsewhere too make a loop, in which they would multiply for ever.
#[derive(Clone, Copy, Debug)]
pub struct StormGuard {
    /// What one packet is worth, in ns.
    cost_ns: u64,
    /// When the packets that have passed are paid for.
    paid_ns: u64,
}

impl StormGuard {
    /// How far ahead of its rate a burst may be: a tenth of a second.
    const BURST_NS: u64 = 100_000_000;

    /// Lets `pps` packets a second pass, at least 1.
    pub fn new(pps: u32) -> Self {
        Self {
            cost_ns: 1_000_000_000 / u64::from(pps.max(1)),
            paid_ns: 0,
        }
    }

    /// Whether one more may pass now.
    fn passes(&mut self, now_ns: u64, packets: u32) -> bool {
        let paid_ns = self.paid_ns.max(now_ns);
        // The first one always does, however slow the rate.
        let passes = paid_ns == now_ns || paid_ns - now_ns < Self::BURST_NS;
        if passes {
            self.paid_ns = paid_ns + self.cost_ns * u64::from(packets);
        }
        passes
    }
}

impl Stage for StormGuard {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let now_ns = turn.now_ns;
        burst.filter(turn, Reason::Storm, |pool, frame| {
            let multicast = pool.bytes(frame).first().is_some_and(|byte| byte & 1 == 1);
            !multicast || self.passes(now_ns, pool.meta(frame).segments)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_cut_to_its_rate() {
        let mut guard = StormGuard::new(100);
        let second = 1_000_000_000;
        let passed = |guard: &mut StormGuard, from: u64| {
            let times = (0..10_000).map(|at| from + at * second / 10_000);
            times.filter(|now| guard.passes(*now, 1)).count()
        };
        // A burst of a tenth of a second's worth is ahead of the rate.
        assert!((100..=111).contains(&passed(&mut guard, 5 * second)));
        assert!((99..=101).contains(&passed(&mut guard, 6 * second)));
        // After a pause nothing has been saved up but that.
        assert!((100..=111).contains(&passed(&mut guard, 60 * second)));
        assert!(StormGuard::new(0).passes(0, 1));
    }
}
