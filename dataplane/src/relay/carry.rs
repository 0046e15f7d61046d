//! Moving a pair from one back end to another while it runs.
//!
//! The order is kept because what carried the pair has sent all it had before its successor sends anything. Every frame that comes
//! meanwhile is counted `moved`, and each has one owner, though taps and tc both see it: while both could take it, a filter on the
//! packet sockets (the *gate*, bpf/forward.bpf.c) decides for both.

use std::{os::fd::BorrowedFd, sync::Arc};

use super::{
    Inner, Relay, close,
    kernel::{self, needs_user_space},
    lock,
};
use crate::{
    config::{Backend, Config, KernelHook, PortName},
    error::{Error, Result},
    port::{
        kernel::{Passage, Way, settle},
        packet,
    },
};

impl Relay {
    /// Moves a pair to another back end while it runs. Returns by what it is carried now, in words.
    ///
    /// What is inside is sent first; what comes meanwhile, for some milliseconds, is counted
    /// [`Moved`](crate::stats::Reason::Moved). Nothing is duplicated or reordered, and all counts go on.
    ///
    /// # Errors
    /// No such pair, or the other back end can't be had: then the pair is carried as before.
    pub fn carry(&self, ports: &[PortName; 2], backend: Backend) -> Result<String> {
        lock(&self.inner).carry_by_name(ports, backend)
    }
}

impl Inner {
    pub(super) fn carry_by_name(
        &mut self,
        ports: &[PortName; 2],
        backend: Backend,
    ) -> Result<String> {
        let Some(pair) = self.find_pair(ports) else {
            let [a, b] = ports;
            return Err(Error::Config(vec![format!("{a},{b}: no such pair")]));
        };
        self.carry(pair, backend)?;
        let (names, how) = (self.pair_words(pair), self.pairs[pair].how.clone());
        tracing::info!("{names} is carried by {how}");
        Ok(how)
    }

    /// If the settings now say that a pair is to be carried by lanes and not the kernel, or the other way round: moves it.
    pub(super) fn other_carrier(&mut self, old: &Config, pair: usize) -> Option<Result<()>> {
        let (new, ports) = (&self.config, self.pairs[pair].ports);
        let in_kernel = self.pairs[pair].kernel.is_some();
        let needed = in_kernel && self.needs_user_space(ports, new).is_some();
        if old.backend == new.backend && !needed {
            return None;
        }
        self.pairs[pair].moved_to = None;
        let wanted = self.wants_kernel(ports, &self.config);
        let other = wanted != in_kernel && !self.pairs[pair].down;
        let backend = self.config.backend;
        other.then(|| {
            let result = self.carry(pair, backend);
            self.pairs[pair].moved_to = None;
            result
        })
    }

    /// The settings of a pair: those of the relay, or what it was moved to.
    pub(super) fn pair_config(&self, pair: usize) -> Config {
        let config = self.config.clone();
        match self.pairs[pair].moved_to {
            Some(backend) => Config {
                backend,
                rx: None,
                tx: None,
                ..config
            },
            None => config,
        }
    }

    pub(super) fn carry(&mut self, pair: usize, backend: Backend) -> Result<()> {
        let (ports, before) = (self.pairs[pair].ports, self.pair_config(pair));
        let moved_to = self.pairs[pair].moved_to.replace(backend);
        let config = self.pair_config(pair);
        let in_kernel = self.pairs[pair].kernel.is_some();
        let result = self.can_be_carried(pair, &config).and_then(|()| {
            if self.wants_kernel(ports, &config) {
                return match in_kernel {
                    true => Ok(()),
                    false => self.lanes_to_kernel(pair, &config, None),
                };
            }
            // From lanes to lanes by way of the kernel, so that what comes meanwhile is counted.
            let closed = Some(Passage::Closed);
            if !in_kernel && self.lanes_to_kernel(pair, &config, closed).is_err() {
                self.reopen(pair);
                let trouble = self.pairs[pair].trouble.clone();
                return trouble.map_or(Ok(()), |trouble| Err(Error::Config(vec![trouble])));
            }
            self.kernel_to_lanes(pair, &config).inspect_err(|_| {
                // Back to where it was. If that can't be had any more, the kernel has it.
                if !in_kernel && self.kernel_to_lanes(pair, &before).is_err() {
                    self.tell_ways(pair, None);
                }
            })
        });
        if result.is_err() {
            self.pairs[pair].moved_to = moved_to;
        }
        result
    }

    fn can_be_carried(&self, pair: usize, config: &Config) -> Result<()> {
        let mut mistakes = self.carry_mistakes(pair, config);
        if self.pairs[pair].down {
            let [a, b] = self.pairs[pair].ports.map(|id| &self.ports[id].name);
            mistakes.push(format!("{a},{b} is down: set it up first"));
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(Error::Config(mistakes))
        }
    }

    /// What stands against carrying a pair as these settings say, but for its being down.
    pub(super) fn carry_mistakes(&self, pair: usize, config: &Config) -> Vec<String> {
        let [a, b] = self.pairs[pair].ports.map(|id| &self.ports[id].name);
        let mut mistakes = Vec::new();
        if config.backend == Backend::Kernel {
            mistakes.extend(needs_user_space([a, b], config));
        }
        let pair_now = &self.pairs[pair];
        let taken = pair_now.kernel.is_none() && pair_now.gates.is_empty() && !pair_now.down;
        if config.backend == Backend::Kernel && config.kernel_hook == KernelHook::Xdp && taken {
            mistakes.push(format!(
                "{a},{b} receives by AF_XDP, which has the place of the kernel's program: --carry {a},{b}=packet first"
            ));
        }
        for id in self.pairs[pair].ports {
            if self.ports[id].gone {
                mistakes.push(format!(
                    "{} is gone: move the pair when it is back",
                    self.ports[id].name
                ));
            }
        }
        mistakes
    }

    /// `then`: what becomes of frames at the end; `None` for the links to say.
    pub(super) fn lanes_to_kernel(
        &mut self,
        pair: usize,
        config: &Config,
        then: Option<Passage>,
    ) -> Result<()> {
        let (ports, lanes) = (self.pairs[pair].ports, self.pairs[pair].lanes.clone());
        if let Some(reason) = self.needs_user_space(ports, config) {
            return Err(Error::Config(vec![reason]));
        }
        let opened = self.open_kernel(ports, config, Some(Passage::Aside))?;
        // The lanes publish there to their end.
        let counters: Vec<_> = lanes
            .iter()
            .map(|&id| (id, Arc::clone(&self.lanes[id].counters)))
            .collect();
        let gates = std::mem::take(&mut self.pairs[pair].gates);
        self.give_to_kernel(pair, opened);
        let closed = gates.iter().try_for_each(|(port, gate)| {
            let program = self.gate_program(pair, *port);
            program.map_or(Ok(()), |program| gate.close(program))
        });
        if let Err(error) = closed {
            self.open_gates(&gates);
            self.close_ways(pair);
            (self.pairs[pair].kernel, self.pairs[pair].gates) = (None, gates);
            for (id, counters) in counters {
                self.lanes[id].counters = counters;
            }
            let [a, b] = ports.map(|id| &self.ports[id].name);
            let subject = format!("the sockets of {a},{b}");
            return Err(Error::system("put a filter on", subject, error, ""));
        }
        if !gates.is_empty() {
            self.tell_ways(pair, Some(Passage::Gated { lanes: true }));
            self.tell_ways(pair, Some(Passage::Gated { lanes: false }));
            settle();
        }
        // From here on no socket sees a frame that counts; AF_XDP's take theirs before tc does, until they are gone.
        self.tell_ways(pair, Some(Passage::Closed));
        let mut emptied: Vec<_> = lanes
            .iter()
            .flat_map(|&id| self.worker(id).remove(vec![id]))
            .collect();
        for (id, counters) in counters {
            let lane = &mut self.lanes[id];
            lane.before.add(&counters.read());
            if Arc::ptr_eq(&lane.counters, &counters) {
                lane.counters = Arc::default();
            }
        }
        settle();
        self.tell_ways(pair, then);
        // Closing sockets takes the kernel some time, and no frame waits for it.
        let queues = emptied.iter_mut().map(|(_, lane)| lane.vacate());
        close(queues, gates.into_iter());
        Ok(())
    }

    pub(super) fn kernel_to_lanes(&mut self, pair: usize, config: &Config) -> Result<()> {
        let ports = self.pairs[pair].ports;
        // Packet sockets can be opened behind their gates while the kernel still forwards; AF_XDP takes frames at once.
        let behind_gates = config.receives_by() == Backend::Packet;
        let close = |inner: &mut Self| {
            inner.tell_ways(pair, Some(Passage::Closed));
            settle();
        };
        let at_xdp = !behind_gates && self.is_at_xdp(pair);
        if !behind_gates {
            close(self);
            if at_xdp {
                // Its place is wanted.
                self.close_ways(pair);
            }
        }
        let gates: Vec<_> = kernel::directions(ports)
            .into_iter()
            .filter_map(|(from, _)| Some((from, self.gate_program(pair, from)?)))
            .collect();
        let joined = match self.open_pair(ports, config, &gates) {
            Ok(joined) => joined,
            Err(error) => {
                match at_xdp {
                    true => self.reopen(pair),
                    false => self.tell_ways(pair, None),
                }
                return Err(error);
            }
        };
        if behind_gates {
            close(self);
        }
        self.tell_ways(pair, Some(Passage::Gated { lanes: false }));
        // The sockets are open and wait for this.
        self.tell_ways(pair, Some(Passage::Gated { lanes: true }));
        self.close_ways(pair);
        self.look_away(pair);
        self.pairs[pair].kernel = None;
        self.pairs[pair].how = joined.how;
        let built = self.build(pair, joined.halves);
        let gates = std::mem::take(&mut self.pairs[pair].gates);
        self.open_gates(&gates);
        self.pairs[pair].gates = gates;
        for (id, lane) in built {
            self.worker(id).add(id, lane);
        }
        Ok(())
    }

    /// The filter for the packet sockets that receive from a port of a pair.
    fn gate_program(&self, pair: usize, port: usize) -> Option<BorrowedFd<'_>> {
        let mut directions = self.pairs[pair].kernel.as_ref()?.directions.iter();
        let direction = directions.find(|direction| self.lanes[direction.lane].rx == port)?;
        direction.way.as_ref().and_then(Way::gate)
    }

    fn open_gates(&self, gates: &[(usize, packet::Gate)]) {
        for (port, gate) in gates {
            // A gate that stays lets every frame pass, at a small cost.
            if let Err(error) = gate.open() {
                let port = &self.ports[*port].name;
                tracing::warn!("taking the filter off a socket of {port}: {error}");
            }
        }
    }
}
