//! One run of the bench: its name prefix, its right to make namespaces, and the wish to stop.
//!
//! Every measurement is given the `Run`. It turns SIGINT, SIGTERM and SIGHUP into a flag, so that the
//! waits in [`crate::process`] end with [`Interrupted`], the error travels up and every drop on its way
//! removes what it made. What a killed run left behind is removed when the next one starts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::topology;

/// Namespaces and files of every run begin with this, then the pid of the run.
const PREFIX: &str = "l2rb-";

/// How often a wait looks at the flag.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// The user asked to stop; not a failure of what was measured.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// What all measurements of one invocation share.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    prefix: String,
    stop: Arc<AtomicBool>,
}

impl Run {
    /// Checks for root, catches the signals and removes what dead runs left behind.
    pub(crate) fn start() -> Result<Self> {
        if !is_root() {
            bail!("network namespaces need root: run the bench with sudo");
        }
        let run = Self {
            prefix: format!("{PREFIX}{}-", std::process::id()),
            stop: Arc::new(AtomicBool::new(false)),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&run.stop))
                .with_context(|| format!("catching signal {signal}"))?;
        }
        topology::remove_stale(&run);
        for file in run.stale(&std::env::temp_dir()) {
            let _ = std::fs::remove_file(std::env::temp_dir().join(file));
        }
        Ok(run)
    }

    /// A run for tests that make no namespaces.
    #[cfg(test)]
    pub(crate) fn unprivileged() -> Self {
        Self {
            prefix: format!("{PREFIX}{}-", std::process::id()),
            stop: Arc::default(),
        }
    }

    /// The full name of a namespace of this run.
    pub(crate) fn name(&self, short: &str) -> String {
        format!("{}{short}", self.prefix)
    }

    /// Names in a directory that a dead run left there.
    pub(crate) fn stale(&self, dir: &Path) -> Vec<String> {
        let names = std::fs::read_dir(dir).into_iter().flatten();
        names
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| self.is_stale(name))
            .collect()
    }

    /// Whether a name is a dead run's.
    pub(crate) fn is_stale(&self, name: &str) -> bool {
        let pid = name.strip_prefix(PREFIX).and_then(|n| n.split_once('-'));
        // A dead run may have had our pid: then its names are in our way.
        pid.is_some_and(|(pid, _)| name.starts_with(&self.prefix) || !is_live_bench(pid))
    }

    /// [`Interrupted`] once a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        Ok(())
    }

    /// Sleeps, but no longer than until a signal.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

/// True if this process may make namespaces.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True if the process with this pid is a bench (its pid may have been given to another program since).
fn is_live_bench(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid).join("comm"))
        .is_ok_and(|comm| comm.starts_with("l2relay"))
}

/// A run for the tests that need root, or `None` with a loud note. CI sets `L2RELAY_REQUIRE_ROOT=1`
/// and turns the skip into a failure. Runs of one process share their names, so tests take turns.
#[cfg(test)]
pub(crate) fn for_test(test: &str) -> Option<TestRun> {
    use std::sync::{Mutex, PoisonError};
    static TURN: Mutex<()> = Mutex::new(());

    if is_root() {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let run = Run::start().expect("a run starts");
        return Some(TestRun { run, _turn: turn });
    }
    assert!(
        std::env::var_os("L2RELAY_REQUIRE_ROOT").is_none_or(|v| v != "1"),
        "{test}: needs root, and L2RELAY_REQUIRE_ROOT=1"
    );
    eprintln!("SKIPPED {test}: needs root");
    None
}

/// A test's run, and its turn.
#[cfg(test)]
pub(crate) struct TestRun {
    run: Run,
    _turn: std::sync::MutexGuard<'static, ()>,
}

#[cfg(test)]
impl std::ops::Deref for TestRun {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}
