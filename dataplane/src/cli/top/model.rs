//! What `top` shows: the last snapshot, the rates of the last minutes, and what the user chose. Knows no terminal.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use crate::{
    snapshot::{LaneSnapshot, Snapshot},
    stage::link::LinkSnapshot,
};

/// Points of a plot that are kept: wider than any terminal.
const POINTS: usize = 512;
/// Lines besides those of ports, lanes and drops: title, two heads, two gaps, keys.
const FRAME: usize = 6;

/// What comes from the relay.
pub(super) enum News {
    Snapshot(Box<Snapshot>),
    /// It did not answer, and why.
    Silent(String),
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Pause,
    Sort,
    Anew,
    /// By so many lanes.
    Scroll(isize),
}

/// The order of the lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As they were configured.
    #[default]
    Pairs,
    /// By name.
    Name,
    /// What sends most first.
    Rate,
    /// What loses most first.
    Losses,
}

/// The view.
pub(super) struct Top {
    pub(super) relay: String,
    pub(super) every: Duration,
    pub(super) utf8: bool,
    pub(super) now: Option<Snapshot>,
    pub(super) order: Order,
    pub(super) paused: bool,
    /// The first lane shown.
    pub(super) first: usize,
    /// Why there is nothing new.
    pub(super) trouble: Option<String>,
    lanes: HashMap<String, History>,
    height: u16,
}

/// What happened to a lane since it is watched.
#[derive(Default)]
pub(super) struct History {
    /// The newest first.
    pub(super) points: VecDeque<Point>,
    /// What it had lost when the marks were last taken away.
    seen: u64,
}

/// One interval of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// Packets received a second.
    pub(super) rx_pps: f64,
    /// Packets lost a second.
    pub(super) lost_pps: f64,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Pairs => Self::Name,
            Self::Name => Self::Rate,
            Self::Rate => Self::Losses,
            Self::Losses => Self::Pairs,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Name => "name",
            Self::Rate => "rate",
            Self::Losses => "lost",
        }
    }
}

impl Top {
    pub(super) fn new(relay: &str, every: Duration, utf8: bool) -> Self {
        Self {
            relay: relay.to_owned(),
            every,
            utf8,
            now: None,
            order: Order::default(),
            paused: false,
            first: 0,
            trouble: None,
            lanes: HashMap::new(),
            height: 24,
        }
    }

    /// Takes over what came. While paused, nothing: the first snapshot afterwards covers the time between.
    pub(super) fn update(&mut self, news: News) {
        if self.paused {
            return;
        }
        let snapshot = match news {
            News::Snapshot(snapshot) => *snapshot,
            News::Silent(why) => {
                self.trouble = Some(why);
                return;
            }
        };
        self.trouble = None;
        let before = self.now.take();
        let apart = before.map(|before| (snapshot.uptime_s - before.uptime_s, before));
        // Another relay of that name, or one that counts anew, has nothing to do with what was before.
        let comparable = apart.filter(|(seconds, _)| (0.0..=snapshot.counted_s).contains(seconds));
        let Some((seconds, before)) = comparable else {
            self.lanes.clear();
            self.mark_seen(&snapshot);
            self.now = Some(snapshot);
            return;
        };
        let snapshot = snapshot.since(&before);
        let lost_before: HashMap<&str, u64> = before
            .lanes
            .iter()
            .map(|lane| (lane.name.as_str(), lost(lane)))
            .collect();
        for lane in &snapshot.lanes {
            let new = lost(lane)
                .saturating_sub(lost_before.get(lane.name.as_str()).copied().unwrap_or(0));
            let point = Point {
                rx_pps: lane.rates.rx_pps,
                lost_pps: if seconds > 0.0 {
                    new as f64 / seconds
                } else {
                    0.0
                },
            };
            let history = self.lanes.entry(lane.name.clone()).or_default();
            history.points.push_front(point);
            history.points.truncate(POINTS);
        }
        self.lanes
            .retain(|name, _| snapshot.lanes.iter().any(|lane| lane.name == *name));
        self.now = Some(snapshot);
    }

    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::Pause => self.paused = !self.paused,
            Key::Sort => self.order = self.order.next(),
            Key::Anew => {
                self.lanes.clear();
                if let Some(now) = self.now.take() {
                    self.mark_seen(&now);
                    self.now = Some(now);
                }
            }
            Key::Scroll(lanes) => {
                let all = self.now.as_ref().map_or(0, |now| now.lanes.len());
                let last = all.saturating_sub(self.room().1);
                self.first = self.first.saturating_add_signed(lanes).min(last);
            }
        }
    }

    /// The terminal has that many lines now.
    pub(super) fn resize(&mut self, height: u16) {
        self.height = height;
        self.press(Key::Scroll(0));
    }

    /// The lines it takes to show everything.
    pub(super) fn height(&self) -> u16 {
        let count = |now: &Snapshot| now.ports.len() + now.lanes.len() + self.losing().len().max(1);
        let lines = self.now.as_ref().map_or(0, count) + FRAME;
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    /// Lines for ports, lanes, and what was lost or late, in the height there is.
    pub(super) fn room(&self) -> (usize, usize, usize) {
        let Some(now) = &self.now else {
            return (0, 0, 0);
        };
        let lines = usize::from(self.height).saturating_sub(FRAME);
        let told = self.losing().len().max(1) + self.links().count();
        let all = (now.ports.len(), now.lanes.len(), told);
        if all.0 + all.1 + all.2 <= lines {
            return all;
        }
        // Lanes matter most; losses more than ports.
        let losses = told.clamp(1, (lines / 4).max(1));
        let ports = now.ports.len().min((lines / 3).max(1));
        let lanes = lines.saturating_sub(losses + ports).min(now.lanes.len());
        let left = lines.saturating_sub(ports + lanes);
        (ports, lanes, left.min(told))
    }

    /// The lanes in their order.
    pub(super) fn lanes(&self) -> Vec<&LaneSnapshot> {
        let mut lanes: Vec<&LaneSnapshot> = self.now.iter().flat_map(|now| &now.lanes).collect();
        let loss = |lane: &LaneSnapshot| (self.newest(&lane.name).lost_pps, lost(lane) as f64);
        match self.order {
            Order::Pairs => {}
            Order::Name => lanes.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Rate => lanes.sort_by(|a, b| b.rates.tx_pps.total_cmp(&a.rates.tx_pps)),
            Order::Losses => lanes.sort_by(|a, b| {
                let ((now_a, all_a), (now_b, all_b)) = (loss(a), loss(b));
                now_b.total_cmp(&now_a).then(all_b.total_cmp(&all_a))
            }),
        }
        lanes
    }

    /// The lanes that have lost something, those that are losing now first.
    pub(super) fn losing(&self) -> Vec<&LaneSnapshot> {
        let lanes = self.now.iter().flat_map(|now| &now.lanes);
        let mut losing: Vec<&LaneSnapshot> = lanes.filter(|lane| lost(lane) > 0).collect();
        let rate = |lane: &LaneSnapshot| self.newest(&lane.name).lost_pps;
        losing.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
        losing
    }

    /// The lanes with an emulated link, and what it says.
    pub(super) fn links(&self) -> impl Iterator<Item = (&LaneSnapshot, &LinkSnapshot)> {
        let lanes = self.now.iter().flat_map(|now| &now.lanes);
        lanes.filter_map(|lane| Some((lane, lane.link.as_ref()?)))
    }

    pub(super) fn newest(&self, lane: &str) -> Point {
        let history = self.lanes.get(lane);
        history
            .and_then(|history| history.points.front().copied())
            .unwrap_or_default()
    }

    pub(super) fn points(&self, lane: &str) -> impl Iterator<Item = Point> {
        self.lanes
            .get(lane)
            .into_iter()
            .flat_map(|history| history.points.iter().copied())
    }

    /// Whether a lane has lost something since it is watched, or since the marks were taken away.
    pub(super) fn is_marked(&self, lane: &LaneSnapshot) -> bool {
        let seen = self.lanes.get(&lane.name).map_or(0, |history| history.seen);
        lost(lane) > seen
    }

    fn mark_seen(&mut self, snapshot: &Snapshot) {
        for lane in &snapshot.lanes {
            self.lanes.entry(lane.name.clone()).or_default().seen = lost(lane);
        }
    }
}

/// Packets that arrived and did not get through, for whatever reason.
pub(super) fn lost(lane: &LaneSnapshot) -> u64 {
    lane.dropped_total() + lane.kernel_drops
}
