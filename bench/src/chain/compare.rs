//! Containers against namespaces: the same relay under the same load in both, compared within each round.

use crate::report::{Section, Variant};
use crate::rounds::{Bound, Summary, Verdict, ratios, verdict};
use crate::traffic::{Figures, Load};

/// From `docker run` to the first frame across, in milliseconds.
const FIRST_FRAME_MS: f64 = 500.0;

/// How far containers may fall behind namespaces.
const BEHIND: f64 = 0.1;

/// A line for each relay and load that was measured in both, containers in terms of namespaces.
pub(super) fn containers(sections: &[Section]) -> Vec<String> {
    let mut lines = Vec::new();
    for (loads, inside, outside) in both(sections) {
        for load in loads {
            let (here, there) = (judged(inside, load), judged(outside, load));
            let ratio = Summary::of(&ratios(&here, &there));
            let (Some(ratio), Some(here), Some(there)) =
                (ratio, Summary::of(&here), Summary::of(&there))
            else {
                continue;
            };
            lines.push(format!(
                "{} in containers, {load}: {} {} times that in namespaces ({:.2}, {:.2})",
                inside.name,
                unit(load),
                ratio.show(verdict::digits),
                here.median,
                there.median
            ));
        }
        let first = |variant: &Variant| Summary::of(&variant.first_frames_ms());
        if let (Some(here), Some(there)) = (first(inside), first(outside)) {
            lines.push(format!(
                "{}: first frame {:.0} ms after docker run, {:.0} ms after the start of the program",
                inside.name, here.median, there.median
            ));
        }
    }
    lines
}

/// Whether our relays are in containers what they are in namespaces, and how soon the first frame crosses: medians of what was
/// compared within a round.
pub(super) fn goals(sections: &[Section]) -> Vec<Verdict> {
    let mut goals = Vec::new();
    for (loads, inside, outside) in both(sections).filter(|of| of.1.name.starts_with("l2relay")) {
        let name = &inside.name;
        if let Some(first) = Summary::of(&inside.first_frames_ms()) {
            goals.push(Verdict::judge(
                format!("{name}, docker run to the first frame across ≤ {FIRST_FRAME_MS} ms"),
                Some(first),
                "ms",
                Bound::AtMost(FIRST_FRAME_MS),
                1,
            ));
        }
        for load in loads {
            let bound = match load.is_latency() {
                true => Bound::AtMost(1.0 + BEHIND),
                false => Bound::AtLeast(1.0 - BEHIND),
            };
            let (sign, times) = bound.words();
            goals.push(Verdict::judge(
                format!(
                    "{name}, {load}, {} in containers {sign} {times} × namespaces",
                    unit(load)
                ),
                Summary::of(&ratios(&judged(inside, load), &judged(outside, load))),
                "×",
                bound,
                1,
            ));
        }
    }
    goals
}

/// Each relay in containers, with itself in namespaces in the same topology.
fn both(sections: &[Section]) -> impl Iterator<Item = (Vec<Load>, &Variant, &Variant)> {
    let inside = sections.iter().filter(|one| one.place == "containers");
    inside.flat_map(move |inside| {
        let outside = sections.iter().find(|one| {
            one.place == "namespaces"
                && one.topology == inside.topology
                && one.delay_ms == inside.delay_ms
        });
        let others = outside.map_or(&[][..], |outside| &outside.variants);
        inside.variants.iter().filter_map(move |variant| {
            let other = others.iter().find(|other| other.name == variant.name)?;
            Some((inside.loads(), variant, other))
        })
    })
}

/// What a load is judged by.
fn unit(load: Load) -> &'static str {
    match load {
        Load::PingPong { .. } | Load::UnderLoad { .. } => "median latency in us",
        Load::Throughput { .. } => "Mbit/s",
        Load::Iperf3 { .. } => "Gbit/s",
    }
}

/// The figure a load is judged by, round by round.
fn judged(variant: &Variant, load: Load) -> Vec<Option<f64>> {
    variant.series(load, |figures| match figures {
        Figures::Latency(latency) => {
            let median = latency.percentiles.iter().find(|p| p.percentile == 50.0)?;
            Some(median.us)
        }
        Figures::Throughput(throughput) => Some(throughput.received_mbps),
        Figures::Goodput(goodput) => Some(goodput.received_bps / 1e9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Measurement, Outcome, Pass};
    use crate::traffic::{Protocol, iperf3::Goodput};

    /// One relay in rounds of so many milliseconds to the first frame and so much TCP; none where it failed.
    fn section(place: &str, rounds: &[(f64, Option<f64>)]) -> Section {
        let load = Load::Iperf3 {
            protocol: Protocol::Tcp,
            streams: 1,
        };
        let outcome = |received_bps: Option<f64>| match received_bps {
            Some(received_bps) => Outcome::Measured(Figures::Goodput(Goodput {
                received_bps,
                sent_bps: received_bps,
                retransmits: None,
                lost_percent: None,
                jitter_ms: None,
                congestion_control: None,
            })),
            None => Outcome::Failed("no".into()),
        };
        Section {
            title: place.into(),
            topology: "pairs".into(),
            place: place.into(),
            delay_ms: 0.0,
            host_cpu: 0,
            relay_cpu: 1,
            seconds: 1,
            variants: vec![Variant {
                name: "l2relay".into(),
                about: String::new(),
                command: String::new(),
                trouble: None,
                rounds: rounds
                    .iter()
                    .map(|&(first_frame_ms, received_bps)| Pass {
                        first_frame_ms: Some(first_frame_ms),
                        measurements: vec![Measurement {
                            load,
                            command: String::new(),
                            outcome: outcome(received_bps),
                            relay_cpu_percent: None,
                        }],
                        ..Pass::default()
                    })
                    .collect(),
            }],
        }
    }

    #[test]
    fn containers_are_judged_against_namespaces() {
        let outside = section("namespaces", &[(10.0, Some(10e9))]);
        let met = |ms, bps| -> Vec<Option<bool>> {
            let sections = [outside.clone(), section("containers", &[(ms, Some(bps))])];
            goals(&sections).iter().map(|goal| goal.met).collect()
        };
        assert_eq!(met(400.0, 9.5e9), [Some(true), Some(true)]);
        assert_eq!(met(501.0, 8.5e9), [Some(false), Some(false)]);
        assert_eq!(goals(std::slice::from_ref(&outside)), []);
        let sections = [outside, section("containers", &[(400.0, Some(9e9))])];
        let lines = containers(&sections);
        assert!(
            lines[0].contains("0.90 times that in namespaces"),
            "{lines:?}"
        );
        assert!(lines[1].contains("400 ms after docker run"), "{lines:?}");
    }

    #[test]
    fn what_counts_is_the_ratio_within_a_round() {
        // A machine that is slow in the second round and fast in the third: medians would say 0.5, ratios say 1.
        let sections = [
            section(
                "namespaces",
                &[(9.0, Some(10e9)), (9.0, Some(2e9)), (9.0, Some(20e9))],
            ),
            section(
                "containers",
                &[(9.0, Some(5e9)), (9.0, Some(2e9)), (9.0, Some(20e9))],
            ),
        ];
        let verdict = &goals(&sections)[1];
        let ratio = verdict.measured.expect("measured");
        assert_eq!((ratio.median, ratio.min, ratio.rounds), (1.0, 0.5, 3));
        assert_eq!(verdict.met, Some(true));

        // A round that failed in one place counts in neither.
        let sections = [
            section("namespaces", &[(9.0, Some(10e9)), (9.0, None)]),
            section("containers", &[(9.0, Some(5e9)), (9.0, Some(2e9))]),
        ];
        let verdict = &goals(&sections)[1];
        assert_eq!(
            verdict.measured.map(|of| (of.median, of.rounds)),
            Some((0.5, 1))
        );
        let sections = [
            section("namespaces", &[(9.0, None)]),
            section("containers", &[(9.0, Some(5e9))]),
        ];
        assert_eq!(goals(&sections)[1].met, None, "not measured is not met");
    }
}
