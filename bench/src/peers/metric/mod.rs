//! What is measured of a relay, as a table: to add a metric, write its `impl` in the file of its kind and add a line to [`all`].

mod flood;
mod latency;
mod lossless;
mod program;
mod recovery;
mod socket;
mod tools;

use std::time::Duration;

use anyhow::Result;

use super::scene::Scene;
use crate::process::Program;
use crate::rounds::figure::Figure;
use crate::traffic::{Figures, Load, Protocol, probe};
pub(crate) use latency::RATES;

/// What came of a metric.
pub(crate) enum Outcome {
    /// Values of its figures, in their order. One is missing where it is about programs and the relay is none.
    Values(Vec<Option<f64>>),
    /// Nothing gets through this relay, and how that was found.
    NoConnection(String),
    /// The metric is about programs, and this relay is none.
    NoProgram,
}

impl Outcome {
    /// All figures have a value.
    fn values(values: impl IntoIterator<Item = f64>) -> Outcome {
        Outcome::Values(values.into_iter().map(Some).collect())
    }
}

/// Something to measure.
pub(crate) trait Metric {
    /// The name by which it is asked for.
    fn name(&self) -> String;

    /// The figures it gives.
    fn figures(&self) -> Vec<Figure>;

    /// About how long it takes, if one measurement lasts so long.
    fn takes(&self, time: Duration) -> Duration;

    /// Whether it is a flood, which also what only sends can be measured by.
    fn is_flood(&self) -> bool {
        false
    }

    /// Measures. An error is a failure of the bench or the relay, and not of this round only if it is an interruption.
    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome>;
}

/// Every metric, in the order of measuring. Those that need the hosts' offloads at their defaults come first, those that switch them off
/// next, floods after them, since they switch GRO on, then the one that looks at the memory, and last those
/// that take an interface away: not every relay is a relay after that.
pub(crate) fn all() -> Vec<Box<dyn Metric>> {
    let mut all: Vec<Box<dyn Metric>> = vec![
        Box::new(program::Start),
        Box::new(program::Idle),
        Box::new(latency::PingPong),
        Box::new(latency::Transit),
    ];
    all.extend(RATES.map(|mps| Box::new(latency::UnderLoad { mps }) as Box<dyn Metric>));
    for size in [64, 1472] {
        all.push(Box::new(tools::Throughput { size }));
    }
    all.push(Box::new(tools::Udp));
    for offloads in [true, false] {
        for streams in [1, 8] {
            all.push(Box::new(tools::Tcp { streams, offloads }));
        }
    }
    for size in SIZES {
        for flows in FLOWS {
            all.push(Box::new(flood::FloodOf { size, flows }));
        }
    }
    for size in SIZES {
        for flows in FLOWS {
            all.push(Box::new(lossless::Lossless { size, flows }));
        }
    }
    for buffer in socket::BUFFERS {
        for size in SIZES {
            for flows in FLOWS {
                all.push(Box::new(socket::Socket {
                    buffer,
                    size,
                    flows,
                }));
            }
        }
    }
    all.push(Box::new(program::Memory));
    all.push(Box::new(recovery::Recovery::LinkUp));
    all.push(Box::new(recovery::Recovery::Recreated));
    all
}

/// Frame sizes of floods.
const SIZES: [usize; 3] = [64, 512, 1500];

/// Flows of a flood.
const FLOWS: [u32; 3] = [1, 64, 1024];

/// Is there a way for the load's protocols? Then runs it.
pub(super) fn load(scene: &Scene<'_>, load: &Load) -> Result<Result<Figures, String>> {
    let place = scene.place();
    for &protocol in load.needs() {
        if let Some(reason) = probe::connect(&place, protocol)? {
            return Ok(Err(reason));
        }
    }
    let seconds = scene.time.as_secs().max(1) as u32;
    let (_, figures) = load.measure(&place, seconds)?;
    Ok(Ok(figures))
}

/// How long a load takes, with the probe before it.
fn takes(load: &Load, time: Duration) -> Duration {
    load.duration(time.as_secs().max(1) as u32) + Duration::from_millis(50)
}

/// A load between two UDP sockets.
const UDP: Protocol = Protocol::Udp;

/// Sets features of the hosts' interfaces, as `ethtool -K` names them.
fn set_hosts(scene: &Scene<'_>, features: &str) -> Result<()> {
    let hosts = scene.topology.hosts();
    let hosts = hosts.iter().map(|host| (&host.namespace, host.interface));
    set(scene, hosts, features)
}

/// Sets features of interfaces.
fn set<'s>(
    scene: &Scene<'_>,
    interfaces: impl IntoIterator<Item = (&'s String, &'s str)>,
    features: &str,
) -> Result<()> {
    for (namespace, interface) in interfaces {
        Program::new("ethtool")
            .args(["-K", interface])
            .args(features.split(' '))
            .within(namespace)
            .run(scene.run, Duration::from_secs(5))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_names_are_unique() {
        let keys: Vec<_> = all()
            .iter()
            .flat_map(|m| m.figures())
            .map(|f| f.key)
            .collect();
        for key in &keys {
            assert_eq!(keys.iter().filter(|k| k == &key).count(), 1, "{key}");
        }
        for goal in super::super::goal::GOALS {
            assert!(keys.iter().any(|key| key == goal.figure), "{}", goal.figure);
        }
        let names: Vec<_> = all().iter().map(|metric| metric.name()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|n| n == &name).count(), 1, "{name}");
        }
    }
}
