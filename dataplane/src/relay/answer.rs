//! What a relay answers to requests. Called by whoever has a control socket: the program's main thread, or an embedder's.

use std::collections::{BTreeSet, HashSet};

use super::{Inner, Pair, Relay, kernel::needs_user_space, lock};
use crate::{
    config::{
        Backend, Config, MacMode, PortName, parse_carry, parse_dst_mac, parse_ends, parse_link,
    },
    control::{
        protocol::{
            Changes, Failure, FailureCode, Health, Info, PairInfo, PortInfo, Request, Response,
        },
        server::Answer,
    },
    error::{Error, Result},
    snapshot::PortState,
};

impl Relay {
    /// Obeys a request. To stop, to read settings again and to write them down is the caller's business: it knows where they are
    /// from. `name` is the relay's, as its socket has it.
    pub fn answer(&self, name: &str, request: Request) -> Answer {
        let response = match request {
            Request::Info {} => Response::Info(lock(&self.inner).info(name)),
            Request::Health {} => Response::Health(lock(&self.inner).health()),
            Request::Stats { reset } => {
                let mut inner = lock(&self.inner);
                let snapshot = inner.snapshot(false);
                if reset {
                    inner.reset();
                }
                Response::Stats(Box::new(snapshot))
            }
            Request::Set(changes) => self.change(&changes),
            Request::Stop {} => Response::Done(vec!["stopping".into()]),
            Request::Reload {} | Request::Config {} => Response::Error(Failure {
                code: FailureCode::Refused,
                message: "there is no configuration file here".into(),
            }),
            Request::Capture(wanted) => return self.capture(&wanted),
        };
        Answer::Say(response)
    }

    fn change(&self, changes: &Changes) -> Response {
        let mut inner = lock(&self.inner);
        let mut mistakes = Vec::new();
        let config = changes.over(inner.config.clone(), &mut mistakes);
        let [up, down] = [&changes.up, &changes.down].map(|pairs| {
            let pairs = pairs.iter().map(|text| parse_ends(text));
            let pairs =
                pairs.filter_map(|pair| pair.map_err(|mistake| mistakes.push(mistake)).ok());
            pairs.collect::<Vec<_>>()
        });
        let carry = changes.carry.iter().map(|text| parse_carry(text));
        let carry = carry.filter_map(|carry| carry.map_err(|mistake| mistakes.push(mistake)).ok());
        let carry: Vec<_> = carry.collect();
        let orders = Orders { up, down, carry };
        mistakes.extend(orders.mistakes(&config));
        let invalid = !mistakes.is_empty();
        mistakes.extend(match invalid {
            true => config.mistakes(),
            false => inner.refusals(&orders, &config),
        });
        let code = match invalid {
            true => FailureCode::Invalid,
            false => FailureCode::Refused,
        };
        let failure = |code, messages: Vec<String>| {
            let message = messages.join("\n");
            Response::Error(Failure { code, message })
        };
        if !mistakes.is_empty() {
            return failure(code, mistakes);
        }
        let mut done = match inner.apply(config) {
            Ok(done) => done,
            Err(error) => return Response::Error(error.into()),
        };
        let obeyed = inner.obey(&orders, &mut done);
        drop(inner);
        self.follow();
        match obeyed {
            Ok(()) => Response::Done(done),
            Err(error) => {
                let mut messages = vec![error.to_string()];
                messages.extend(done.iter().map(|change| format!("(done: {change})")));
                failure(FailureCode::Refused, messages)
            }
        }
    }
}

/// What is ordered for pairs one by one, beside settings.
struct Orders {
    up: Vec<[PortName; 2]>,
    down: Vec<[PortName; 2]>,
    carry: Vec<([PortName; 2], Backend)>,
}

impl Orders {
    /// What can't be meant, of pairs as they will be.
    fn mistakes(&self, config: &Config) -> Vec<String> {
        let mut mistakes = Vec::new();
        let pairs: HashSet<_> = config.pairs.iter().map(unordered).collect();
        let [up, down] = [&self.up, &self.down]
            .map(|pairs| -> HashSet<_> { pairs.iter().map(unordered).collect() });
        let mut moved = HashSet::new();
        for (pair @ [a, b], _) in &self.carry {
            if down.contains(&unordered(pair)) {
                mistakes.push(format!(
                    "pair {a},{b}: both down and carried by another back end"
                ));
            }
            if !moved.insert(unordered(pair)) {
                mistakes.push(format!("pair {a},{b}: carried by two back ends"));
            }
        }
        let both = self
            .up
            .iter()
            .filter(|pair| down.contains(&unordered(pair)));
        mistakes.extend(both.map(|[a, b]| format!("pair {a},{b}: both up and down")));
        let named: BTreeSet<_> = up.into_iter().chain(down).chain(moved).collect();
        let unknown = named.into_iter().filter(|pair| !pairs.contains(pair));
        mistakes.extend(unknown.map(|[a, b]| format!("pair {a},{b}: no such pair")));
        mistakes
    }
}

/// A pair is the same either way round.
fn unordered([a, b]: &[PortName; 2]) -> [&PortName; 2] {
    if a <= b { [a, b] } else { [b, a] }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            code: FailureCode::Refused,
            message: error.to_string(),
        }
    }
}

impl Changes {
    /// The settings with these changes. What depends on a pair goes with it, and what depends on a MAC mode with that.
    fn over(&self, mut config: Config, mistakes: &mut Vec<String>) -> Config {
        let mut note = |mistake: String| mistakes.push(mistake);
        match self.mac.as_ref().map(|text| text.parse()) {
            Some(Ok(mac)) => {
                config.mac = mac;
                if mac != MacMode::Update {
                    config.dst_mac.clear();
                }
            }
            Some(Err(mistake)) => note(mistake),
            None => {}
        }
        match self.idle.as_ref().map(|text| text.parse()) {
            Some(Ok(idle)) => config.idle = idle,
            Some(Err(mistake)) => note(mistake),
            None => {}
        }
        for text in &self.remove {
            match parse_ends(text) {
                Ok([a, b]) => {
                    let count = config.pairs.len();
                    config
                        .pairs
                        .retain(|[x, y]| [x, y] != [&a, &b] && [y, x] != [&a, &b]);
                    if config.pairs.len() == count {
                        note(format!("{text}: no such pair"));
                    }
                    config.dst_mac.retain(|(port, _)| *port != a && *port != b);
                    config.links.retain(|link| link.from != a && link.from != b);
                }
                Err(mistake) => note(mistake),
            }
        }
        for text in &self.add {
            match parse_ends(text) {
                Ok(pair) => config.pairs.push(pair),
                Err(mistake) => note(mistake),
            }
        }
        let mut links = Vec::new();
        for text in &self.link {
            match parse_link(text) {
                Ok(link) => links.push(link),
                Err(more) => more.into_iter().for_each(&mut note),
            }
        }
        // One that is given twice is a mistake of the settings.
        links.iter().for_each(|link| config.remove_link(link));
        config.links.append(&mut links);
        for text in &self.dst_mac {
            match parse_dst_mac(text) {
                Ok((port, mac)) => {
                    config.dst_mac.retain(|(other, _)| *other != port);
                    config.dst_mac.push((port, mac));
                }
                Err(mistake) => note(mistake),
            }
        }
        config
    }
}

impl Inner {
    /// What stands against the settings and the orders, as far as it can be seen before anything is done.
    fn refusals(&self, orders: &Orders, config: &Config) -> Vec<String> {
        let mut refusals = self.resolve(config).err().unwrap_or_default();
        for (names @ [a, b], backend) in &orders.carry {
            let config = Config {
                backend: *backend,
                rx: None,
                tx: None,
                ..config.clone()
            };
            let Some(at) = self.find_pair(names) else {
                // It is to be added.
                let kernel = *backend == Backend::Kernel;
                refusals.extend(needs_user_space([a, b], &config).filter(|_| kernel));
                continue;
            };
            refusals.extend(self.carry_mistakes(at, &config));
            let is_ours = |pair: &[_; 2]| unordered(pair) == unordered(names);
            if self.pairs[at].down && !orders.up.iter().any(is_ours) {
                refusals.push(format!("{a},{b} is down: set it up first"));
            }
        }
        refusals
    }

    /// Ends at what the kernel refuses.
    fn obey(&mut self, orders: &Orders, done: &mut Vec<String>) -> Result<()> {
        for (pairs, down) in [(&orders.up, false), (&orders.down, true)] {
            for pair in pairs {
                done.push(self.set_down(pair, down)?);
            }
        }
        for (pair @ [a, b], backend) in &orders.carry {
            let how = self.carry_by_name(pair, *backend)?;
            done.push(format!("pair {a},{b} is carried by {how}"));
        }
        Ok(())
    }

    fn info(&self, name: &str) -> Info {
        let port = |id: usize| PortInfo {
            name: self.ports[id].name.to_string(),
            state: self.ports[id].state(),
        };
        let pair = |pair: &Pair| PairInfo {
            ports: pair.ports.map(port),
            by: pair.how.clone(),
            down: pair.down,
            trouble: pair.trouble.clone(),
        };
        Info {
            name: name.to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.epoch.elapsed().as_secs_f64(),
            pairs: self.pairs.iter().map(pair).collect(),
        }
    }

    /// A pair that is closed by order is as it should be.
    pub(super) fn health(&mut self) -> Health {
        let live = self.refresh();
        let mut reasons = Vec::new();
        if !live {
            reasons.push("a worker does not turn".to_owned());
        }
        for pair in self.pairs.iter().filter(|pair| !pair.down) {
            reasons.extend(pair.trouble.clone());
            let mut ids = pair.ports.to_vec();
            ids.dedup();
            let ports = ids.into_iter().map(|id| &self.ports[id]);
            let not_up = ports.filter(|port| port.state() != PortState::Up);
            reasons.extend(not_up.map(|port| format!("port {} is {}", port.name, port.state())));
        }
        Health {
            live,
            ready: reasons.is_empty(),
            reasons,
        }
    }
}
