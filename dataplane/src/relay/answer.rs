//! What a relay answers to requests. Called by whoever has a control socket: the program's main thread, or an embedder's.

use super::{Inner, Relay, lock, observe::Place};
use crate::{
    capture::refused,
    control::{
        protocol::{CaptureRequest, Health, Info, PairInfo, PortInfo, Request, Response},
        server::Answer,
    },
    error::Error,
    snapshot::PortState,
    stage::tap::{Point, TapSettings, bpf::Program},
};

impl Relay {
    /// Obeys a request. To stop is the caller's business. `name` is the relay's, as its socket has it.
    pub fn answer(&self, name: &str, request: Request) -> Answer {
        let mut inner = lock(&self.inner);
        let response = match request {
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
            Request::Capture(wanted) => {
                drop(inner);
                return self.capture(&wanted);
            }
        };
        Answer::Say(response)
    }

    fn capture(&self, wanted: &CaptureRequest) -> Answer {
        let filter = match &wanted.filter[..] {
            [] => None,
            code => match Program::new(code) {
                Ok(filter) => Some(filter),
                Err(invalid) => return refused(invalid.to_string()),
            },
        };
        let place = match (&wanted.port, &wanted.lane) {
            (None, None) => Place::Everywhere,
            (Some(port), None) => Place::Port(port.clone()),
            (None, Some(lane)) => Place::Lane(lane.clone()),
            (Some(_), Some(_)) => return refused("a port or a lane, not both".into()),
        };
        let points: &[Point] = match (wanted.before, wanted.after) {
            (true, false) => &[Point::Before],
            (false, true) => &[Point::After],
            _ => &[Point::Before, Point::After],
        };
        let settings = TapSettings {
            filter,
            snaplen: wanted.snaplen.unwrap_or(u32::MAX),
            buffer: wanted.buffer_bytes.min(CaptureRequest::BUFFER_MAX) as usize,
        };
        match self.observe(&place, points, &settings) {
            Ok(taps) => self.captures.start(taps, wanted),
            Err(Error::Config(mistakes)) => refused(mistakes.join("; ")),
            Err(error) => refused(error.to_string()),
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
