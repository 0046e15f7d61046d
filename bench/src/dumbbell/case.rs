//! What is measured: cases of the dumbbell.

use std::time::Duration;

use super::expect;

/// One set of conditions.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Case {
    pub(super) name: String,
    /// The sender's congestion control.
    pub(super) algorithm: &'static str,
    /// Payload of a segment, in bytes.
    pub(super) mss: u32,
    /// One way, in ms.
    pub(super) delay_ms: u32,
    /// Loss on the way of the data and of the acknowledgements, in per cent.
    pub(super) loss_percent: [f64; 2],
    /// Flows at once, each between hosts of its own.
    pub(super) flows: usize,
    pub(super) bottleneck: Bottleneck,
}

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bottleneck {
    /// The link stage, with its rate before delay and loss.
    Link,
    /// The kernel's token bucket on the routers, as in the real network of the original; the link stage delays and loses.
    Tbf,
}

/// The bottleneck, in kbit/s.
pub(super) const RATE_KBPS: u32 = 2000;
/// Frames that wait: ns-3's own limit.
const LIMIT: &str = "100p";

impl Case {
    fn new(algorithm: &'static str, loss_percent: [f64; 2]) -> Self {
        let loss = match loss_percent {
            [0.0, 0.0] => "no loss".into(),
            [data, 0.0] => format!("{data} % of data"),
            [data, _] => format!("{data} % both ways"),
        };
        Self {
            name: format!("{algorithm}, {loss}"),
            algorithm,
            mss: 1448,
            delay_ms: 100,
            loss_percent,
            flows: 1,
            bottleneck: Bottleneck::Link,
        }
    }

    fn with(mut self, what: &str, change: impl FnOnce(&mut Self)) -> Self {
        self.name = format!("{}, {what}", self.name);
        change(&mut self);
        self
    }

    /// What the relay is told of one dumbbell: from `left` to `right` and back.
    pub(super) fn links(&self, left: &str, right: &str, seed: u32) -> [String; 2] {
        let way = |from: &str, to: &str, loss: f64| {
            let rate = match self.bottleneck {
                Bottleneck::Link => format!(" rate {RATE_KBPS}kbit limit {LIMIT}"),
                Bottleneck::Tbf => String::new(),
            };
            format!(
                "{from}>{to}{rate} delay {}ms loss {loss}% seed {seed}",
                self.delay_ms
            )
        };
        let [data, acks] = self.loss_percent;
        [way(left, right, data), way(right, left, acks)]
    }

    /// Mathis and PFTK, in kbit/s, where loss and not the rate is the limit. The round trip has the time of one frame on the line in it.
    pub(super) fn expected(&self) -> Option<[f64; 2]> {
        let p = self.loss_percent[0] / 100.0;
        if p == 0.0 || self.algorithm == "bbr" {
            return None;
        }
        let mss = f64::from(self.mss);
        let rtt_s = 2.0 * f64::from(self.delay_ms) / 1e3
            + (mss + 66.0) * 8.0 / (f64::from(RATE_KBPS) * 1e3);
        Some([expect::mathis(mss, rtt_s, p), expect::pftk(mss, rtt_s, p)].map(|bps| bps / 1e3))
    }

    /// Whether the goal of 220 to 340 kbit/s is meant for it.
    pub(super) fn has_goal(&self) -> bool {
        self.mss == 1448
            && self.delay_ms == 100
            && self.flows == 1
            && self.loss_percent[0] == 5.0
            && self.algorithm != "bbr"
            && self.bottleneck == Bottleneck::Link
    }
}

/// All of them; with `short`, those that say most in a minute.
pub(super) fn all(short: bool) -> Vec<Case> {
    let data = |algorithm| Case::new(algorithm, [5.0, 0.0]);
    let both = |algorithm| Case::new(algorithm, [5.0, 5.0]);
    let free = Case::new("cubic", [0.0, 0.0]).with(&format!("queue {LIMIT}"), |_| {});
    if short {
        return vec![data("cubic"), free];
    }
    vec![
        data("reno"),
        data("cubic"),
        both("reno"),
        both("cubic"),
        data("bbr"),
        data("reno").with("MSS 536", |case| case.mss = 536),
        data("cubic").with("MSS 536", |case| case.mss = 536),
        both("reno").with("MSS 536", |case| case.mss = 536),
        both("cubic").with("MSS 536", |case| case.mss = 536),
        Case::new("reno", [1.0, 0.0]),
        Case::new("cubic", [1.0, 0.0]),
        both("cubic").with("RTT 400 ms", |case| case.delay_ms = 200),
        both("cubic").with("two flows", |case| case.flows = 2),
        both("cubic").with("kernel TBF", |case| case.bottleneck = Bottleneck::Tbf),
        free,
    ]
}

/// How long a case takes, measurement, start and end.
pub(super) fn duration(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds) + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_links() {
        let cases = all(false);
        for case in &cases {
            assert_eq!(
                cases.iter().filter(|other| other.name == case.name).count(),
                1,
                "{}",
                case.name
            );
        }
        assert_eq!(
            cases[0].links("a", "b", 7),
            [
                "a>b rate 2000kbit limit 100p delay 100ms loss 5% seed 7",
                "b>a rate 2000kbit limit 100p delay 100ms loss 0% seed 7"
            ]
        );
        assert_eq!(cases.iter().filter(|case| case.has_goal()).count(), 4);
    }
}
