//! The composition root: opens ports, maps memory, builds lanes, starts and stops workers.
//!
//! ```no_run
//! use l2relay::{config::Config, relay::Relay};
//!
//! # fn main() -> l2relay::error::Result<()> {
//! let ports = ["r0".parse().unwrap(), "r1".parse().unwrap()];
//! let relay = Relay::start(Config { pairs: vec![ports], ..Config::default() })?;
//! std::thread::sleep(std::time::Duration::from_secs(10));
//! print!("{}", relay.stop());
//! # Ok(())
//! # }
//! ```

mod answer;
mod change;
mod links;
pub mod observe;
mod slots;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    activity::Activity,
    capture::Captures,
    check::quota::quota,
    config::{Config, MacMode, PortName},
    control::links::LinkThread,
    error::{Error, Result},
    interface::Interface,
    join::{self, Halves, Joined, Pages},
    lane::Lane,
    port::Link,
    snapshot::{LaneSnapshot, PortState, Snapshot, WorkerSnapshot},
    stage::{
        Stage,
        filter::{StormGuard, UnicastOnly},
        link::Delay,
        mac::Rewrite,
    },
    stats::{Counters, Tally},
    worker::{LaneId, Worker},
};

/// How long to wait before a pair that could not be opened is tried again: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a worker may take to publish its counters: one that takes longer does not turn.
const REFRESH_MAX: Duration = Duration::from_secs(1);
/// Counters this fresh are not asked for again: whoever asks very often does not disturb the workers.
const FRESH: Duration = Duration::from_millis(5);

use slots::Slots;

/// A running relay. Dropping it stops it.
pub struct Relay {
    inner: Arc<Mutex<Inner>>,
    /// Follows the links of all ports. Ends before the workers do.
    watch: Option<LinkThread>,
    captures: Captures,
}

/// What the control thread and the owner of the relay share.
pub(crate) struct Inner {
    config: Config,
    ports: Slots<Port>,
    pairs: Vec<Pair>,
    lanes: Slots<LaneInfo>,
    workers: Vec<Worker>,
    /// What the workers had done when counting began anew.
    activity_base: Vec<Activity>,
    /// What kind of pages frames lie on.
    pages: Pages,
    epoch: Instant,
    /// When counting began: at the start, or anew.
    counted_from: Instant,
    /// It is about to end.
    stopping: bool,
    /// When all workers had last published everything.
    refreshed: Option<Instant>,
}

struct Port {
    name: PortName,
    interface: Interface,
    link: Arc<Link>,
    gone: bool,
    /// We have set it down, because the other port of its pair has lost its link.
    held_down: bool,
    /// We have just set it up again: until then it need not have a carrier.
    settles: Option<Instant>,
}

/// Two ports that are joined, by their ids, and the lanes between them.
struct Pair {
    ports: [usize; 2],
    lanes: Vec<LaneId>,
    /// By what it is carried, in words.
    how: String,
    /// Closed by order.
    down: bool,
    /// Why it could not be opened again, and when to try next.
    trouble: Option<String>,
    retry: Option<Retry>,
}

/// When to try again, and how long to wait if that fails too.
struct Retry {
    at: Instant,
    wait: Duration,
}

struct LaneInfo {
    rx: usize,
    tx: usize,
    queue: usize,
    worker: usize,
    counters: Arc<Counters>,
    /// What it had counted when counting began anew.
    base: Tally,
}

impl Relay {
    /// Checks the settings against the machine, opens the ports and starts the workers.
    ///
    /// # Errors
    /// [`Error::Config`] with every mistake at once; [`Error::System`] where the kernel refuses something. Nothing is
    /// left behind.
    pub fn start(config: Config) -> Result<Self> {
        let interfaces = config.resolve(&[]).map_err(Error::Config)?;
        let names = config.ports().into_iter().cloned();
        let interfaces: Vec<(PortName, Interface)> = names.zip(interfaces).collect();
        let epoch = Instant::now();
        let mut inner = Inner {
            ports: Slots::new(),
            pairs: Vec::new(),
            lanes: Slots::new(),
            workers: Vec::new(),
            activity_base: Vec::new(),
            pages: Pages::default(),
            epoch,
            counted_from: epoch,
            stopping: false,
            refreshed: None,
            config,
        };
        inner.workers = inner.make_workers()?;
        inner.join_ports(&interfaces)?;
        let inner = Arc::new(Mutex::new(inner));
        // It begins with the state there is then: no change is missed.
        let watch = Some(LinkThread::start(Arc::clone(&inner))?);
        let captures = Captures::default();
        Ok(Self {
            inner,
            watch,
            captures,
        })
    }

    /// The counters now. Those of the kernel are asked for, so it costs a system call a lane.
    pub fn snapshot(&self) -> Snapshot {
        lock(&self.inner).snapshot(false)
    }

    /// Whether every worker turns.
    pub fn is_live(&self) -> bool {
        lock(&self.inner).refresh()
    }

    /// Whether frames lie on huge pages, which back end carries each pair, and the like: a line each.
    pub fn describe(&self) -> Vec<String> {
        lock(&self.inner).describe()
    }

    /// Stops: takes in nothing more, sends what is held, and counts for the last time.
    pub fn stop(mut self) -> Snapshot {
        self.shut_down();
        lock(&self.inner).snapshot(true)
    }

    fn shut_down(&mut self) {
        if let Some(watch) = self.watch.take() {
            lock(&self.inner).stopping = true;
            watch.stop();
            self.captures.stop();
            let mut inner = lock(&self.inner);
            inner.propagate();
            inner.stop_workers();
            drop(inner);
            self.captures.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A panic of another thread must not take the statistics with it.
pub(crate) fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    fn new(name: PortName, interface: Interface) -> Self {
        let link = Arc::new(Link::new(interface.up && interface.carrier, interface.mtu));
        Self {
            name,
            interface,
            link,
            gone: false,
            held_down: false,
            settles: None,
        }
    }

    fn state(&self) -> PortState {
        match (self.gone, self.link.is_up()) {
            (true, _) => PortState::Gone,
            (false, true) => PortState::Up,
            (false, false) => PortState::Down,
        }
    }

    /// Takes over what the kernel says of the interface now.
    fn update(&mut self, interface: Interface) {
        self.link
            .set(interface.up && interface.carrier, interface.mtu);
        self.gone = false;
        self.interface = interface;
    }
}

impl Inner {
    fn make_workers(&self) -> Result<Vec<Worker>> {
        let cores: Vec<Option<usize>> = match &self.config.cores[..] {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let start = |(at, core)| {
            let name = format!("l2relay-{at}");
            Worker::start(name, core, self.config.idle, self.epoch)
        };
        cores.into_iter().enumerate().map(start).collect()
    }

    /// Builds every lane and gives it to a worker.
    fn join_ports(&mut self, interfaces: &[(PortName, Interface)]) -> Result<()> {
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

    fn add_ports(
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

    /// Opens a pair and builds its lanes.
    fn open_lanes(&mut self, ports: [usize; 2]) -> Result<Vec<(LaneId, Box<Lane>)>> {
        let Joined { halves, how, pages } = self.open_pair(ports)?;
        self.pages.add(pages);
        let mut built = Vec::new();
        for halves in halves {
            let Halves {
                from, to, queue, ..
            } = halves;
            let stages = self.stages(from, to);
            let lane = Lane::new(halves.rx, stages, halves.tx, halves.pool);
            let info = LaneInfo {
                rx: from,
                tx: to,
                queue,
                worker: self.idlest_worker(),
                counters: Arc::clone(lane.counters()),
                base: Tally::default(),
            };
            built.push((self.lanes.insert(info), Box::new(lane)));
        }
        self.pairs.push(Pair {
            ports,
            lanes: built.iter().map(|(id, _)| *id).collect(),
            how,
            down: false,
            trouble: None,
            retry: None,
        });
        Ok(built)
    }

    /// The worker with the fewest lanes.
    fn idlest_worker(&self) -> usize {
        let load = |worker: &usize| {
            let lanes = self.lanes.iter();
            lanes.filter(|(_, lane)| lane.worker == *worker).count()
        };
        (0..self.workers.len()).min_by_key(load).unwrap_or_default()
    }

    /// Opens both ports of a pair, or the one of a hairpin.
    fn open_pair(&self, ports: [usize; 2]) -> Result<Joined> {
        let mut ids = ports.to_vec();
        ids.dedup();
        let ends: Vec<join::End> = ids
            .into_iter()
            .map(|id| join::End {
                id,
                name: &self.ports[id].name,
                interface: &self.ports[id].interface,
                link: &self.ports[id].link,
            })
            .collect();
        join::join(&ends, &self.config)
    }

    /// Opens a pair again: after one of its interfaces was created anew, or with other settings. One that is to be down, or has
    /// no interface, is closed. Its lanes keep their counts.
    fn reopen(&mut self, pair: usize) {
        let (ports, ids) = (self.pairs[pair].ports, self.pairs[pair].lanes.clone());
        // Taken away first: while both the old and the new sockets receive, frames would be counted twice. And let go of
        // everything: a queue of the port that is left can't be bound again before.
        let taken = ids.iter().flat_map(|&id| self.worker(id).remove(vec![id]));
        let mut lanes: Vec<_> = taken.collect();
        lanes.iter_mut().for_each(|(_, lane)| lane.vacate());
        let closed = self.pairs[pair].down || ports.iter().any(|&id| self.ports[id].gone);
        let opened = (!closed).then(|| self.open_pair(ports));
        let names = self.pair_words(pair);
        let state = &mut self.pairs[pair];
        let wait = state.retry.take().map_or(RETRY_MIN, |retry| retry.wait);
        let trouble = state.trouble.take();
        match opened {
            None => {}
            Some(Ok(Joined { halves, how, .. })) => {
                for new in halves {
                    let lane = lanes.iter_mut().find(|(id, _)| {
                        let old = &self.lanes[*id];
                        (old.rx, old.tx, old.queue) == (new.from, new.to, new.queue)
                    });
                    if let Some((_, lane)) = lane {
                        lane.renew(new.rx, self.stages(new.from, new.to), new.tx, new.pool);
                    }
                }
                tracing::info!("{names} is open again: {how}");
                self.pairs[pair].how = how;
            }
            Some(Err(error)) => {
                let error = format!("{names} can't be opened: {error}");
                if trouble.as_ref() != Some(&error) {
                    tracing::error!("{error}");
                }
                let state = &mut self.pairs[pair];
                state.trouble = Some(error);
                let (at, wait) = (Instant::now() + wait, (wait * 2).min(RETRY_MAX));
                state.retry = Some(Retry { at, wait });
            }
        }
        lanes
            .into_iter()
            .for_each(|(id, lane)| self.worker(id).add(id, lane));
    }

    fn worker(&self, lane: LaneId) -> &Worker {
        &self.workers[self.lanes[lane].worker]
    }

    /// What happens to frames of a lane.
    fn stages(&self, rx: usize, tx: usize) -> Vec<Box<dyn Stage>> {
        let mut stages = self.edits(rx, tx);
        let (from, to) = (&self.ports[rx].name, &self.ports[tx].name);
        if let Some(link) = self.config.link(from, to) {
            stages.push(Box::new(Delay::new(link.delay)));
        }
        stages
    }

    /// Of that, what holds no frames.
    fn edits(&self, rx: usize, tx: usize) -> Vec<Box<dyn Stage>> {
        let to = &self.ports[tx];
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if rx == tx && self.config.hairpin_guard {
            stages.push(Box::new(UnicastOnly));
        }
        if let Some(pps) = self.config.storm_guard_pps {
            stages.push(Box::new(StormGuard::new(pps)));
        }
        match self.config.mac {
            MacMode::Keep => {}
            MacMode::Swap => stages.push(Box::new(Rewrite::Swap)),
            MacMode::Update => {
                let given = self
                    .config
                    .dst_mac
                    .iter()
                    .find(|(port, _)| *port == to.name);
                let dst = given.map_or_else(|| Rewrite::l2fwd_dst(tx as u8), |(_, mac)| *mac);
                stages.push(Box::new(Rewrite::Update {
                    src: to.interface.mac,
                    dst,
                }));
            }
        }
        stages
    }

    /// Has all workers publish their counters, unless they just did. Whether all have.
    fn refresh(&mut self) -> bool {
        if self.refreshed.is_some_and(|then| then.elapsed() < FRESH) {
            return true;
        }
        let waits: Vec<_> = self.workers.iter().map(Worker::refresh).collect();
        let deadline = Instant::now() + REFRESH_MAX;
        let all = waits
            .iter()
            .all(|wait| wait.recv_deadline(deadline).is_ok());
        self.refreshed = all.then(Instant::now);
        all
    }

    /// Has everything counted from 0 again.
    fn reset(&mut self) {
        self.counted_from = Instant::now();
        for (_, lane) in self.lanes.iter_mut() {
            lane.base = lane.counters.read().baseline();
        }
        self.activity_base = self.workers.iter().map(Worker::activity).collect();
    }

    fn snapshot(&mut self, last: bool) -> Snapshot {
        self.refresh();
        let port = |id: usize| self.ports[id].name.to_string();
        let ports = self
            .ports
            .iter()
            .map(|(_, port)| (port.name.to_string(), port.state()))
            .collect();
        let lane = |(_, lane): (usize, &LaneInfo)| {
            LaneSnapshot::new(
                self.lane_name(lane),
                port(lane.rx),
                port(lane.tx),
                lane.counters.read().since(&lane.base),
                lane.counters.levels(),
            )
        };
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
            self.lanes.iter().map(lane).collect(),
            self.workers.iter().enumerate().map(worker).collect(),
        )
    }

    fn describe(&self) -> Vec<String> {
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
                .filter(|(_, lane)| lane.worker == at)
                .map(|(_, lane)| self.lane_name(lane))
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
        lines.push(self.pages.describe(self.config.huge_pages));
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

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn stop_workers(&mut self) {
        self.workers.drain(..).for_each(Worker::stop);
    }

    fn lane_name(&self, lane: &LaneInfo) -> String {
        let [rx, tx] = [lane.rx, lane.tx].map(|id| &self.ports[id].name);
        if lane.queue == 0 {
            format!("{rx}>{tx}")
        } else {
            format!("{rx}>{tx}#{}", lane.queue)
        }
    }
}
