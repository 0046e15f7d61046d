//! What a snapshot of a relay with 64 pairs takes, with all counters fetched anew from the workers and the kernel; and with its JSON.
//!
//! Needs root: the pairs are interfaces in a namespace of its own, their peers in a second, as those of containers are. Both are removed again. Without root it says so and measures nothing.
//! Run with `cargo bench -p l2relay --bench snapshot`.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use core_affinity::CoreId;
use criterion::Criterion;
use l2relay::{
    config::{Config, PortName},
    relay::Relay,
};

/// As many pairs as the goal names.
const PAIRS: usize = 64;
/// The core of the relay's worker.
const WORKER: usize = 1;
/// The core of who asks.
const READER: usize = 0;
/// Longer than what was fetched counts as fresh (5 ms).
const STALE: Duration = Duration::from_millis(6);

/// Two namespaces and the cables between them, removed on drop.
struct Space(String);

impl Space {
    fn new() -> Result<Self, String> {
        let space = Self(format!("l2b-{}", std::process::id()));
        let peers = space.peers();
        ip(&["netns", "add", &space.0], "")?;
        ip(&["netns", "add", &peers], "")?;
        let (mut script, mut up) = (String::new(), String::new());
        for pair in 0..PAIRS {
            for end in ["a", "b"] {
                let _ = write!(
                    script,
                    "link add {end}{pair} type veth peer name {end}{pair} netns {peers}\nlink set {end}{pair} up\n"
                );
                let _ = writeln!(up, "link set {end}{pair} up");
            }
        }
        ip(&["-n", &space.0, "-batch", "-"], &script)?;
        ip(&["-n", &peers, "-batch", "-"], &up)?;
        Ok(space)
    }

    fn peers(&self) -> String {
        format!("{}-peers", self.0)
    }

    fn port(&self, end: &str, pair: usize) -> PortName {
        let name = format!("{}:{end}{pair}", self.0);
        name.parse().expect("it is a port's name")
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for netns in [&self.0, &self.peers()] {
            let _ = ip(&["netns", "delete", netns], "");
        }
    }
}

fn ip(args: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("ip: {error}"))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let status = child.wait().map_err(|error| error.to_string())?;
    match (written, status.success()) {
        (Ok(()), true) => Ok(()),
        _ => Err(format!("ip {}: {status}", args.join(" "))),
    }
}

fn main() {
    let criterion = &mut Criterion::default().configure_from_args();
    let space = match Space::new() {
        Ok(space) => space,
        Err(why) => return eprintln!("skipped: a namespace is needed, and so root: {why}"),
    };
    let pairs = (0..PAIRS).map(|pair| ["a", "b"].map(|end| space.port(end, pair)));
    let config = Config {
        pairs: pairs.collect(),
        ring: Some(64),
        cores: vec![WORKER],
        ..Config::default()
    };
    let relay = Relay::start(config).expect("it starts");
    // On one core the two would not work side by side. Only now: the worker may be put only where this program may run.
    assert!(core_affinity::set_for_current(CoreId { id: READER }));
    assert_eq!(relay.snapshot().lanes.len(), 2 * PAIRS);
    // As it is taken, and as a client of the control socket is sent it.
    for (name, as_json) in [
        ("snapshot/64 pairs", false),
        ("snapshot/64 pairs, JSON", true),
    ] {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                let one = |_| {
                    thread::sleep(STALE);
                    let start = Instant::now();
                    let snapshot = relay.snapshot();
                    let text = as_json.then(|| serde_json::to_string(&snapshot).expect("it can"));
                    let took = start.elapsed();
                    assert_eq!(snapshot.lanes.len(), 2 * PAIRS);
                    assert!(text.is_none_or(|text| text.contains("a63")));
                    took
                };
                (0..times).map(one).sum()
            });
        });
    }
    relay.stop();
    criterion.final_summary();
}
