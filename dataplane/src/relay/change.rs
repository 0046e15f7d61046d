//! Changing a relay while it runs: pairs come and go, settings become others, and what stays the same is left alone.
//!
//! Called for requests and for a configuration that is read again. Everything goes through [`Relay::apply`]: the settings as they
//! should be, against those in force.

use std::mem;

use super::{Inner, Pair, Port, Relay, lock, taken::Taken};
use crate::{
    config::{Backend, Config, MacMode, PortName},
    error::{Error, Result},
    interface::Interface,
    wire::ethernet::MacAddress,
    worker::Worker,
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
    /// [`Error::Config`] with every mistake at once, or what the kernel refused. Then nothing has changed: what had been is taken back,
    /// with all counts, and pairs that were opened anew for it are open as they were.
    pub fn apply(&self, config: Config) -> Result<Vec<String>> {
        let changes = lock(&self.inner).apply(config);
        self.follow();
        changes
    }

    /// Closes a pair, or opens it again. A pair that is down lets go of its ports and keeps its counts.
    ///
    /// # Errors
    /// There is no such pair, or its ports can't be opened: then they are tried again.
    pub fn set_down(&self, pair: &[PortName; 2], down: bool) -> Result<String> {
        lock(&self.inner).set_down(pair, down)
    }

    /// There may be ports in other namespaces than before.
    pub(super) fn follow(&self) {
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }
}

/// What has been done of a change: to be told, or to be taken back.
#[derive(Default)]
struct Progress {
    /// A sentence each.
    done: Vec<String>,
    /// The same, by whoever has said it already.
    said: Vec<String>,
    /// Pairs that are no more, in the order in which they were taken out.
    taken: Vec<Taken>,
    added: Vec<[PortName; 2]>,
    /// How pairs were that stay: as many as are changed by now.
    stay: Vec<Before>,
}

/// How a pair was before a change.
struct Before {
    in_kernel: bool,
    moved_to: Option<Backend>,
    /// Its ports have been opened anew since, or were to be.
    reopened: bool,
}

impl Inner {
    pub(super) fn apply(&mut self, new: Config) -> Result<Vec<String>> {
        // What is opened anew counts from now.
        self.refresh_drops();
        let interfaces = self.resolve(&new).map_err(Error::Config)?;
        let interfaces: Vec<(PortName, Interface)> =
            new.ports().into_iter().cloned().zip(interfaces).collect();
        let old = mem::replace(&mut self.config, new);
        let mut progress = Progress::default();
        let result = match self.change(&old, &interfaces, &mut progress) {
            Ok(()) => {
                let Progress { mut done, said, .. } = progress;
                done.iter().for_each(|change| tracing::info!("{change}"));
                done.extend(said);
                Ok(done)
            }
            Err(mut refused) => {
                self.take_back(old, progress, &mut refused);
                Err(Error::Config(refused))
            }
        };
        self.forget_unused_namespaces();
        self.propagate();
        self.refreshed = None;
        self.refresh();
        result
    }

    /// Every mistake in these settings; else their interfaces. Those of ports that are open are known.
    pub(super) fn resolve(
        &self,
        config: &Config,
    ) -> std::result::Result<Vec<Interface>, Vec<String>> {
        let known = |(_, port): (usize, &Port)| (port.name.clone(), port.interface.clone());
        let running: Vec<(PortName, Interface)> = self.ports.iter().map(known).collect();
        config.resolve(&running)
    }

    /// From the old settings to those of the relay, until something is refused. What may be refused and disturbs nobody is done first.
    fn change(
        &mut self,
        old: &Config,
        interfaces: &[(PortName, Interface)],
        progress: &mut Progress,
    ) -> std::result::Result<(), Vec<String>> {
        let changed = self.change_workers(old, &mut progress.done);
        changed.map_err(|error| vec![error.to_string()])?;
        // What has another number of lanes is another pair.
        let goes = |pair @ [a, b]: &&[PortName; 2]| {
            let lanes = |config: &Config| [config.lanes(a, b), config.lanes(b, a)];
            !self.config.pairs.contains(pair) || lanes(old) != lanes(&self.config)
        };
        let gone: Vec<_> = old.pairs.iter().filter(goes).collect();
        let comes = |pair: &&[PortName; 2]| gone.contains(pair) || !old.pairs.contains(pair);
        let comes: Vec<_> = self.config.pairs.iter().filter(comes).cloned().collect();
        for names in gone {
            progress.taken.extend(self.take_pair(names));
            progress.done.push(format!("{} is removed", words(names)));
        }
        let stay = self.pairs.len();
        let mut refused = Vec::new();
        for names in comes {
            match self.add_pair(&names, interfaces) {
                Ok(how) => {
                    let done = format!("{} is open: {how}", words(&names));
                    progress.done.push(done);
                    progress.added.push(names);
                }
                Err(error) => refused.push(format!("{} can't be opened: {error}", words(&names))),
            }
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        self.change_pairs(stay, old, progress)
            .map_err(|refused| vec![refused])
    }

    /// Back to the old settings, as far as others were put in their place: who was not concerned notices nothing.
    fn take_back(&mut self, old: Config, progress: Progress, refused: &mut Vec<String>) {
        let tried = mem::replace(&mut self.config, old);
        for names in &progress.added {
            drop(self.take_pair(names));
        }
        let taken = progress.taken.into_iter().rev();
        let back: Vec<_> = taken.map(|taken| self.put_back(taken)).collect();
        if let Err(error) = self.change_workers(&tried, &mut Vec::new()) {
            self.config.cores = tried.cores.clone();
            refused.push(format!("lanes stay on cores {:?}: {error}", tried.cores));
        }
        let mut changed = progress.stay.into_iter();
        let mut lost = Vec::new();
        for at in 0..self.pairs.len() {
            let result = if back.contains(&self.pairs[at].ports) {
                self.reopen(at);
                Ok(())
            } else if let Some(before) = changed.next() {
                self.change_pair_back(at, &before, &tried)
            } else {
                continue;
            };
            lost.extend(result.err().map(|error| error.to_string()));
            lost.extend(self.pairs[at].trouble.clone());
        }
        refused.push(match lost.is_empty() {
            true => "nothing has changed".into(),
            false => "the settings are as before".into(),
        });
        refused.extend(lost);
    }

    /// Other cores, another way to wait.
    fn change_workers(&mut self, old: &Config, done: &mut Vec<String>) -> Result<()> {
        if old.cores != self.config.cores {
            let workers = self.make_workers()?;
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

    /// Pairs that stay, the first so many: edits of frames are exchanged between two turns, everything else needs the ports opened
    /// anew. Ends at the first that is refused, so that the others go on.
    fn change_pairs(
        &mut self,
        count: usize,
        old: &Config,
        progress: &mut Progress,
    ) -> std::result::Result<(), String> {
        let new = &self.config;
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
        for at in 0..count {
            let names = self.pair_words(at);
            progress.stay.push(Before {
                in_kernel: self.pairs[at].kernel.is_some(),
                moved_to: self.pairs[at].moved_to,
                reopened: true,
            });
            if let Some(carried) = self.other_carrier(old, at) {
                carried.map_err(|error| error.to_string())?;
                let how = &self.pairs[at].how;
                progress.done.push(format!("{names} is carried by {how}"));
            } else if (other_ports
                || (other_edits && self.pairs[at].kernel.is_some())
                || self.link_comes(at, old))
                && !self.pairs[at].down
            {
                let was_open = self.pairs[at].trouble.is_none();
                self.reopen(at);
                progress.said.push(match self.pairs[at].trouble.clone() {
                    None => format!("{names} is open again: {}", self.pairs[at].how),
                    Some(trouble) if was_open => return Err(trouble),
                    // It was not open before either, and is tried again.
                    Some(trouble) => trouble,
                });
                // Edits and links are new with the rest.
                continue;
            } else if let Some(before) = progress.stay.last_mut() {
                before.reopened = false;
            }
            self.edit_pair(at, old, &mut progress.done);
        }
        if other_edits {
            let words = self.config.edit_words();
            progress.done.push(format!("frames: {words}"));
        }
        Ok(())
    }

    /// What needs no ports opened: links and edits of a pair that stays.
    fn edit_pair(&mut self, at: usize, old: &Config, done: &mut Vec<String>) {
        if !self.pairs[at].down && self.pairs[at].kernel.is_none() {
            self.change_links(at, old, done);
        }
        if edits(old) != edits(&self.config) {
            for id in self.pairs[at].lanes.clone() {
                let (rx, tx) = (self.lanes[id].rx, self.lanes[id].tx);
                self.worker(id).edit(id, self.edits(rx, tx));
            }
        }
    }

    /// A pair that stays, back to the settings that are in force again.
    fn change_pair_back(&mut self, at: usize, before: &Before, tried: &Config) -> Result<()> {
        self.pairs[at].moved_to = before.moved_to;
        let [a, b] = self.pairs[at].ports.map(|id| &self.ports[id].name);
        let link_came = tried.is_linked(a, b) && !self.config.is_linked(a, b);
        let config = self.pair_config(at);
        let pair = &self.pairs[at];
        match (before.in_kernel, pair.kernel.is_some()) {
            _ if pair.down => self.edit_pair(at, tried, &mut Vec::new()),
            (true, false) => return self.lanes_to_kernel(at, &config, None),
            (false, true) => return self.kernel_to_lanes(at, &config),
            _ if before.reopened || link_came => self.reopen(at),
            _ => self.edit_pair(at, tried, &mut Vec::new()),
        }
        Ok(())
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

    pub(super) fn set_down(&mut self, names: &[PortName; 2], down: bool) -> Result<String> {
        let Some(at) = self.find_pair(names) else {
            let mistake = format!("{}: no such pair", words(names));
            return Err(Error::Config(vec![mistake]));
        };
        let state = if down { "down" } else { "up" };
        if self.pairs[at].down != down {
            self.pairs[at].down = down;
            self.reopen(at);
            if let Some(trouble) = self.pairs[at].trouble.clone() {
                return Err(Error::Config(vec![format!(
                    "{trouble} (tried again until it can)"
                )]));
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

/// What is done to frames without opening ports.
fn edits(config: &Config) -> (MacMode, &[(PortName, MacAddress)], bool, Option<u32>) {
    let Config {
        mac,
        dst_mac,
        hairpin_guard,
        storm_guard_pps,
        ..
    } = config;
    (*mac, dst_mac, *hairpin_guard, *storm_guard_pps)
}

fn words([a, b]: &[PortName; 2]) -> String {
    if a == b {
        format!("hairpin {a}")
    } else {
        format!("pair {a} <-> {b}")
    }
}
