//! Containers against namespaces: the same relay under the same load in both.

use crate::report::{Goal, Measurement, Outcome, Section, Variant};
use crate::traffic::Figures;

/// From `docker run` to the first frame across, in milliseconds.
const FIRST_FRAME_MS: f64 = 500.0;

/// How far containers may fall behind namespaces.
const BEHIND: f64 = 0.1;

/// A line for each relay and load that was measured in both, containers in terms of namespaces.
pub(super) fn containers(sections: &[Section]) -> Vec<String> {
    let mut lines = Vec::new();
    for (inside, outside) in both(sections) {
        for measurement in &inside.measurements {
            if let Some((what, here, there)) = figures(measurement, outside) {
                lines.push(format!(
                    "{} in containers, {}: {what} {:.2} times that in namespaces ({here:.2}, {there:.2})",
                    inside.name,
                    measurement.load,
                    here / there
                ));
            }
        }
        if let (Some(here), Some(there)) = (inside.first_frame_ms, outside.first_frame_ms) {
            lines.push(format!(
                "{}: first frame {here:.0} ms after docker run, {there:.0} ms after the start of the program",
                inside.name
            ));
        }
    }
    lines
}

/// Whether our relays are in containers what they are in namespaces, and how soon the first frame crosses.
pub(super) fn goals(sections: &[Section]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (inside, outside) in both(sections).filter(|(v, _)| v.name.starts_with("l2relay")) {
        if let Some(ms) = inside.first_frame_ms {
            goals.push(Goal {
                goal: format!(
                    "{}, docker run to the first frame across ≤ {FIRST_FRAME_MS} ms",
                    inside.name
                ),
                measured: ms,
                unit: "ms".into(),
                met: ms <= FIRST_FRAME_MS,
            });
        }
        for measurement in &inside.measurements {
            let Some((what, here, there)) = figures(measurement, outside) else {
                continue;
            };
            let (ratio, less) = (here / there, measurement.load.is_latency());
            let (sign, bound) = match less {
                true => ("≤", 1.0 + BEHIND),
                false => ("≥", 1.0 - BEHIND),
            };
            goals.push(Goal {
                goal: format!(
                    "{}, {}, {what} in containers {sign} {bound} × namespaces",
                    inside.name, measurement.load
                ),
                measured: ratio,
                unit: "×".into(),
                met: match less {
                    true => ratio <= bound,
                    false => ratio >= bound,
                },
            });
        }
    }
    goals
}

/// Each relay in containers, with itself in namespaces in the same topology.
fn both(sections: &[Section]) -> impl Iterator<Item = (&Variant, &Variant)> {
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
            Some((variant, other))
        })
    })
}

/// What a measurement is judged by, here and in the other place.
fn figures(here: &Measurement, outside: &Variant) -> Option<(&'static str, f64, f64)> {
    let there = outside.of(here.load)?;
    let (Outcome::Measured(here), Outcome::Measured(there)) = (&here.outcome, &there.outcome)
    else {
        return None;
    };
    let ((what, here), (_, there)) = (figure(here)?, figure(there)?);
    Some((what, here, there))
}

/// The figure a load is judged by, with its name.
fn figure(figures: &Figures) -> Option<(&'static str, f64)> {
    match figures {
        Figures::Latency(latency) => {
            let median = latency.percentiles.iter().find(|p| p.percentile == 50.0)?;
            Some(("median latency in us", median.us))
        }
        Figures::Throughput(throughput) => Some(("Mbit/s", throughput.received_mbps)),
        Figures::Goodput(goodput) => Some(("Gbit/s", goodput.received_bps / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Load, Protocol, iperf3::Goodput};

    fn section(place: &str, first_frame_ms: f64, received_bps: f64) -> Section {
        let load = Load::Iperf3 {
            protocol: Protocol::Tcp,
            streams: 1,
        };
        let goodput = Goodput {
            received_bps,
            sent_bps: received_bps,
            retransmits: None,
            lost_percent: None,
            jitter_ms: None,
            congestion_control: None,
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
                start_ms: 0.0,
                first_frame_ms: Some(first_frame_ms),
                throttled: None,
                trouble: None,
                statistics: None,
                measurements: vec![Measurement {
                    load,
                    command: String::new(),
                    outcome: Outcome::Measured(Figures::Goodput(goodput)),
                    relay_cpu_percent: None,
                }],
            }],
        }
    }

    #[test]
    fn containers_are_judged_against_namespaces() {
        let outside = section("namespaces", 10.0, 10e9);
        let met = |ms, bps| -> Vec<bool> {
            let sections = [outside.clone(), section("containers", ms, bps)];
            goals(&sections).iter().map(|goal| goal.met).collect()
        };
        assert_eq!(met(400.0, 9.5e9), [true, true]);
        assert_eq!(met(501.0, 8.5e9), [false, false]);
        assert_eq!(goals(std::slice::from_ref(&outside)), []);
        let sections = [outside, section("containers", 400.0, 9e9)];
        let lines = containers(&sections);
        assert!(
            lines[0].contains("0.90 times that in namespaces"),
            "{lines:?}"
        );
        assert!(lines[1].contains("400 ms after docker run"), "{lines:?}");
    }
}
