//! Messages: to standard error, as text or JSON lines, and not more than anybody can read.

use std::{
    collections::HashMap,
    fmt,
    io::{self, IsTerminal},
    mem,
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tracing::{
    Event, Metadata, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    fmt::MakeWriter,
    layer::{Context, Filter, SubscriberExt},
    util::SubscriberInitExt,
};

use crate::text::visible;

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
    to(format, io::stderr).init();
}

fn to<W>(format: LogFormat, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer = match format {
        LogFormat::Human => layer
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .without_time()
            .boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(Throttle::default()))
}

/// Says a line: as text, with what would steer a terminal written out, or as a message where those are JSON. None is left out.
pub fn say(format: LogFormat, line: &str) {
    match format {
        LogFormat::Human => eprintln!("{}", visible(line)),
        LogFormat::Json => tracing::info!(target: SAID, "{line}"),
    }
}

/// Says why the program ends, a line each.
pub fn say_failure(format: LogFormat, text: &str) {
    for line in text.lines() {
        match format {
            LogFormat::Human => eprintln!("l2relay: {}", visible(line)),
            LogFormat::Json => tracing::error!(target: SAID, "{line}"),
        }
    }
}

/// The target of what is said once: there is a line for each pair, core and port, however many.
const SAID: &str = "l2relay::said";

/// Lets each place in the source say so much, and leaves out the rest: a link that flaps must not fill a disk. How much that was is said
/// when the period is over.
#[derive(Clone, Debug, Default)]
struct Throttle {
    places: Arc<Mutex<Places>>,
}

type Places = HashMap<Identifier, Place>;

#[derive(Debug)]
struct Place {
    since: Instant,
    said: u32,
    /// What was not said, and will be told of.
    left_out: u64,
}

/// Messages of one place in one period.
const MOST: u32 = 50;
const PERIOD: Duration = Duration::from_secs(10);

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Said,
    LeftOut {
        /// It is the first of which nobody knows yet.
        first: bool,
    },
}

impl Throttle {
    fn fate(&self, place: &Identifier, now: Instant) -> Fate {
        let mut places = lock(&self.places);
        let place = places.entry(place.clone()).or_insert(Place {
            since: now,
            said: 0,
            left_out: 0,
        });
        if now.duration_since(place.since) >= PERIOD {
            (place.since, place.said) = (now, 0);
        }
        if place.said < MOST {
            place.said += 1;
            return Fate::Said;
        }
        place.left_out += 1;
        Fate::LeftOut {
            first: place.left_out == 1,
        }
    }

    /// Takes how many were left out.
    fn take_left_out(&self, place: &Identifier) -> u64 {
        let mut places = lock(&self.places);
        let place = places.get_mut(place);
        place.map_or(0, |place| mem::take(&mut place.left_out))
    }

    /// Says how many were left out, a period later: by a thread of its own, because nobody may have anything to say then.
    fn tell_later(&self, place: Identifier, text: String) {
        let throttle = self.clone();
        let tell = move || {
            thread::sleep(PERIOD);
            let more = throttle.take_left_out(&place);
            tracing::warn!("{more} messages were left out, the first of them: {text}");
        };
        // Without a thread they are left out in silence.
        let _ = thread::Builder::new()
            .name("l2relay-log".into())
            .spawn(tell);
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of a message.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber> Filter<S> for Throttle {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if event.metadata().target() == SAID {
            return true;
        }
        let place = event.metadata().callsite();
        let fate = self.fate(&place, Instant::now());
        if fate == (Fate::LeftOut { first: true }) {
            let mut text = Text::default();
            event.record(&mut text);
            self.tell_later(place, text.0);
        }
        fate == Fate::Said
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

    /// Where a relay with many pairs says what it has; and a link that flaps.
    #[test]
    fn what_is_said_once_is_never_left_out() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let writer = lines.clone();
        let messages = to(LogFormat::Json, move || writer.clone());
        tracing::subscriber::with_default(messages, || {
            (0..64).for_each(|pair| say(LogFormat::Json, &format!("pair {pair}")));
            (0..64).for_each(|at| tracing::info!("flap {at}"));
            say(LogFormat::Json, "ready");
            say_failure(LogFormat::Json, "one\ntwo");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let said: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect();
        let pairs = (0..64).map(|pair| format!("pair {pair}"));
        let flaps = (0..MOST).map(|at| format!("flap {at}"));
        let rest = ["ready", "one", "two"].map(str::to_owned);
        assert_eq!(said, pairs.chain(flaps).chain(rest).collect::<Vec<_>>());
    }

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
        let fates =
            |at: Instant| -> Vec<Fate> { (0..1000).map(|_| throttle.fate(&id(), at)).collect() };
        let count = |fates: &[Fate], fate: Fate| fates.iter().filter(|one| **one == fate).count();
        for at in [now, now + PERIOD] {
            let fates = fates(at);
            assert_eq!(count(&fates, Fate::Said), MOST as usize);
            assert_eq!(fates[MOST as usize], Fate::LeftOut { first: true });
            assert_eq!(count(&fates, Fate::LeftOut { first: true }), 1);
            assert_eq!(throttle.take_left_out(&id()), 1000 - u64::from(MOST));
        }
        assert_eq!(count(&fates(now + PERIOD * 3 / 2), Fate::Said), 0);
        assert_eq!(throttle.take_left_out(&id()), 1000);
    }
}
