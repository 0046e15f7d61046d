//! What a relay answers to requests. Called by whoever has a control socket: the program's main thread, or an embedder's.

use super::{Inner, Relay, lock};
use crate::{
    control::protocol::{Health, Info, PairInfo, PortInfo, Request, Response},
    snapshot::PortState,
};

impl Relay {
    /// Obeys a request. To stop is the caller's business. `name` is the relay's, as its socket has it.
    pub fn answer(&self, name: &str, request: Request) -> Response {
        let mut inner = lock(&self.inner);
        match request {
            Request::Info {} => Response::Info(inner.info(name)),
            Request::Health {} => Response::Health(inner.health()),
            Request::Stats { reset } => {
                let snapshot = inner.snapshot(false);
                if reset {
                    inner.reset();
                }
                Response::Stats(Box::new(snapshot))
            }
            Request::Stop {} => Response::Done(vec!["stopping".into()]),
        }
    }
}

impl Inner {
    fn info(&self, name: &str) -> Info {
        let port = |id: usize| PortInfo {
            name: self.ports[id].name.to_string(),
            state: self.ports[id].state(),
        };
        let pair = |pair: &super::Pair| PairInfo {
            ports: pair.ports.map(port),
            by: pair.how.clone(),
        };
        Info {
            name: name.to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.epoch.elapsed().as_secs_f64(),
            pairs: self.pairs.iter().map(pair).collect(),
        }
    }

    fn health(&mut self) -> Health {
        let live = self.refresh();
        let mut reasons = Vec::new();
        if !live {
            reasons.push("a worker does not turn".to_owned());
        }
        let not_up = self
            .ports
            .iter()
            .filter(|port| port.state() != PortState::Up);
        reasons.extend(not_up.map(|port| format!("port {} is {}", port.name, port.state())));
        Health {
            live,
            ready: reasons.is_empty(),
            reasons,
        }
    }
}
