//! What the links of a relay's ports do to it. Told by [`control::links`](crate::control::links).

use std::time::{Duration, Instant};

use super::{Inner, Port, lanes::name_of_lane};
use crate::{
    config::{MacMode, PortBy, PortName},
    interface::Interface,
    port::packet,
    sys::netns,
};

/// How long a port that was set up has to find its carrier: the kernel tells of it up to a second late (`net/core/link_watch.c`).
const SETTLES: Duration = Duration::from_millis(1500);

impl Inner {
    /// The kernel says that an interface has changed, or is there again.
    pub(crate) fn interface_changed(&mut self, netns: Option<&str>, interface: &Interface) {
        let (mut anew, mut created) = (Vec::new(), Vec::new());
        let mut renamed = Vec::new();
        let (mac, by) = (self.config.mac, self.config.port_by);
        let is_ours = |port: &Port| !port.gone && port.interface.index == interface.index;
        let here = |port: &Port| port.name.netns.as_deref() == netns;
        // One that was never up gets its qdisc when it comes up, which decides how it is sent by: it is opened then, and not twice.
        let was_up = interface.qdisc.as_deref() != Some("noop");
        let taken = self
            .ports
            .iter()
            .any(|(_, port)| here(port) && is_ours(port));
        let mut changed = false;
        for (id, port) in self.ports.iter_mut().filter(|(_, port)| here(port)) {
            let before = port.state();
            if is_ours(port) {
                // An interface gets its qdisc when it comes up for the first time; and what leaves by it may carry its address.
                let other_paths = packet::one_path(&port.interface) != packet::one_path(interface);
                let other_address = mac == MacMode::Update && port.interface.mac != interface.mac;
                if port.interface.name != interface.name {
                    renamed.push(id);
                }
                port.update(interface.clone());
                if port.state() != before {
                    changed = true;
                    tracing::info!("port {} is {}", port.name, port.state());
                }
                if port.unopened && was_up {
                    port.unopened = false;
                    created.push(id);
                } else if other_paths || other_address {
                    anew.push(id);
                }
            } else if port.gone && !taken && port.is_back(interface, by) {
                if port.name.interface != interface.name {
                    renamed.push(id);
                }
                port.update(interface.clone());
                port.held_down = false;
                port.unopened = !was_up;
                if was_up {
                    created.push(id);
                }
            }
        }
        if changed {
            // What a lane holds for a link that was down can leave now.
            self.workers.iter().for_each(|worker| worker.wake());
        }
        self.tell_kernel();
        renamed
            .into_iter()
            .for_each(|id| self.rename(id, &interface.name));
        for pair in 0..self.pairs.len() {
            let ports = self.pairs[pair].ports;
            // The kernel's programs were told of the rest.
            let in_kernel = self.pairs[pair].kernel.is_some();
            let other = |id| created.contains(id) || (anew.contains(id) && !in_kernel);
            let concerned = ports.iter().any(other) && !self.pairs[pair].down;
            if concerned && ports.iter().all(|&id| !self.ports[id].gone) {
                self.reopen(pair);
            }
        }
        self.propagate();
    }

    /// The kernel says that an interface is gone.
    pub(crate) fn interface_removed(&mut self, netns: Option<&str>, index: u32) {
        let by = self.config.port_by;
        let is = |port: &Port| port.name.netns.as_deref() == netns && port.interface.index == index;
        for (_, port) in self.ports.iter_mut() {
            if is(port) && !port.gone {
                port.leave();
                tracing::warn!(
                    "port {} is gone: waiting for an interface of that {by}",
                    port.name
                );
            }
        }
        self.tell_kernel();
        self.propagate();
    }

    /// Events were lost: compares every port with what there is now.
    pub(crate) fn interfaces_are(&mut self, netns: Option<&str>, all: &[Interface]) {
        let missing: Vec<u32> = self
            .ports
            .iter()
            .filter(|(_, port)| port.name.netns.as_deref() == netns && !port.gone)
            .map(|(_, port)| port.interface.index)
            .filter(|index| all.iter().all(|interface| interface.index != *index))
            .collect();
        missing
            .into_iter()
            .for_each(|index| self.interface_removed(netns, index));
        all.iter()
            .for_each(|interface| self.interface_changed(netns, interface));
    }

    /// A namespace was removed, or another one has its name. Its interfaces live as long as we hold sockets in it: we let go.
    pub(crate) fn namespace_gone(&mut self, netns: Option<&str>) {
        self.forget_namespace(netns);
        let here = |port: &Port| port.name.netns.as_deref() == netns;
        let ports = self.ports.iter_mut();
        for (_, port) in ports.filter(|(_, port)| here(port) && !port.gone) {
            port.leave();
            tracing::warn!("port {} is gone with its namespace", port.name);
        }
        for pair in 0..self.pairs.len() {
            if self.pairs[pair]
                .ports
                .iter()
                .any(|&id| here(&self.ports[id]))
            {
                self.reopen(pair);
            }
        }
        self.propagate();
    }

    /// The namespaces that have ports.
    pub(crate) fn namespaces(&self) -> Vec<Option<String>> {
        let ports = self.ports.iter();
        let mut all: Vec<_> = ports.map(|(_, port)| &port.name.netns).collect();
        all.sort();
        all.dedup();
        all.into_iter().cloned().collect()
    }

    /// When a pair that could not be opened is to be tried again, a port has had its time to find its carrier, or it is to be seen whether
    /// frames vanish.
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        let retries = self.pairs.iter().filter_map(|pair| pair.retry.as_ref());
        let settle = self.ports.iter().filter_map(|(_, port)| port.settles);
        retries
            .map(|retry| retry.at)
            .chain(settle)
            .chain(self.next_look())
            .min()
    }

    /// Tries what is due.
    pub(crate) fn retry(&mut self, now: Instant) {
        if self.next_look().is_some_and(|look| look <= now) {
            self.refresh_vanished();
        }
        let mut settled = false;
        for (_, port) in self.ports.iter_mut() {
            settled |= port.settles.take_if(|until| *until <= now).is_some();
        }
        if settled {
            self.propagate();
        }
        for pair in 0..self.pairs.len() {
            let retry = self.pairs[pair].retry.as_ref();
            if retry.is_some_and(|retry| retry.at <= now) {
                self.reopen(pair);
            }
        }
    }

    /// The port's interface is called otherwise: so is the port from now on, in the settings too, unless they could not say it.
    fn rename(&mut self, id: usize, name: &str) {
        let old = self.ports[id].name.clone();
        let new = PortName {
            netns: old.netns.clone(),
            interface: name.to_owned(),
        };
        if new == old {
            tracing::info!("port {old} is called so again");
            return;
        }
        // Settings are written down and read again.
        if new.to_string().parse().as_ref() != Ok(&new) {
            tracing::warn!(
                "port {old}: its interface is called {name:?} now, which no option can name: it is followed, and the port stays {old}"
            );
            return;
        }
        tracing::info!("port {old} is called {new} now");
        let config = &mut self.config;
        let names = config.pairs.iter_mut().flatten();
        let names = names.chain(config.dst_mac.iter_mut().map(|(name, _)| name));
        let links = config.links.iter_mut();
        let names = names.chain(links.flat_map(|link| [&mut link.from, &mut link.to]));
        names
            .filter(|name| **name == old)
            .for_each(|name| *name = new.clone());
        let port = &mut self.ports[id];
        (port.shown, port.name) = (new.to_string(), new);
        for (_, lane) in self.lanes.iter_mut() {
            if lane.rx == id || lane.tx == id {
                lane.name = name_of_lane(&self.ports, lane.rx, lane.tx, lane.queue);
            }
        }
    }

    /// Passes the state of each port's link on to the other port of its pair, if that is asked for.
    ///
    /// A port that is held down by this says nothing about its own cable, and one that was just let go has a while to find its
    /// carrier: so the two never hold each other down, and a cable that flaps is passed on once in that while at most.
    pub(super) fn propagate(&mut self) {
        let now = Instant::now();
        for at in 0..self.pairs.len() {
            let [a, b] = self.pairs[at].ports;
            if a == b {
                continue;
            }
            let wanted = self.config.propagate_link && !self.pairs[at].down && !self.stopping;
            for (from, to) in [(a, b), (b, a)] {
                let from = &mut self.ports[from];
                if from.link.is_up() {
                    from.settles = None;
                }
                let settles = from.settles.is_some_and(|until| until > now);
                let lost = !from.held_down && !settles && !from.link.is_up();
                let port = &self.ports[to];
                let hold = wanted && lost && !port.gone;
                if hold && (!port.held_down || port.interface.up) {
                    self.hold(to, true);
                } else if !hold && port.held_down {
                    self.hold(to, false);
                    self.ports[to].settles = Some(now + SETTLES);
                }
            }
        }
    }

    fn hold(&mut self, id: usize, down: bool) {
        let port = &mut self.ports[id];
        let index = port.interface.index;
        let set = || Interface::set_up(index, !down);
        let result = netns::within(port.name.netns.as_deref(), set).and_then(|set| set);
        let state = if down { "down" } else { "up" };
        // What can't be done is not tried again and again.
        port.held_down = down;
        // The kernel's news of it follow.
        port.interface.up = !down;
        match result {
            Ok(()) => tracing::info!("port {} is set {state} with the other end", port.name),
            Err(error) => tracing::error!(
                "port {} can't be set {state} with the other end: {error}; --propagate-link needs CAP_NET_ADMIN",
                port.name
            ),
        }
    }
}

impl Port {
    /// Whether an interface is this port's, created anew.
    fn is_back(&self, interface: &Interface, by: PortBy) -> bool {
        match by {
            PortBy::Name => self.name.interface == interface.name,
            // A VLAN device has the address of the one below it.
            PortBy::Mac => {
                self.interface.mac == interface.mac && self.interface.kind == interface.kind
            }
        }
    }

    fn leave(&mut self) {
        self.gone = true;
        self.held_down = false;
        self.settles = None;
        self.link.set(false, self.interface.mtu);
    }
}
