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
mod carry;
mod change;
mod device;
mod emulation;
mod kernel;
mod links;
pub mod observe;
mod reader;
mod slots;
mod taken;

use std::{
    iter, mem,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    activity::Activity,
    capture::Captures,
    check::quota::quota,
    coalesce::{Coalescer, Kinds},
    config::{Backend, Config, KernelHook, MacMode, PortName},
    control::links::LinkThread,
    error::{Error, Result},
    interface::Interface,
    join::{self, Halves, Joined, Pages},
    lane::Lane,
    memory::FramePool,
    port::{
        Link, RxQueue, TxQueue,
        kernel::{End, takes_none},
        packet,
    },
    snapshot::{LaneSnapshot, PortState, Snapshot, WorkerSnapshot},
    stage::{
        Stage,
        filter::{StormGuard, UnicastOnly},
        link::{Link as LinkStage, LinkHandle, LinkSnapshot},
        mac::Rewrite,
    },
    stats::{Counters, Tally},
    worker::{LaneId, Worker},
};

pub use reader::Reader;

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
    /// Who looks on at ports of pairs that the kernel carries.
    looking: Vec<observe::Looking>,
    /// Where the interfaces of each namespace say what they drop.
    said: Vec<device::Said>,
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
    /// The name as it is shown: not made for each snapshot, only when it changes.
    shown: String,
    interface: Interface,
    link: Arc<Link>,
    gone: bool,
    /// Its interface was created anew and never up: its pair is opened when it is.
    unopened: bool,
    /// We have set it down, because the other port of its pair has lost its link.
    held_down: bool,
    /// We have just set it up again: until then it need not have a carrier.
    settles: Option<Instant>,
    drops: device::DeviceDrops,
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
    /// If the kernel carries it.
    kernel: Option<kernel::Kernel>,
    /// Where its packet sockets can be given a filter, and at which port.
    gates: Vec<(usize, packet::Gate)>,
    /// By what it is to be carried since it was moved.
    moved_to: Option<Backend>,
}

/// When to try again, and how long to wait if that fails too.
struct Retry {
    at: Instant,
    wait: Duration,
}

struct LaneInfo {
    /// As it is shown: not made for each snapshot, only when a port is renamed.
    name: String,
    rx: usize,
    tx: usize,
    queue: usize,
    worker: usize,
    counters: Arc<Counters>,
    /// What was counted by what carried it before.
    before: Tally,
    link: Option<LinkHandle>,
    /// What it and its link had counted when counting began anew.
    base: Tally,
    link_base: Option<LinkSnapshot>,
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
            looking: Vec::new(),
            said: Vec::new(),
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
        // What it reads is opened now: later there may be no descriptor left.
        inner.refresh_drops();
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
            let mut inner = lock(&self.inner);
            inner.propagate();
            inner.looking.clear();
            inner.close_kernel();
            inner.stop_workers();
            let gates = inner.pairs.iter_mut().flat_map(|pair| pair.gates.drain(..));
            close(iter::empty(), gates);
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

/// Closes what lanes had, side by side: for each packet socket the kernel waits until no CPU can still be in it (net/packet/af_packet.c,
/// packet_release: synchronize_net), which takes tens of milliseconds, however many wait. A gate is a second descriptor of such a socket,
/// and may be the last that is closed.
fn close(
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

/// A panic of another thread must not take the statistics with it.
pub(crate) fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    fn new(name: PortName, interface: Interface) -> Self {
        let link = Arc::new(Link::new(interface.up && interface.carrier, interface.mtu));
        let mut drops = device::DeviceDrops::default();
        drops.follow(&interface);
        Self {
            shown: name.to_string(),
            name,
            interface,
            link,
            gone: false,
            unopened: false,
            held_down: false,
            settles: None,
            drops,
        }
    }

    fn state(&self) -> PortState {
        match (self.gone, self.link.is_up()) {
            (true, _) => PortState::Gone,
            (false, true) => PortState::Up,
            (false, false) => PortState::Down,
        }
    }

    /// So many frames were sent by it, and never reached its driver.
    fn lose(&mut self, vanished: u64) {
        if vanished == 0 {
            return;
        }
        self.drops.add(vanished);
        let reason = takes_none(&self.end()).unwrap_or_else(|| "it was not up".into());
        tracing::warn!(
            "{}: {vanished} frames were redirected to it and lost: {reason}",
            self.name
        );
    }

    /// As the kernel's programs see it.
    fn end(&self) -> End<'_> {
        End {
            netns: self.name.netns.as_deref(),
            interface: &self.interface,
            up: self.state() == PortState::Up,
        }
    }

    /// Takes over what the kernel says of the interface now.
    fn update(&mut self, interface: Interface) {
        self.link
            .set(interface.up && interface.carrier, interface.mtu);
        if self.interface.index != interface.index {
            self.drops.follow(&interface);
        }
        self.gone = false;
        self.interface = interface;
    }
}

impl Pair {
    fn new(ports: [usize; 2], how: String) -> Self {
        Self {
            ports,
            lanes: Vec::new(),
            how,
            down: false,
            trouble: None,
            retry: None,
            kernel: None,
            gates: Vec::new(),
            moved_to: None,
        }
    }
}

impl LaneInfo {
    /// What was counted since the relay was started, whoever carried it.
    fn tally(&self) -> Tally {
        let mut tally = self.before;
        tally.add(&self.counters.read());
        tally
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

    /// Opens a pair: gives it to the kernel, or builds its lanes.
    fn open_lanes(&mut self, ports: [usize; 2]) -> Result<Vec<(LaneId, Box<Lane>)>> {
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
    fn build(&mut self, pair: usize, halves: Vec<Halves>) -> Vec<(LaneId, Box<Lane>)> {
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
    fn lane_id(&mut self, pair: usize, rx: usize, tx: usize, queue: usize) -> LaneId {
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
    fn open_pair(
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
    fn reopen(&mut self, pair: usize) {
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

    fn worker(&self, lane: LaneId) -> &Worker {
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
    fn edits(&self, rx: usize, tx: usize) -> Vec<Box<dyn Stage>> {
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
    fn rewrite(&self, tx: usize) -> Option<Rewrite> {
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

    /// Has all workers publish their counters, unless they just did. Whether all have.
    fn refresh(&mut self) -> bool {
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
    fn reset(&mut self) {
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

    fn snapshot(&mut self, last: bool) -> Snapshot {
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

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn stop_workers(&mut self) {
        Worker::stop(self.workers.drain(..));
    }
}

fn name_of_lane(ports: &Slots<Port>, rx: usize, tx: usize, queue: usize) -> String {
    let [rx, tx] = [rx, tx].map(|id| &ports[id].shown);
    match queue {
        0 => format!("{rx}>{tx}"),
        queue => format!("{rx}>{tx}#{queue}"),
    }
}
