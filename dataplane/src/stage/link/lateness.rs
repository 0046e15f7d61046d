//! How late frames leave: a histogram with one writer, which anybody may read.
//!
//! Lateness is the time at which the kernel had a frame minus the time at which it was due: the honest sign whether a run
//! is valid. Sixteen steps for each doubling, so a figure is at most 6.25 % too high.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde::{Deserialize, Serialize};

/// Steps for each doubling.
const STEPS: u64 = 16;
/// From 2^MIN ns on the steps are relative; all below is one.
const MIN: u32 = 8;
/// Everything from 2^MAX ns (17 s) on is one step.
const MAX: u32 = 34;
const BUCKETS: usize = 1 + (MAX - MIN) as usize * STEPS as usize + 1;

/// Lateness of all frames of a link.
#[derive(Debug)]
pub(super) struct Lateness {
    buckets: Box<[AtomicU64]>,
    max_ns: AtomicU64,
    sum_ns: AtomicU64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            max_ns: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
        }
    }
}

/// Lateness of the frames that a link has sent, in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct LatenessSnapshot {
    /// Frames.
    pub count: u64,
    /// Of all frames together.
    pub sum_ns: u64,
    /// Half of them were no later.
    pub p50_ns: u64,
    /// 99 of 100 were no later.
    pub p99_ns: u64,
    /// 999 of 1000 were no later.
    pub p999_ns: u64,
    /// The latest.
    pub max_ns: u64,
    /// The histogram: how many frames were above the bound before and not above this one, `[bound in ns, frames]`.
    /// Empty steps are left out.
    pub buckets: Vec<[u64; 2]>,
}

impl Lateness {
    /// Counts a frame.
    #[inline]
    pub(super) fn record(&self, late_ns: u64) {
        let add =
            |word: &AtomicU64, value| word.store(word.load(Relaxed).saturating_add(value), Relaxed);
        add(&self.buckets[bucket(late_ns)], 1);
        add(&self.sum_ns, late_ns);
        if late_ns > self.max_ns.load(Relaxed) {
            self.max_ns.store(late_ns, Relaxed);
        }
    }

    /// What was counted. Frames that are being counted meanwhile may be missing.
    pub(super) fn snapshot(&self) -> LatenessSnapshot {
        let counts = self.buckets.iter().map(|count| count.load(Relaxed));
        let buckets = counts.enumerate().filter(|(_, count)| *count > 0);
        LatenessSnapshot::new(
            buckets.map(|(at, count)| [bound(at), count]).collect(),
            self.sum_ns.load(Relaxed),
            self.max_ns.load(Relaxed),
        )
    }
}

impl fmt::Display for LatenessSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        write!(
            f,
            "late by {:.1} us (half), {:.1} us (99 %), {:.1} us (most)",
            us(self.p50_ns),
            us(self.p99_ns),
            us(self.max_ns)
        )
    }
}

impl LatenessSnapshot {
    fn new(buckets: Vec<[u64; 2]>, sum_ns: u64, max_ns: u64) -> Self {
        let count = buckets.iter().map(|[_, count]| count).sum::<u64>();
        let quantile = |per_mille: u64| {
            let wanted = (count * per_mille).div_ceil(1000).max(1);
            let mut seen = 0;
            let bucket = buckets.iter().find(|[_, count]| {
                seen += count;
                seen >= wanted
            });
            bucket.map_or(0, |[bound, _]| (*bound).min(max_ns))
        };
        Self {
            count,
            sum_ns,
            p50_ns: quantile(500),
            p99_ns: quantile(990),
            p999_ns: quantile(999),
            max_ns,
            buckets,
        }
    }

    /// What has come since an earlier one. The latest of these frames is known to a step of the histogram, unless it is the latest of
    /// all.
    pub(super) fn since(self, earlier: &Self) -> Self {
        let before = |bound: u64| {
            let bucket = earlier.buckets.iter().find(|[other, _]| *other == bound);
            bucket.map_or(0, |[_, count]| *count)
        };
        let buckets = self.buckets.iter();
        let buckets = buckets.map(|[bound, count]| [*bound, count.saturating_sub(before(*bound))]);
        let buckets: Vec<[u64; 2]> = buckets.filter(|[_, count]| *count > 0).collect();
        let max_ns = match buckets.last() {
            None => 0,
            Some(_) if self.max_ns > earlier.max_ns => self.max_ns,
            Some([bound, _]) => self.max_ns.min(*bound),
        };
        Self::new(buckets, self.sum_ns.saturating_sub(earlier.sum_ns), max_ns)
    }
}

fn bucket(value: u64) -> usize {
    let Some(exponent) = value.checked_ilog2().filter(|exponent| *exponent >= MIN) else {
        return 0;
    };
    if exponent >= MAX {
        return BUCKETS - 1;
    }
    let step = (value >> (exponent - STEPS.ilog2())) & (STEPS - 1);
    1 + (exponent - MIN) as usize * STEPS as usize + step as usize
}

/// The largest value in a bucket.
fn bound(bucket: usize) -> u64 {
    if bucket == 0 {
        return (1 << MIN) - 1;
    }
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let (exponent, step) = ((bucket - 1) as u64 / STEPS, (bucket - 1) as u64 % STEPS);
    let exponent = exponent as u32 + MIN;
    (1 << exponent) + ((step + 1) << (exponent - STEPS.ilog2())) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_last_of_its_bucket() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(bound(at)), at);
            assert_eq!(bucket(bound(at) + 1), at + 1);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_close_from_above() {
        let lateness = Lateness::default();
        assert_eq!(lateness.snapshot(), LatenessSnapshot::default());
        (1..=1000).for_each(|n| lateness.record(n * 1000));
        let found = lateness.snapshot();
        assert_eq!((found.count, found.max_ns), (1000, 1_000_000));
        for (found, exact) in [
            (found.p50_ns, 500_000),
            (found.p99_ns, 990_000),
            (found.p999_ns, 999_000),
        ] {
            assert!(
                found >= exact && found <= exact + exact / 16,
                "{found} for {exact}"
            );
        }
        assert_eq!(found.buckets.iter().map(|[_, n]| n).sum::<u64>(), 1000);
        (0..10).for_each(|_| lateness.record(5000));
        let since = lateness.snapshot().since(&found);
        assert_eq!((since.count, since.sum_ns), (10, 50_000));
        for value in [since.p50_ns, since.p999_ns, since.max_ns] {
            assert!((5000..5400).contains(&value), "{since:?}");
        }
        let same = lateness.snapshot();
        assert_eq!(same.clone().since(&same), LatenessSnapshot::default());
        lateness.record(2_000_000);
        assert_eq!(lateness.snapshot().since(&same).max_ns, 2_000_000);
    }
}
