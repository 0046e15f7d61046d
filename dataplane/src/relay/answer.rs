//! What a relay answers to requests. Called by whoever has a control socket: the program's main thread, or an embedder's.

use super::{Inner, Pair, Relay, lock};
use crate::{
    config::{Config, MacMode, parse_carry, parse_dst_mac, parse_ends, parse_link},
    control::{
        protocol::{
            Changes, Failure, FailureCode, Health, Info, PairInfo, PortInfo, Request, Response,
        },
        server::Answer,
    },
    error::Error,
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
        let mut mistakes = Vec::new();
        let config = changes.over(self.config(), &mut mistakes);
        let [up, down] = [&changes.up, &changes.down].map(|pairs| {
            let pairs = pairs.iter().map(|text| parse_ends(text));
            let pairs =
                pairs.filter_map(|pair| pair.map_err(|mistake| mistakes.push(mistake)).ok());
            pairs.collect::<Vec<_>>()
        });
        let both = up.iter().filter(|pair| down.contains(pair));
        mistakes.extend(both.map(|[a, b]| format!("pair {a},{b}: both up and down")));
        let carry = changes.carry.iter().map(|text| parse_carry(text));
        let carry = carry.filter_map(|carry| carry.map_err(|mistake| mistakes.push(mistake)).ok());
        let carry: Vec<_> = carry.collect();
        let carried = carry.iter().map(|(pair, _)| pair);
        for [a, b] in up.iter().chain(&down).chain(carried) {
            let is = |[x, y]: &[_; 2]| (x, y) == (a, b) || (x, y) == (b, a);
            if !config.pairs.iter().any(is) {
                mistakes.push(format!("pair {a},{b}: no such pair"));
            }
        }
        if !mistakes.is_empty() {
            mistakes.extend(config.mistakes());
            return Response::Error(Failure {
                code: FailureCode::Invalid,
                message: mistakes.join("\n"),
            });
        }
        let mut done = match self.apply(config) {
            Ok(done) => done,
            Err(error) => return Response::Error(error.into()),
        };
        let states = [(&up, false), (&down, true)];
        for (pair, down) in states
            .into_iter()
            .flat_map(|(pairs, down)| pairs.iter().map(move |pair| (pair, down)))
        {
            match self.set_down(pair, down) {
                Ok(change) => done.push(change),
                Err(error) => return Response::Error(error.into()),
            }
        }
        for (pair, backend) in &carry {
            match self.carry(pair, *backend) {
                Ok(how) => done.push(format!("pair {},{} is carried by {how}", pair[0], pair[1])),
                Err(error) => return Response::Error(error.into()),
            }
        }
        Response::Done(done)
    }
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
