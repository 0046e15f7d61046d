//! Client, a relay with one link, server. Called by the steps.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::Bench;
use super::stream::{Arrival, Spec, stream};
use crate::process::{Process, Program};
use crate::run::Run;
use crate::sys::place;
use crate::topology::{Shape, Topology};

/// A relay that forwards from client to server through one link. Ends when dropped.
pub(super) struct Line {
    relay: Process,
    /// The direction that has the link, as `set --link` takes it.
    pub(super) way: String,
    pub(super) topology: Topology,
}

impl Line {
    /// Ends the relay; gives its last statistics of the lane that has the link.
    pub(super) fn stop(self) -> Result<Value> {
        Ok(last(self.relay)?["lanes"][0].clone())
    }
}

/// Ends a relay; gives its last statistics.
pub(super) fn last(relay: Process) -> Result<Value> {
    let output = relay.stop(Signal::TERM, Duration::from_secs(5));
    output.succeed()?;
    let line = output.stdout.lines().rfind(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("no statistics")?)?)
}

/// A figure of a lane's lateness, in us.
pub(super) fn late_us(lane: &Value, name: &str) -> f64 {
    lane["link"]["lateness"][name].as_f64().unwrap_or(f64::NAN) / 1e3
}

impl Bench<'_> {
    /// Notes a lane's lateness, as the relay counts it.
    pub(super) fn note_lateness(&mut self, lane: &Value) {
        let [p50, p99] = ["p50_ns", "p99_ns"].map(|name| late_us(lane, name));
        self.note(
            "  the relay's own lateness, us, p50 / p99",
            format!("{p50:.1} / {p99:.1}"),
        );
    }

    /// Lays the cables and starts a relay with this link from client to server.
    pub(super) fn line(&self, link: &str) -> Result<Line> {
        self.line_with(link, &[])
    }

    /// The same with further arguments for the relay.
    pub(super) fn line_with(&self, link: &str, more: &[&str]) -> Result<Line> {
        let topology = Topology::build(self.run, Shape::Pairs, false)?;
        let site = topology.site()?;
        let [a, b] = [site.ports[0], site.ports[1]];
        let (pair, way) = (format!("{a},{b}"), format!("{a}>{b}"));
        let link = format!("{way} {link}");
        let args = [&["--pair", &pair, "--link", &link], more].concat();
        let relay = self.relay(&site.namespace, &args)?;
        introduce(self.run, &topology)?;
        Ok(Line {
            relay,
            way,
            topology,
        })
    }

    /// Starts a relay in a namespace, on the relay's CPU, and waits until it forwards.
    pub(super) fn relay(&self, namespace: &str, args: &[&str]) -> Result<Process> {
        let mut relay = Program::new(&self.program)
            .args(["run", "--json", "--cores"])
            .arg(self.flags.relay_cpu)
            .args(args.iter().copied())
            .args(self.flags.l2relay_args.split_whitespace())
            .within(namespace)
            .on_cpus(&[self.flags.host_cpu, self.flags.relay_cpu])
            .start(self.run)?;
        relay.wait_until(
            self.run,
            Duration::from_secs(20),
            "it forwarded (\"ready\")",
            |p| p.written().lines().any(|line| line.trim() == "ready"),
        )?;
        Ok(relay)
    }

    /// A stream through a link; gives what arrived, and the relay's last statistics of that lane.
    pub(super) fn through(&self, link: &str, spec: Spec) -> Result<(Vec<Arrival>, Value)> {
        let line = self.line(link)?;
        let arrivals = self.stream(&line.topology, spec)?;
        Ok((arrivals, line.stop()?))
    }

    /// Why this kernel has no netem, if so: it is asked once, on a cable of its own.
    pub(super) fn netem_missing(run: &Run) -> Result<Option<String>> {
        let topology = Topology::build(run, Shape::Direct, false)?;
        let output = Program::new("tc")
            .args("qdisc add dev c0 root netem delay 1ms".split(' '))
            .within(&topology.client.namespace)
            .finish(run, Duration::from_secs(5))?;
        Ok(output
            .succeed()
            .err()
            .map(|error| format!("{error:#}").replace('\n', " ")))
    }

    /// The same through a queueing discipline of the kernel, without a relay.
    pub(super) fn through_qdisc(&self, words: &str, spec: Spec) -> Result<Vec<Arrival>> {
        let topology = Topology::build(self.run, Shape::Direct, false)?;
        introduce(self.run, &topology)?;
        Program::new("tc")
            .args("qdisc add dev c0 root".split(' '))
            .args(words.split(' '))
            .within(&topology.client.namespace)
            .run(self.run, Duration::from_secs(5))?;
        self.stream(&topology, spec)
    }

    /// A stream from client to server, both on their CPU.
    pub(super) fn stream(&self, topology: &Topology, spec: Spec) -> Result<Vec<Arrival>> {
        place::pinned(self.flags.host_cpu, || stream(self.run, topology, spec))
    }

    pub(super) fn spec(&self, per_second: u32, frame: usize) -> Spec {
        Spec {
            count: (per_second * self.flags.seconds) as usize,
            gap: Duration::from_secs(1) / per_second,
            frame,
            patience: Duration::from_secs(2),
        }
    }
}

/// Makes the hosts know each other's address without ARP, which the link might lose.
fn introduce(run: &Run, topology: &Topology) -> Result<()> {
    for (host, other) in [
        (&topology.client, &topology.server),
        (&topology.server, &topology.client),
    ] {
        let path = format!("/sys/class/net/{}/address", other.interface);
        let mac = Program::new("cat").arg(path).within(&other.namespace);
        let mac = mac.run(run, Duration::from_secs(5))?.stdout;
        Program::new("ip")
            .args([
                "neigh",
                "replace",
                &other.address.to_string(),
                "lladdr",
                mac.trim(),
            ])
            .args(["dev", host.interface, "nud", "permanent"])
            .within(&host.namespace)
            .run(run, Duration::from_secs(5))?;
    }
    Ok(())
}
