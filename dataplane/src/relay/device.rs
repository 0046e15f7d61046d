//! What interfaces drop after the kernel has accepted it for sending: by their own count, apart from the relay's.

use super::Inner;
use crate::{interface::Interface, sys::netns};

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

impl Inner {
    /// Asks all interfaces, those of a namespace at once.
    pub(super) fn refresh_drops(&mut self) {
        for netns in self.namespaces() {
            // A namespace may be absent for a while.
            let Ok(Ok(drops)) = netns::within(netns.as_deref(), Interface::tx_drops) else {
                continue;
            };
            let ports = self.ports.iter_mut().map(|(_, port)| port);
            for port in ports.filter(|port| port.name.netns == netns && !port.gone) {
                if let Some(&now) = drops.get(&port.interface.name) {
                    port.interface.tx_dropped = now;
                    port.drops.refresh(now);
                }
            }
        }
    }
}
