//! What interfaces drop after the kernel has accepted it for sending: by their own count, apart from the relay's.

use crate::{config::PortName, interface::Interface, sys::netns};

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
    pub(super) fn follow(&mut self, name: &PortName, interface: &Interface) {
        let now = ask(name, interface).unwrap_or_default();
        *self = Self {
            before: self.total(),
            first: now,
            last: now,
        };
    }

    /// Asks the interface. One that is gone has dropped what it said last.
    pub(super) fn refresh(&mut self, name: &PortName, interface: &Interface) {
        if let Some(now) = ask(name, interface) {
            // A device may be reset, and begins anew.
            (self.first, self.last) = (self.first.min(now), now);
        }
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

fn ask(name: &PortName, interface: &Interface) -> Option<u64> {
    let ask = || Interface::tx_dropped(interface.index);
    netns::within(name.netns.as_deref(), ask).ok()?.ok()?
}
