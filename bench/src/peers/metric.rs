//! What is measured of a relay, as a table: to add a metric, write its `impl` and add a line to [`all`].

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::figure::Figure;
use super::scene::Scene;
use crate::count::{self, Counter};
use crate::flood::frame::Ends;
use crate::flood::{Flood, Interface, Spec};
use crate::process::Program;
use crate::say;
use crate::traffic::{Figures, Load, Protocol, probe};

/// What came of a metric.
pub(crate) enum Outcome {
    /// Values of its figures, in their order.
    Values(Vec<f64>),
    /// Nothing gets through this relay, and how that was found.
    NoConnection(String),
    /// The metric is about programs, and this relay is none.
    NoProgram,
}

/// Something to measure.
pub(crate) trait Metric {
    /// The name by which it is asked for.
    fn name(&self) -> String;

    /// The figures it gives.
    fn figures(&self) -> Vec<Figure>;

    /// Measures. An error is a failure of the bench or the relay, and not of this round only if it is an interruption.
    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome>;
}

/// Every metric, in the order of measuring: those that fill memory before the one that looks at it, and floods last, since they switch GRO
/// on.
pub(crate) fn all() -> Vec<Box<dyn Metric>> {
    vec![
        Box::new(Start),
        Box::new(Idle),
        Box::new(PingPong),
        Box::new(Tcp),
        Box::new(FloodOf {
            size: 64,
            flows: 64,
        }),
        Box::new(Memory),
    ]
}

/// Time from the start of the program to the first frame at the server.
struct Start;

impl Metric for Start {
    fn name(&self) -> String {
        "start".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("start", "start to first frame", "ms")]
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        Ok(match (scene.pid(), scene.first_frame()) {
            (None, _) => Outcome::NoProgram,
            (_, None) => Outcome::NoConnection("no frame came while it started".into()),
            (_, Some(time)) => Outcome::Values(vec![time.as_secs_f64() * 1e3]),
        })
    }
}

/// CPU time of the relay's process while nothing is sent.
struct Idle;

impl Metric for Idle {
    fn name(&self) -> String {
        "idle".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("idle-cpu", "CPU when idle", "%")]
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        // Longer than any spinning that is meant to end.
        scene.run.sleep(Duration::from_millis(300))?;
        let (start, before) = (Instant::now(), scene.cpu_time());
        scene.run.sleep(scene.time)?;
        let seconds = start.elapsed().as_secs_f64();
        let (Some(before), Some(after)) = (before, scene.cpu_time()) else {
            return Ok(Outcome::NoProgram);
        };
        let used = after.saturating_sub(before).as_secs_f64();
        Ok(Outcome::Values(vec![100.0 * used / seconds]))
    }
}

/// Memory of the relay's process, after the loads.
struct Memory;

impl Metric for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("memory", "resident memory", "MB")]
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let Some(pid) = scene.pid() else {
            return Ok(Outcome::NoProgram);
        };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .context("the relay's memory cannot be read")?;
        let kib = resident_kib(&status).context("the kernel does not tell the relay's memory")?;
        Ok(Outcome::Values(vec![kib as f64 * 1024.0 / 1e6]))
    }
}

/// sockperf, one datagram there and back at a time.
struct PingPong;

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

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let load = Load::PingPong {
            protocol: Protocol::Udp,
        };
        let latency = match scene.load(&load)? {
            Ok(Figures::Latency(latency)) => latency,
            Ok(_) => bail!("{load} gave no latencies"),
            Err(silence) => return Ok(Outcome::NoConnection(silence)),
        };
        let values: Option<Vec<f64>> = PERCENTILES
            .iter()
            .map(|(_, wanted)| {
                let mut points = latency.percentiles.iter();
                points
                    .find(|point| (point.percentile - wanted).abs() < 1e-6)
                    .map(|point| point.us)
            })
            .collect();
        let values = values.context("sockperf left a percentile out")?;
        Ok(Outcome::Values(values))
    }
}

/// iperf3, one connection.
struct Tcp;

impl Metric for Tcp {
    fn name(&self) -> String {
        "tcp".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::more(
            "tcp-goodput",
            "TCP goodput, one flow",
            "Gbit/s",
        )]
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let load = Load::Iperf3 {
            protocol: Protocol::Tcp,
        };
        Ok(match scene.load(&load)? {
            Ok(Figures::Goodput(goodput)) => Outcome::Values(vec![goodput.received_bps / 1e9]),
            Ok(_) => bail!("{load} gave no goodput"),
            Err(silence) => Outcome::NoConnection(silence),
        })
    }
}

/// As many frames as the sender can make.
struct FloodOf {
    size: usize,
    flows: u32,
}

/// Until the relay's queues are as full as they get.
const WARM_UP: Duration = Duration::from_millis(300);

impl Metric for FloodOf {
    fn name(&self) -> String {
        format!("flood-{}-{}", self.size, self.flows)
    }

    fn figures(&self) -> Vec<Figure> {
        let (name, what) = (
            self.name(),
            format!("flood {} B, {} flows", self.size, self.flows),
        );
        vec![
            Figure::more(
                format!("{name}-offered"),
                format!("{what}, offered"),
                "kpps",
            ),
            Figure::more(
                format!("{name}-delivered"),
                format!("{what}, delivered"),
                "kpps",
            ),
        ]
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let run = scene.run;
        let [client, server] = scene.topology.hosts();
        napi(scene)?;
        let mac = |host: &crate::topology::Host| {
            Interface::find(run, &host.namespace, host.interface).map(|interface| interface.mac)
        };
        let ends = Ends {
            addresses: (client.address.into(), server.address.into()),
            ..Ends::between(mac(client)?, mac(server)?)
        };
        let counter = Counter::attach(
            run,
            &server.namespace,
            server.interface,
            &count::Spec::port(ends.port),
        )?;
        let flood = Flood::start(
            run,
            &Spec {
                namespace: client.namespace.clone(),
                interface: client.interface.into(),
                ends,
                size: self.size,
                flows: self.flows,
                rate_pps: 0,
                cpu: scene.cpu,
                batch: 64,
                duration: WARM_UP + scene.time * 2,
            },
        )?;
        run.sleep(WARM_UP)?;
        let (start, made, counts) = (Instant::now(), flood.made()?, counter.read()?);
        run.sleep(scene.time)?;
        let seconds = start.elapsed().as_secs_f64();
        let (made, counts) = (flood.made()? - made, counter.read()?.since(counts));
        let sent = flood.stop(run)?;
        if sent.waited > 0.02 {
            say::err(&format!(
                "  {}: disturbed: other programs had {:.0} % of CPU {}",
                self.name(),
                100.0 * sent.waited,
                scene.cpu
            ));
        }
        // A frame that the cable's own queue had no room for was never offered.
        let taken = sent.taken as f64 / sent.made.max(1) as f64;
        Ok(Outcome::Values(vec![
            made as f64 * taken / seconds / 1e3,
            counts.packets as f64 / seconds / 1e3,
        ]))
    }
}

/// GRO on at all ends, so that they have NAPI, which the flood's frames need and which is how a network card receives.
fn napi(scene: &Scene<'_>) -> Result<()> {
    let hosts = scene.topology.hosts();
    let hosts = hosts.iter().map(|host| (&host.namespace, host.interface));
    let site = scene.topology.relay.iter();
    let ports = site.flat_map(|site| site.ports.iter().map(|port| (&site.namespace, *port)));
    for (namespace, interface) in hosts.chain(ports) {
        Program::new("ethtool")
            .args(["-K", interface, "gro", "on"])
            .within(namespace)
            .run(scene.run, Duration::from_secs(5))?;
    }
    Ok(())
}

/// Is there a way for the load's protocol? Then runs it.
pub(super) fn load(scene: &Scene<'_>, load: &Load) -> Result<Result<Figures, String>> {
    let place = scene.place();
    if let Some(reason) = probe::connect(&place, load.protocol())? {
        return Ok(Err(reason));
    }
    let seconds = scene.time.as_secs().max(1) as u32;
    let (_, figures) = load.measure(&place, seconds)?;
    Ok(Ok(figures))
}

/// `VmRSS` in /proc/PID/status.
fn resident_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_found() {
        let status = "Name:\tx\nVmHWM:\t  9000 kB\nVmRSS:\t  8192 kB\n";
        assert_eq!(resident_kib(status), Some(8192));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }

    #[test]
    fn keys_are_unique() {
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
    }
}
