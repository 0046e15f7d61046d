//! Observing a relay that runs: copies of the frames that pass its lanes, for captures and for programs that embed it.
//!
//! ```no_run
//! use l2relay::{config::Config, relay::{Relay, observe::Place}, stage::tap::{Point, TapSettings}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ports = ["r0".parse()?, "r1".parse()?];
//! let relay = Relay::start(Config { pairs: vec![ports], ..Config::default() })?;
//! // What r0 receives, and what leaves by it.
//! let mut taps = relay.observe(&Place::Port("r0".into()), &[Point::Before, Point::After], &TapSettings::default())?;
//! for tap in &mut taps {
//!     while let Some(frame) = tap.receive() {
//!         println!("{} {:?} {} bytes", tap.port(), tap.point(), frame.len);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    sync::{Mutex, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{Inner, LaneInfo, Pair, Relay, lock};
use crate::{
    capture::refused,
    control::{protocol::CaptureRequest, server::Answer},
    error::{Error, Result},
    stage::tap::{Copied, Observer, Point, Tap, TapCounts, TapSettings, bpf::Program},
    wire::ethernet::MacAddress,
    worker::LaneId,
};

/// Which lanes to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A port: its lanes as frames are received from it, and those of the other direction as frames are handed over to be sent by it.
    Port(String),
    /// The lanes of one direction, as `r0>r1`, or one of several, as `r0>r1#1`.
    Lane(String),
    /// All of them.
    Everywhere,
}

/// How long a worker may take to put a tap into a lane: one that takes longer does not turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// A tap in a lane of a relay. Dropping it takes the tap out.
pub struct Observation {
    observer: Observer,
    point: Point,
    port: String,
    mac: MacAddress,
    lane: LaneId,
    relay: Weak<Mutex<Inner>>,
    /// When the clock of the lanes was 0, in ns since the Unix epoch.
    epoch_ns: u64,
}

/// Why a lane has no tap any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stopped,
    Closed,
    Kernel,
    Removed,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "the relay was stopped",
            Self::Closed => "the pair was closed",
            Self::Kernel => "the pair is carried in the kernel now",
            Self::Removed => "the pair was removed",
        })
    }
}

impl Relay {
    /// Puts taps into lanes, and waits until they are there. They share the room for copies. At a port, [`Point::Before`] is what it receives and [`Point::After`] what leaves by it.
    ///
    /// # Errors
    /// [`Error::Config`]: there is no such port or lane, its pair is closed, or the kernel carries its frames.
    pub fn observe(
        &self,
        place: &Place,
        points: &[Point],
        settings: &TapSettings,
    ) -> Result<Vec<Observation>> {
        let inner = lock(&self.inner);
        let chosen = inner.places(place, points);
        if chosen.is_empty() {
            return Err(Error::Config(vec![inner.no_place(place)]));
        }
        // Of several places, those that can be looked at.
        let (unseen, chosen): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|(lane, _)| inner.is_closed(*lane) || inner.in_kernel(*lane));
        if let ([(lane, _), ..], []) = (&unseen[..], &chosen[..]) {
            return Err(Error::Config(vec![inner.not_observed(*lane)]));
        }
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now_ns.map_or(0, |since| since.as_nanos() as u64);
        let epoch_ns = now_ns.saturating_sub(inner.epoch.elapsed().as_nanos() as u64);
        let settings = TapSettings {
            buffer: settings.buffer / chosen.len(),
            ..settings.clone()
        };
        // All first, then all into their lanes: so they begin together.
        let taps = chosen.into_iter().map(|(lane, point)| {
            let (tap, observer) = Tap::open(point, settings.clone());
            (lane, tap, observer)
        });
        let taps: Vec<_> = taps.collect();
        let mut waits = Vec::new();
        let observe = |(lane, tap, observer): (LaneId, Tap, Observer)| {
            let point = tap.point();
            let info = &inner.lanes[lane];
            let port = &inner.ports[match point {
                Point::Before => info.rx,
                Point::After => info.tx,
            }];
            waits.push(inner.worker(lane).add_tap(lane, tap));
            Observation {
                observer,
                point,
                port: port.name.to_string(),
                mac: port.interface.mac,
                lane,
                relay: std::sync::Arc::downgrade(&self.inner),
                epoch_ns,
            }
        };
        let observations: Vec<Observation> = taps.into_iter().map(observe).collect();
        let deadline = Instant::now() + PATIENCE;
        for wait in waits {
            let _ = wait.recv_deadline(deadline);
        }
        drop(inner);
        Ok(observations)
    }

    /// Starts a capture for a client of the control socket.
    pub(super) fn capture(&self, wanted: &CaptureRequest) -> Answer {
        let filter = match &wanted.filter[..] {
            [] => None,
            code => match Program::new(code) {
                Ok(filter) => Some(filter),
                Err(invalid) => return refused(invalid.to_string()),
            },
        };
        let place = match (&wanted.port, &wanted.lane) {
            (None, None) => Place::Everywhere,
            (Some(port), None) => Place::Port(port.clone()),
            (None, Some(lane)) => Place::Lane(lane.clone()),
            (Some(_), Some(_)) => return refused("a port or a lane, not both".into()),
        };
        let points: &[Point] = match (wanted.before, wanted.after) {
            (true, false) => &[Point::Before],
            (false, true) => &[Point::After],
            _ => &[Point::Before, Point::After],
        };
        let settings = TapSettings {
            filter,
            snaplen: wanted.snaplen.unwrap_or(u32::MAX),
            buffer: wanted.buffer_bytes.min(CaptureRequest::BUFFER_MAX) as usize,
        };
        match self.observe(&place, points, &settings) {
            Ok(taps) => self.captures.start(taps, wanted),
            Err(Error::Config(mistakes)) => refused(mistakes.join("; ")),
            Err(error) => refused(error.to_string()),
        }
    }
}

impl Inner {
    fn places(&self, place: &Place, points: &[Point]) -> Vec<(LaneId, Point)> {
        let name = |id: usize| self.ports[id].name.to_string();
        let wants = |lane: &LaneInfo, point: Point| match (place, point) {
            (Place::Everywhere, _) => true,
            (Place::Port(port), Point::Before) => name(lane.rx) == *port,
            (Place::Port(port), Point::After) => name(lane.tx) == *port,
            (Place::Lane(wanted), _) => {
                let direction = format!("{}>{}", name(lane.rx), name(lane.tx));
                direction == *wanted || self.lane_name(lane) == *wanted
            }
        };
        self.lanes
            .iter()
            .flat_map(|(id, lane)| {
                let points = points.iter().filter(move |point| wants(lane, **point));
                points.map(move |point| (id, *point))
            })
            .collect()
    }

    fn pair_of(&self, lane: LaneId) -> Option<&Pair> {
        self.pairs.iter().find(|pair| pair.lanes.contains(&lane))
    }

    /// Whether the lane's pair is closed by order.
    fn is_closed(&self, lane: LaneId) -> bool {
        self.pair_of(lane).is_some_and(|pair| pair.down)
    }

    /// Why a lane has no tap any more.
    fn fate(&self, lane: LaneId) -> Fate {
        match self.pair_of(lane) {
            _ if self.stopping => Fate::Stopped,
            Some(pair) if pair.down => Fate::Closed,
            Some(pair) if pair.kernel.is_some() => Fate::Kernel,
            _ => Fate::Removed,
        }
    }

    fn not_observed(&self, lane: LaneId) -> String {
        let closed = self.is_closed(lane);
        let lane = &self.lanes[lane];
        let [rx, tx] = [lane.rx, lane.tx].map(|id| &self.ports[id]);
        if closed {
            return format!(
                "{} is closed: open its pair first (l2relay set --up {},{})",
                self.lane_name(lane),
                rx.name,
                tx.name
            );
        }
        format!(
            "{} is carried in the kernel, where no lane copies frames: look at the port itself (tcpdump -i {}), or move the \
             pair (l2relay set --carry)",
            self.lane_name(lane),
            rx.name.interface
        )
    }

    fn no_place(&self, place: &Place) -> String {
        let ports = self.ports.iter().map(|(_, port)| port.name.to_string());
        let (kind, wanted, known): (_, _, Vec<String>) = match place {
            Place::Port(name) => ("port", name.as_str(), ports.collect()),
            Place::Lane(name) => {
                let lanes = self.lanes.iter().map(|(_, lane)| self.lane_name(lane));
                ("lane", name.as_str(), lanes.collect())
            }
            Place::Everywhere => ("lane", "at all", Vec::new()),
        };
        format!("no {kind} {wanted}: there are {}", known.join(", "))
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
            let inner = lock(&inner);
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
