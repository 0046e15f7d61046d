//! What a relay says of itself: its counters, brought up to date before, and its lines at the start.
//!
//! Called by the owner of the relay, for requests, and by readers in other threads.

use std::time::{Duration, Instant};

use super::{
    Inner,
    port::{LaneInfo, Pair, Port},
};
use crate::{
    check::quota::quota,
    config::KernelHook,
    join::Pages,
    snapshot::{LaneSnapshot, PortState, Snapshot, WorkerSnapshot},
    stage::link::LinkHandle,
    worker::Worker,
};

/// How long a worker may take to publish its counters: one that takes longer does not turn.
const REFRESH_MAX: Duration = Duration::from_secs(1);
/// Counters this fresh are not asked for again: whoever asks very often does not disturb the workers.
const FRESH: Duration = Duration::from_millis(5);

impl Inner {
    /// Has all workers publish their counters, unless they just did. Whether all have.
    pub(super) fn refresh(&mut self) -> bool {
        self.refresh_beside(|_| ())
    }

    /// The same, and does something else while they do.
    fn refresh_beside(&mut self, other: impl FnOnce(&mut Self)) -> bool {
        if self.refreshed.is_some_and(|then| then.elapsed() < FRESH) {
            other(self);
            return true;
        }
        self.refresh_kernel();
        let waits: Vec<_> = self.workers.iter().map(Worker::refresh).collect();
        let deadline = Instant::now() + REFRESH_MAX;
        other(self);
        let all = waits
            .iter()
            .all(|wait| wait.recv_deadline(deadline).is_ok());
        self.refreshed = all.then(Instant::now);
        all
    }

    /// Has everything counted from 0 again.
    pub(super) fn reset(&mut self) {
        self.counted_from = Instant::now();
        for (_, lane) in self.lanes.iter_mut() {
            lane.base = lane.tally().baseline();
            lane.link_base = lane.link.as_ref().map(LinkHandle::snapshot);
        }
        for (_, port) in self.ports.iter_mut() {
            port.drops.reset();
        }
        self.activity_base = self.workers.iter().map(Worker::activity).collect();
    }

    pub(super) fn snapshot(&mut self, last: bool) -> Snapshot {
        self.refresh_beside(Self::refresh_drops);
        self.refresh_vanished();
        let port = |id: usize| self.ports[id].shown.clone();
        let mut ports = Vec::with_capacity(2 * self.pairs.len());
        let shown = |port: &Port| (port.shown.clone(), port.state(), port.drops.total());
        ports.extend(self.ports.iter().map(|(_, port)| shown(port)));
        let lane = |(_, lane): (usize, &LaneInfo)| {
            let mut snapshot = LaneSnapshot::new(
                lane.name.clone(),
                port(lane.rx),
                port(lane.tx),
                lane.tally().since(&lane.base),
                lane.counters.levels(),
            );
            let link = lane.link.as_ref().map(LinkHandle::snapshot);
            snapshot.link = link.map(|link| match &lane.link_base {
                Some(base) => link.since(base),
                None => link,
            });
            snapshot
        };
        // As many as there are: to move them while their memory grows costs as much as to make them.
        let mut lanes = Vec::with_capacity(self.pairs.iter().map(|pair| pair.lanes.len()).sum());
        lanes.extend(self.lanes.iter().map(lane));
        let worker = |(at, worker): (usize, &Worker)| {
            let core = self.config.cores.get(at).copied();
            let base = self.activity_base.get(at).copied().unwrap_or_default();
            WorkerSnapshot::new(core, worker.activity().since(&base))
        };
        let now = Instant::now();
        Snapshot::new(
            [self.epoch, self.counted_from].map(|since| now.duration_since(since)),
            last,
            ports,
            lanes,
            self.workers.iter().enumerate().map(worker).collect(),
        )
    }

    pub(super) fn describe(&self) -> Vec<String> {
        let state = |id: usize| {
            let port = &self.ports[id];
            let waits = if port.state() == PortState::Up {
                ""
            } else {
                ": waiting for it"
            };
            format!(
                "{} ({}, mtu {}{waits})",
                port.name,
                port.state(),
                port.interface.mtu
            )
        };
        let mut lines: Vec<String> = self
            .pairs
            .iter()
            .map(|pair| match pair.ports {
                [a, b] if a == b => format!("hairpin {}, {}", state(a), pair.how),
                [a, b] => format!("pair {} <-> {}, {}", state(a), state(b), pair.how),
            })
            .collect();
        for (at, core) in self.config.cores.iter().enumerate() {
            let names: Vec<String> = self
                .lanes
                .iter()
                .filter(|(id, lane)| lane.worker == at && !self.in_kernel(*id))
                .map(|(_, lane)| lane.name.clone())
                .collect();
            lines.push(format!(
                "core {core}: {}",
                if names.is_empty() {
                    "no lane".into()
                } else {
                    names.join(" ")
                }
            ));
        }
        lines.extend(self.idle_options());
        for (_, lane) in self.lanes.iter() {
            let Some(link) = lane.link.as_ref().map(LinkHandle::snapshot) else {
                continue;
            };
            let (name, words, seed) = (lane.name.clone(), link.settings, link.seed);
            lines.push(format!("link {name}: {words} (its seed is {seed})"));
        }
        if self.pages != Pages::default() {
            lines.push(self.pages.describe(self.config.huge_pages));
        }
        if let Some(quota) = quota().filter(|quota| quota.cpus() < self.workers.len() as f64 + 0.5)
        {
            lines.push(format!(
                "CPU quota of {:.2} for {} workers: a worker that spins is throttled when it is used up; use --idle adaptive, \
                 or raise it (docker run --cpus, cpu.max)",
                quota.cpus(),
                self.workers.len()
            ));
        }
        lines
    }

    /// Options that say nothing about any pair as it is carried now.
    fn idle_options(&self) -> Vec<String> {
        let kernel = |pair: &Pair| pair.kernel.is_some();
        let mut lines = Vec::new();
        let hook = self.config.kernel_hook;
        if hook != KernelHook::default() && !self.pairs.iter().any(kernel) {
            lines.push(format!(
                "--kernel-hook {hook}: no pair is carried by the kernel now (--backend kernel; l2relay set --carry A,B=kernel)"
            ));
        }
        let queues = self.config.queues;
        if queues > 1 && !self.pairs.is_empty() && self.pairs.iter().all(kernel) {
            lines.push(format!(
                "--queues {queues}: the kernel carries every pair now, on the CPUs where frames arrive"
            ));
        }
        lines
    }
}
