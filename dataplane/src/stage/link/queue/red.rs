//! Random early detection: Floyd and Jacobson 1993, with the gentle slope above the upper threshold (Floyd 2000).

use super::{Busy, Verdict};
use crate::stage::link::{
    seed::Draws,
    settings::{Limit, Red as Settings},
};

#[derive(Debug)]
pub(super) struct Red {
    settings: Settings,
    average: f64,
    /// Frames since the last drop; −1 below the lower threshold.
    count: i64,
    last_ns: u64,
}

impl Red {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            average: 0.0,
            count: -1,
            last_ns: 0,
        }
    }

    pub(super) fn judge(
        &mut self,
        packets: u64,
        bytes: u64,
        at_ns: u64,
        busy: Busy,
        draws: &mut Draws,
    ) -> Verdict {
        let (now, min, max) = match (self.settings.min, self.settings.max) {
            (Limit::Bytes(min), Limit::Bytes(max)) => (bytes, min, max),
            (Limit::Packets(min), Limit::Packets(max)) => (packets, min, max),
            // Two units are a mistake that the settings do not pass.
            _ => return Verdict::Keep,
        };
        let [now, min, max] = [now, min, max].map(|value| value as f64);
        let weight = self.settings.weight.value();
        if busy.size.is_none() {
            // As if that many small frames had found the queue empty.
            let idle_ns = at_ns.saturating_sub(self.last_ns);
            let frames = idle_ns as f64 / busy.frame_ns.max(1) as f64;
            self.average *= libm::pow(1.0 - weight, frames);
        } else {
            self.average += weight * (now - self.average);
        }
        self.last_ns = at_ns;
        let top = self.settings.probability.value();
        let probability = if self.average < min {
            self.count = -1;
            return Verdict::Keep;
        } else if self.average < max {
            top * (self.average - min) / (max - min)
        } else if self.average < 2.0 * max {
            top + (1.0 - top) * (self.average - max) / max
        } else {
            1.0
        };
        self.count += 1;
        // Spreads the drops evenly: the further away the last, the likelier.
        let even = probability / (1.0 - self.count as f64 * probability).max(probability);
        if f64::from(draws.next()) < even * 4_294_967_296.0 {
            self.count = 0;
            // Above the upper threshold a mark is no longer enough (RFC 3168, 7).
            if self.settings.ecn && self.average < max {
                Verdict::Mark
            } else {
                Verdict::Drop
            }
        } else {
            Verdict::Keep
        }
    }
}
