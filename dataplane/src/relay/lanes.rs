//! Opening and building lanes, when a relay starts, when pairs come, and again when an interface or the settings have changed.
//!
//! Called by all parts of [`relay`](super) that open a pair or close one. A pair that can't be opened again is tried later, and
//! its lanes keep their counts.

use std::{
    mem,
    os::fd::BorrowedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    Inner,
    port::{LaneInfo, Pair, Port, Retry},
    slots::Slots,
};
use crate::{
    coalesce::{Coalescer, Kinds},
    config::{Backend, Config, MacMode, PortName},
    error::Result,
    interface::Interface,
    join::{self, Halves, Joined},
    lane::Lane,
    memory::FramePool,
    port::{RxQueue, TxQueue, packet},
    stage::{
        Stage,
        filter::{StormGuard, UnicastOnly},
        link::{Link as LinkStage, LinkHandle},
        mac::Rewrite,
    },
    stats::Tally,
    worker::{LaneId, Worker},
};

/// How long to wait before a pair that could not be opened is tried again: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

impl Inner {
    /// Builds every lane and gives it to a worker.
    pub(super) fn join_ports(&mut self, interfaces: &[(PortName, Interface)]) -> Result<()> {
        // A port's id is its place among the ports as they are named.
        let names = self.config.pairs.clone();
        let ids: Vec<_> = names
            .iter()
            .map(|names| self.add_ports(names, interfaces))
            .collect();
        let mut built = Vec::new();
        for ports in ids {
            built.extend(self.open_lanes(ports)?);
        }
        for (id, lane) in built {
            self.worker(id).add(id, lane);
        }
        Ok(())
    }

    pub(super) fn add_ports(
        &mut self,
        names: &[PortName; 2],
        interfaces: &[(PortName, Interface)],
    ) -> [usize; 2] {
        let interface = |name| {
            let mut found = interfaces.iter().filter(|(of, _)| of == name);
            found.next().map_or_else(
                || unreachable!("all have been looked up"),
                |(_, interface)| interface.clone(),
            )
        };
        let [a, b] = names;
        let first = self.ports.insert(Port::new(a.clone(), interface(a)));
        if a == b {
            return [first; 2];
        }
        [first, self.ports.insert(Port::new(b.clone(), interface(b)))]
    }

    /// Opens a pair: gives it to the kernel, or builds its lanes.
    pub(super) fn open_lanes(&mut self, ports: [usize; 2]) -> Result<Vec<(LaneId, Box<Lane>)>> {
        let mut no_kernel = None;
        if self.wants_kernel(ports, &self.config) {
            match self.open_kernel(ports, &self.config, None) {
                Ok(opened) => {
                    self.pairs.push(Pair::new(ports, String::new()));
                    self.give_to_kernel(self.pairs.len() - 1, opened);
                    return Ok(Vec::new());
                }
                // Nobody asked for it, so do without.
                Err(error) if self.config.backend == Backend::Fastest => {
                    no_kernel = Some(error.to_string().replace("\n ", ";"));
                }
                Err(error) => return Err(error),
            }
        }
        let Joined {
            halves,
            mut how,
            pages,
        } = self.open_pair(ports, &self.config, &[])?;
        if let Some(reason) = no_kernel {
            how = format!("{how} (fastest: not the kernel: {reason})");
        }
        self.pages.add(pages);
        self.pairs.push(Pair::new(ports, how));
        Ok(self.build(self.pairs.len() - 1, halves))
    }

    /// Makes lanes of what was opened for a pair.
    pub(super) fn build(&mut self, pair: usize, halves: Vec<Halves>) -> Vec<(LaneId, Box<Lane>)> {
        let mut built = Vec::new();
        for mut halves in halves {
            let Halves {
                from, to, queue, ..
            } = halves;
            let gate = halves.gate.take().map(|gate| (from, gate));
            let lane = self.lane(halves, None);
            let id = self.lane_id(pair, from, to, queue);
            self.lanes[id].counters = Arc::clone(lane.counters());
            self.lanes[id].link = lane.links().pop();
            self.pairs[pair].gates.extend(gate);
            built.push((id, Box::new(lane)));
        }
        built
    }

    /// The lane of a pair from one port to another, which may be new.
    pub(super) fn lane_id(&mut self, pair: usize, rx: usize, tx: usize, queue: usize) -> LaneId {
        let mut known = self.pairs[pair].lanes.iter().copied();
        let same = |lane: &LaneInfo| (lane.rx, lane.tx, lane.queue) == (rx, tx, queue);
        if let Some(id) = known.find(|&id| same(&self.lanes[id])) {
            return id;
        }
        let id = self.lanes.insert(LaneInfo {
            name: name_of_lane(&self.ports, rx, tx, queue),
            rx,
            tx,
            queue,
            worker: self.worker_for(rx),
            counters: Arc::default(),
            link: None,
            before: Tally::default(),
            base: Tally::default(),
            link_base: None,
        });
        self.pairs[pair].lanes.push(id);
        id
    }

    /// The worker on the core that is named for the port, or else the one with the fewest lanes.
    fn worker_for(&self, port: usize) -> usize {
        let Config {
            cores, rx_cores, ..
        } = &self.config;
        let name = &self.ports[port].name;
        let named = rx_cores.iter().find(|(port, _)| port == name);
        let worker = named.and_then(|(_, core)| cores.iter().position(|other| other == core));
        if let Some(worker) = worker {
            return worker;
        }
        let load = |worker: &usize| {
            let lanes = self.lanes.iter();
            lanes.filter(|(_, lane)| lane.worker == *worker).count()
        };
        (0..self.workers.len()).min_by_key(load).unwrap_or_default()
    }

    /// Opens both ports of a pair, or the one of a hairpin. `gates`: programs that decide which frames packet sockets receive, by port.
    pub(super) fn open_pair(
        &self,
        ports: [usize; 2],
        config: &Config,
        gates: &[(usize, BorrowedFd<'_>)],
    ) -> Result<Joined> {
        let mut ids = ports.to_vec();
        ids.dedup();
        let gate = |id| gates.iter().find(|(port, _)| *port == id);
        let ends: Vec<join::End> = ids
            .into_iter()
            .map(|id| join::End {
                id,
                name: &self.ports[id].name,
                interface: &self.ports[id].interface,
                link: &self.ports[id].link,
                gate: gate(id).map(|(_, gate)| *gate),
            })
            .collect();
        join::join(&ends, config)
    }

    /// Opens a pair again: after one of its interfaces was created anew, or with other settings. One that is to be down, or has
    /// no interface, is closed. Its lanes keep their counts.
    pub(super) fn reopen(&mut self, pair: usize) {
        let ports = self.pairs[pair].ports;
        let closed = self.pairs[pair].down || ports.iter().any(|&id| self.ports[id].gone);
        let opened = match self.pairs[pair].kernel.is_some() {
            true => self.reopen_kernel(pair, closed),
            false => self.reopen_lanes(pair, closed),
        };
        let names = self.pair_words(pair);
        let state = &mut self.pairs[pair];
        let wait = state.retry.take().map_or(RETRY_MIN, |retry| retry.wait);
        let trouble = state.trouble.take();
        match opened {
            Ok(None) => {}
            Ok(Some(how)) => {
                tracing::info!("{names} is open again: {how}");
                state.how = how;
            }
            Err(error) => {
                let error = format!("{names} can't be opened: {error}");
                if trouble.as_ref() != Some(&error) {
                    tracing::error!("{error}");
                }
                state.trouble = Some(error);
                let (at, wait) = (Instant::now() + wait, (wait * 2).min(RETRY_MAX));
                state.retry = Some(Retry { at, wait });
            }
        }
    }

    /// Closes the lanes of a pair, and opens them unless it is to be closed. Returns by what it is carried.
    fn reopen_lanes(&mut self, pair: usize, closed: bool) -> Result<Option<String>> {
        let (ports, ids) = (self.pairs[pair].ports, self.pairs[pair].lanes.clone());
        // Taken away first: while both the old and the new sockets receive, frames would be counted twice. And let go of
        // everything: a queue of the port that is left can't be bound again before.
        let taken = ids.iter().flat_map(|&id| self.worker(id).remove(vec![id]));
        let mut lanes: Vec<_> = taken.collect();
        let gates = mem::take(&mut self.pairs[pair].gates);
        close(
            lanes.iter_mut().map(|(_, lane)| lane.vacate()),
            gates.into_iter(),
        );
        if self.pairs[pair].down {
            // Captures wait for an interface, but not for an order to open the pair: they are told.
            lanes.iter_mut().for_each(|(_, lane)| lane.remove_taps());
        }
        let opened = match closed {
            true => Ok(None),
            false => self
                .open_pair(ports, &self.pair_config(pair), &[])
                .map(Some),
        };
        let how = opened.map(|joined| {
            let Joined { halves, how, .. } = joined?;
            for mut new in halves {
                let gate = new.gate.take().map(|gate| (new.from, gate));
                self.pairs[pair].gates.extend(gate);
                let lane = lanes.iter_mut().find(|(id, _)| {
                    let old = &self.lanes[*id];
                    (old.rx, old.tx, old.queue) == (new.from, new.to, new.queue)
                });
                if let Some((id, lane)) = lane {
                    lane.renew(self.lane(new, self.lanes[*id].link.as_ref()));
                    self.lanes[*id].link = lane.links().pop();
                }
            }
            Some(how)
        });
        lanes
            .into_iter()
            .for_each(|(id, lane)| self.worker(id).add(id, lane));
        how
    }

    pub(super) fn worker(&self, lane: LaneId) -> &Worker {
        &self.workers[self.lanes[lane].worker]
    }

    /// A lane of these halves. `link`: the one that it had before.
    fn lane(&self, halves: Halves, link: Option<&LinkHandle>) -> Lane {
        let stages = self.stages(halves.from, halves.to, link);
        let lane = Lane::new(halves.rx, stages, halves.tx, halves.pool);
        if halves.kinds == Kinds::default() {
            return lane;
        }
        let link = Arc::clone(&self.ports[halves.to].link);
        lane.with_coalescer(Coalescer::new(halves.kinds, link))
    }

    /// What happens to frames of a lane.
    fn stages(&self, rx: usize, tx: usize, before: Option<&LinkHandle>) -> Vec<Box<dyn Stage>> {
        let mut stages = self.edits(rx, tx);
        let (from, to) = (&self.ports[rx].name, &self.ports[tx].name);
        if let Some(settings) = self.config.link_settings(from, to) {
            let name = format!("{from}>{to}");
            stages.push(Box::new(match before {
                Some(before) => LinkStage::resume(before, settings, &name),
                None => LinkStage::new(settings, &name),
            }));
        }
        stages
    }

    /// Of that, what holds no frames.
    pub(super) fn edits(&self, rx: usize, tx: usize) -> Vec<Box<dyn Stage>> {
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if rx == tx && self.config.hairpin_guard {
            stages.push(Box::new(UnicastOnly));
        }
        if let Some(pps) = self.config.storm_guard_pps {
            stages.push(Box::new(StormGuard::new(pps)));
        }
        if let Some(rewrite) = self.rewrite(tx) {
            stages.push(Box::new(rewrite));
        }
        stages
    }

    /// What becomes of the addresses of frames that leave by a port.
    pub(super) fn rewrite(&self, tx: usize) -> Option<Rewrite> {
        let to = &self.ports[tx];
        match self.config.mac {
            MacMode::Keep => None,
            MacMode::Swap => Some(Rewrite::Swap),
            MacMode::Update => {
                let mut given = self.config.dst_mac.iter();
                let given = given.find(|(port, _)| *port == to.name);
                Some(Rewrite::Update {
                    src: to.interface.mac,
                    dst: given.map_or_else(|| Rewrite::l2fwd_dst(tx as u8), |(_, mac)| *mac),
                })
            }
        }
    }
}

/// Closes what lanes had, side by side: for each packet socket the kernel waits until no CPU can still be in it (net/packet/af_packet.c,
/// packet_release: synchronize_net), which takes tens of milliseconds, however many wait. A gate is a second descriptor of such a socket,
/// and may be the last that is closed.
pub(super) fn close(
    queues: impl Iterator<Item = (Box<dyn RxQueue>, Box<dyn TxQueue>, FramePool)>,
    gates: impl Iterator<Item = (usize, packet::Gate)>,
) {
    // What lies in the pools is given back last: until then the kernel may use it.
    let mut pools = Vec::new();
    thread::scope(|scope| {
        for (rx, tx, pool) in queues {
            pools.push(pool);
            // Without a thread it is closed here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(rx));
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(tx));
        }
        for gate in gates {
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(gate));
        }
    });
}

pub(super) fn name_of_lane(ports: &Slots<Port>, rx: usize, tx: usize, queue: usize) -> String {
    let [rx, tx] = [rx, tx].map(|id| &ports[id].shown);
    match queue {
        0 => format!("{rx}>{tx}"),
        queue => format!("{rx}>{tx}#{queue}"),
    }
}
