//! A relay between client and server, started and ready to be measured.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::count::{self, Counter};
use crate::flood::Interface;
use crate::flood::frame::show_mac;
use crate::rivals::{Layout, Rival, Running, Setup};
use crate::run::Run;
use crate::topology::{self, Topology};
use crate::traffic::Place;

/// Destination port of the datagrams that wait for the relay to start.
const PORT: u16 = 9009;

/// How often one is sent.
const EVERY: Duration = Duration::from_micros(500);

/// What a metric finds. Dropping it stops the relay and removes the topology.
pub(crate) struct Scene<'a> {
    /// The run it belongs to.
    pub(crate) run: &'a Run,
    /// How long a metric measures.
    pub(crate) time: Duration,
    /// CPU of client, server and flood.
    pub(crate) cpu: usize,
    /// CPU of the relay.
    pub(crate) relay_cpu: usize,
    relay: Running,
    first_frame: Option<Duration>,
    is_limit: bool,
    /// Last, so that the relay goes before its interfaces.
    pub(crate) topology: Topology,
}

impl<'a> Scene<'a> {
    /// Builds the topology and starts the relay in it.
    pub(crate) fn open(
        run: &'a Run,
        rival: &dyn Rival,
        setup: &Setup,
        time: Duration,
    ) -> Result<Scene<'a>> {
        let shape = rival
            .shape(Layout::Pairs)
            .context("it cannot stand between two cables")?;
        let topology = Topology::build(run, shape, false)?;
        if rival.swaps_macs() {
            give_hosts_one_mac(run, &topology)?;
        }
        let (relay, first_frame) = start(run, rival, setup, &topology)?;
        Ok(Scene {
            run,
            time,
            cpu: setup.other_cpu,
            relay_cpu: setup.relay_cpu,
            relay,
            first_frame,
            is_limit: rival.is_limit(),
            topology,
        })
    }

    /// The relay's process, if it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.relay.pid()
    }

    /// CPU time that the relay's process has used, if it is one.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        self.relay.cpu_time()
    }

    /// The command that started the relay; empty if it is no program.
    pub(crate) fn command(&self) -> &str {
        self.relay.command()
    }

    /// An error if the relay has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.relay.check()
    }

    /// Time from the start of the relay to the first frame at the server.
    pub(crate) fn first_frame(&self) -> Option<Duration> {
        self.first_frame
    }

    /// The CPU from which the relay's place itself sends floods, if it stands for the limit.
    pub(crate) fn limit_cpu(&self) -> Option<usize> {
        self.is_limit.then_some(self.relay_cpu)
    }

    /// Where loads run.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            run: self.run,
            topology: &self.topology,
            cpu: self.cpu,
        }
    }
}

/// Gives the server the client's MAC address: a relay that swaps the two then changes nothing, and what it forwards is accepted.
fn give_hosts_one_mac(run: &Run, topology: &Topology) -> Result<()> {
    let [client, server] = topology.hosts();
    let mac = Interface::find(run, &client.namespace, client.interface)?.mac;
    let script = format!(
        "link set dev {} address {}\n",
        server.interface,
        show_mac(mac)
    );
    topology::ip(run, Some(&server.namespace), script)
}

/// Starts the relay while datagrams are sent to the server all the time. The neighbour is known, so that the first frame that gets through
/// is one of them; they are counted before the server's stack, which may not like their checksums.
fn start(
    run: &Run,
    rival: &dyn Rival,
    setup: &Setup,
    topology: &Topology,
) -> Result<(Running, Option<Duration>)> {
    let [client, server] = topology.hosts();
    let mac = Interface::find(run, &server.namespace, server.interface)?.mac;
    let neighbour = format!(
        "{} lladdr {} dev {}",
        server.address,
        show_mac(mac),
        client.interface
    );
    let ip = |script: String| topology::ip(run, Some(&client.namespace), script);
    ip(format!("neigh add {neighbour} nud permanent\n"))?;
    let socket = topology::enter(&client.namespace, || UdpSocket::bind((client.address, 0)))?
        .context("a socket for the first frame")?;
    let spec = count::Spec::port(PORT);
    let counter = Counter::attach(run, &server.namespace, server.interface, &spec)?;

    let to = (server.address, PORT);
    let ready = AtomicBool::new(false);
    let started = Instant::now();
    let (relay, first) = thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<Option<Duration>> {
            // A relay that says it is ready is given one last chance to show it.
            let mut last = false;
            while !last {
                last = ready.load(Ordering::Relaxed);
                // An interface that is still coming up refuses; the next one may get through.
                let _ = socket.send_to(b"first?", to);
                thread::sleep(if last {
                    Duration::from_millis(50)
                } else {
                    EVERY
                });
                if counter.read()?.packets > 0 {
                    return Ok(Some(started.elapsed()));
                }
            }
            Ok(None)
        });
        let relay = rival.start(run, setup, topology);
        ready.store(true, Ordering::Relaxed);
        let first = watch
            .join()
            .map_err(|_| anyhow!("the watch for the first frame panicked"));
        (relay, first)
    });
    // Loads find their neighbours by themselves, as users' programs do.
    ip(format!("neigh del {neighbour}\n"))?;
    Ok((relay?, first??))
}
