//! Changing a relay while it runs: pairs come and go, settings become others, and what stays the same is left alone.
//!
//! Called for requests and for a configuration that is read again. Everything goes through [`Relay::apply`]: the settings as they
//! should be, against those in force.

use std::mem;

use super::{Inner, Pair, Relay, Worker, close, lock};
use crate::{
    config::{Config, PortName},
    error::{Error, Result},
    interface::Interface,
};

impl Relay {
    /// The settings in force.
    pub fn config(&self) -> Config {
        lock(&self.inner).config.clone()
    }

    /// Changes to these settings; says what has changed, a sentence each. Pairs that are the same before and after go on, and
    /// keep their counts.
    ///
    /// # Errors
    /// [`Error::Config`] with every mistake at once: then nothing has changed. Or what the kernel refused: then the rest has.
    pub fn apply(&self, config: Config) -> Result<Vec<String>> {
        let changes = lock(&self.inner).apply(config);
        self.follow();
        changes
    }

    /// Closes a pair, or opens it again. A pair that is down lets go of its ports and keeps its counts.
    ///
    /// # Errors
    /// There is no such pair, or its ports can't be opened.
    pub fn set_down(&self, pair: &[PortName; 2], down: bool) -> Result<String> {
        lock(&self.inner).set_down(pair, down)
    }

    /// There may be ports in other namespaces than before.
    fn follow(&self) {
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }
}

impl Inner {
    pub(super) fn apply(&mut self, new: Config) -> Result<Vec<String>> {
        // What is opened anew counts from now.
        self.refresh_drops();
        let running: Vec<(PortName, Interface)> = self
            .ports
            .iter()
            .map(|(_, port)| (port.name.clone(), port.interface.clone()))
            .collect();
        let interfaces = new.resolve(&running).map_err(Error::Config)?;
        let interfaces: Vec<(PortName, Interface)> =
            new.ports().into_iter().cloned().zip(interfaces).collect();
        let old = mem::replace(&mut self.config, new);
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        // What has been said by whoever did it.
        let mut reopened = Vec::new();

        self.change_workers(&old, &mut done)?;
        // What has another number of lanes is another pair.
        let goes = |pair @ [a, b]: &&[PortName; 2]| {
            let lanes = |config: &Config| [config.lanes(a, b), config.lanes(b, a)];
            !self.config.pairs.contains(pair) || lanes(&old) != lanes(&self.config)
        };
        let gone: Vec<_> = old.pairs.iter().filter(goes).collect();
        let comes = |pair: &&[PortName; 2]| gone.contains(pair) || !old.pairs.contains(pair);
        let comes: Vec<_> = self.config.pairs.iter().filter(comes).cloned().collect();
        for names in &gone {
            self.remove_pair(names);
            done.push(format!("{} is removed", words(names)));
        }
        self.change_pairs(&old, &mut done, &mut reopened, &mut refused);
        for names in comes {
            match self.add_pair(&names, &interfaces) {
                Ok(how) => done.push(format!("{} is open: {how}", words(&names))),
                Err(error) => {
                    self.config.pairs.retain(|pair| *pair != names);
                    refused.push(error.to_string());
                }
            }
        }
        self.propagate();
        self.refreshed = None;
        self.refresh();
        done.iter().for_each(|change| tracing::info!("{change}"));
        done.extend(reopened);
        if refused.is_empty() {
            return Ok(done);
        }
        refused.extend(done.iter().map(|change| format!("(done: {change})")));
        Err(Error::Config(refused))
    }

    /// Other cores, another way to wait.
    fn change_workers(&mut self, old: &Config, done: &mut Vec<String>) -> Result<()> {
        if old.cores != self.config.cores {
            let workers = match self.make_workers() {
                Ok(workers) => workers,
                Err(error) => {
                    self.config = old.clone();
                    return Err(error);
                }
            };
            for (at, (id, lane)) in self.lanes.iter_mut().enumerate() {
                let taken = self.workers[lane.worker].take(vec![id]);
                lane.worker = at % workers.len();
                taken
                    .into_iter()
                    .for_each(|(id, taken)| workers[lane.worker].add(id, taken));
            }
            self.activity_base.clear();
            Worker::stop(mem::replace(&mut self.workers, workers));
            done.push(format!("lanes are on cores {:?}", self.config.cores));
        } else if old.idle != self.config.idle {
            let idle = self.config.idle;
            self.workers.iter().for_each(|worker| worker.set_idle(idle));
            done.push(format!("idle is {idle}"));
        }
        Ok(())
    }

    /// Pairs that stay: edits of frames are exchanged between two turns, everything else needs the ports opened anew.
    fn change_pairs(
        &mut self,
        old: &Config,
        done: &mut Vec<String>,
        reopened: &mut Vec<String>,
        refused: &mut Vec<String>,
    ) {
        let new = &self.config;
        let edits = |config: &Config| {
            let guards = (config.hairpin_guard, config.storm_guard_pps);
            (config.mac, config.dst_mac.clone(), guards)
        };
        let other_edits = edits(old) != edits(new);
        // Whatever differs beyond these is a matter of the ports.
        let ports = Config {
            pairs: new.pairs.clone(),
            cores: new.cores.clone(),
            idle: new.idle,
            mac: new.mac,
            dst_mac: new.dst_mac.clone(),
            hairpin_guard: new.hairpin_guard,
            storm_guard_pps: new.storm_guard_pps,
            port_by: new.port_by,
            propagate_link: new.propagate_link,
            queues: new.queues,
            links: new.links.clone(),
            seed: new.seed,
            ..old.clone()
        };
        let other_ports = ports != *new;
        for at in 0..self.pairs.len() {
            let names = self.pair_words(at);
            let carried = self.other_carrier(old, at);
            if let Some(result) = carried {
                match result {
                    Ok(()) => done.push(format!("{names} is carried by {}", self.pairs[at].how)),
                    Err(error) => refused.push(error.to_string()),
                }
            } else if (other_ports
                || (other_edits && self.pairs[at].kernel.is_some())
                || self.link_comes(at, old))
                && !self.pairs[at].down
            {
                self.reopen(at);
                match &self.pairs[at].trouble {
                    None => reopened.push(format!("{names} is open again: {}", self.pairs[at].how)),
                    Some(trouble) => refused.push(trouble.clone()),
                }
                continue;
            }
            if !self.pairs[at].down && self.pairs[at].kernel.is_none() {
                self.change_links(at, old, done);
            }
            if other_edits {
                for id in self.pairs[at].lanes.clone() {
                    let (rx, tx) = (self.lanes[id].rx, self.lanes[id].tx);
                    self.worker(id).edit(id, self.edits(rx, tx));
                }
            }
        }
        if other_edits {
            done.push(format!("frames: {}", self.config.edit_words()));
        }
    }

    fn remove_pair(&mut self, names: &[PortName; 2]) {
        let Some(at) = self.find_pair(names) else {
            return;
        };
        self.close_ways(at);
        self.look_away(at);
        let pair = self.pairs.remove(at);
        let mut lanes = Vec::new();
        for id in pair.lanes {
            // Given back finished.
            lanes.extend(self.worker(id).remove(vec![id]));
            self.lanes.remove(id);
        }
        let queues = lanes.iter_mut().map(|(_, lane)| lane.vacate());
        close(queues, pair.gates.into_iter());
        pair.ports.into_iter().for_each(|id| {
            self.ports.remove(id);
        });
        self.forget_unused_namespaces();
    }

    fn add_pair(
        &mut self,
        names: &[PortName; 2],
        interfaces: &[(PortName, Interface)],
    ) -> Result<String> {
        let ports = self.add_ports(names, interfaces);
        match self.open_lanes(ports) {
            Ok(lanes) => {
                lanes
                    .into_iter()
                    .for_each(|(id, lane)| self.worker(id).add(id, lane));
                Ok(self
                    .pairs
                    .last()
                    .map_or_else(String::new, |pair| pair.how.clone()))
            }
            Err(error) => {
                ports.into_iter().for_each(|id| {
                    self.ports.remove(id);
                });
                self.forget_unused_namespaces();
                Err(error)
            }
        }
    }

    fn set_down(&mut self, names: &[PortName; 2], down: bool) -> Result<String> {
        let Some(at) = self.find_pair(names) else {
            let mistake = format!("{}: no such pair", words(names));
            return Err(Error::Config(vec![mistake]));
        };
        let state = if down { "down" } else { "up" };
        if self.pairs[at].down != down {
            self.pairs[at].down = down;
            self.reopen(at);
            if let Some(trouble) = &self.pairs[at].trouble {
                return Err(Error::Config(vec![trouble.clone()]));
            }
            tracing::info!("{} is {state}", words(names));
        }
        Ok(format!("{} is {state}", words(names)))
    }

    pub(super) fn find_pair(&self, names: &[PortName; 2]) -> Option<usize> {
        let [a, b] = names;
        let is = |pair: &Pair| {
            let [x, y] = pair.ports.map(|id| &self.ports[id].name);
            (x, y) == (a, b) || (x, y) == (b, a)
        };
        self.pairs.iter().position(is)
    }

    /// A pair as messages name it.
    pub(super) fn pair_words(&self, at: usize) -> String {
        words(&self.pairs[at].ports.map(|id| self.ports[id].name.clone()))
    }
}

fn words([a, b]: &[PortName; 2]) -> String {
    if a == b {
        format!("hairpin {a}")
    } else {
        format!("pair {a} <-> {b}")
    }
}
