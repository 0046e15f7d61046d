//! Messages: to standard error, as text or JSON lines, and not more than anybody can read.

use std::{
    collections::HashMap,
    fmt,
    io::{self, IsTerminal},
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{Event, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::{
    Layer,
    layer::{Context, Filter, SubscriberExt},
    util::SubscriberInitExt,
};

/// How messages are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// As text.
    #[default]
    Human,
    /// As one JSON object a line.
    Json,
}

/// Has all messages go to standard error from now on.
pub fn start(format: LogFormat) {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Human => layer
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .without_time()
            .boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let filtered = layer.with_filter(Throttle::default());
    tracing_subscriber::registry().with(filtered).init();
}

/// Says a line: as it is, or as a message where those are JSON.
pub fn say(format: LogFormat, line: &str) {
    match format {
        LogFormat::Human => eprintln!("{line}"),
        LogFormat::Json => tracing::info!("{line}"),
    }
}

/// Lets each place in the source say so much, and leaves out the rest: a link that flaps must not fill a disk.
#[derive(Debug, Default)]
struct Throttle {
    places: Mutex<HashMap<Identifier, Place>>,
}

#[derive(Debug)]
struct Place {
    since: Instant,
    said: u32,
}

/// Messages of one place in one period. Set-up says a line for each pair, core and port.
const MOST: u32 = 50;
const PERIOD: Duration = Duration::from_secs(10);

impl Throttle {
    fn lets_pass(&self, place: Identifier, now: Instant) -> bool {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Place {
            since: now,
            said: 0,
        };
        let place = places.entry(place).or_insert_with(fresh);
        if now.duration_since(place.since) >= PERIOD {
            *place = fresh();
        }
        place.said += 1;
        place.said <= MOST
    }
}

impl<S: Subscriber> Filter<S> for Throttle {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.lets_pass(event.metadata().callsite(), Instant::now())
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Human => "human",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            _ => Err(format!("--log-format {text:?}: use human or json")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Callsite, callsite::DefaultCallsite};

    use super::*;

    #[test]
    fn a_place_may_say_so_much() {
        static META: Metadata<'static> = tracing::metadata! {
            name: "x", target: "x", level: tracing::Level::INFO, fields: &[], callsite: &PLACE, kind: tracing::metadata::Kind::EVENT
        };
        static PLACE: DefaultCallsite = DefaultCallsite::new(&META);
        let _ = PLACE.metadata();
        let throttle = Throttle::default();
        let id = || Identifier(&PLACE);
        let now = Instant::now();
        let passed = |at: Instant| (0..1000).filter(|_| throttle.lets_pass(id(), at)).count();
        assert_eq!(passed(now), MOST as usize);
        assert_eq!(passed(now + PERIOD / 2), 0);
        assert_eq!(passed(now + PERIOD), MOST as usize);
    }
}
