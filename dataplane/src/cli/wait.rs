//! `--wait-ports`: interfaces that are not there yet when the program starts, as those of a container.

use std::time::{Duration, Instant};

use crate::{
    config::Config,
    control::{
        Control, Wait,
        protocol::{Failure, FailureCode, Health, Request, Response},
        server::Answer,
    },
    error::Error,
};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until every port is there, or until a signal or a request ends it all: then `false`. Tells for what it waits, and whoever
/// asks for the relay's health.
///
/// # Errors
/// The ports that were not there in time.
pub fn ports_are_there(
    control: &mut Control,
    config: &Config,
    patience: Duration,
    mut tell: impl FnMut(&str),
) -> Result<bool, Error> {
    let (start, limit_s) = (Instant::now(), patience.as_secs_f64());
    let mut told = String::new();
    control.tick_every(Some(LOOK));
    loop {
        let absent = config.absent();
        if absent.is_empty() {
            control.tick_every(None);
            return Ok(true);
        }
        if start.elapsed() >= patience {
            let late = |port| {
                format!(
                    "{port}: no such interface after {limit_s} s: create it or move it here, or wait longer (--wait-ports)"
                )
            };
            return Err(Error::Config(absent.into_iter().map(late).collect()));
        }
        let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
        let waiting = format!("waiting for {}", names.join(", "));
        if waiting != told {
            tell(&format!("{waiting} (at most {limit_s} s)"));
            told.clone_from(&waiting);
        }
        let wait = control.wait(|request| {
            let answer = match request {
                Request::Health {} => Response::Health(Health {
                    live: true,
                    ready: false,
                    reasons: vec![waiting.clone()],
                }),
                Request::Stop {} => Response::Done(vec!["stopping".into()]),
                _ => Response::Error(Failure {
                    code: FailureCode::Refused,
                    message: format!("the relay is {waiting}"),
                }),
            };
            Answer::Say(answer)
        })?;
        if let Wait::Stop(_) = wait {
            return Ok(false);
        }
    }
}
