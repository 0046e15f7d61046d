//! `--wait-ports`: interfaces that are not there yet when the program starts, as those of a container.

use std::time::{Duration, Instant};

use crate::{config::Config, control::Control, error::Error};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until every port is there, or until a signal ends it all: then `false`. Says for what it waits.
///
/// # Errors
/// The ports that were not there in time.
pub fn ports_are_there(
    control: &mut Control,
    config: &Config,
    patience: Duration,
) -> Result<bool, Error> {
    let start = Instant::now();
    let mut said = Vec::new();
    loop {
        let absent = config.absent();
        if absent.is_empty() {
            return Ok(true);
        }
        if start.elapsed() >= patience {
            let late = |port| {
                format!(
                    "{port}: no such interface after {} s: create it or move it here, or wait longer (--wait-ports)",
                    patience.as_secs_f64()
                )
            };
            return Err(Error::Config(absent.into_iter().map(late).collect()));
        }
        let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
        if names != said {
            eprintln!(
                "waiting for {} (at most {} s)",
                names.join(", "),
                patience.as_secs_f64()
            );
            said = names;
        }
        if control.stops_within(LOOK)? {
            return Ok(false);
        }
    }
}
