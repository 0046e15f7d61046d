//! How soon a relay forwards again after one of its interfaces went: down and up, and deleted and created anew.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Metric, Outcome};
use crate::count::{Counter, Spec};
use crate::flood::Interface;
use crate::flood::frame::show_mac;
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;
use crate::topology;

/// What becomes of the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovery {
    /// It goes down and comes up.
    LinkUp,
    /// It is deleted, with its cable, and made anew: another index, another MAC address.
    Recreated,
}

/// How often it happens. The median and the longest time count.
const TIMES: usize = 5;

/// Destination port of the datagrams that wait for the relay.
const PORT: u16 = 9010;

/// How often one is sent.
const EVERY: Duration = Duration::from_micros(500);

/// How long the interface is away: the relay has seen it by then.
const AWAY: Duration = Duration::from_millis(150);

/// After that it does not come back.
const LIMIT: Duration = Duration::from_secs(3);

impl Recovery {
    fn key(self) -> &'static str {
        match self {
            Recovery::LinkUp => "link-up",
            Recovery::Recreated => "re-created",
        }
    }
}

impl Metric for Recovery {
    fn name(&self) -> String {
        self.key().into()
    }

    fn figures(&self) -> Vec<Figure> {
        let what = match self {
            Recovery::LinkUp => "interface up again to first frame",
            Recovery::Recreated => "interface re-created to first frame",
        };
        vec![
            Figure::less(self.key(), format!("{what}, median of {TIMES}"), "ms"),
            Figure::less(
                format!("{}-longest", self.key()),
                format!("{what}, longest of {TIMES}"),
                "ms",
            ),
        ]
    }

    fn takes(&self, _: Duration) -> Duration {
        (AWAY + Duration::from_millis(60)) * TIMES as u32
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        if *self == Recovery::Recreated && scene.pid().is_none() {
            // A bridge's port does not come back by itself.
            return Ok(Outcome::NoProgram);
        }
        let probe = Probe::open(scene)?;
        let mut times = Vec::new();
        for _ in 0..TIMES {
            match self.once(scene, &probe)? {
                Some(time) => times.push(time.as_secs_f64() * 1e3),
                None => {
                    return Ok(Outcome::NoConnection(format!(
                        "nothing came for {} s after the interface was back",
                        LIMIT.as_secs()
                    )));
                }
            }
        }
        probe.close()?;
        times.sort_by(f64::total_cmp);
        Ok(Outcome::values([times[TIMES / 2], times[TIMES - 1]]))
    }
}

impl Recovery {
    /// Takes the interface away, gives it back, and waits for a datagram. The time begins before the commands that give it back.
    fn once(self, scene: &Scene<'_>, probe: &Probe<'_>) -> Result<Option<Duration>> {
        let site = scene.topology.site()?;
        let port = site.ports[0];
        let relay = |script: String| topology::ip(scene.run, Some(&site.namespace), script);
        match self {
            Recovery::LinkUp => relay(format!("link set dev {port} down\n"))?,
            Recovery::Recreated => relay(format!("link delete dev {port}\n"))?,
        }
        scene.run.sleep(AWAY)?;
        let before = probe.counter.read()?.packets;
        let begin = Instant::now();
        let up = format!("link set dev {port} up\n");
        match self {
            Recovery::LinkUp => relay(up)?,
            Recovery::Recreated => {
                relay(probe.cable(port) + &up)?;
                probe.prepare()?;
            }
        }
        while begin.elapsed() < LIMIT {
            scene.run.check()?;
            // A host whose carrier is not back yet refuses; the next one may leave.
            let _ = probe.socket.send_to(b"back?", probe.to);
            thread::sleep(EVERY);
            if probe.counter.read()?.packets > before {
                return Ok(Some(begin.elapsed()));
            }
        }
        Ok(None)
    }
}

/// Datagrams from the client that are counted at the server's interface.
struct Probe<'a> {
    scene: &'a Scene<'a>,
    socket: UdpSocket,
    to: (std::net::Ipv4Addr, u16),
    counter: Counter,
    /// The client's MAC address, which stays, for what answers it.
    client_mac: [u8; 6],
    neighbour: String,
}

impl<'a> Probe<'a> {
    fn open(scene: &'a Scene<'a>) -> Result<Self> {
        let [client, server] = scene.topology.hosts();
        let find = |host: &topology::Host| {
            Interface::find(scene.run, &host.namespace, host.interface).map(|found| found.mac)
        };
        let neighbour = format!(
            "{} lladdr {} dev {}",
            server.address,
            show_mac(find(server)?),
            client.interface
        );
        let address = client.address;
        let socket = topology::enter(&client.namespace, || UdpSocket::bind((address, 0)))?
            .context("a socket for the datagrams that wait")?;
        let (namespace, interface) = (&server.namespace, server.interface);
        let probe = Self {
            scene,
            socket,
            to: (server.address, PORT),
            counter: Counter::attach(scene.run, namespace, interface, &Spec::port(PORT))?,
            client_mac: find(client)?,
            neighbour,
        };
        probe.client(format!("neigh replace {} nud permanent\n", probe.neighbour))?;
        Ok(probe)
    }

    fn client(&self, script: String) -> Result<()> {
        let client = &self.scene.topology.client;
        topology::ip(self.scene.run, Some(&client.namespace), script)
    }

    /// A cable between the client and that port, as a line of `ip -batch` in the relay's namespace.
    fn cable(&self, port: &str) -> String {
        let client = &self.scene.topology.client;
        format!(
            "link add {port} type veth peer name {} netns {} address {}\n",
            client.interface,
            client.namespace,
            show_mac(self.client_mac)
        )
    }

    /// Has the client use a cable that was made anew.
    fn prepare(&self) -> Result<()> {
        let (address, interface) = {
            let client = &self.scene.topology.client;
            (client.address, client.interface)
        };
        self.client(format!(
            "link set dev {interface} up\naddr add {address}/24 dev {interface}\nneigh replace {} nud permanent\n",
            self.neighbour
        ))
    }

    /// Loads find their neighbours by themselves.
    fn close(self) -> Result<()> {
        self.client(format!("neigh del {}\n", self.neighbour))
    }
}
