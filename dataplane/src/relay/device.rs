//! What interfaces drop after the kernel has accepted it for sending: by their own count, apart from the relay's.

use std::collections::HashMap;

use super::Inner;
use crate::{
    interface::{Interface, TxDrops},
    sys::netns,
};

/// The count of a port since the relay was started, whichever interface it was.
#[derive(Debug, Default)]
pub(super) struct DeviceDrops {
    /// Of interfaces that are gone.
    before: u64,
    /// The interface's count when it became the port.
    first: u64,
    /// The interface's count when it was last asked.
    last: u64,
}

impl DeviceDrops {
    /// Begins to count for an interface; goes on where another ended.
    pub(super) fn follow(&mut self, interface: &Interface) {
        *self = Self {
            before: self.total(),
            first: interface.tx_dropped,
            last: interface.tx_dropped,
        };
    }

    /// What the interface says now. One that is gone has dropped what it said last.
    fn refresh(&mut self, now: u64) {
        // A device may be reset, and begins anew.
        (self.first, self.last) = (self.first.min(now), now);
    }

    /// Frames that it lost and has not counted.
    pub(super) fn add(&mut self, frames: u64) {
        self.before += frames;
    }

    /// Counts from 0 again.
    pub(super) fn reset(&mut self) {
        (self.before, self.first) = (0, self.last);
    }

    /// Frames dropped, as the device counts them: a super-frame may be one.
    pub(super) fn total(&self) -> u64 {
        self.before + (self.last - self.first)
    }
}

/// Of a namespace, what its interfaces say.
pub(super) struct Said {
    netns: Option<String>,
    drops: TxDrops,
}

impl Said {
    fn open(netns: Option<String>) -> Option<Self> {
        let drops = netns::within(netns.as_deref(), TxDrops::open);
        let drops = drops.and_then(|opened| opened).ok()?;
        Some(Self { netns, drops })
    }
}

impl Inner {
    /// Asks all interfaces, those of a namespace at once.
    pub(super) fn refresh_drops(&mut self) {
        for netns in self.namespaces() {
            let ports = self.ports.iter_mut().map(|(_, port)| port);
            let ports = ports.filter(|port| port.name.netns == netns && !port.gone);
            let ports = ports.map(|port| (port.interface.name.as_str(), &mut port.drops));
            let mut ports: HashMap<&str, &mut DeviceDrops> = ports.collect();
            if ports.is_empty() {
                continue;
            }
            let known = self.said.iter().position(|said| said.netns == netns);
            let at = known.unwrap_or(self.said.len());
            if known.is_none() {
                self.said.extend(Said::open(netns));
            }
            // A namespace may be absent for a while.
            let said = self.said.get_mut(at).map(|said| said.drops.read());
            for (name, now) in said.into_iter().flatten().flatten() {
                if let Some(drops) = ports.get_mut(name) {
                    drops.refresh(now);
                }
            }
        }
    }

    /// Lets go of a namespace that is gone: only so can the kernel remove it.
    pub(super) fn forget_namespace(&mut self, netns: Option<&str>) {
        self.said.retain(|said| said.netns.as_deref() != netns);
    }

    /// Lets go of those that have no ports any more.
    pub(super) fn forget_unused_namespaces(&mut self) {
        let used = self.namespaces();
        self.said.retain(|said| used.contains(&said.netns));
    }
}
