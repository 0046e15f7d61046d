//! Pairs that the kernel carries: opening them, telling them of links, taking over what they count.

use std::sync::Arc;

use super::Inner;
use crate::{
    config::{Backend, Config},
    error::Result,
    port::kernel::{End, Options, Passage, Way},
    snapshot::PortState,
    sys::netns,
    worker::LaneId,
};

/// What the kernel does of a pair: its directions.
pub(super) struct Kernel {
    pub(super) directions: Vec<Direction>,
}

pub(super) struct Direction {
    pub(super) lane: LaneId,
    /// `None` while it can't be open.
    pub(super) way: Option<Way>,
}

/// What opening a pair gave.
pub(super) struct Opened {
    /// In the order of [`directions`].
    ways: Vec<Way>,
    /// By what it is carried, in words.
    pub(super) how: String,
}

impl Inner {
    /// Whether the kernel is to carry a pair, by its settings.
    pub(super) fn wants_kernel(&self, ports: [usize; 2], config: &Config) -> bool {
        match config.backend {
            Backend::Kernel => true,
            Backend::Fastest => {
                [config.rx, config.tx] == [None; 2]
                    && self.needs_user_space(ports, config).is_none()
            }
            _ => false,
        }
    }

    /// Why the kernel can't carry a pair, in a sentence.
    pub(super) fn needs_user_space(&self, ports: [usize; 2], config: &Config) -> Option<String> {
        let [a, b] = ports.map(|id| &self.ports[id].name);
        if config.link(a, b).is_some() || config.link(b, a).is_some() {
            return Some(format!(
                "{a},{b} has a --link, which holds frames in user space: the kernel can't carry it"
            ));
        }
        if config.storm_guard_pps.is_some() {
            return Some(format!(
                "--storm-guard counts the frames of {a},{b} in user space: the kernel can't carry it"
            ));
        }
        (!same_namespace(a.netns.as_deref(), b.netns.as_deref())).then(|| {
            format!("{a} and {b} are in two network namespaces: tc redirects within one only")
        })
    }

    /// Attaches the programs of a pair.
    pub(super) fn open_kernel(
        &self,
        ports: [usize; 2],
        config: &Config,
        passage: Option<Passage>,
    ) -> Result<Opened> {
        let mut ways = Vec::new();
        for (from, to) in directions(ports) {
            let options = Options {
                hook: config.kernel_hook,
                rewrite: self.rewrite(to),
                unicast_only: from == to && config.hairpin_guard,
                promiscuous: config.promiscuous,
            };
            ways.push(Way::open(
                &self.end(from),
                &self.end(to),
                &options,
                passage,
            )?);
        }
        let places = directions(ports)
            .into_iter()
            .zip(&ways)
            .map(|((from, _), way)| format!("{} {}", self.ports[from].name, way.place()));
        let how = format!("kernel [{}]", places.collect::<Vec<_>>().join("; "));
        Ok(Opened { ways, how })
    }

    /// Gives a pair to what was opened for it.
    pub(super) fn give_to_kernel(&mut self, pair: usize, Opened { ways, how }: Opened) {
        let mut all = Vec::new();
        for ((from, to), way) in directions(self.pairs[pair].ports).into_iter().zip(ways) {
            let lane = self.lane_id(pair, from, to, 0);
            self.lanes[lane].counters = Arc::default();
            let way = Some(way);
            all.push(Direction { lane, way });
        }
        self.pairs[pair].how = how;
        self.pairs[pair].kernel = Some(Kernel { directions: all });
    }

    /// Takes the programs of a pair off, and attaches them anew unless it is to be closed. Counts go on.
    pub(super) fn reopen_kernel(&mut self, pair: usize, closed: bool) -> Result<Option<String>> {
        self.close_ways(pair);
        if closed {
            return Ok(None);
        }
        let ports = self.pairs[pair].ports;
        let opened = self.open_kernel(ports, &self.pair_config(pair), None)?;
        let how = opened.how.clone();
        self.give_to_kernel(pair, opened);
        Ok(Some(how))
    }

    /// Tells the programs of all pairs how the links are.
    pub(super) fn tell_kernel(&mut self) {
        (0..self.pairs.len()).for_each(|pair| self.tell_ways(pair, None));
    }

    /// Tells the programs of a pair how the links are, and what becomes of frames if that is not for the links to say.
    pub(super) fn tell_ways(&mut self, pair: usize, passage: Option<Passage>) {
        let Some(mut kernel) = self.pairs[pair].kernel.take() else {
            return;
        };
        for direction in &mut kernel.directions {
            let to = self.lanes[direction.lane].tx;
            let rewrite = self.rewrite(to);
            if let Some(way) = &mut direction.way
                && let Err(error) = way.set(&self.end(to), rewrite, passage)
            {
                tracing::error!("{error}");
            }
        }
        self.pairs[pair].kernel = Some(kernel);
    }

    /// Publishes what the programs have counted.
    pub(super) fn refresh_kernel(&self) {
        let kernels = self.pairs.iter().filter_map(|pair| pair.kernel.as_ref());
        for direction in kernels.flat_map(|kernel| &kernel.directions) {
            match direction.way.as_ref().map(Way::read) {
                Some(Ok(tally)) => self.lanes[direction.lane].counters.publish(&tally),
                Some(Err(error)) => tracing::error!("reading the kernel's counters: {error}"),
                None => {}
            }
        }
    }

    /// Takes the programs off all ports. What they have counted stays.
    pub(super) fn close_kernel(&mut self) {
        (0..self.pairs.len()).for_each(|pair| self.close_ways(pair));
    }

    /// Takes the programs off the ports of a pair. What they have counted stays.
    pub(super) fn close_ways(&mut self, pair: usize) {
        let Some(kernel) = &mut self.pairs[pair].kernel else {
            return;
        };
        for direction in &mut kernel.directions {
            let lane = &mut self.lanes[direction.lane];
            match direction.way.take().map(Way::close) {
                Some(Ok(counted)) => {
                    lane.before.add(&counted);
                    lane.counters = Arc::default();
                }
                Some(Err(error)) => tracing::error!("reading the kernel's last counters: {error}"),
                None => {}
            }
        }
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
pub(super) fn directions([a, b]: [usize; 2]) -> Vec<(usize, usize)> {
    if a == b {
        vec![(a, a)]
    } else {
        vec![(a, b), (b, a)]
    }
}

/// A redirect finds its target in the namespace that the frame is in.
fn same_namespace(a: Option<&str>, b: Option<&str>) -> bool {
    a == b || matches!((netns::identity(a), netns::identity(b)), (Ok(a), Ok(b)) if a == b)
}
