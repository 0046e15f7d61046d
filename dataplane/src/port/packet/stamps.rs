//! The kernel's stamps of arrival in a lane's clock. Called by the receive half where a stage counts time from arrival.
//!
//! The stamps are of the real-time clock, which can be set. A lane knows its own time only as it was when the turn began, and the thread may
//! lose its CPU between that and a look at the other clock: so the distance of the clocks is the least that was seen of late.

use std::time::{SystemTime, UNIX_EPOCH};

/// After how long the least of before is forgotten: by then a clock that was set forward is believed.
const WINDOW_NS: u64 = 500_000_000;

/// How long after its turn's beginning a frame may have come: a thread that loses its CPU in between has it back by then.
const AHEAD_NS: u64 = 100_000_000;

/// The distance of the clocks.
#[derive(Debug)]
pub(super) struct Stamps {
    /// The least in this window and in the one before.
    least_ns: [u64; 2],
    since_ns: u64,
    /// The kernel's clock when it was last looked at.
    realtime_ns: u64,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self {
            least_ns: [u64::MAX; 2],
            since_ns: 0,
            realtime_ns: 0,
        }
    }

    /// Compares the clocks: the lane's at the turn's beginning, the kernel's a little later.
    pub(super) fn compare(&mut self, now_ns: u64, realtime_ns: u64) {
        if now_ns.saturating_sub(self.since_ns) > WINDOW_NS {
            self.least_ns = [u64::MAX, self.least_ns[0]];
            self.since_ns = now_ns;
        }
        let distance_ns = realtime_ns.saturating_sub(now_ns);
        self.least_ns[0] = self.least_ns[0].min(distance_ns);
        self.realtime_ns = realtime_ns;
    }

    /// When a frame came, in ns of the lane's clock: not after the last comparison, which may be a little after the turn's beginning,
    /// `now_ns`.
    pub(super) fn arrival_ns(&self, stamp_ns: u64, now_ns: u64) -> u64 {
        let [this, before] = self.least_ns;
        let in_lane = |realtime_ns: u64| realtime_ns.saturating_sub(this.min(before));
        let latest_ns = match in_lane(self.realtime_ns) {
            // The clock was set forward.
            far if far > now_ns + AHEAD_NS => now_ns,
            near => near.max(now_ns),
        };
        in_lane(stamp_ns).min(latest_ns)
    }
}

/// The clock that the kernel stamps frames by (`tpacket_rcv`).
pub(super) fn realtime_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real-time clock is that far ahead.
    const AHEAD: u64 = 1_700_000_000_000_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn a_thread_that_lost_its_cpu_makes_nothing_early() {
        let mut stamps = Stamps::new();
        stamps.compare(MS, MS + AHEAD + 100);
        // 6 ms between the two looks at the clocks: the frame came 1 ms before the turn.
        stamps.compare(20 * MS, 26 * MS + AHEAD);
        let found = stamps.arrival_ns(19 * MS + AHEAD, 20 * MS);
        assert!(found.abs_diff(19 * MS) <= 100, "{found}");
        // One that came between the two looks, and none comes after them.
        let found = stamps.arrival_ns(23 * MS + AHEAD, 20 * MS);
        assert!(found.abs_diff(23 * MS) <= 100, "{found}");
        let found = stamps.arrival_ns(29 * MS + AHEAD, 20 * MS);
        assert!(found.abs_diff(26 * MS) <= 100, "{found}");
    }

    #[test]
    fn a_clock_that_is_set() {
        let mut stamps = Stamps::new();
        let turn = |stamps: &mut Stamps, now_ns: u64, ahead_ns: u64| {
            stamps.compare(now_ns, now_ns + ahead_ns + 50);
            stamps.arrival_ns(now_ns - 5 * MS + ahead_ns, now_ns)
        };
        for at in 6..2000 {
            turn(&mut stamps, at * MS, AHEAD);
        }
        // Back: known at once. Forth: a frame is as late as it is looked at, and after two windows all is right again.
        let hour = 3600 * 1000 * MS;
        let close = |found: u64, wanted: u64| found.abs_diff(wanted) <= 50;
        assert!(close(turn(&mut stamps, 2000 * MS, AHEAD - hour), 1995 * MS));
        let mut found = 0;
        for at in 2001..3100 {
            found = turn(&mut stamps, at * MS, AHEAD + hour);
            assert!(found <= at * MS + 50 && found + 5 * MS + 50 >= at * MS);
        }
        assert!(close(found, 3094 * MS), "{found}");
    }
}
