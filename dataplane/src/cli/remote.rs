//! `l2relay ps`, `stats`, `health`, `stop`: what is asked of a relay that runs.

use std::{
    fmt, io,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;

use super::{LogFormat, print, say_failure};
use crate::{
    control::{
        client::{Client, Found, find},
        protocol::{Changes, Health, Info, Request, Response},
    },
    error::Error,
    snapshot::Snapshot,
    text::{columns, visible},
};

/// Which relay is meant.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The relay's name (default: the only one that runs)
    #[arg(long, value_name = "RELAY")]
    pub name: Option<String>,
}

/// List the relays that run
#[derive(Args, Clone, Debug)]
pub struct PsArgs {
    /// Print JSON: a list of objects
    #[arg(long)]
    pub json: bool,
}

/// Print what a relay has counted
#[derive(Args, Clone, Debug)]
pub struct StatsArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Print again every S seconds, with rates since the time before: 0.01 to 86400
    #[arg(long, value_name = "S")]
    pub watch: Option<String>,
    /// Have the relay count from 0 again; what is printed had been counted before
    #[arg(long, conflicts_with = "watch")]
    pub reset: bool,
}

/// Tell whether a relay works: for Docker, Kubernetes and scripts
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit status: 0 if all is well, 1 if not, 2 if no relay can be asked.
A relay is ready if its workers turn and every port is up, and live if its workers turn.")]
pub struct HealthArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
    /// Ask only whether its workers turn, not whether its ports are up
    #[arg(long)]
    pub live: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Stop a relay, as SIGTERM does, and wait for its end
#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
}

/// Change settings of a relay that runs, without stopping it
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Pairs and settings that are not named stay as they are, and their frames go on.

Examples:
  l2relay set --mac swap
  l2relay set --add r2,r3 --remove r0,r1 --idle spin
  l2relay set --link 'r0>r1 rate 1mbit delay 20ms'
  l2relay set --down r0,r1
  l2relay set --carry r0,r1=kernel")]
pub struct SetArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
    /// MAC addresses: keep, swap, update
    #[arg(long, value_name = "MODE")]
    pub mac: Option<String>,
    /// With MAC addresses updated: destination of the frames that PORT sends; repeat for more
    #[arg(long, value_name = "PORT=MAC")]
    pub dst_mac: Vec<String>,
    /// Emulate a link, or change one, in the words of run; frames that it holds go on; repeat for more
    #[arg(long, value_name = "LINK")]
    pub link: Vec<String>,
    /// When no frame comes: spin, adaptive, sleep
    #[arg(long, value_name = "POLICY")]
    pub idle: Option<String>,
    /// Join two more ports, or add a hairpin; repeat for more
    #[arg(long, value_name = "A,B|E")]
    pub add: Vec<String>,
    /// Remove a pair or a hairpin; repeat for more
    #[arg(long, value_name = "A,B|E")]
    pub remove: Vec<String>,
    /// Open a pair that was closed; repeat for more
    #[arg(long, value_name = "A,B|E")]
    pub up: Vec<String>,
    /// Close a pair: it lets go of its ports and keeps its counts; repeat for more
    #[arg(long, value_name = "A,B|E")]
    pub down: Vec<String>,
    /// Move a pair to another back end: auto, packet, xdp, kernel, fastest; repeat for more
    #[arg(long, value_name = "A,B=BACKEND")]
    pub carry: Vec<String>,
}

/// Have a relay read its configuration file again, as SIGHUP does
#[derive(Args, Clone, Debug)]
pub struct ReloadArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
}

/// How long a relay may take to end: each worker sends what it holds for up to 100 ms, and a slow reader of the last statistics
/// is waited for.
const END: Duration = Duration::from_secs(10);

/// Relays as `ps` lists them.
#[derive(Serialize)]
#[serde(transparent)]
struct Relays(Vec<Listed>);

/// A relay, or why it could not be asked. One that has ended meanwhile is not listed.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Answered(Info),
    Silent { name: String, error: String },
}

impl PsArgs {
    /// Lists.
    ///
    /// # Errors
    /// Standard output takes nothing.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let (found, closed) = find();
        for why in closed {
            say_failure(LogFormat::Human, &format!("not looked into: {why}"));
        }
        let ask = |found: Found| match Client::open(&found).and_then(|mut relay| info(&mut relay)) {
            Ok(info) => info.map(Listed::Answered),
            Err(error) => Some(Listed::Silent {
                name: found.name,
                error,
            }),
        };
        // Side by side: those that are stopped take a while to be given up.
        let asked: Vec<_> = found
            .into_iter()
            .map(|relay| thread::spawn(move || ask(relay)))
            .collect();
        let listed = asked.into_iter().filter_map(|thread| thread.join().ok()?);
        written(print(&Relays(listed.collect()), self.json))
    }
}

impl StatsArgs {
    /// Prints once, or until the reader leaves or the relay ends.
    ///
    /// # Errors
    /// No relay can be asked.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let interval = match &self.watch {
            Some(text) => Some(
                super::run::interval("--watch", text)
                    .map_err(|mistake| Error::Config(vec![mistake]))?,
            ),
            None => None,
        };
        let mut relay = self.target.connect()?;
        let mut now = stats(&mut relay, self.reset)?;
        let mut next = Instant::now();
        loop {
            let printed = print(&now, self.json);
            // A reader that has left wants no more.
            let left = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            let (Some(seconds), false) = (interval, printed.as_ref().is_err_and(left)) else {
                return written(printed);
            };
            written(printed)?;
            next = (next + Duration::from_secs_f64(seconds)).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
            now = stats(&mut relay, false)?.since(&now);
        }
    }
}

impl HealthArgs {
    /// Tells.
    ///
    /// # Errors
    /// No relay can be asked.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let mut relay = self.target.connect()?;
        let health = match ask(&mut relay, &Request::Health {})? {
            Response::Health(health) => health,
            other => return Err(strange(&relay, &other)),
        };
        written(print(&health, self.json))?;
        let well = if self.live { health.live } else { health.ready };
        Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl SetArgs {
    /// Changes them, and prints what has changed.
    ///
    /// # Errors
    /// Every mistake at once, or what the kernel refused.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let changes = Changes {
            mac: self.mac.clone(),
            dst_mac: self.dst_mac.clone(),
            link: self.link.clone(),
            idle: self.idle.clone(),
            add: self.add.clone(),
            remove: self.remove.clone(),
            up: self.up.clone(),
            down: self.down.clone(),
            carry: self.carry.clone(),
        };
        if changes == Changes::default() {
            return Err(one("nothing to change: see l2relay set --help".into()));
        }
        let mut relay = self.target.connect()?;
        done(&mut relay, &Request::Set(Box::new(changes)))
    }
}

impl ReloadArgs {
    /// Has it read, and prints what has changed.
    ///
    /// # Errors
    /// Every mistake in the file at once, or what the kernel refused.
    pub fn run(&self) -> Result<ExitCode, Error> {
        done(&mut self.target.connect()?, &Request::Reload {})
    }
}

impl StopArgs {
    /// Stops it.
    ///
    /// # Errors
    /// No relay can be asked, or it does not end.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let mut relay = self.target.connect()?;
        // Somebody else may have stopped it already.
        let answer = relay.ask_unless_ended(&Request::Stop {}).map_err(one)?;
        if answer.is_none() {
            let said = format!("relay {} has ended", relay.name());
            return written(print(&said, false));
        }
        relay.wait_for_end(END).map_err(one)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Target {
    pub(super) fn connect(&self) -> Result<Client, Error> {
        Client::connect(self.name.as_deref()).map_err(one)
    }
}

fn ask(relay: &mut Client, request: &Request) -> Result<Response, Error> {
    relay.ask(request).map_err(one)
}

/// Which relay it is. `None`: it has ended.
fn info(relay: &mut Client) -> Result<Option<Info>, String> {
    match relay.ask_unless_ended(&Request::Info {})? {
        Some(Response::Info(info)) => Ok(Some(info)),
        None => Ok(None),
        Some(other) => Err(strange(relay, &other).to_string()),
    }
}

pub(super) fn stats(relay: &mut Client, reset: bool) -> Result<Snapshot, Error> {
    match ask(relay, &Request::Stats { reset })? {
        Response::Stats(snapshot) => Ok(*snapshot),
        other => Err(strange(relay, &other)),
    }
}

/// Asks for something to be done, and prints what was.
fn done(relay: &mut Client, request: &Request) -> Result<ExitCode, Error> {
    match ask(relay, request)? {
        Response::Done(changes) if changes.is_empty() => {
            written(print(&"nothing has changed", false))
        }
        Response::Done(changes) => written(print(&changes.join("\n"), false)),
        other => Err(strange(relay, &other)),
    }
}

/// The settings of a relay that runs, as a configuration file.
///
/// # Errors
/// No relay can be asked.
pub(super) fn running_config(target: &Target) -> Result<String, Error> {
    let mut relay = target.connect()?;
    match ask(&mut relay, &Request::Config {})? {
        Response::Config(file) => Ok(file),
        other => Err(strange(&relay, &other)),
    }
}

pub(super) fn strange(relay: &Client, response: &Response) -> Error {
    one(format!(
        "relay {}: an answer to another question: {response:?}",
        relay.name()
    ))
}

pub(super) fn one(mistake: String) -> Error {
    Error::Config(vec![mistake])
}

/// What a command comes to that has printed. A reader that has left knows why.
pub(super) fn written(printed: io::Result<()>) -> Result<ExitCode, Error> {
    match printed {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::system("write to", "standard output", source, ""))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

impl fmt::Display for Relays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|relay| match relay {
            Listed::Answered(Info { name, .. }) | Listed::Silent { name, .. } => columns(name),
        });
        let width = names.max().unwrap_or(0).max(4);
        write!(f, "{:width$} {:>7} {:>10}  pairs", "name", "pid", "uptime")?;
        for relay in &self.0 {
            match relay {
                Listed::Answered(info) => {
                    let pairs: Vec<String> = info.pairs.iter().map(ToString::to_string).collect();
                    write!(
                        f,
                        "\n{:width$} {:>7} {:>10}  {}",
                        visible(&info.name),
                        info.pid,
                        uptime(info.uptime_s),
                        pairs.join(", ")
                    )?;
                }
                Listed::Silent { name, error } => {
                    let name = visible(name);
                    write!(f, "\n{name:width$} {:>7} {:>10}  {error}", "?", "?")?;
                }
            }
        }
        Ok(())
    }
}

/// `3 d 04:05:06`.
pub(super) fn uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let clock = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if days > 0 {
        format!("{days} d {clock}")
    } else {
        clock
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (self.live, self.ready) {
            (true, true) => "ready",
            (true, false) => "live, not ready",
            (false, _) => "not live",
        };
        f.write_str(state)?;
        self.reasons
            .iter()
            .try_for_each(|reason| write!(f, "\n  {}", visible(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptimes_are_short() {
        assert_eq!(uptime(59.9), "00:00:59");
        assert_eq!(uptime(273_906.0), "3 d 04:05:06");
    }
}
