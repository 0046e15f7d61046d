//! What the links of a relay's ports do to it. Told by [`control::links`](crate::control::links).

use super::Inner;
use crate::{config::MacMode, interface::Interface, port::packet};

impl Inner {
    /// The kernel says that an interface has changed, or is there again.
    pub(crate) fn interface_changed(&mut self, netns: Option<&str>, interface: &Interface) {
        let (mut anew, mut created) = (Vec::new(), Vec::new());
        for (id, port) in self.ports.iter_mut().enumerate() {
            if port.name.netns.as_deref() != netns {
                continue;
            }
            let before = port.state();
            if port.interface.index == interface.index && !port.gone {
                // An interface gets its qdisc when it comes up for the first time; and what leaves by it may carry its address.
                let other_paths = packet::one_path(&port.interface) != packet::one_path(interface);
                let other_address =
                    self.config.mac == MacMode::Update && port.interface.mac != interface.mac;
                port.update(interface.clone());
                if port.state() != before {
                    tracing::info!("port {} is {}", port.name, port.state());
                }
                if other_paths || other_address {
                    anew.push(id);
                }
            } else if port.gone && port.name.interface == interface.name {
                port.update(interface.clone());
                created.push(id);
            }
        }
        self.tell_kernel();
        for pair in 0..self.pairs.len() {
            let ports = self.pairs[pair].ports;
            // The kernel's programs are told of the rest.
            let concerned = ports.iter().any(|id| {
                created.contains(id) || (anew.contains(id) && self.pairs[pair].kernel.is_none())
            });
            if concerned
                && ports.iter().all(|&id| !self.ports[id].gone)
                && let Err(error) = self.reopen(pair)
            {
                tracing::error!("{error}");
            }
        }
    }

    /// The kernel says that an interface is gone.
    pub(crate) fn interface_removed(&mut self, netns: Option<&str>, index: u32) {
        for port in &mut self.ports {
            if port.name.netns.as_deref() == netns && port.interface.index == index && !port.gone {
                port.gone = true;
                port.link.set(false, port.interface.mtu);
                tracing::warn!(
                    "port {} is gone: waiting for an interface of that name",
                    port.name
                );
            }
        }
        self.tell_kernel();
    }

    /// Events were lost: compares every port with what there is now.
    pub(crate) fn interfaces_are(&mut self, netns: Option<&str>, all: &[Interface]) {
        let missing: Vec<u32> = self
            .ports
            .iter()
            .filter(|port| port.name.netns.as_deref() == netns && !port.gone)
            .map(|port| port.interface.index)
            .filter(|index| all.iter().all(|interface| interface.index != *index))
            .collect();
        missing
            .into_iter()
            .for_each(|index| self.interface_removed(netns, index));
        all.iter()
            .for_each(|interface| self.interface_changed(netns, interface));
    }
}
