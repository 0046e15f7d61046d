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
mod links;
pub mod observe;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    capture::Captures,
    check::quota::quota,
    config::{Config, MacMode, PortName},
    control::links::{LinkThread, LinkWatch},
    error::{Error, Result},
    interface::Interface,
    join::{self, Halves, Joined, Pages},
    lane::Lane,
    port::Link,
    snapshot::{LaneSnapshot, PortState, Snapshot},
    stage::{Stage, filter::UnicastOnly, link::Delay, mac::Rewrite},
    stats::{Counters, Tally},
    worker::{LaneId, Worker},
};

/// How long a worker may take to publish its counters: one that takes longer does not turn.
const REFRESH_MAX: Duration = Duration::from_secs(1);
/// Counters this fresh are not asked for again: whoever asks very often does not disturb the workers.
const FRESH: Duration = Duration::from_millis(5);

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
    ports: Vec<Port>,
    pairs: Vec<Pair>,
    lanes: Vec<LaneInfo>,
    workers: Vec<Worker>,
    /// What kind of pages frames lie on.
    pages: Pages,
    epoch: Instant,
    /// When counting began: at the start, or anew.
    counted_from: Instant,
    /// When all workers had last published everything.
    refreshed: Option<Instant>,
}

struct Port {
    name: PortName,
    interface: Interface,
    link: Arc<Link>,
    gone: bool,
}

/// Two ports that are joined, by their ids, and the lanes between them.
struct Pair {
    ports: [usize; 2],
    lanes: Vec<LaneId>,
    /// By what it is carried, in words.
    how: String,
}

struct LaneInfo {
    name: String,
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
        let interfaces = config.resolve().map_err(Error::Config)?;
        let ports = config
            .ports()
            .into_iter()
            .cloned()
            .zip(interfaces)
            .map(|(name, interface)| Port::new(name, interface));
        let ports: Vec<Port> = ports.collect();
        // Opened before the state is read again: no change is missed.
        let watch = LinkWatch::open(ports.iter().map(|port| port.name.netns.clone()))?;
        let epoch = Instant::now();
        let mut inner = Inner {
            ports,
            pairs: Vec::new(),
            lanes: Vec::new(),
            workers: Vec::new(),
            pages: Pages::default(),
            epoch,
            counted_from: epoch,
            refreshed: None,
            config,
        };
        inner.start_workers()?;
        inner.join_ports()?;
        let inner = Arc::new(Mutex::new(inner));
        let watch = Some(watch.start(Arc::clone(&inner))?);
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
            watch.stop();
            self.captures.stop();
            lock(&self.inner).stop_workers();
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
    fn start_workers(&mut self) -> Result<()> {
        let cores: Vec<Option<usize>> = match &self.config.cores[..] {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        for (at, core) in cores.into_iter().enumerate() {
            self.workers.push(Worker::start(
                format!("l2relay-{at}"),
                core,
                self.config.idle,
                self.epoch,
            )?);
        }
        Ok(())
    }

    /// Builds every lane and gives it to a worker.
    fn join_ports(&mut self) -> Result<()> {
        let ids: Vec<[usize; 2]> = self
            .config
            .pairs
            .iter()
            .map(|[a, b]| [self.port_id(a), self.port_id(b)])
            .collect();
        let mut built = Vec::new();
        for ports in ids {
            let Joined { halves, how, pages } = self.open_pair(ports)?;
            self.pages.add(pages);
            let mut pair = Pair {
                ports,
                lanes: Vec::new(),
                how,
            };
            for halves in halves {
                let Halves { from, to, .. } = halves;
                let stages = self.stages(from, to);
                let lane = Lane::new(halves.rx, stages, halves.tx, halves.pool);
                let id = self.lanes.len();
                self.lanes.push(LaneInfo {
                    name: self.lane_name(from, to, halves.queue),
                    rx: from,
                    tx: to,
                    queue: halves.queue,
                    worker: id % self.workers.len(),
                    counters: Arc::clone(lane.counters()),
                    base: Tally::default(),
                });
                pair.lanes.push(id);
                built.push((id, lane));
            }
            self.pairs.push(pair);
        }
        for (id, lane) in built {
            self.worker(id).add(id, Box::new(lane));
        }
        Ok(())
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

    /// Opens a pair again after one of its interfaces was created anew. Its lanes keep their counts.
    fn reopen(&mut self, pair: usize) {
        let (ports, ids) = (self.pairs[pair].ports, self.pairs[pair].lanes.clone());
        // Taken away first: while both the old and the new sockets receive, frames would be counted twice. And let go of
        // everything: a queue of the port that is left can't be bound again before.
        let taken = ids.iter().flat_map(|&id| self.worker(id).remove(vec![id]));
        let mut lanes: Vec<_> = taken.collect();
        lanes.iter_mut().for_each(|(_, lane)| lane.vacate());
        match self.open_pair(ports) {
            Ok(Joined { halves, how, .. }) => {
                for new in halves {
                    let lane = lanes.iter_mut().find(|(id, _)| {
                        let old = &self.lanes[*id];
                        (old.rx, old.tx, old.queue) == (new.from, new.to, new.queue)
                    });
                    if let Some((_, lane)) = lane {
                        lane.renew(new.rx, self.stages(new.from, new.to), new.tx, new.pool);
                    }
                }
                let [a, b] = ports.map(|id| &self.ports[id].name);
                tracing::info!("pair {a} <-> {b} is open again: {how}");
                self.pairs[pair].how = how;
            }
            Err(error) => tracing::error!("{error}"),
        }
        lanes
            .into_iter()
            .for_each(|(id, lane)| self.worker(id).add(id, lane));
    }

    fn worker(&self, lane: LaneId) -> &Worker {
        &self.workers[self.lanes[lane].worker]
    }

    fn stages(&self, rx: usize, tx: usize) -> Vec<Box<dyn Stage>> {
        let (from, to) = (&self.ports[rx], &self.ports[tx]);
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if rx == tx && self.config.hairpin_guard {
            stages.push(Box::new(UnicastOnly));
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
        if let Some(link) = self.config.link(&from.name, &to.name) {
            stages.push(Box::new(Delay::new(link.delay)));
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
        for lane in &mut self.lanes {
            lane.base = lane.counters.read().baseline();
        }
    }

    fn snapshot(&mut self, last: bool) -> Snapshot {
        self.refresh();
        let port = |id: usize| self.ports[id].name.to_string();
        let ports = self
            .ports
            .iter()
            .map(|port| (port.name.to_string(), port.state()))
            .collect();
        let lane = |lane: &LaneInfo| {
            LaneSnapshot::new(
                lane.name.clone(),
                port(lane.rx),
                port(lane.tx),
                lane.counters.read().since(&lane.base),
            )
        };
        let now = Instant::now();
        Snapshot::new(
            [self.epoch, self.counted_from].map(|since| now.duration_since(since)),
            last,
            ports,
            self.lanes.iter().map(lane).collect(),
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
            let names: Vec<&str> = self
                .lanes
                .iter()
                .filter(|lane| lane.worker == at)
                .map(|lane| lane.name.as_str())
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

    fn stop_workers(&mut self) {
        self.workers.drain(..).for_each(Worker::stop);
    }

    fn lane_name(&self, rx: usize, tx: usize, queue: usize) -> String {
        let (rx, tx) = (&self.ports[rx].name, &self.ports[tx].name);
        if queue == 0 {
            format!("{rx}>{tx}")
        } else {
            format!("{rx}>{tx}#{queue}")
        }
    }

    fn port_id(&self, name: &PortName) -> usize {
        self.ports
            .iter()
            .position(|port| port.name == *name)
            .unwrap_or_else(|| unreachable!("ports come from the pairs"))
    }
}
