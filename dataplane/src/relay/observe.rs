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

mod observation;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{Inner, LaneInfo, Pair, Port, Relay, lock};
use crate::{
    capture::{port::PortTap, refused},
    control::{protocol::CaptureRequest, server::Answer},
    error::{Error, Result},
    port::packet,
    stage::tap::{Observer, Point, Tap, TapSettings, bpf::Program},
    sys::netns,
    worker::LaneId,
};

pub(crate) use observation::Fate;
pub use observation::Observation;

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

/// Somebody who looks on at a port, because the kernel carries the frames.
pub(super) struct Looking {
    lane: LaneId,
    point: Point,
    filter: Option<Program>,
    tap: PortTap,
}

impl Looking {
    pub(super) fn lane(&self) -> LaneId {
        self.lane
    }
}

impl Relay {
    /// Puts taps into lanes, and waits until they are there. They share the room for copies. At a port, [`Point::Before`] is what it
    /// receives and [`Point::After`] what leaves by it. Where the kernel carries a pair, packet sockets at its ports look on instead; what
    /// the host itself sends by a port is then seen too.
    ///
    /// # Errors
    /// [`Error::Config`]: there is no such port or lane, its pair is closed, or the kernel carries it where no socket can look on (XDP);
    /// [`Error::System`]: a packet socket can't be opened.
    pub fn observe(
        &self,
        place: &Place,
        points: &[Point],
        settings: &TapSettings,
    ) -> Result<Vec<Observation>> {
        // All first, then all into their lanes: so they begin together. What they need is made while nobody waits for it, so others may
        // be wanted by then.
        let mut opened = Vec::new();
        let (mut inner, taps) = loop {
            let inner = lock(&self.inner);
            let chosen = inner.to_observe(place, points)?;
            let same = chosen.len() == opened.len()
                && chosen.iter().zip(&opened).all(
                    |(chosen, (lane, tap, _)): (_, &(LaneId, Tap, Observer))| {
                        *chosen == (*lane, tap.point())
                    },
                );
            if same {
                break (inner, opened);
            }
            drop(inner);
            let settings = TapSettings {
                buffer: settings.buffer / chosen.len(),
                ..settings.clone()
            };
            let open = |(lane, point)| {
                let (tap, observer) = Tap::open(point, settings.clone());
                (lane, tap, observer)
            };
            opened = chosen.into_iter().map(open).collect();
        };
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now_ns.map_or(0, |since| since.as_nanos() as u64);
        let epoch_ns = now_ns.saturating_sub(inner.epoch.elapsed().as_nanos() as u64);
        let (at_ports, in_lanes): (Vec<_>, Vec<_>) = taps
            .into_iter()
            .partition(|(lane, ..)| inner.in_kernel(*lane));
        let (mut looking, mut observers) = (Vec::new(), Vec::new());
        for (lane, tap, observer) in at_ports {
            let (point, filter) = (tap.point(), tap.filter().cloned());
            let rx = inner.look_on(lane, point, filter.as_ref())?;
            let tap = PortTap::start(rx, tap, inner.epoch)?;
            looking.push(Looking {
                lane,
                point,
                filter,
                tap,
            });
            observers.push((lane, point, observer));
        }
        inner.looking.extend(looking);
        let mut waits = Vec::new();
        for (lane, tap, observer) in in_lanes {
            observers.push((lane, tap.point(), observer));
            waits.push(inner.worker(lane).add_tap(lane, tap));
        }
        let observe = |(lane, point, observer): (LaneId, Point, Observer)| {
            let port = inner.port_at(lane, point);
            Observation {
                observer,
                point,
                port: port.name.to_string(),
                mac: port.interface.mac,
                lane,
                relay: Arc::downgrade(&self.inner),
                epoch_ns,
            }
        };
        let observations: Vec<Observation> = observers.into_iter().map(observe).collect();
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
        if wanted.count == Some(0) {
            return refused("\"count\" 0: write a number of frames, from 1 on".into());
        }
        let buffer = wanted.buffer_bytes;
        let share = match self.captures.share(buffer) {
            Ok(share) => share,
            Err(answer) => return answer,
        };
        let settings = TapSettings {
            filter,
            snaplen: wanted.snaplen.unwrap_or(u32::MAX),
            buffer: buffer as usize,
        };
        match self.observe(&place, points, &settings) {
            Ok(taps) => self.captures.start(taps, wanted, share),
            Err(Error::Config(mistakes)) => refused(mistakes.join("; ")),
            Err(error) => refused(error.to_string()),
        }
    }
}

impl Inner {
    /// Where taps go. Of several places, those that can be looked at.
    fn to_observe(&self, place: &Place, points: &[Point]) -> Result<Vec<(LaneId, Point)>> {
        let mut chosen = self.places(place, points);
        if chosen.is_empty() {
            return Err(Error::Config(vec![self.no_place(place)]));
        }
        // What several queues carried, one program carries in the kernel.
        chosen.retain(|(lane, _)| self.lanes[*lane].queue == 0 || !self.in_kernel(*lane));
        let (unseen, seen): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|(lane, _)| self.is_closed(*lane) || self.is_out_of_sight(*lane));
        match (&unseen[..], &seen[..]) {
            ([(lane, _), ..], []) => Err(Error::Config(vec![self.not_observed(*lane)])),
            _ => Ok(seen),
        }
    }

    fn places(&self, place: &Place, points: &[Point]) -> Vec<(LaneId, Point)> {
        let name = |id: usize| self.ports[id].name.to_string();
        let wants = |lane: &LaneInfo, point: Point| match (place, point) {
            (Place::Everywhere, _) => true,
            (Place::Port(port), Point::Before) => name(lane.rx) == *port,
            (Place::Port(port), Point::After) => name(lane.tx) == *port,
            (Place::Lane(wanted), _) => {
                let direction = format!("{}>{}", name(lane.rx), name(lane.tx));
                direction == *wanted || lane.name == *wanted
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
            None => Fate::Removed,
            Some(pair) if pair.down => Fate::Closed,
            Some(_) => Fate::Carried,
        }
    }

    /// Whether frames of a lane pass where no socket can look on.
    fn is_out_of_sight(&self, lane: LaneId) -> bool {
        let mut pairs = (0..self.pairs.len()).filter(|&pair| self.is_at_xdp(pair));
        pairs.any(|pair| self.pairs[pair].lanes.contains(&lane))
    }

    fn not_observed(&self, lane: LaneId) -> String {
        if self.is_closed(lane) {
            let [rx, tx] = [Point::Before, Point::After].map(|point| self.port_at(lane, point));
            return format!(
                "{} is closed: open its pair first (l2relay set --up {},{})",
                self.lanes[lane].name.clone(),
                rx.name,
                tx.name
            );
        }
        format!(
            "{} is carried at XDP, before any socket sees a frame: use --kernel-hook tc, or move the pair (l2relay set --carry)",
            self.lanes[lane].name.clone()
        )
    }

    /// The port that a tap of a lane is at.
    fn port_at(&self, lane: LaneId, point: Point) -> &Port {
        let lane = &self.lanes[lane];
        &self.ports[match point {
            Point::Before => lane.rx,
            Point::After => lane.tx,
        }]
    }

    /// Opens a socket that sees what a lane would.
    fn look_on(
        &self,
        lane: LaneId,
        point: Point,
        filter: Option<&Program>,
    ) -> Result<packet::PacketRx> {
        let port = self.port_at(lane, point);
        let open = || packet::watch(&port.interface, point, filter);
        netns::within(port.name.netns.as_deref(), open).map_err(|error| {
            Error::system("enter the namespace of", port.name.to_string(), error, "")
        })?
    }

    /// After a pair was opened anew in the kernel: whoever looks on does so at the interfaces that there are now.
    pub(super) fn look_on_again(&mut self, pair: usize) {
        let lanes = &self.pairs[pair].lanes;
        let ours = self.looking.iter().filter(|one| lanes.contains(&one.lane));
        for Looking {
            lane,
            point,
            filter,
            tap,
        } in ours
        {
            match self.look_on(*lane, *point, filter.as_ref()) {
                Ok(rx) => tap.follow(rx),
                Err(error) => tracing::warn!("a capture sees nothing more: {error}"),
            }
        }
    }

    /// Ends what looks on at a pair: the kernel does not carry it any more.
    pub(super) fn look_away(&mut self, pair: usize) {
        let lanes = &self.pairs[pair].lanes;
        self.looking.retain(|one| !lanes.contains(&one.lane));
    }

    fn no_place(&self, place: &Place) -> String {
        let ports = self.ports.iter().map(|(_, port)| port.name.to_string());
        let (kind, wanted, known): (_, _, Vec<String>) = match place {
            Place::Port(name) => ("port", name.as_str(), ports.collect()),
            Place::Lane(name) => {
                let lanes = self.lanes.iter().map(|(_, lane)| lane.name.clone());
                ("lane", name.as_str(), lanes.collect())
            }
            Place::Everywhere => ("lane", "at all", Vec::new()),
        };
        format!("no {kind} {wanted}: there are {}", known.join(", "))
    }
}
