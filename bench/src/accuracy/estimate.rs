//! What arrivals say of a link: rates, steps, bursts, distributions. Called by the steps; every figure is missing, or not a number, where too
//! few arrived to tell.

use super::stream::Arrival;

/// Losses one behind the other.
pub(super) struct Bursts {
    pub(super) count: u32,
    packets: u32,
}

impl Bursts {
    pub(super) fn new(arrivals: &[Arrival]) -> Self {
        let gaps = arrivals
            .windows(2)
            .map(|pair| pair[1].serial.saturating_sub(pair[0].serial + 1))
            .filter(|gap| *gap > 0);
        let (mut count, mut packets) = (0, 0);
        for gap in gaps {
            (count, packets) = (count + 1, packets + gap);
        }
        Self { count, packets }
    }

    /// Not a number without any.
    pub(super) fn mean(&self) -> f64 {
        f64::from(self.packets) / f64::from(self.count)
    }
}

/// The largest distance between what arrived and a distribution of jitter, and what one in a hundred samples of it exceeds. The delay is
/// 50 ms, the unit of `cdf` 5 ms.
pub(super) fn kolmogorov(arrivals: &[Arrival], cdf: fn(f64) -> f64) -> (f64, f64) {
    let mut delays: Vec<f64> = arrivals.iter().map(Arrival::took_us).collect();
    delays.sort_by(f64::total_cmp);
    let count = delays.len() as f64;
    let distance = delays.iter().enumerate().map(|(at, delay)| {
        let p = cdf((delay - 50_000.0) / 5_000.0);
        (p - at as f64 / count)
            .abs()
            .max((p - (at + 1) as f64 / count).abs())
    });
    (distance.fold(0.0, f64::max), 1.63 / count.sqrt())
}

pub(super) fn uniform(z: f64) -> f64 {
    ((z + 1.0) / 2.0).clamp(0.0, 1.0)
}

/// By Abramowitz and Stegun, 26.2.17: off by less than 7.5e-8.
pub(super) fn normal(z: f64) -> f64 {
    const B: [f64; 5] = [
        1.330274429,
        -1.821255978,
        1.781477937,
        -0.356563782,
        0.319381530,
    ];
    let t = 1.0 / (1.0 + 0.2316419 * z.abs());
    let tail = B.iter().fold(0.0, |sum, b| (sum + b) * t) * (-z * z / 2.0).exp()
        / (2.0 * std::f64::consts::PI).sqrt();
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// Shape 3, its mean moved to 0, scaled as in iproute2, whose tables end at four units.
pub(super) fn pareto(z: f64) -> f64 {
    match z {
        _ if z >= 4.0 => 1.0,
        _ => (1.0 - (0.75 * z + 1.5).max(1.0).powi(-3)).max(0.0),
    }
}

/// Between frames of 1000 bytes at 10 and at 20 Mbit/s.
const GAPS_NS: [f64; 2] = [800_000.0, 400_000.0];
/// Arrivals of which the median is taken: a frame may be late, half of these are not.
const MANY: usize = 1000;

/// When the first frame would have come of a line that had always sent one each `gap_ns`: the median over arrivals of that line, which
/// begin with number `first`. In ns after `from_ns`.
fn line_ns(arrivals: &[Arrival], first: usize, gap_ns: f64, from_ns: u64) -> f64 {
    let since = |arrival: &Arrival| arrival.received_ns as f64 - from_ns as f64;
    let mut starts: Vec<f64> = arrivals
        .iter()
        .zip(first..)
        .map(|(arrival, number)| since(arrival) - number as f64 * gap_ns)
        .collect();
    starts.sort_by(f64::total_cmp);
    quantile(&starts, 0.5)
}

/// Where the last [`MANY`] begin, if as many others come before them.
fn last_of(arrivals: &[Arrival]) -> Option<usize> {
    let end = arrivals.len().checked_sub(MANY)?;
    (end >= MANY).then_some(end)
}

/// For how long a full line was at 20 Mbit/s that began and ended at 10: it gained half of each of its frames' time there, so as much as
/// that time.
pub(super) fn fast_for_ns(arrivals: &[Arrival]) -> Option<f64> {
    let from_ns = arrivals.first()?.received_ns;
    let end = last_of(arrivals)?;
    let [first, last] =
        [0, end].map(|at| line_ns(&arrivals[at..at + MANY], at, GAPS_NS[0], from_ns));
    Some(first - last)
}

/// When a full line went from 10 to 20 Mbit/s, by its clock: where the lines through its first and its last arrivals cross.
pub(super) fn step_ns(arrivals: &[Arrival]) -> Option<f64> {
    let from_ns = arrivals.first()?.received_ns;
    let end = last_of(arrivals)?;
    let slow = line_ns(&arrivals[..MANY], 0, GAPS_NS[0], from_ns);
    let fast = line_ns(&arrivals[end..], end, GAPS_NS[1], from_ns);
    let number = (fast - slow) / (GAPS_NS[0] - GAPS_NS[1]);
    // Without a step they cross among the last.
    let is_inside = (0.0..end as f64).contains(&number);
    is_inside.then(|| from_ns as f64 + slow + number * GAPS_NS[0])
}

/// The mean rate of a full line of frames of 1000 bytes that should be at `bps`: from the median of its first tenth to that of its last.
pub(super) fn mean_bps(arrivals: &[Arrival], bps: f64) -> Option<f64> {
    let (tenth, gap_ns) = (arrivals.len() / 10, 8000.0 / bps * 1e9);
    let from_ns = arrivals.first().filter(|_| tenth >= 10)?.received_ns;
    let end = arrivals.len() - tenth;
    let first = line_ns(&arrivals[..tenth], 0, gap_ns, from_ns);
    let last = line_ns(&arrivals[end..], end, gap_ns, from_ns);
    Some(8000.0 / (gap_ns + (last - first) / end as f64) * 1e9)
}

/// Errors in per cent of the rate over windows, the first left out. A window begins with an arrival and ends with the first that is not
/// within it any more, so no part of a frame is counted or left out.
pub(super) fn rate_errors(arrivals: &[Arrival], bps: f64, frame: usize, window_s: f64) -> Vec<f64> {
    let mut errors = Vec::new();
    let mut from = 0;
    for at in 1..arrivals.len() {
        // Stamps of two CPUs may be out of order.
        let since_ns = arrivals[at]
            .received_ns
            .saturating_sub(arrivals[from].received_ns);
        let seconds = since_ns as f64 / 1e9;
        if seconds >= window_s {
            let bits = (at - from) as f64 * frame as f64 * 8.0;
            errors.push((bits / seconds / bps - 1.0) * 100.0);
            from = at;
        }
    }
    errors.drain(..errors.len().min(1));
    errors
}

/// The largest error, if there are enough to tell.
pub(super) fn worst(errors: &[f64]) -> Option<f64> {
    let worst = errors.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    (!errors.is_empty()).then_some(worst)
}

/// The value at this share of sorted values.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(serial: u32, received_ns: u64) -> Arrival {
        Arrival {
            serial,
            sent_ns: 0,
            received_ns,
        }
    }

    /// `count` arrivals, one each `ns`.
    fn each(ns: u64, count: u32) -> Vec<Arrival> {
        (0..count).map(|n| arrival(n, u64::from(n) * ns)).collect()
    }

    #[test]
    fn windows_are_from_arrival_to_arrival() {
        // A frame of 125 bytes each millisecond is 1 Mbit/s.
        let exact = each(1_000_000, 5000);
        assert_eq!(rate_errors(&exact, 1e6, 125, 1.0), [0.0; 3]);
        assert_eq!(rate_errors(&exact, 2e6, 125, 1.0), [-50.0; 3]);
        // What does not divide a window is no error, and what is off by a part of a frame is one.
        for (ns, error) in [(700_000, 0.0), (703_500, -0.4975)] {
            let errors = rate_errors(&each(ns, 5000), 1e6 / 0.7, 125, 0.1);
            assert!(errors.len() > 30);
            assert!(
                errors.iter().all(|e| (e - error).abs() < 0.001),
                "{errors:?}"
            );
        }
        assert_eq!(worst(&[0.1, -0.3]), Some(0.3));
        assert_eq!(
            [0.0, 0.5, 1.0].map(|share| quantile(&[1.0, 2.0, 9.0], share)),
            [1.0, 2.0, 9.0]
        );
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        for few in [vec![], each(1_000_000, 1), each(1_000_000, 1900)] {
            assert_eq!(worst(&rate_errors(&few, 1e6, 125, 1.0)), None);
        }
        for few in [vec![], each(800_000, 1), each(800_000, 99)] {
            assert_eq!(mean_bps(&few, 10e6), None);
            assert_eq!((fast_for_ns(&few), step_ns(&few)), (None, None));
        }
        // A line that stays as it is has no step.
        assert_eq!(step_ns(&each(800_000, 5000)), None);
        assert_eq!(fast_for_ns(&each(800_000, 5000)), Some(0.0));
        let bursts = Bursts::new(&[]);
        assert!(bursts.count == 0 && bursts.mean().is_nan());
        assert!(quantile(&[], 0.5).is_nan());
        assert!(kolmogorov(&[], uniform).1.is_infinite());
    }

    #[test]
    fn bursts_are_what_is_missing_in_a_row() {
        let serials = [0, 1, 4, 5, 9, 10];
        let arrivals: Vec<Arrival> = serials.iter().map(|n| arrival(*n, 0)).collect();
        let bursts = Bursts::new(&arrivals);
        assert_eq!((bursts.count, bursts.mean()), (2, 2.5));
    }

    #[test]
    fn steps_are_found_where_they_are() {
        let line = |fast: std::ops::Range<u32>| {
            let mut now = 7_000_000;
            let times = (0..6000).map(|n| {
                now += if fast.contains(&n) { 400_000 } else { 800_000 };
                now
            });
            let mut arrivals: Vec<Arrival> = times.map(|ns| arrival(0, ns)).collect();
            // The machine was away for 20 ms, over and over.
            for late in (100..6000).step_by(300) {
                let until = arrivals[late].received_ns + 20_000_000;
                for arrival in &mut arrivals[late..] {
                    arrival.received_ns = arrival.received_ns.max(until);
                }
            }
            arrivals
        };
        let found = fast_for_ns(&line(2000..4500)).unwrap();
        assert!((found - 1e9).abs() < 1000.0, "{found}");
        let arrivals = line(2500..6000);
        let found = step_ns(&arrivals).unwrap();
        assert!((found - (7e6 + 2500.0 * 8e5)).abs() < 800_000.0, "{found}");
        for (part, bps) in [(&arrivals[..2500], 10e6), (&arrivals[2500..], 20e6)] {
            let found = mean_bps(part, bps).unwrap();
            assert!((found / bps - 1.0).abs() < 1e-3, "{found}");
            assert!((mean_bps(part, bps * 1.1).unwrap() / bps - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn distributions_are_those_of_the_textbook() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.841_345),
            (-1.96, 0.024_998),
            (3.0, 0.998_650),
        ] {
            assert!((normal(z) - p).abs() < 1e-6, "{z}");
        }
        assert_eq!([-2.0, -0.5, 0.0, 1.5].map(uniform), [0.0, 0.25, 0.5, 1.0]);
        // It begins at two thirds below its mean, which is at 1 - (2/3)^3.
        assert_eq!([-1.0, -2.0 / 3.0, 4.0].map(pareto), [0.0, 0.0, 1.0]);
        assert!((pareto(0.0) - (1.0 - 8.0 / 27.0)).abs() < 1e-12);
        // 1000 quantiles of a distribution are of it, and not of another.
        let of = |z: f64| Arrival {
            serial: 0,
            sent_ns: 0,
            received_ns: (50e6 + z * 5e6) as u64,
        };
        let arrivals: Vec<Arrival> = (0..1000)
            .map(|n| of((n as f64 + 0.5) / 500.0 - 1.0))
            .collect();
        let (own, bound) = kolmogorov(&arrivals, uniform);
        assert!(
            own < 0.001 && kolmogorov(&arrivals, normal).0 > bound,
            "{own}"
        );
    }
}
