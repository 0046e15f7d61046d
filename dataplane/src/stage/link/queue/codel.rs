//! Controlled delay: RFC 8289, section 5, as it stands there.

use super::Verdict;
use crate::stage::link::{schedule::ns, settings::CoDel as Settings};

/// One frame of full size: a queue that is no longer is never too long.
const MAX_FRAME: u64 = 1514;

#[derive(Debug)]
pub(super) struct CoDel {
    target_ns: u64,
    interval_ns: u64,
    ecn: bool,
    /// When the delay will have been too long for an interval; 0: it is not too long.
    first_above_ns: u64,
    drop_next_ns: u64,
    count: u64,
    last_count: u64,
    dropping: bool,
}

impl CoDel {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            target_ns: ns(settings.target),
            interval_ns: ns(settings.interval),
            ecn: settings.ecn,
            first_above_ns: 0,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// Judges the frame at the head. `left`: bytes behind it.
    pub(super) fn judge(&mut self, sojourn_ns: u64, left: u64, now_ns: u64) -> Verdict {
        let too_long = self.is_too_long(sojourn_ns, left, now_ns);
        if self.dropping {
            if !too_long {
                self.dropping = false;
            } else if now_ns >= self.drop_next_ns {
                self.count += 1;
                self.drop_next_ns = self.control_law(self.drop_next_ns);
                return self.act();
            }
        } else if too_long {
            self.dropping = true;
            // Begins where it was, if that is not long ago.
            let delta = self.count - self.last_count;
            let recent = now_ns.saturating_sub(self.drop_next_ns) < 16 * self.interval_ns;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next_ns = self.control_law(now_ns);
            self.last_count = self.count;
            return self.act();
        }
        Verdict::Keep
    }

    /// The queue is empty.
    pub(super) fn rest(&mut self) {
        self.first_above_ns = 0;
        self.dropping = false;
    }

    fn is_too_long(&mut self, sojourn_ns: u64, left: u64, now_ns: u64) -> bool {
        if sojourn_ns < self.target_ns || left <= MAX_FRAME {
            self.first_above_ns = 0;
            false
        } else if self.first_above_ns == 0 {
            self.first_above_ns = now_ns + self.interval_ns;
            false
        } else {
            now_ns >= self.first_above_ns
        }
    }

    fn control_law(&self, from_ns: u64) -> u64 {
        from_ns + (self.interval_ns as f64 / (self.count as f64).sqrt()) as u64
    }

    fn act(&self) -> Verdict {
        if self.ecn {
            Verdict::Mark
        } else {
            Verdict::Drop
        }
    }
}
