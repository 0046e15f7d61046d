//! Interleaved rounds: each begins with another of what is measured, so that neither the machine's mood nor the order favours one.
//!
//! Used by the chain and by the comparison of relays. Figures are medians with their range; goals are judged by what is
//! compared within a round. Pure arithmetic.

pub(crate) mod figure;
pub(crate) mod verdict;

pub(crate) use figure::{Summary, ratios};
pub(crate) use verdict::{Bound, Verdict};

/// In which order `count` things are measured in this round.
pub(crate) fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (round + turn) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| order(round, 3).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(order(5, 0).count(), 0);
    }
}
