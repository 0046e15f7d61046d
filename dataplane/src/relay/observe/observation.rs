//! A tap that is in a lane, as whoever looks has it: copies, counts, and why it is gone. Made by
//! [`Relay::observe`](crate::relay::Relay::observe).

use std::{
    fmt,
    sync::{Mutex, Weak},
};

use crate::{
    relay::{Inner, lock},
    stage::tap::{Copied, Observer, Point, TapCounts},
    wire::ethernet::MacAddress,
    worker::LaneId,
};

/// A tap in a lane of a relay. Dropping it takes the tap out.
pub struct Observation {
    pub(super) observer: Observer,
    pub(super) point: Point,
    pub(super) port: String,
    pub(super) mac: MacAddress,
    pub(super) lane: LaneId,
    pub(super) relay: Weak<Mutex<Inner>>,
    /// When the clock of the lanes was 0, in ns since the Unix epoch.
    pub(super) epoch_ns: u64,
}

/// Why a lane has no tap any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stopped,
    Closed,
    Carried,
    Removed,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "the relay was stopped",
            Self::Closed => "the pair was closed",
            Self::Carried => "the pair is carried by another back end now",
            Self::Removed => "the pair was removed",
        })
    }
}

impl Observation {
    /// The oldest copy that was not taken yet; `None`: there is none now.
    pub fn receive(&mut self) -> Option<Copied> {
        self.observer.receive()
    }

    /// Where in its lane the tap is.
    pub fn point(&self) -> Point {
        self.point
    }

    /// The port that frames come from ([`Point::Before`]) or go to ([`Point::After`]).
    pub fn port(&self) -> &str {
        &self.port
    }

    /// That port's address when this began.
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// A time of the lane's clock, in ns since the Unix epoch. A step of the system's clock since this began is not in it.
    pub fn unix_ns(&self, time_ns: u64) -> u64 {
        self.epoch_ns + time_ns
    }

    /// What the tap has counted.
    pub fn counts(&self) -> TapCounts {
        self.observer.counts()
    }

    /// Whether the tap is gone: detached, or the lane or the relay with it. What it copied before can still be taken.
    pub fn is_abandoned(&self) -> bool {
        self.observer.is_abandoned()
    }

    /// Why the tap is gone, if it is.
    pub(crate) fn fate(&self) -> Fate {
        let relay = self.relay.upgrade();
        relay.map_or(Fate::Stopped, |inner| lock(&inner).fate(self.lane))
    }

    /// Takes the tap out of its lane. The counts are final then, and what was copied can still be taken.
    pub fn detach(&mut self) {
        if self.is_abandoned() {
            return;
        }
        if let Some(inner) = self.relay.upgrade() {
            let mut inner = lock(&inner);
            let tap = self.observer.tap();
            let at = inner.looking.iter().position(|one| one.tap.tap() == tap);
            if let Some(looking) = at.map(|at| inner.looking.swap_remove(at)) {
                // Its thread is waited for, so not by everybody.
                drop(inner);
                return drop(looking);
            }
            // A relay that was stopped has no workers any more, and its lanes no taps.
            let mut lanes = inner.lanes.iter();
            let worker = lanes.find_map(|(id, lane)| (id == self.lane).then_some(lane.worker));
            if let Some(worker) = worker.and_then(|worker| inner.workers.get(worker)) {
                worker.remove_tap(self.lane, self.observer.tap());
            }
        }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.detach();
    }
}
