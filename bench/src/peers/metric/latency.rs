//! Latency: sockperf's half a round trip, one message at a time and at fixed rates, and the transit time from interface to interface.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Metric, Outcome, UDP, load, takes};
use crate::meter::Meter;
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;
use crate::traffic::sockperf::{self, Latency};
use crate::traffic::{Figures, Load};
use crate::transit::Stamps;

/// Messages a second of the runs under load; with the idle CPU, the points of the curve in the report.
pub(crate) const RATES: [u32; 4] = [100, 1000, 10_000, 50_000];

/// Runs a load and looks percentiles up.
fn percentiles(scene: &Scene<'_>, what: &Load, wanted: &[f64]) -> Result<Result<Vec<f64>, String>> {
    let latency = match load(scene, what)? {
        Ok(Figures::Latency(latency)) => latency,
        Ok(_) => bail!("{what} gave no latencies"),
        Err(silence) => return Ok(Err(silence)),
    };
    let values: Option<Vec<f64>> = wanted.iter().map(|&p| percentile(&latency, p)).collect();
    Ok(Ok(values.context("sockperf left a percentile out")?))
}

fn percentile(latency: &Latency, wanted: f64) -> Option<f64> {
    let mut points = latency.percentiles.iter();
    points
        .find(|point| (point.percentile - wanted).abs() < 1e-6)
        .map(|point| point.us)
}

/// sockperf, one datagram there and back at a time.
pub(super) struct PingPong;

/// Percentiles of it that are shown.
const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];

impl Metric for PingPong {
    fn name(&self) -> String {
        "ping-pong".into()
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |(name, _)| {
            Figure::less(
                format!("ping-pong-{name}"),
                format!("ping-pong {name}, half a round trip"),
                "us",
            )
        };
        PERCENTILES.into_iter().map(figure).collect()
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&Load::PingPong { protocol: UDP }, time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let what = Load::PingPong { protocol: UDP };
        let wanted = PERCENTILES.map(|(_, wanted)| wanted);
        Ok(match percentiles(scene, &what, &wanted)? {
            Ok(values) => Outcome::values(values),
            Err(silence) => Outcome::NoConnection(silence),
        })
    }
}

/// sockperf, so many datagrams a second, each answered.
pub(super) struct UnderLoad {
    pub(super) mps: u32,
}

impl UnderLoad {
    fn load(&self) -> Load {
        Load::UnderLoad {
            protocol: UDP,
            mps: self.mps,
        }
    }
}

impl Metric for UnderLoad {
    fn name(&self) -> String {
        format!("under-load-{}", self.mps)
    }

    fn figures(&self) -> Vec<Figure> {
        let (name, what) = (self.name(), format!("{} messages/s", self.mps));
        vec![
            Figure::less(format!("{name}-p50"), format!("{what}, p50"), "us"),
            Figure::less(format!("{name}-p99"), format!("{what}, p99"), "us"),
            Figure::less(format!("{name}-cpu"), format!("{what}, relay's CPU"), "%"),
        ]
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&self.load(), time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let meter = scene.pid().map(Meter::start);
        let mut values: Vec<_> = match percentiles(scene, &self.load(), &[50.0, 99.0])? {
            Ok(values) => values.into_iter().map(Some).collect(),
            Err(silence) => return Ok(Outcome::NoConnection(silence)),
        };
        // sockperf's own valid duration leaves out half a second.
        values.push(meter.and_then(|meter| meter.busiest(scene.time.mul_f64(0.8))));
        Ok(Outcome::Values(values))
    }
}

/// From c0's egress to s0's ingress, while sockperf sends one datagram there and back at a time.
pub(super) struct Transit;

impl Metric for Transit {
    fn name(&self) -> String {
        "transit".into()
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name| {
            Figure::less(
                format!("transit-{name}"),
                format!("transit time {name}, interface to interface"),
                "us",
            )
        };
        vec![figure("p50"), figure("p99")]
    }

    fn takes(&self, time: Duration) -> Duration {
        takes(&Load::PingPong { protocol: UDP }, time)
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let [client, server] = scene.topology.hosts();
        let stamps = Stamps::attach(scene.run, client, server, sockperf::PORT)?;
        if let Err(silence) = load(scene, &Load::PingPong { protocol: UDP })? {
            return Ok(Outcome::NoConnection(silence));
        }
        let times = stamps.read()?;
        ensure!(
            times.arrived > 0 && times.arrived * 10 > times.stamped * 9,
            "of {} stamped datagrams only {} arrived",
            times.stamped,
            times.arrived
        );
        let values: Option<Vec<f64>> = [0.5, 0.99]
            .into_iter()
            .map(|share| times.quantile_us(share))
            .collect();
        Ok(Outcome::values(values.context("no transit times")?))
    }
}
