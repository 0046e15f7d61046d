//! Floods: frames made in the kernel, counted where they are delivered, and some of them looked at.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Metric, Outcome, set};
use crate::count::{self, Counter, Counts};
use crate::flood::frame::{Ends, Template};
use crate::flood::{self, Flood, Interface};
use crate::limit;
use crate::lines;
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;
use crate::say;

/// Until the relay's queues are as full as they get.
const WARM_UP: Duration = Duration::from_millis(300);

/// What is still on its way when a flood ends has arrived after this time.
const DRAIN: Duration = Duration::from_millis(30);

/// Share of its time that the sender may wait for its CPU. (A kernel's own threads alone may take 5 %.)
const DISTURBED: f64 = 0.1;

/// A datagram of one socket buffer in so many is kept and compared with what was sent.
const SAMPLE_EVERY: u32 = 499;

/// As many frames as the sender can make.
pub(super) struct FloodOf {
    pub(super) size: usize,
    pub(super) flows: u32,
}

impl Metric for FloodOf {
    fn name(&self) -> String {
        format!("flood-{}-{}", self.size, self.flows)
    }

    fn figures(&self) -> Vec<Figure> {
        let (name, plural) = (self.name(), if self.flows == 1 { "" } else { "s" });
        let what = format!("flood {} B, {} flow{plural}", self.size, self.flows);
        let figure =
            |key, label| Figure::more(format!("{name}-{key}"), format!("{what}, {label}"), "kpps");
        let line = "a cache line from the sender's CPU";
        vec![
            figure("offered", "offered"),
            figure("delivered", "delivered"),
            Figure::less(format!("{name}-line"), format!("{what}, {line}"), "ns"),
        ]
    }

    fn takes(&self, time: Duration) -> Duration {
        Stream::takes(time) + Duration::from_millis(50)
    }

    fn is_flood(&self) -> bool {
        true
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let stream = Stream::new(scene, self.size, self.flows)?;
        let line_ns = || lines::cost_ns(scene.cpu, scene.relay_cpu);
        let before = line_ns()?;
        let flow = stream.run(0, scene.time)?;
        Ok(Outcome::values([
            flow.offered_pps / 1e3,
            flow.delivered_pps / 1e3,
            (before + line_ns()?) / 2.0,
        ]))
    }
}

/// A stream of numbered datagrams from client to server: what it is made of.
pub(super) struct Stream<'a> {
    scene: &'a Scene<'a>,
    /// Addresses and ports.
    pub(super) ends: Ends,
    size: usize,
    flows: u32,
    template: Template,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Frames that were sent to the relay, or by it if it is the sender, a second.
    pub(super) offered_pps: f64,
    /// Datagrams that arrived, a second.
    pub(super) delivered_pps: f64,
    /// Share of all frames made that did not arrive, 0 to 1.
    pub(super) lost: f64,
}

impl<'a> Stream<'a> {
    /// Prepares both ends.
    pub(super) fn new(scene: &'a Scene<'_>, size: usize, flows: u32) -> Result<Stream<'a>> {
        napi(scene)?;
        let [client, server] = scene.topology.hosts();
        let mac = |host: &crate::topology::Host| {
            Interface::find(scene.run, &host.namespace, host.interface).map(|found| found.mac)
        };
        let ends = Ends {
            addresses: (client.address.into(), server.address.into()),
            ..Ends::between(mac(client)?, mac(server)?)
        };
        Ok(Stream {
            scene,
            template: Template::new(&ends, size)?,
            ends,
            size,
            flows,
        })
    }

    /// How long [`Stream::run`] takes.
    pub(super) fn takes(time: Duration) -> Duration {
        WARM_UP + time + DRAIN + Duration::from_millis(100)
    }

    /// The generator, at a rate, for at most so long.
    pub(super) fn generator(&self, rate_pps: u64, duration: Duration) -> Result<Flood> {
        let client = &self.scene.topology.client;
        Flood::start(
            self.scene.run,
            &flood::Spec {
                namespace: client.namespace.clone(),
                interface: client.interface.into(),
                ends: self.ends,
                size: self.size,
                flows: self.flows,
                rate_pps,
                cpu: self.scene.cpu,
                batch: 64,
                duration,
            },
        )
    }

    /// Sends at a rate (0: as fast as possible) and counts.
    pub(super) fn run(&self, rate_pps: u64, time: Duration) -> Result<Flow> {
        let server = &self.scene.topology.server;
        let spec = count::Spec {
            payload: self.template.payload_len() as u32,
            sample_every: SAMPLE_EVERY,
            ..count::Spec::port(self.ends.port)
        };
        let run = self.scene.run;
        let counter = Counter::attach(run, &server.namespace, server.interface, &spec)?;
        let flow = match self.scene.limit_cpu() {
            Some(cpu) => self.limit(cpu, &counter, time)?,
            None => self.flood(rate_pps, &counter, time)?,
        };
        self.look(&counter)?;
        Ok(flow)
    }

    fn flood(&self, rate_pps: u64, counter: &Counter, time: Duration) -> Result<Flow> {
        let run = self.scene.run;
        // Stopped by hand, later than this at the latest.
        let flood = self.generator(rate_pps, WARM_UP + time * 2)?;
        let (made, counts, seconds) = self.window(counter, time, || flood.made())?;
        let sent = flood.stop(run)?;
        run.sleep(DRAIN)?;
        if sent.waited > DISTURBED {
            say::err(&format!(
                "  disturbed: other programs had {:.0} % of CPU {}",
                100.0 * sent.waited,
                self.scene.cpu
            ));
        }
        // A frame that the cable's own queue had no room for was never offered.
        let taken = sent.taken as f64 / sent.made.max(1) as f64;
        let arrived = counter.read()?.packets;
        Ok(Flow {
            offered_pps: made as f64 * taken / seconds,
            delivered_pps: counts.packets as f64 / seconds,
            lost: 1.0 - arrived as f64 / sent.made.max(1) as f64,
        })
    }

    /// The relay's place sends by itself.
    fn limit(&self, cpu: usize, counter: &Counter, time: Duration) -> Result<Flow> {
        let site = self.scene.topology.site()?;
        let sender = limit::Sender::start(&limit::Spec {
            namespace: site.namespace.clone(),
            interface: site.ports[site.ports.len() - 1].into(),
            ends: self.ends,
            size: self.size,
            flows: self.flows,
            cpu,
        })?;
        let (sent, counts, seconds) = self.window(counter, time, || Ok(sender.sent()))?;
        sender.stop()?;
        Ok(Flow {
            offered_pps: sent as f64 / seconds,
            delivered_pps: counts.packets as f64 / seconds,
            lost: 1.0 - counts.packets as f64 / sent.max(1) as f64,
        })
    }

    /// What is sent and counted in a window of time, and its seconds.
    fn window(
        &self,
        counter: &Counter,
        time: Duration,
        sent: impl Fn() -> Result<u64>,
    ) -> Result<(u64, Counts, f64)> {
        let run = self.scene.run;
        run.sleep(WARM_UP)?;
        let (start, before, counts) = (Instant::now(), sent()?, counter.read()?);
        run.sleep(time)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((sent()? - before, counter.read()?.since(counts), seconds))
    }

    /// An error if what arrived is not what was sent: by the segment size of every socket buffer, by the bytes of some datagrams.
    fn look(&self, counter: &Counter) -> Result<()> {
        let counts = counter.read()?;
        ensure!(
            counts.odd == 0,
            "{} of {} datagrams are in socket buffers of another segment size than the payload's {}",
            counts.odd,
            counts.packets,
            self.template.payload_len()
        );
        for sample in counter.samples()? {
            let flow = u32::from(sample.source.wrapping_sub(self.ends.first_port));
            ensure!(
                flow < self.flows && self.template.number(&sample.payload, flow, true).is_some(),
                "a datagram of port {} (segment {}) is not what was sent: {:02x?}",
                sample.source,
                sample.segment,
                sample.payload
            );
        }
        Ok(())
    }
}

/// GRO on at all ends, so that they have NAPI, which the flood's frames need and which is how a network card receives.
fn napi(scene: &Scene<'_>) -> Result<()> {
    let hosts = scene.topology.hosts();
    let hosts = hosts.iter().map(|host| (&host.namespace, host.interface));
    let site = scene.topology.relay.iter();
    let ports = site.flat_map(|site| site.ports.iter().map(|port| (&site.namespace, *port)));
    set(scene, hosts.chain(ports), "gro on")
}
