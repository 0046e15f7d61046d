//! Client — relay — server, each in a network namespace of its own, joined by veth pairs.
//!
//! ```text
//! direct    c0 ──────────── s0
//! pairs     c0 ── r0 [relay] r1 ── s0
//! hairpin   c0 ── wc [switch] ws ── s0       client to server: wc → wr, relay, wr → ws
//!                      wr ── r0 [relay]      everything else directly
//! ```
//!
//! A delayed cable (client's and server's link, if asked for) runs through a fourth namespace where a
//! relay plays the delay: `c0 ── dc0 [links] dc1 ── r0`. The topology lays the cables; [`crate::rivals`]
//! starts what plays them.
//!
//! Interfaces keep their default offloads. Everything is made inside namespaces named after the run
//! and removed when the [`Topology`] is dropped, whether all of it was made or only a part.

use std::fmt::Write as _;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::container::{self, Container, Containers};
use crate::process::Program;
use crate::run::Run;
use crate::say;

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// Time limit of one set-up command; each takes milliseconds.
const SETUP: Duration = Duration::from_secs(10);

/// Congestion control of both hosts. It is set on the route: the sysctl refuses, inside a namespace,
/// what the host does not allow everybody (net/ipv4/tcp_cong.c, tcp_set_default_congestion_control).
pub(crate) const CONGESTION_CONTROL: &str = "cubic";

/// How client, relay and server are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// No relay at all: one cable.
    Direct,
    /// A relay with two ports.
    Pairs,
    /// A relay with one port on a switch, which steers UDP and TCP from client to server through it,
    /// or (`steered: false`) sends everything directly.
    Hairpin {
        /// Whether the switch sends anything to the relay.
        steered: bool,
    },
}

/// A host that sends and receives: its namespace, interface and address.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Full name of the namespace.
    pub(crate) namespace: String,
    /// Its one interface.
    pub(crate) interface: &'static str,
    /// Its address, /24.
    pub(crate) address: Ipv4Addr,
    /// Where it runs its programs, if in a container.
    pub(crate) container: Option<Container>,
}

/// Where a relay runs, and on which interfaces (two, or one for a hairpin).
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// Full name of the namespace.
    pub(crate) namespace: String,
    /// The interfaces to relay between.
    pub(crate) ports: Vec<&'static str>,
    /// Where its container comes from, if it runs in one.
    pub(crate) containers: Option<Containers>,
}

/// The namespaces, removed on drop.
#[derive(Debug)]
pub(crate) struct Topology {
    /// Sends the requests.
    pub(crate) client: Host,
    /// Answers them.
    pub(crate) server: Host,
    /// The relay's place; none in [`Shape::Direct`].
    pub(crate) relay: Option<Site>,
    /// The delayed cables: pairs of interfaces to join in the namespace given. Empty without delay.
    pub(crate) links: Option<(String, Vec<(&'static str, &'static str)>)>,
    switch: Option<String>,
    _namespaces: Namespaces,
}

impl Topology {
    /// Makes the namespaces and lays the cables; `delayed` leads client's and server's through `links`.
    pub(crate) fn build(run: &Run, shape: Shape, delayed: bool) -> Result<Self> {
        Self::build_in(run, shape, delayed, None)
    }

    /// The same with client, server and relay in containers, if it is said from where.
    pub(crate) fn build_in(
        run: &Run,
        shape: Shape,
        delayed: bool,
        containers: Option<&Containers>,
    ) -> Result<Self> {
        let client = Host {
            namespace: run.name("c"),
            interface: "c0",
            address: Ipv4Addr::new(10, 0, 0, 100),
            container: None,
        };
        let server = Host {
            namespace: run.name("s"),
            interface: "s0",
            address: Ipv4Addr::new(10, 0, 0, 200),
            container: None,
        };
        let ports = match shape {
            Shape::Direct => vec![],
            Shape::Pairs => vec!["r0", "r1"],
            Shape::Hairpin { .. } => vec!["r0"],
        };
        let relay = (!ports.is_empty()).then(|| Site {
            namespace: run.name("r"),
            ports,
            containers: containers.cloned(),
        });
        let switch = matches!(shape, Shape::Hairpin { .. }).then(|| run.name("w"));
        let links = delayed.then(|| (run.name("l"), vec![("dc0", "dc1"), ("ds0", "ds1")]));

        let names = [&client.namespace, &server.namespace]
            .into_iter()
            .chain(relay.as_ref().map(|r| &r.namespace))
            .chain(&switch)
            .chain(links.as_ref().map(|(name, _)| name));
        let mut held = Vec::new();
        if containers.is_some() {
            held = vec![client.namespace.clone(), server.namespace.clone()];
            held.extend(relay.as_ref().map(|site| site.namespace.clone()));
        }
        let names = names.cloned().collect();
        let mut topology = Self {
            _namespaces: Namespaces { names, held },
            client,
            server,
            relay,
            links,
            switch,
        };
        if let Some(containers) = containers {
            topology.client.container = Some(containers.hold(run, &topology.client.namespace)?);
            topology.server.container = Some(containers.hold(run, &topology.server.namespace)?);
            if let Some(site) = &topology.relay {
                containers.hold(run, &site.namespace)?;
            }
        }
        topology.lay(run, shape)?;
        Ok(topology)
    }

    /// The program's own namespace of the relay, for shapes that have one.
    pub(crate) fn site(&self) -> Result<&Site> {
        self.relay
            .as_ref()
            .ok_or_else(|| anyhow!("this topology has no place for a relay"))
    }

    /// Both hosts.
    pub(crate) fn hosts(&self) -> [&Host; 2] {
        [&self.client, &self.server]
    }

    /// What users of DPDK do before UDP and TCP work on veth: `ethtool -K … tx off`, on the hosts, or on
    /// the switch's ports (there with `rx off` too) as ComNetsEmu's chain.py does.
    pub(crate) fn switch_offloads_off(&self, run: &Run) -> Result<()> {
        let (ports, settings) = match &self.switch {
            Some(switch) => (
                ["wc", "wr", "ws"].map(|port| (switch, port)).to_vec(),
                &["rx", "off", "tx", "off"][..],
            ),
            None => (
                self.hosts().map(|h| (&h.namespace, h.interface)).to_vec(),
                &["tx", "off"][..],
            ),
        };
        for (namespace, port) in ports {
            Program::new("ethtool")
                .args(["-K", port])
                .args(settings.iter().copied())
                .within(namespace)
                .run(run, SETUP)?;
        }
        Ok(())
    }

    /// Makes so many pairs of ports in the relay's namespace, each with a cable to nobody; gives the arguments that name them.
    pub(crate) fn idle_pairs(&self, run: &Run, count: usize) -> Result<Vec<String>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (mut script, mut args) = (String::new(), Vec::new());
        for at in 0..count {
            for port in ["a", "b"].map(|end| format!("{end}{at}")) {
                let _ = writeln!(
                    script,
                    "link add {port} type veth peer name {port}x\nlink set {port} up\nlink set {port}x up"
                );
            }
            args.extend(["--pair".into(), format!("a{at},b{at}")]);
        }
        ip(run, Some(&self.site()?.namespace), script)?;
        Ok(args)
    }

    /// Has the hosts poll their interfaces, which frames need that XDP redirects to them: GRO on.
    pub(crate) fn poll(&self, run: &Run) -> Result<()> {
        for host in self.hosts() {
            Program::new("ethtool")
                .args(["-K", host.interface, "gro", "on"])
                .within(&host.namespace)
                .run(run, SETUP)?;
        }
        Ok(())
    }

    fn lay(&self, run: &Run, shape: Shape) -> Result<()> {
        let (c, s) = (&self.client.namespace, &self.server.namespace);
        let r = || self.relay.as_ref().map_or("", |site| &site.namespace);
        let w = || self.switch.as_deref().unwrap_or("");

        // (one end, other end, name of the delayed cable)
        let mut cables = Cables::default();
        match (shape, &self.links) {
            (Shape::Direct, None) => cables.add((c, "c0"), (s, "s0")),
            (Shape::Direct, Some((l, _))) => {
                cables.add((c, "c0"), (l, "dc0"));
                cables.add((l, "dc1"), (l, "ds0"));
                cables.add((l, "ds1"), (s, "s0"));
            }
            (Shape::Pairs, links) => {
                cables.add_through((c, "c0"), (r(), "r0"), links, ("dc0", "dc1"));
                cables.add_through((s, "s0"), (r(), "r1"), links, ("ds0", "ds1"));
            }
            (Shape::Hairpin { .. }, links) => {
                cables.add_through((c, "c0"), (w(), "wc"), links, ("dc0", "dc1"));
                cables.add_through((s, "s0"), (w(), "ws"), links, ("ds0", "ds1"));
                cables.add((r(), "r0"), (w(), "wr"));
            }
        }

        let mut script = String::new();
        let Namespaces { names, held } = &self._namespaces;
        for name in names.iter().filter(|name| !held.contains(name)) {
            let _ = writeln!(script, "netns add {name}");
        }
        ip(run, None, script + &cables.script)?;
        for name in names {
            quiet_ipv6(run, name)?;
            let mut up = String::from("link set lo up\n");
            for (_, interface) in cables.ends.iter().filter(|(ns, _)| ns == name) {
                let _ = writeln!(up, "link set dev {interface} up");
            }
            ip(run, Some(name), up)?;
        }
        if let (Some(switch), Shape::Hairpin { steered }) = (&self.switch, shape) {
            make_switch(run, switch, steered)?;
        }
        self.hosts().into_iter().try_for_each(|h| address(run, h))
    }
}

/// veth pairs to make, as lines for `ip -batch`.
#[derive(Default)]
struct Cables {
    script: String,
    ends: Vec<(String, String)>,
}

impl Cables {
    fn add(&mut self, a: (&str, &str), b: (&str, &str)) {
        let _ = writeln!(
            self.script,
            "link add {} netns {} type veth peer name {} netns {}",
            a.1, a.0, b.1, b.0
        );
        for (namespace, interface) in [a, b] {
            self.ends.push((namespace.to_owned(), interface.to_owned()));
        }
    }

    fn add_through<P>(
        &mut self,
        a: (&str, &str),
        b: (&str, &str),
        links: &Option<(String, P)>,
        via: (&str, &str),
    ) {
        match links {
            None => self.add(a, b),
            Some((namespace, _)) => {
                self.add(a, (namespace, via.0));
                self.add((namespace, via.1), b);
            }
        }
    }
}

/// Runs lines of `ip -batch` in a namespace.
pub(crate) fn ip(run: &Run, namespace: Option<&str>, script: String) -> Result<()> {
    let mut ip = Program::new("ip");
    if let Some(namespace) = namespace {
        ip = ip.args(["-n", namespace]);
    }
    ip.args(["-batch", "-"])
        .input(script.as_str())
        .run(run, SETUP)
        .with_context(|| format!("setting up the topology with\n{}", script.trim_end()))?;
    Ok(())
}

/// No IPv6: duplicate address detection and router solicitations would be frames nobody asked for.
pub(crate) fn quiet_ipv6(run: &Run, namespace: &str) -> Result<()> {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return Ok(());
    }
    enter(namespace, || {
        ["all", "default"].iter().try_for_each(|i| {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{i}/disable_ipv6"), "1")
        })
    })?
    .with_context(|| format!("switching IPv6 off in {namespace}"))?;
    run.check()
}

/// Address and route of a host. The route names the congestion control where the kernel has it.
fn address(run: &Run, host: &Host) -> Result<()> {
    let (address, interface) = (host.address, host.interface);
    let [a, b, c, _] = address.octets();
    let namespace = Some(host.namespace.as_str());
    ip(
        run,
        namespace,
        format!("addr add {address}/24 dev {interface}\n"),
    )?;
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    if known.is_ok_and(|k| k.split_whitespace().any(|k| k == CONGESTION_CONTROL)) {
        let route = format!(
            "route change {a}.{b}.{c}.0/24 dev {interface} proto kernel scope link \
             src {address} congctl {CONGESTION_CONTROL}\n"
        );
        ip(run, namespace, route)?;
    }
    Ok(())
}

/// A bridge that joins client and server. The relay's port takes no part in flooding and learning: a
/// reflected broadcast would teach the bridge that the client lives at the relay. It gets what tc steers
/// to it, as the OpenFlow rules of ComNetsEmu's example do: UDP and TCP from the client; what comes back
/// goes to the server. Replies, ARP and ICMP go directly.
fn make_switch(run: &Run, switch: &str, steered: bool) -> Result<()> {
    let mut script = String::from("link add br0 type bridge\n");
    for port in ["wc", "wr", "ws"] {
        let _ = writeln!(script, "link set dev {port} master br0");
    }
    script += "link set br0 up\n";
    ip(run, Some(switch), script)?;
    Program::new("bridge")
        .args(["-n", switch])
        .args("link set dev wr learning off flood off mcast_flood off bcast_flood off".split(' '))
        .run(run, SETUP)?;
    if !steered {
        return Ok(());
    }
    let mut script = String::new();
    for (from, to) in [("wc", "wr"), ("wr", "ws")] {
        let _ = writeln!(script, "qdisc add dev {from} ingress");
        for protocol in [17, 6] {
            let _ = writeln!(
                script,
                "filter add dev {from} parent ffff: protocol ip u32 \
                 match ip protocol {protocol} 0xff action mirred egress redirect dev {to}"
            );
        }
    }
    Program::new("tc")
        .args(["-n", switch, "-batch", "-"])
        .input(script)
        .run(run, SETUP)?;
    Ok(())
}

/// Runs `work` on a thread of its own inside a namespace: sockets it opens belong there.
pub(crate) fn enter<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = Path::new(NAMES).join(namespace);
    let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<_, rustix::io::Errno>(work())
        });
        match inside.join() {
            Ok(result) => result.with_context(|| format!("entering the namespace {namespace}")),
            Err(_) => bail!("a thread inside {namespace} panicked"),
        }
    })
}

/// Removes the namespaces of runs that are no more, and kills what still runs in them.
pub(crate) fn remove_stale(run: &Run) {
    let stale = run.stale(Path::new(NAMES));
    if !stale.is_empty() {
        say::err(&format!(
            "removing what a dead run left: {}",
            stale.join(" ")
        ));
        drop(Namespaces {
            names: stale.clone(),
            held: stale,
        });
    }
}

/// Names of namespaces, removed on drop if they exist.
#[derive(Debug)]
pub(crate) struct Namespaces {
    names: Vec<String>,
    /// Those that are a container's of the same name.
    held: Vec<String>,
}

impl Namespaces {
    /// Those of these names, none of them a container's.
    pub(crate) fn named(names: Vec<String>) -> Self {
        let held = Vec::new();
        Self { names, held }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let relays = self.held.iter().map(|name| container::relay_of(name));
        container::remove(&relays.chain(self.held.iter().cloned()).collect::<Vec<_>>());
        for name in &self.names {
            if Path::new(NAMES).join(name).exists() {
                remove(name);
            }
        }
    }
}

/// Removes a namespace. A process still in it would keep it alive without a name, so it goes first;
/// so do the interfaces: the kernel takes a namespace's down later, on a thread of its own, into the next
/// measurement.
fn remove(name: &str) {
    let links = quietly("ip", &["-n", name, "-o", "link", "show", "type", "veth"]);
    for pid in quietly("ip", &["netns", "pids", name]).split_whitespace() {
        quietly("kill", &["-KILL", pid]);
    }
    for link in links.lines().filter_map(|l| l.split([':', '@']).nth(1)) {
        quietly("ip", &["-n", name, "link", "del", link.trim()]);
    }
    quietly("ip", &["netns", "del", name]);
}

/// Runs a clean-up command, also after an interruption; what it cannot do is left to the next run.
fn quietly(program: &str, args: &[&str]) -> String {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .output()
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    fn names(run: &Run) -> Vec<String> {
        let all = std::fs::read_dir(NAMES).map(|d| d.flatten().collect::<Vec<_>>());
        all.unwrap_or_default()
            .iter()
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|n| n.starts_with(&run.name("")))
            .collect()
    }

    #[test]
    fn every_shape_is_made_and_removed() {
        let Some(run) = run::for_test("every_shape_is_made_and_removed") else {
            return;
        };
        for (shape, delayed, count) in [
            (Shape::Direct, false, 2),
            (Shape::Direct, true, 3),
            (Shape::Pairs, false, 3),
            (Shape::Pairs, true, 4),
            (Shape::Hairpin { steered: true }, false, 4),
            (Shape::Hairpin { steered: true }, true, 5),
        ] {
            let topology = Topology::build(&run, shape, delayed).expect("it is built");
            assert_eq!(names(&run).len(), count, "{shape:?}");
            drop(topology);
            assert_eq!(names(&run), [""; 0], "{shape:?}");
        }
    }

    #[test]
    fn half_a_topology_is_removed() {
        let Some(run) = run::for_test("half_a_topology_is_removed") else {
            return;
        };
        let half = Namespaces {
            names: vec![run.name("half"), run.name("never-made")],
            held: vec![],
        };
        ip(&run, None, format!("netns add {}\n", run.name("half"))).expect("one namespace");
        assert_eq!(names(&run).len(), 1);
        drop(half);
        assert_eq!(names(&run), [""; 0]);
    }
}
