//! Events that happen to some frames: by chance, in states, or by a pattern.

use super::{
    seed::Draws,
    settings::{Chance, LossModel, Probability},
};

/// Draws events of a [`Chance`].
///
/// With correlation ρ the probability after an event is p + ρ(1−p), and p(1−ρ) otherwise: a chain with two states, whose
/// long run is p. (netem's mean of two random numbers changes p.)
#[derive(Debug)]
pub(super) struct Dice {
    chance: Chance,
    last: bool,
    draws: Draws,
}

impl Dice {
    pub(super) fn new(chance: Chance, draws: Draws) -> Self {
        Self {
            chance,
            last: false,
            draws,
        }
    }

    /// Other chances, the same stream of numbers.
    pub(super) fn set(&mut self, chance: Chance) {
        self.chance = chance;
    }

    /// Whether the event happens to the next frame.
    #[inline]
    pub(super) fn throw(&mut self) -> bool {
        self.throw_with(self.chance.probability)
    }

    /// The same with another probability in the long run.
    #[inline]
    pub(super) fn throw_with(&mut self, p: Probability) -> bool {
        let rho = self.chance.correlation;
        let now = match (rho > Probability::ZERO, self.last) {
            (false, _) => p,
            (true, true) => Probability::from_raw(p.raw() + p.complement().times(rho).raw()),
            (true, false) => p.times(rho.complement()),
        };
        self.last = now.hits(self.draws.next());
        self.last
    }

    /// The stream, for what else the event needs.
    pub(super) fn draws(&mut self) -> &mut Draws {
        &mut self.draws
    }
}

/// Draws losses of a [`LossModel`].
#[derive(Debug)]
pub(super) struct Losses {
    model: LossModel,
    dice: Dice,
    /// Of a model with states: 1 to 4. Of a pattern: the next place.
    state: usize,
}

impl Losses {
    pub(super) fn new(model: LossModel, draws: Draws) -> Self {
        let mut losses = Self {
            dice: Dice::new(Chance::default(), draws),
            state: 0,
            model,
        };
        losses.begin();
        losses
    }

    /// Another model, the same stream of numbers.
    pub(super) fn set(&mut self, model: LossModel) {
        let same = std::mem::discriminant(&model) == std::mem::discriminant(&self.model);
        self.model = model;
        if !same || matches!(self.model, LossModel::Pattern(_)) {
            self.begin();
        } else if let LossModel::Random(chance) = self.model {
            self.dice.set(chance);
        }
    }

    fn begin(&mut self) {
        self.state = match &self.model {
            LossModel::Pattern(_) => 0,
            _ => 1,
        };
        if let LossModel::Random(chance) = self.model {
            self.dice.set(chance);
        }
    }

    /// Whether the next frame is lost. `random` is the probability of random loss now.
    #[inline]
    pub(super) fn throw(&mut self, random: Probability) -> bool {
        match &self.model {
            LossModel::Random(_) => self.dice.throw_with(random),
            LossModel::GilbertElliott { p, r, bad, good } => {
                // As the kernel's loss_gilb_ell: first the step, with a draw, then the loss, with another. Its loss in the
                // state it comes from; so here.
                let (step, loss) = (self.dice.draws.next(), self.dice.draws.next());
                let (leave, lost, other) = match self.state {
                    1 => (*p, *good, 2),
                    _ => (*r, *bad, 1),
                };
                if leave.hits(step) {
                    self.state = other;
                }
                lost.hits(loss)
            }
            LossModel::Markov {
                p13,
                p31,
                p32,
                p23,
                p14,
            } => {
                // One draw a step, cut into the ways out of the state; the loss is in the state it leads to.
                let draw = self.dice.draws.next();
                let ways = match self.state {
                    1 => [(*p14, 4), (*p13, 3)],
                    2 => [(*p23, 3), (Probability::ZERO, 2)],
                    3 => [(*p32, 2), (*p31, 1)],
                    _ => [(Probability::ONE, 1), (Probability::ZERO, 4)],
                };
                let either = Probability::from_raw(ways[0].0.raw() + ways[1].0.raw());
                if ways[0].0.hits(draw) {
                    self.state = ways[0].1;
                } else if either.hits(draw) {
                    self.state = ways[1].1;
                }
                matches!(self.state, 3 | 4)
            }
            LossModel::Pattern(pattern) => {
                let lost = pattern.lost()[self.state];
                self.state = (self.state + 1) % pattern.lost().len();
                lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::link::{seed::Stream, settings::Pattern};

    const COUNT: usize = 100_000;

    fn p(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    fn losses(model: LossModel) -> Vec<bool> {
        let random = match model {
            LossModel::Random(chance) => chance.probability,
            _ => Probability::ZERO,
        };
        let mut losses = Losses::new(model, Draws::new(3, "a>b", Stream::Loss));
        (0..COUNT).map(|_| losses.throw(random)).collect()
    }

    fn share(all: &[bool]) -> f64 {
        all.iter().filter(|lost| **lost).count() as f64 / all.len() as f64
    }

    /// Mean length of runs of `what`.
    fn run(all: &[bool], what: bool) -> f64 {
        let runs = all.chunk_by(|a, b| a == b).filter(|run| run[0] == what);
        let (count, sum) = runs.fold((0, 0), |(count, sum), run| (count + 1, sum + run.len()));
        sum as f64 / count as f64
    }

    /// Four standard deviations of the binomial distribution.
    fn bound(p: f64) -> f64 {
        4.0 * (p * (1.0 - p) / COUNT as f64).sqrt()
    }

    #[test]
    fn random_loss_is_binomial_and_independent() {
        for probability in [0.001, 0.05, 0.5, 0.9, 1.0, 0.0] {
            let all = losses(LossModel::Random(Chance {
                probability: p(probability),
                ..Chance::default()
            }));
            assert!(
                (share(&all) - probability).abs() <= bound(probability),
                "{probability}"
            );
            if (0.01..0.99).contains(&probability) {
                let found = run(&all, true) * (1.0 - probability);
                assert!((found - 1.0).abs() < 0.05, "{probability}: {found}");
            }
        }
    }

    #[test]
    fn correlated_loss_comes_in_runs_and_keeps_its_share() {
        let all = losses(LossModel::Random(Chance {
            probability: p(0.05),
            correlation: p(0.5),
        }));
        // The variance grows by (1+ρ)/(1−ρ) = 3.
        assert!((share(&all) - 0.05).abs() < bound(0.05) * 3f64.sqrt());
        let leave = 1.0 - (0.05 + 0.5 * 0.95);
        assert!((run(&all, true) * leave - 1.0).abs() < 0.05);
    }

    #[test]
    fn gilbert_elliott_has_its_bursts() {
        // Loss in the bad state only: bursts of 1/r, gaps of 1/p, share p/(p+r).
        let all = losses(LossModel::GilbertElliott {
            p: p(0.01),
            r: p(0.25),
            bad: Probability::ONE,
            good: Probability::ZERO,
        });
        assert!((run(&all, true) - 4.0).abs() < 0.4, "{}", run(&all, true));
        assert!(
            (run(&all, false) - 100.0).abs() < 10.0,
            "{}",
            run(&all, false)
        );
        assert!((share(&all) - 0.01 / 0.26).abs() < 0.005);
        // And with loss in both.
        let all = losses(LossModel::GilbertElliott {
            p: p(0.1),
            r: p(0.3),
            bad: p(0.5),
            good: p(0.02),
        });
        let wanted = 0.25 * 0.5 + 0.75 * 0.02;
        assert!((share(&all) - wanted).abs() < 0.01, "{}", share(&all));
    }

    /// Against the stationary distribution of the chain, worked out by iteration.
    #[test]
    fn four_states_have_their_shares() {
        let (p13, p31, p32, p23, p14) = (0.02, 0.2, 0.1, 0.4, 0.01);
        let all = losses(LossModel::Markov {
            p13: p(p13),
            p31: p(p31),
            p32: p(p32),
            p23: p(p23),
            p14: p(p14),
        });
        let mut state = [1.0, 0.0, 0.0, 0.0];
        for _ in 0..10_000 {
            let [a, b, c, d] = state;
            state = [
                a * (1.0 - p13 - p14) + c * p31 + d,
                b * (1.0 - p23) + c * p32,
                a * p13 + b * p23 + c * (1.0 - p31 - p32),
                a * p14,
            ];
        }
        let wanted = state[2] + state[3];
        assert!(
            (share(&all) - wanted).abs() < 0.01,
            "{} {wanted}",
            share(&all)
        );
        // Runs of loss: alone (state 4), or from entering state 3 to leaving it.
        let (alone, burst) = (state[0] * p14, state[0] * p13 + state[1] * p23);
        let wanted = (alone + burst / (p31 + p32)) / (alone + burst);
        assert!(
            (run(&all, true) - wanted).abs() < 0.15,
            "{} {wanted}",
            run(&all, true)
        );
    }

    fn pattern(words: &str) -> LossModel {
        LossModel::Pattern(Pattern::parse(words).unwrap().into())
    }

    #[test]
    fn a_pattern_repeats() {
        let mut losses = Losses::new(pattern("0110"), Draws::new(0, "a>b", Stream::Loss));
        let found: String = (0..10)
            .map(|_| {
                if losses.throw(Probability::ZERO) {
                    '1'
                } else {
                    '0'
                }
            })
            .collect();
        assert_eq!(found, "0110011001");
        losses.set(pattern("1"));
        assert!(losses.throw(Probability::ZERO));
    }
}
