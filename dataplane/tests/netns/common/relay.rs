//! The relay as a black box: started in a namespace, watched on its two streams, ended by a signal.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Net, PATIENCE, Snapshot, eventually};

/// What the tests send to the relay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    Usr1,
    HangUp,
    Int,
    Term,
    Kill,
    Freeze,
    Thaw,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Signal::Usr1 => "USR1",
            Signal::HangUp => "HUP",
            Signal::Int => "INT",
            Signal::Term => "TERM",
            Signal::Kill => "KILL",
            Signal::Freeze => "STOP",
            Signal::Thaw => "CONT",
        }
    }
}

/// A running relay; killed on drop.
pub(crate) struct Relay {
    child: Child,
    out: Arc<Mutex<Vec<String>>>,
    err: Arc<Mutex<Vec<String>>>,
    taken: usize,
}

/// The program under test: the one cargo built, or another that claims to be one (docs/testing: wrong relays).
pub(crate) fn program() -> String {
    std::env::var("L2RELAY_TEST_PROGRAM")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_l2relay").to_owned())
}

/// Runs `l2relay` with these arguments to its end, which must come by itself within a few seconds.
pub(crate) fn attempt(net: &Net, space: &str, wrapper: &[&str], args: &[&str]) -> Output {
    let mut command = net.command(space, "timeout");
    command
        .arg("-k1")
        // `ps` waits 5 s for a relay that another test has frozen.
        .arg("12")
        .args(wrapper)
        .arg(program())
        .args(args);
    command.output().expect("timeout (coreutils) runs")
}

impl Relay {
    /// Starts `l2relay run --json ARGS` in a namespace and waits until everything forwards.
    pub(crate) fn start(net: &Net, space: &str, args: &[&str]) -> Relay {
        let mut relay = Self::launch(net, space, &[], args);
        relay.wait_ready();
        relay
    }

    /// Starts it, perhaps under a wrapper (`setpriv …`, `taskset …`), and does not wait.
    pub(crate) fn launch(net: &Net, space: &str, wrapper: &[&str], args: &[&str]) -> Relay {
        let wrapped: Vec<String> = wrapper
            .iter()
            .map(|word| (*word).to_owned())
            .chain([program()])
            .collect();
        let mut command = net.command(space, &wrapped[0]);
        command
            .args(&wrapped[1..])
            .args(["run", "--json"])
            .args(args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the relay starts");
        let out = gather(child.stdout.take().expect("stdout is piped"));
        let err = gather(child.stderr.take().expect("stderr is piped"));
        Relay {
            child,
            out,
            err,
            taken: 0,
        }
    }

    /// Its process id: `ip netns exec` and the wrappers become the relay, they do not fork.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `ready`.
    pub(crate) fn wait_ready(&mut self) {
        let err = Arc::clone(&self.err);
        let ready = eventually(PATIENCE, || {
            err.lock()
                .expect("reader lives")
                .iter()
                .any(|line| line == "ready")
                || self.exited()
        });
        assert!(
            ready && !self.exited(),
            "the relay did not become ready:\n{}",
            self.said()
        );
    }

    /// Everything on its standard error so far.
    pub(crate) fn said(&self) -> String {
        self.err.lock().expect("reader lives").join("\n")
    }

    /// Whether a line with this text comes on its standard error in time.
    pub(crate) fn says(&self, text: &str) -> bool {
        eventually(PATIENCE, || self.said().contains(text))
    }

    pub(crate) fn exited(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let sent = Command::new("kill")
            .args(["-s", signal.name(), &self.pid().to_string()])
            .status();
        assert!(
            sent.expect("kill runs").success(),
            "SIG{} cannot be sent",
            signal.name()
        );
    }

    /// A snapshot by SIGUSR1 while nothing moves: the conservation law must hold exactly.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let snapshot = self.live_snapshot();
        snapshot.check();
        snapshot
    }

    /// A snapshot by SIGUSR1 under traffic, unchecked: counters of one burst may be between two stores.
    pub(crate) fn live_snapshot(&mut self) -> Snapshot {
        self.signal(Signal::Usr1);
        let snapshot = self
            .next_snapshot()
            .unwrap_or_else(|| panic!("no snapshot after SIGUSR1:\n{}", self.said()));
        assert!(
            !snapshot.last,
            "a snapshot of a running relay says it is the last: {snapshot:?}"
        );
        snapshot
    }

    /// Polls snapshots until one satisfies `holds`; the last one seen is in the panic message.
    pub(crate) fn snapshot_when(
        &mut self,
        what: &str,
        holds: impl Fn(&Snapshot) -> bool,
    ) -> Snapshot {
        let start = Instant::now();
        loop {
            let snapshot = self.live_snapshot();
            if holds(&snapshot) {
                return snapshot;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "never {what}; at last {snapshot:?}\n{}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The next line of standard output, which must be a snapshot.
    fn next_snapshot(&mut self) -> Option<Snapshot> {
        let (out, taken) = (Arc::clone(&self.out), self.taken);
        if !eventually(PATIENCE, || out.lock().expect("reader lives").len() > taken) {
            return None;
        }
        let line = out.lock().expect("reader lives")[taken].clone();
        self.taken += 1;
        Some(
            serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("not a snapshot ({error}): {line}")),
        )
    }

    /// Ends it: exit status 0, one last snapshot that says so and obeys the law, nothing after it.
    pub(crate) fn stop(self, signal: Signal) -> Snapshot {
        self.signal(signal);
        self.end()
    }

    /// The end of one that was told to stop in whatever way.
    pub(crate) fn end(mut self) -> Snapshot {
        let ended = eventually(PATIENCE, || self.exited());
        assert!(ended, "the relay does not end:\n{}", self.said());
        let status = self.child.wait().expect("it is our child");
        assert_eq!(status.code(), Some(0), "exit status:\n{}", self.said());
        let mut last = None;
        while let Some(snapshot) = self.rest() {
            assert!(
                last.is_none(),
                "something follows the last snapshot: {snapshot:?}"
            );
            last = snapshot.last.then_some(snapshot);
        }
        let last = last.unwrap_or_else(|| panic!("no last snapshot:\n{}", self.said()));
        last.check();
        last
    }

    /// What is left on standard output after the end.
    fn rest(&mut self) -> Option<Snapshot> {
        // The reader thread drops its half when the stream has ended.
        eventually(PATIENCE, || Arc::strong_count(&self.out) == 1);
        let more = self.out.lock().expect("reader lives").len() > self.taken;
        if more { self.next_snapshot() } else { None }
    }

    /// The next snapshot of those that come by themselves (`--stats-interval`).
    pub(crate) fn periodic_snapshot(&mut self) -> Snapshot {
        let snapshot = self
            .next_snapshot()
            .unwrap_or_else(|| panic!("no periodic snapshot:\n{}", self.said()));
        assert!(!snapshot.last);
        snapshot.check();
        snapshot
    }

    /// The CPUs each of its threads may use, as the kernel writes them.
    pub(crate) fn thread_cpus(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let status = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("status")).unwrap_or_default()
        };
        let allowed = |text: String| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.map(|list| list.trim().to_owned())
        };
        tasks.flatten().map(status).filter_map(allowed).collect()
    }

    /// How many file descriptors and threads it has.
    pub(crate) fn descriptors_and_threads(&self) -> (usize, usize) {
        let count = |what: &str| {
            std::fs::read_dir(format!("/proc/{}/{what}", self.pid()))
                .expect("it runs")
                .count()
        };
        (count("fd"), count("task"))
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::Kill);
        let _ = self.child.wait();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the relay said:\n{}", self.said());
        }
    }
}

/// Collects the lines of a stream in a thread of its own.
fn gather(stream: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            sink.lock().expect("no reader panics").push(line);
        }
    });
    lines
}
