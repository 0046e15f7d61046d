//! Pairs that the kernel carries: opening them, telling them of links, taking over what they count.

use std::io;

use super::{Inner, LaneInfo, Pair};
use crate::{
    config::{Backend, Config},
    error::Result,
    port::kernel::{End, Options, Way},
    snapshot::PortState,
    stats::Tally,
    sys::netns,
    worker::LaneId,
};

/// What the kernel does of a pair: its directions.
pub(super) struct Kernel {
    directions: Vec<Direction>,
}

struct Direction {
    lane: LaneId,
    /// `None` while it can't be open.
    way: Option<Way>,
    /// What was counted by what carried it before.
    before: Tally,
}

impl Kernel {
    /// Takes the programs off the ports. What they have counted stays.
    fn close(&mut self) {
        for direction in &mut self.directions {
            match direction.way.take().map(Way::close) {
                Some(Ok(counted)) => direction.before.add(&counted),
                Some(Err(error)) => tracing::error!("reading the kernel's last counters: {error}"),
                None => {}
            }
        }
    }
}

impl Direction {
    /// What was counted since the relay was started.
    fn count(&self) -> io::Result<Tally> {
        let mut tally = self.before;
        if let Some(way) = &self.way {
            tally.add(&way.read()?);
        }
        Ok(tally)
    }
}

/// What opening a pair gave.
pub(super) struct Opened {
    /// In the order of [`Inner::directions`].
    ways: Vec<Way>,
    /// By what it is carried, in words.
    pub(super) how: String,
}

impl Inner {
    /// Whether the kernel is to carry a pair, by its settings.
    pub(super) fn wants_kernel(&self, ports: [usize; 2], config: &Config) -> bool {
        let [a, b] = ports.map(|id| &self.ports[id].name);
        match config.backend {
            Backend::Kernel => true,
            Backend::Fastest => {
                [config.rx, config.tx] == [None; 2]
                    && config.link(a, b).is_none()
                    && config.link(b, a).is_none()
                    && same_namespace(a.netns.as_deref(), b.netns.as_deref())
            }
            _ => false,
        }
    }

    /// Attaches the programs of a pair.
    pub(super) fn open_kernel(&self, ports: [usize; 2], config: &Config) -> Result<Opened> {
        let mut ways = Vec::new();
        for (from, to) in directions(ports) {
            let options = Options {
                hook: config.kernel_hook,
                rewrite: self.rewrite(to),
                unicast_only: from == to && config.hairpin_guard,
                promiscuous: config.promiscuous,
            };
            ways.push(Way::open(&self.end(from), &self.end(to), &options, None)?);
        }
        let places = directions(ports)
            .into_iter()
            .zip(&ways)
            .map(|((from, _), way)| format!("{} {}", self.ports[from].name, way.place()));
        let how = format!("kernel [{}]", places.collect::<Vec<_>>().join("; "));
        Ok(Opened { ways, how })
    }

    /// Makes a pair of what was opened.
    pub(super) fn add_kernel_pair(&mut self, ports: [usize; 2], opened: Opened) {
        let Opened { ways, how } = opened;
        let mut pair = Pair {
            ports,
            lanes: Vec::new(),
            how,
            kernel: None,
        };
        let mut all = Vec::new();
        for ((from, to), way) in directions(ports).into_iter().zip(ways) {
            let lane = self.lanes.len();
            self.lanes.push(LaneInfo {
                name: self.lane_name(from, to, 0),
                rx: from,
                tx: to,
                queue: 0,
                worker: lane % self.workers.len(),
                counters: Default::default(),
                base: Tally::default(),
            });
            pair.lanes.push(lane);
            all.push(Direction {
                lane,
                way: Some(way),
                before: Tally::default(),
            });
        }
        pair.kernel = Some(Kernel { directions: all });
        self.pairs.push(pair);
    }

    /// Attaches the programs again after an interface was created anew. Counts go on.
    pub(super) fn reopen_kernel(&mut self, pair: usize) {
        let ports = self.pairs[pair].ports;
        let Some(mut kernel) = self.pairs[pair].kernel.take() else {
            return;
        };
        kernel.close();
        match self.open_kernel(ports, &self.config) {
            Ok(Opened { ways, how }) => {
                let [a, b] = ports.map(|id| &self.ports[id].name);
                tracing::info!("pair {a} <-> {b} is open again: {how}");
                for (direction, way) in kernel.directions.iter_mut().zip(ways) {
                    direction.way = Some(way);
                }
                self.pairs[pair].how = how;
            }
            Err(error) => tracing::error!("{error}"),
        }
        self.pairs[pair].kernel = Some(kernel);
    }

    /// Tells the programs of all pairs how the links are.
    pub(super) fn tell_kernel(&mut self) {
        for pair in 0..self.pairs.len() {
            let Some(mut kernel) = self.pairs[pair].kernel.take() else {
                continue;
            };
            for direction in &mut kernel.directions {
                let to = self.lanes[direction.lane].tx;
                let rewrite = self.rewrite(to);
                if let Some(way) = &mut direction.way
                    && let Err(error) = way.set(&self.end(to), rewrite, None)
                {
                    tracing::error!("{error}");
                }
            }
            self.pairs[pair].kernel = Some(kernel);
        }
    }

    /// Publishes what the programs have counted.
    pub(super) fn refresh_kernel(&self) {
        let directions = self.pairs.iter().filter_map(|pair| pair.kernel.as_ref());
        for direction in directions.flat_map(|kernel| &kernel.directions) {
            match direction.count() {
                Ok(tally) => self.lanes[direction.lane].counters.publish(&tally),
                Err(error) => tracing::error!("reading the kernel's counters: {error}"),
            }
        }
    }

    /// Takes the programs off all ports, and publishes what they have counted.
    pub(super) fn close_kernel(&mut self) {
        let kernels = self
            .pairs
            .iter_mut()
            .filter_map(|pair| pair.kernel.as_mut());
        kernels.for_each(Kernel::close);
        self.refresh_kernel();
    }

    /// Pairs that the kernel was to carry and does not.
    pub(super) fn not_carried(&self) -> impl Iterator<Item = String> {
        let broken = |kernel: &Kernel| kernel.directions.iter().any(|one| one.way.is_none());
        let pairs = self.pairs.iter();
        pairs
            .filter(move |pair| pair.kernel.as_ref().is_some_and(broken))
            .map(|pair| {
                let [a, b] = pair.ports.map(|id| &self.ports[id].name);
                format!("pair {a} <-> {b} is not carried")
            })
    }

    /// Whether a lane is one only by name.
    pub(super) fn in_kernel(&self, lane: LaneId) -> bool {
        let mut pairs = self.pairs.iter();
        pairs.any(|pair| pair.kernel.is_some() && pair.lanes.contains(&lane))
    }

    fn end(&self, id: usize) -> End<'_> {
        let port = &self.ports[id];
        End {
            netns: port.name.netns.as_deref(),
            interface: &port.interface,
            up: port.state() == PortState::Up,
        }
    }
}

/// From which port to which a pair carries.
fn directions([a, b]: [usize; 2]) -> Vec<(usize, usize)> {
    if a == b {
        vec![(a, a)]
    } else {
        vec![(a, b), (b, a)]
    }
}

/// A redirect finds its target in the namespace that the frame is in.
pub(crate) fn same_namespace(a: Option<&str>, b: Option<&str>) -> bool {
    a == b || matches!((netns::identity(a), netns::identity(b)), (Ok(a), Ok(b)) if a == b)
}
