//! The highest rate that gets through, and what is left of it when far more is offered.

use std::time::Duration;

use anyhow::Result;

use super::flood::{Flow, Stream};
use super::{Metric, Outcome};
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;

/// Loss that counts as none. (A virtual machine stops now and then; no buffer lasts for that.)
const NONE: f64 = 0.001;

/// Halvings of the interval in which the rate lies: to 1 % of what a flood delivers.
const STEPS: u32 = 7;

/// Doublings of the rate to look up to, while nothing is lost at it.
const DOUBLINGS: u32 = 4;

/// Looks for the highest rate that loses less than 0.1 %.
pub(super) struct Lossless {
    pub(super) size: usize,
    pub(super) flows: u32,
}

impl Lossless {
    /// Half a second at least: less than that would fit into a large buffer.
    fn each(time: Duration) -> Duration {
        (time / 2).max(Duration::from_millis(500))
    }
}

impl Metric for Lossless {
    fn name(&self) -> String {
        format!("lossless-{}-{}", self.size, self.flows)
    }

    fn figures(&self) -> Vec<Figure> {
        let (name, what) = (
            self.name(),
            format!("{} B, {} flows", self.size, self.flows),
        );
        vec![
            Figure::more(
                format!("{name}-rate"),
                format!("{what}, highest rate with < 0.1 % loss"),
                "kpps",
            ),
            Figure::more(
                format!("{name}-overload"),
                format!("{what}, delivered under flood by the most delivered at any rate"),
                "×",
            ),
        ]
    }

    fn takes(&self, time: Duration) -> Duration {
        // About half of the rates are tried twice.
        Stream::takes(time) + Stream::takes(Self::each(time)) * (STEPS * 3 / 2 + 1)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let stream = Stream::new(scene, self.size, self.flows)?;
        let flood = stream.run(0, scene.time)?.delivered_pps;
        let (mut most, mut without_loss) = (flood, 0.0f64);
        let mut try_rate = |rate: u64| -> Result<Flow> {
            let flow = stream.run(rate, Self::each(scene.time))?;
            most = most.max(flow.delivered_pps);
            if flow.lost < NONE {
                // The sender may make fewer than it is asked for.
                without_loss = without_loss.max(flow.offered_pps);
            }
            Ok(flow)
        };
        // Somewhat more than it can: what is delivered then is its most. A relay that suffers from a flood can do far more than
        // was delivered of that.
        let mut limit = (flood * 1.25) as u64;
        for _ in 0..DOUBLINGS {
            let flow = try_rate(limit)?;
            if flow.lost >= NONE || flow.offered_pps < 0.9 * limit as f64 {
                break;
            }
            limit *= 2;
        }
        highest(limit, STEPS, |rate| {
            // The machine may have stopped for a moment: twice in a row is the relay's doing.
            Ok(try_rate(rate)?.lost < NONE || try_rate(rate)?.lost < NONE)
        })?;
        let overload = flood / most.max(1.0);
        Ok(Outcome::values([without_loss / 1e3, overload]))
    }
}

/// The highest rate up to `limit` that is good, by halving: good ones lie below bad ones. 0 if none of those tried is.
fn highest(limit: u64, steps: u32, mut is_good: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    let (mut good, mut bad) = (0u64, limit);
    for _ in 0..steps {
        let middle = good.midpoint(bad);
        if middle == 0 {
            break;
        }
        if is_good(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_search_comes_near() {
        for capacity in [0, 1, 333_333, 999_000] {
            let mut tries = 0;
            let found = highest(1_000_000, 7, |rate| {
                tries += 1;
                Ok(rate <= capacity)
            });
            let found = found.expect("nothing fails");
            assert!(found <= capacity && capacity - found <= 1_000_000 / 128 + 1);
            assert_eq!(tries, 7);
        }
        assert_eq!(highest(0, 7, |_| bail!("never asked")).expect("no rate"), 0);
    }

    #[test]
    fn a_failure_ends_the_search() {
        assert!(highest(1000, 7, |_| bail!("gone")).is_err());
    }
}
