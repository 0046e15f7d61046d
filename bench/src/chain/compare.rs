//! Containers against namespaces: the same relay under the same load in both.

use crate::report::{Outcome, Section};
use crate::traffic::Figures;

/// A line for each relay and load that was measured in both, containers in terms of namespaces.
pub(super) fn containers(sections: &[Section]) -> Vec<String> {
    let mut lines = Vec::new();
    for inside in sections
        .iter()
        .filter(|section| section.place == "containers")
    {
        let Some(outside) = sections.iter().find(|section| {
            section.place == "namespaces"
                && section.topology == inside.topology
                && section.delay_ms == inside.delay_ms
        }) else {
            continue;
        };
        for variant in &inside.variants {
            let Some(other) = outside
                .variants
                .iter()
                .find(|other| other.name == variant.name)
            else {
                continue;
            };
            for measurement in &variant.measurements {
                let figures = other
                    .of(measurement.load)
                    .map(|m| (&m.outcome, &measurement.outcome));
                if let Some((Outcome::Measured(there), Outcome::Measured(here))) = figures
                    && let (Some((what, there)), Some((_, here))) = (figure(there), figure(here))
                {
                    lines.push(format!(
                        "{} in containers, {}: {what} {:.2} times that in namespaces ({here:.2}, {there:.2})",
                        variant.name,
                        measurement.load,
                        here / there
                    ));
                }
            }
            if let (Some(here), Some(there)) = (variant.first_frame_ms, other.first_frame_ms) {
                lines.push(format!(
                    "{}: first frame {here:.0} ms after docker run, {there:.0} ms after the start of the program",
                    variant.name
                ));
            }
        }
    }
    lines
}

/// The figure a load is judged by, with its name.
fn figure(figures: &Figures) -> Option<(&'static str, f64)> {
    match figures {
        Figures::Latency(latency) => {
            let median = latency.percentiles.iter().find(|p| p.percentile == 50.0)?;
            Some(("median latency, us,", median.us))
        }
        Figures::Throughput(throughput) => Some(("Mbit/s", throughput.received_mbps)),
        Figures::Goodput(goodput) => Some(("Gbit/s", goodput.received_bps / 1e9)),
    }
}
