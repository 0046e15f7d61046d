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
mod lanes;
mod links;
pub mod observe;
mod port;
mod reader;
mod report;
mod slots;
mod taken;

use std::{
    iter,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use self::{
    lanes::close,
    port::{LaneInfo, Pair, Port},
    slots::Slots,
};
use crate::{
    activity::Activity,
    capture::Captures,
    config::{Config, PortName},
    control::links::LinkThread,
    error::{Error, Result},
    interface::Interface,
    join::Pages,
    snapshot::Snapshot,
    worker::Worker,
};

pub use reader::Reader;

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

/// A panic of another thread must not take the statistics with it.
pub(crate) fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn stop_workers(&mut self) {
        Worker::stop(self.workers.drain(..));
    }
}
