//! What a relay knows of its ports, its pairs and its lanes. The other parts of [`relay`](super) read and write it.
//!
//! It holds nothing open but the gates of packet sockets and what the kernel runs: the rest is in lanes, which workers have.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{device, kernel};
use crate::{
    config::{Backend, PortName},
    interface::Interface,
    port::{
        Link,
        kernel::{End, takes_none},
        packet,
    },
    snapshot::PortState,
    stage::link::{LinkHandle, LinkSnapshot},
    stats::{Counters, Tally},
    worker::LaneId,
};

pub(super) struct Port {
    pub(super) name: PortName,
    /// The name as it is shown: not made for each snapshot, only when it changes.
    pub(super) shown: String,
    pub(super) interface: Interface,
    pub(super) link: Arc<Link>,
    pub(super) gone: bool,
    /// Its interface was created anew and never up: its pair is opened when it is.
    pub(super) unopened: bool,
    /// We have set it down, because the other port of its pair has lost its link.
    pub(super) held_down: bool,
    /// We have just set it up again: until then it need not have a carrier.
    pub(super) settles: Option<Instant>,
    pub(super) drops: device::DeviceDrops,
}

/// Two ports that are joined, by their ids, and the lanes between them.
pub(super) struct Pair {
    pub(super) ports: [usize; 2],
    pub(super) lanes: Vec<LaneId>,
    /// By what it is carried, in words.
    pub(super) how: String,
    /// Closed by order.
    pub(super) down: bool,
    /// Why it could not be opened again, and when to try next.
    pub(super) trouble: Option<String>,
    pub(super) retry: Option<Retry>,
    /// If the kernel carries it.
    pub(super) kernel: Option<kernel::Kernel>,
    /// Where its packet sockets can be given a filter, and at which port.
    pub(super) gates: Vec<(usize, packet::Gate)>,
    /// By what it is to be carried since it was moved.
    pub(super) moved_to: Option<Backend>,
}

/// When to try again, and how long to wait if that fails too.
pub(super) struct Retry {
    pub(super) at: Instant,
    pub(super) wait: Duration,
}

pub(super) struct LaneInfo {
    /// As it is shown: not made for each snapshot, only when a port is renamed.
    pub(super) name: String,
    pub(super) rx: usize,
    pub(super) tx: usize,
    pub(super) queue: usize,
    pub(super) worker: usize,
    pub(super) counters: Arc<Counters>,
    /// What was counted by what carried it before.
    pub(super) before: Tally,
    pub(super) link: Option<LinkHandle>,
    /// What it and its link had counted when counting began anew.
    pub(super) base: Tally,
    pub(super) link_base: Option<LinkSnapshot>,
}

impl Port {
    pub(super) fn new(name: PortName, interface: Interface) -> Self {
        let link = Arc::new(Link::new(interface.up && interface.carrier, interface.mtu));
        let mut drops = device::DeviceDrops::default();
        drops.follow(&interface);
        Self {
            shown: name.to_string(),
            name,
            interface,
            link,
            gone: false,
            unopened: false,
            held_down: false,
            settles: None,
            drops,
        }
    }

    pub(super) fn state(&self) -> PortState {
        match (self.gone, self.link.is_up()) {
            (true, _) => PortState::Gone,
            (false, true) => PortState::Up,
            (false, false) => PortState::Down,
        }
    }

    /// So many frames were sent by it, and never reached its driver.
    pub(super) fn lose(&mut self, vanished: u64) {
        if vanished == 0 {
            return;
        }
        self.drops.add(vanished);
        let reason = takes_none(&self.end()).unwrap_or_else(|| "it was not up".into());
        tracing::warn!(
            "{}: {vanished} frames were redirected to it and lost: {reason}",
            self.name
        );
    }

    /// As the kernel's programs see it.
    pub(super) fn end(&self) -> End<'_> {
        End {
            netns: self.name.netns.as_deref(),
            interface: &self.interface,
            up: self.state() == PortState::Up,
        }
    }

    /// Takes over what the kernel says of the interface now.
    pub(super) fn update(&mut self, interface: Interface) {
        self.link
            .set(interface.up && interface.carrier, interface.mtu);
        if self.interface.index != interface.index {
            self.drops.follow(&interface);
        }
        self.gone = false;
        self.interface = interface;
    }
}

impl Pair {
    pub(super) fn new(ports: [usize; 2], how: String) -> Self {
        Self {
            ports,
            lanes: Vec::new(),
            how,
            down: false,
            trouble: None,
            retry: None,
            kernel: None,
            gates: Vec::new(),
            moved_to: None,
        }
    }
}

impl LaneInfo {
    /// What was counted since the relay was started, whoever carried it.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = self.before;
        tally.add(&self.counters.read());
        tally
    }
}
