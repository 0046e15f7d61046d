//! Pairs that the kernel carries: opening them, telling them of links, taking over what they count.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::Inner;
use crate::{
    config::{Backend, Config, KernelHook, PortName},
    error::{Error, Result},
    port::kernel::{End, Options, Passage, Way, takes_none},
    sys::netns,
    worker::LaneId,
};

/// How often to see whether frames vanish.
const LOOK: Duration = Duration::from_secs(2);

/// What the kernel does of a pair: its directions.
pub(super) struct Kernel {
    pub(super) directions: Vec<Direction>,
    /// When to see whether frames vanish, where they can.
    look: Option<Instant>,
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
        needs_user_space(ports.map(|id| &self.ports[id].name), config)
    }

    /// Attaches the programs of a pair.
    pub(super) fn open_kernel(
        &self,
        ports: [usize; 2],
        config: &Config,
        passage: Option<Passage>,
    ) -> Result<Opened> {
        let at_xdp = config.kernel_hook == KernelHook::Xdp;
        let refuse = |is_asked: fn(&End<'_>) -> bool| {
            let ends = directions(ports).into_iter().map(|(_, to)| self.end(to));
            let ends = ends.filter(|end| at_xdp && is_asked(end));
            let mistakes: Vec<_> = ends.filter_map(|end| takes_none(&end)).collect();
            match mistakes.is_empty() {
                true => Ok(()),
                false => Err(Error::Config(mistakes)),
            }
        };
        let is_veth = |end: &End<'_>| end.interface.kind.as_deref() == Some("veth");
        refuse(is_veth)?;
        let mut ways = Vec::new();
        for (from, to) in directions(ports) {
            let options = Options {
                hook: config.kernel_hook,
                replace_xdp: config.xdp.replace,
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
        // Some drivers are ready for it once they have a program of their own.
        refuse(|end| end.interface.kind.as_deref() != Some("veth"))?;
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
        let ways = all.iter().filter_map(|direction| direction.way.as_ref());
        let watched = ways.clone().any(Way::is_watched);
        self.pairs[pair].kernel = Some(Kernel {
            directions: all,
            look: watched.then(|| Instant::now() + LOOK),
        });
    }

    /// Takes the programs of a pair off, and attaches them anew unless it is to be closed. Counts go on.
    pub(super) fn reopen_kernel(&mut self, pair: usize, closed: bool) -> Result<Option<String>> {
        self.close_ways(pair);
        if self.pairs[pair].down {
            self.look_away(pair);
        }
        if closed {
            return Ok(None);
        }
        let ports = self.pairs[pair].ports;
        let opened = self.open_kernel(ports, &self.pair_config(pair), None)?;
        let how = opened.how.clone();
        self.give_to_kernel(pair, opened);
        self.look_on_again(pair);
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

    /// Sees how many frames have vanished after they were sent, and says so.
    pub(super) fn refresh_vanished(&mut self) {
        for pair in &mut self.pairs {
            let Some(kernel) = pair.kernel.as_mut().filter(|kernel| kernel.look.is_some()) else {
                continue;
            };
            kernel.look = Some(Instant::now() + LOOK);
            for direction in &mut kernel.directions {
                let vanished = direction.way.as_mut().map_or(0, Way::vanished);
                let lane = &self.lanes[direction.lane];
                self.ports[lane.tx].lose(vanished);
            }
        }
    }

    /// When to see that next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let kernels = self.pairs.iter().filter_map(|pair| pair.kernel.as_ref());
        kernels.filter_map(|kernel| kernel.look).min()
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
            let Some((counted, vanished)) = direction.way.take().map(Way::close) else {
                continue;
            };
            self.ports[lane.tx].lose(vanished);
            match counted {
                Ok(counted) => {
                    lane.before.add(&counted);
                    lane.counters = Arc::default();
                }
                Err(error) => tracing::error!("reading the kernel's last counters: {error}"),
            }
        }
    }

    /// Whether the programs of a pair run before taps look at frames, where AF_XDP's would have to.
    pub(super) fn is_at_xdp(&self, pair: usize) -> bool {
        let kernel = self.pairs[pair].kernel.as_ref();
        let directions = kernel.map_or(&[][..], |kernel| &kernel.directions);
        let mut ways = directions
            .iter()
            .filter_map(|direction| direction.way.as_ref());
        ways.any(Way::is_at_xdp)
    }

    /// Whether a lane is one only by name.
    pub(super) fn in_kernel(&self, lane: LaneId) -> bool {
        let mut pairs = self.pairs.iter();
        pairs.any(|pair| pair.kernel.is_some() && pair.lanes.contains(&lane))
    }

    fn end(&self, id: usize) -> End<'_> {
        self.ports[id].end()
    }
}

/// Why the kernel can't carry the pair of these ports, in a sentence.
pub(super) fn needs_user_space([a, b]: [&PortName; 2], config: &Config) -> Option<String> {
    if config.is_linked(a, b) {
        return Some(format!(
            "{a},{b} has a --link, which holds frames in user space: the kernel can't carry it"
        ));
    }
    if config.storm_guard_pps.is_some() {
        return Some(format!(
            "--storm-guard counts the frames of {a},{b} in user space: the kernel can't carry it"
        ));
    }
    (!same_namespace(a.netns.as_deref(), b.netns.as_deref()))
        .then(|| format!("{a} and {b} are in two network namespaces: tc redirects within one only"))
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
