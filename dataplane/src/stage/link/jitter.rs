//! How a delay varies from frame to frame.
//!
//! A number drawn uniformly picks from a table of quantiles, in units of 1/8192 of the spread, as the kernel's netem does.
//! Correlation goes through a normal process (a Gaussian copula), so it does not change the distribution; netem's mean of
//! two uniform numbers does. Logarithms come from `libm`, the same on every machine.

use std::sync::{Arc, OnceLock};

use super::{
    schedule::ns,
    seed::Draws,
    settings::{Jitter, Shape},
    trace::read_text,
};
use crate::text::beginning;

/// What one spread is in a table (`NETEM_DIST_SCALE` in the kernel's `pkt_sched.h`).
const SCALE: i64 = 8192;
/// Quantiles of a built-in table.
const QUANTILES: usize = 4096;

/// A distribution: quantiles at equal distances, in units of 1/8192 of the spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    name: String,
    /// Not decreasing; at least two.
    values: Box<[i16]>,
}

impl Table {
    /// Most numbers in a file (`NETEM_DIST_MAX`).
    const MAX: usize = 16_384;

    /// Reads a file such as iproute2's `/usr/lib/tc/normal.dist`: whole numbers, `#` begins a comment line.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn read(path: &str) -> Result<Self, String> {
        Self::parse(path, &read_text(path, 1 << 20, "distribution")?)
    }

    /// Reads a text; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut values = Vec::new();
        for word in lines.flat_map(str::split_whitespace) {
            values.push(word.parse::<i16>().map_err(|_| {
                format!(
                    "distribution {name}: {:?} is no whole number between -32768 and 32767",
                    beginning(word)
                )
            })?);
        }
        if !(2..=Self::MAX).contains(&values.len()) {
            return Err(format!(
                "distribution {name}: {} numbers; 2 to {} make one",
                values.len(),
                Self::MAX
            ));
        }
        // As quantiles: correlation needs to know what is near.
        values.sort_unstable();
        Ok(Self {
            name: name.to_owned(),
            values: values.into(),
        })
    }

    /// The file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn of(name: &str, quantile: impl Fn(f64) -> f64) -> Arc<Self> {
        let values = (0..QUANTILES).map(|at| {
            let value = quantile((at as f64 + 0.5) / QUANTILES as f64) * SCALE as f64;
            value.round().clamp(-32_768.0, 32_767.0) as i16
        });
        Arc::new(Self {
            name: name.to_owned(),
            values: values.collect(),
        })
    }

    /// The value at a 32-bit fraction.
    #[inline]
    fn at(&self, fraction: u32) -> i64 {
        let place = u64::from(fraction) * (self.values.len() as u64 - 1);
        let (index, rest) = ((place >> 32) as usize, (place & 0xffff_ffff) as i64);
        let [low, high] = [self.values[index], self.values[index + 1]].map(i64::from);
        low + (((high - low) * rest) >> 32)
    }
}

fn normal() -> Arc<Table> {
    static TABLE: OnceLock<Arc<Table>> = OnceLock::new();
    Arc::clone(TABLE.get_or_init(|| Table::of("normal", normal_quantile)))
}

fn pareto() -> Arc<Table> {
    static TABLE: OnceLock<Arc<Table>> = OnceLock::new();
    // netem/pareto.c of iproute2: shape 3, mean moved to 0.
    Arc::clone(TABLE.get_or_init(|| {
        Table::of("pareto", |u| {
            (1.0 / libm::cbrt(1.0 - u) - 1.5) * (4.0 / 3.0)
        })
    }))
}

/// The inverse of the normal distribution (P. J. Acklam's approximation, relative error below 1.2e-9).
fn normal_quantile(u: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let horner = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    if u < 0.02425 {
        let q = (-2.0 * libm::log(u)).sqrt();
        horner(&C, q) / horner(&D, q)
    } else if u > 1.0 - 0.02425 {
        -normal_quantile(1.0 - u)
    } else {
        let q = u - 0.5;
        horner(&A, q * q) * q / horner(&B, q * q)
    }
}

/// Draws jitter.
#[derive(Debug)]
pub(super) struct Sampler {
    spread_ns: i64,
    /// Correlation, and the standard deviation of what is new, so that all of it stays 1.
    memory: f64,
    news: f64,
    /// `None`: uniform.
    table: Option<Arc<Table>>,
    normal: Arc<Table>,
    /// The normal process behind correlation.
    last: f64,
}

impl Sampler {
    pub(super) fn new(jitter: &Jitter) -> Self {
        let memory = jitter.correlation.value();
        Self {
            spread_ns: ns(jitter.spread).min(i64::MAX as u64) as i64,
            memory,
            news: (1.0 - memory * memory).sqrt(),
            table: match &jitter.shape {
                Shape::Uniform => None,
                Shape::Normal => Some(normal()),
                Shape::Pareto => Some(pareto()),
                Shape::Table(table) => Some(Arc::clone(table)),
            },
            normal: normal(),
            last: 0.0,
        }
    }

    /// What to add to the delay of the next frame, in ns.
    #[inline]
    pub(super) fn next_ns(&mut self, draws: &mut Draws) -> i64 {
        let mut fraction = draws.next();
        if self.memory > 0.0 {
            let new = self.normal.at(fraction) as f64 / SCALE as f64;
            self.last = self.memory * self.last + self.news * new;
            let uniform = 0.5 * libm::erfc(-self.last * std::f64::consts::FRAC_1_SQRT_2);
            // The cast holds it in range.
            fraction = (uniform * 4_294_967_296.0) as u32;
        }
        let spread = i128::from(self.spread_ns);
        let (value, scale) = match &self.table {
            Some(table) => (i128::from(table.at(fraction)), SCALE as i128),
            None => (i128::from(fraction) - (1 << 31), 1 << 31),
        };
        (spread * value / scale) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::link::{seed::Stream, settings::Probability};

    fn samples(shape: Shape, correlation: f64, count: usize) -> Vec<f64> {
        let mut sampler = Sampler::new(&Jitter {
            spread: std::time::Duration::from_millis(1),
            correlation: Probability::new(correlation).unwrap(),
            shape,
            unordered: true,
        });
        let mut draws = Draws::new(1, "a>b", Stream::Jitter);
        (0..count)
            .map(|_| sampler.next_ns(&mut draws) as f64 / 1e6)
            .collect()
    }

    /// Kolmogorov and Smirnov's distance between samples and a distribution.
    fn distance(mut samples: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
        samples.sort_by(f64::total_cmp);
        let count = samples.len() as f64;
        let at = |(n, x): (usize, &f64)| {
            let (n, p) = (n as f64, cdf(*x));
            (p - n / count).abs().max(((n + 1.0) / count - p).abs())
        };
        samples.iter().enumerate().map(at).fold(0.0, f64::max)
    }

    fn uniform_cdf(x: f64) -> f64 {
        ((x + 1.0) / 2.0).clamp(0.0, 1.0)
    }

    fn normal_cdf(x: f64) -> f64 {
        0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
    }

    fn pareto_cdf(x: f64) -> f64 {
        1.0 - (x * 0.75 + 1.5).max(1.0).powi(-3)
    }

    /// A distance above 1.63/√n is met once in a hundred; the seed is fixed, so this passes always or never.
    #[test]
    fn samples_follow_their_distribution() {
        const COUNT: usize = 20_000;
        let limit = 1.63 / (COUNT as f64).sqrt();
        for (shape, cdf) in [
            (Shape::Uniform, uniform_cdf as fn(f64) -> f64),
            (Shape::Normal, normal_cdf),
            (Shape::Pareto, pareto_cdf),
        ] {
            let found = distance(samples(shape.clone(), 0.0, COUNT), cdf);
            assert!(found < limit, "{shape:?}: {found} > {limit}");
            // The test can tell: a spread that is 5 % off is found out.
            let off = distance(samples(shape.clone(), 0.0, COUNT), |x| cdf(x * 1.05));
            assert!(off > limit, "{shape:?}: {off}");
        }
    }

    /// Correlation is felt, and leaves the distribution alone. (Samples are then worth fewer: a wider limit.)
    #[test]
    fn correlation_keeps_the_distribution() {
        for (shape, cdf) in [
            (Shape::Uniform, uniform_cdf as fn(f64) -> f64),
            (Shape::Normal, normal_cdf),
            (Shape::Pareto, pareto_cdf),
        ] {
            let all = samples(shape.clone(), 0.5, 100_000);
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let product = |lag: usize| {
                let pairs = all.iter().zip(&all[lag..]);
                pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>()
            };
            let found = product(1) / product(0);
            assert!((0.3..0.56).contains(&found), "{shape:?}: {found}");
            let found = distance(all, cdf);
            assert!(
                found < 3.0 * 1.63 / (100_000f64).sqrt(),
                "{shape:?}: {found}"
            );
        }
    }

    /// The built-in tables against those that Debian's iproute2 ships.
    #[test]
    fn tables_are_those_of_iproute2() {
        let dir = "/usr/lib/x86_64-linux-gnu/tc";
        for table in [normal(), pareto()] {
            let path = format!("{dir}/{}.dist", table.name);
            let Ok(theirs) = Table::read(&path) else {
                eprintln!("SKIPPED: no {path}");
                continue;
            };
            // Not the last: their normal table ends at 4 spreads, ours where 4096 quantiles end.
            for at in (40..QUANTILES - 40).step_by(16) {
                let fraction = (at as u32) << 20;
                let (ours, theirs) = (table.at(fraction), theirs.at(fraction));
                assert!(
                    (ours - theirs).abs() <= 40 + ours.abs() / 200,
                    "{} at {at}: {ours}, {theirs}",
                    table.name
                );
            }
        }
    }

    #[test]
    fn what_is_no_table_is_named() {
        for (text, part) in [
            ("", "0 numbers"),
            ("# only a comment\n1", "1 numbers"),
            ("1 2 x", "\"x\""),
            ("1 40000", "40000"),
        ] {
            let error = Table::parse("t", text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let two = Shape::Table(Arc::new(Table::parse("t", "8192 -8192").unwrap()));
        let all = samples(two, 0.0, 1000);
        assert!(all.iter().all(|x| (-1.0..=1.0).contains(x)));
    }
}
