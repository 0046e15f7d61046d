//! The chain as a user runs it: it measures, it reports, and it leaves nothing behind however it ends.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

const BENCH: &str = env!("CARGO_BIN_EXE_l2relay-bench");

/// False, with a loud note, without root. CI turns that into a failure.
fn root(test: &str) -> bool {
    if geteuid().is_root() {
        return true;
    }
    assert!(
        std::env::var_os("L2RELAY_REQUIRE_ROOT").is_none_or(|v| v != "1"),
        "{test}: needs root, and L2RELAY_REQUIRE_ROOT=1"
    );
    eprintln!("SKIPPED {test}: needs root");
    false
}

/// A directory for reports, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("chain-test-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chain(args: &[&str], out: &Path) -> Command {
    let mut command = Command::new(BENCH);
    command.arg("chain").args(args).arg("--out").arg(out);
    command.args(["--host-cpu", "0", "--relay-cpu", "0"]);
    command
}

/// Namespaces of the run with this pid.
fn namespaces(pid: u32) -> Vec<String> {
    let prefix = format!("l2rb-{pid}-");
    let names = std::fs::read_dir("/run/netns").into_iter().flatten();
    names
        .filter_map(|n| n.ok()?.file_name().into_string().ok())
        .filter(|n| n.starts_with(&prefix))
        .collect()
}

/// Processes inside these namespaces.
fn processes(namespaces: &[String]) -> Vec<String> {
    let mut pids = Vec::new();
    for name in namespaces {
        let output = Command::new("ip")
            .args(["netns", "pids", name])
            .output()
            .expect("ip runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        pids.extend(text.split_whitespace().map(str::to_owned));
    }
    pids
}

/// Is it still there? (A zombie is not: it waits for its parent only.)
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Starts a chain that would take minutes, and waits until its traffic runs.
fn start_long(out: &Path) -> (Child, Vec<String>) {
    let child = chain(&["--relays", "bridge", "--seconds", "60"], out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bench starts");
    let mut traffic = Vec::new();
    until("server and client run", Duration::from_secs(20), || {
        traffic = processes(&namespaces(child.id()));
        traffic.len() >= 2
    });
    (child, traffic)
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a pid");
    kill_process(pid, signal).expect("the signal is sent");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_chain_is_measured_reported_and_removed() {
    if !root("a_chain_is_measured_reported_and_removed") {
        return;
    }
    let out = Scratch::new("measured");
    let child = chain(
        &["--relays", "bridge", "--seconds", "1", "--rates", "500"],
        &out.0,
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("the bench starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("the bench ends");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(namespaces(pid), [""; 0]);

    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.contains("sockperf ping-pong UDP") && table.contains("bridge"),
        "{table}"
    );
    let json = std::fs::read_to_string(out.0.join("report.json")).expect("a JSON report");
    let report: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let measured = &report["sections"][0]["variants"][0]["rounds"][0]["measurements"];
    let figures = |i: usize, kind: &str| measured[i]["outcome"]["measured"][kind].clone();
    for i in [0, 1] {
        let latency = figures(i, "latency");
        assert!(
            latency["observations"].as_u64().is_some_and(|n| n > 10),
            "{json}"
        );
        assert!(
            latency["min_us"].as_f64().is_some_and(|us| us > 0.1),
            "{json}"
        );
    }
    assert!(
        figures(2, "throughput")["received"]
            .as_u64()
            .is_some_and(|n| n > 0),
        "{json}"
    );
    for i in [3, 4] {
        let goodput = figures(i, "goodput");
        assert!(
            goodput["received_bps"]
                .as_f64()
                .is_some_and(|bps| bps > 1e6),
            "{json}"
        );
    }
    assert_eq!(figures(3, "goodput")["congestion_control"], "cubic");
    let page = std::fs::read_to_string(out.0.join("report.html")).expect("a page");
    assert!(page.contains("<svg") && !page.contains("http"), "{page}");
}

#[test]
fn a_relay_that_dies_is_reported_and_fails_the_run() {
    if !root("a_relay_that_dies_is_reported_and_fails_the_run") {
        return;
    }
    let out = Scratch::new("dying");
    std::fs::create_dir_all(&out.0).expect("a directory");
    let relay = out.0.join("l2relay");
    let script = "#!/bin/sh\necho ready >&2\nsleep 0.3\necho 'a port is gone' >&2\nexit 7\n";
    std::fs::write(&relay, script).expect("a script");
    std::fs::set_permissions(&relay, Permissions::from_mode(0o755)).expect("it may run");
    let relay = relay.to_string_lossy().into_owned();
    let args = ["--relays", "l2relay", "--seconds", "1", "--l2relay", &relay];
    let output = chain(&args, &out.0).output().expect("the bench runs");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let report = std::fs::read_to_string(out.0.join("report.md")).expect("a report");
    for told in ["no connection", "ended by itself", "a port is gone"] {
        assert!(report.contains(told), "{told}: {report}");
    }
}

#[test]
fn an_interrupted_chain_leaves_nothing() {
    if !root("an_interrupted_chain_leaves_nothing") {
        return;
    }
    let out = Scratch::new("interrupted");
    for signal in [Signal::INT, Signal::TERM] {
        let (mut child, traffic) = start_long(&out.0);
        send(&child, signal);
        let mut status = None;
        until("the bench ends", Duration::from_secs(10), || {
            status = child.try_wait().expect("it is our child");
            status.is_some()
        });
        assert_eq!(status.and_then(|s| s.code()), Some(130), "{signal:?}");
        assert_eq!(namespaces(child.id()), [""; 0], "{signal:?}");
        for pid in traffic {
            assert!(!lives(&pid), "{signal:?}: process {pid} was left");
        }
        assert!(!out.0.exists(), "a report of an interrupted run");
    }
}

#[test]
fn what_a_killed_chain_leaves_the_next_one_removes() {
    if !root("what_a_killed_chain_leaves_the_next_one_removes") {
        return;
    }
    let out = Scratch::new("killed");
    let (mut killed, traffic) = start_long(&out.0);
    send(&killed, Signal::KILL);
    killed.wait().expect("it is our child");
    for pid in traffic {
        until("its children die with it", Duration::from_secs(5), || {
            !lives(&pid)
        });
    }
    assert_ne!(
        namespaces(killed.id()),
        [""; 0],
        "nothing was left: the test shows nothing"
    );

    let (mut next, _) = start_long(&out.0);
    assert_eq!(namespaces(killed.id()), [""; 0]);
    send(&next, Signal::INT);
    next.wait().expect("it is our child");
}

#[test]
fn what_cannot_be_measured_is_said_at_once() {
    if !root("what_cannot_be_measured_is_said_at_once") {
        return;
    }
    let out = Scratch::new("refused");
    for (args, named) in [
        (&["--relays", "none,cisco"][..], "cisco"),
        (
            &["--relays", "l2relay", "--l2relay", "/nowhere/l2relay"],
            "/nowhere/l2relay",
        ),
        (
            &["--delay", "1ms", "--l2relay", "/nowhere/l2relay"],
            "/nowhere/l2relay",
        ),
        (&["--delay", "soon"], "soon"),
        (&["--seconds", "0"], "0 is not in"),
    ] {
        let output = chain(args, &out.0).output().expect("the bench runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(named), "{args:?}: {}", said(&output));
    }
    let mut command = Command::new(BENCH);
    command.args(["chain", "--relays", "none", "--host-cpu", "1000"]);
    let output = command.output().expect("the bench runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("CPU 1000"), "{}", said(&output));
    assert!(!out.0.exists(), "a report of nothing");
}
