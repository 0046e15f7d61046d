//! ns-3's native TCP on the same dumbbell: Debian's libns3-dev, and a program of sixty lines that is built here.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{Program, installed};
use crate::run::Run;

const SOURCE: &str = include_str!("ns3.cc");
const INCLUDES: &str = "/usr/include/ns3/core-module.h";
const MODULES: [&str; 5] = [
    "applications",
    "point-to-point",
    "internet",
    "network",
    "core",
];

/// How long it takes to build it, and to simulate so many runs: some 100 s of simulation a second.
pub(super) fn duration(runs: u32, seconds: u32) -> Duration {
    Duration::from_secs(20) + Duration::from_millis(500 + u64::from(seconds) * 10) * runs
}

/// The program, built.
pub(super) struct Ns3 {
    program: PathBuf,
}

impl Ns3 {
    /// Why it can't be had, if so.
    pub(super) fn missing() -> Option<String> {
        if !std::path::Path::new(INCLUDES).is_file() {
            return Some("ns-3 is not installed (apt-get install libns3-dev g++)".into());
        }
        installed("g++")
            .is_none()
            .then(|| "no g++ to build for ns-3 (apt-get install g++)".into())
    }

    /// Builds it, which takes some seconds. Removed on drop.
    pub(super) fn build(run: &Run) -> Result<Self> {
        let program = std::env::temp_dir().join(run.name("ns3"));
        let own = Self { program };
        let path = own.program.to_string_lossy();
        let mut compiler = Program::new("g++")
            .args(["-std=c++17", "-O1", "-x", "c++", "-", "-o", &path])
            .input(SOURCE);
        for module in MODULES {
            compiler = compiler.arg(format!("-lns3-{module}"));
        }
        compiler
            .run(run, Duration::from_secs(180))
            .context("building the ns-3 dumbbell")?;
        Ok(own)
    }

    /// Goodput of the first flow in kbit/s.
    pub(super) fn measure(
        &self,
        run: &Run,
        mss: u32,
        delack: u32,
        seed: u32,
        seconds: u32,
    ) -> Result<f64> {
        let output = Program::new(self.program.to_string_lossy())
            .arg(format!("--mss={mss}"))
            .arg(format!("--delack={delack}"))
            .arg(format!("--seed={seed}"))
            .arg(format!("--seconds={seconds}"))
            .run(run, Duration::from_secs(120))?;
        let line = output.stdout.trim();
        line.parse()
            .with_context(|| format!("ns-3 printed {line:?} instead of a number"))
    }
}

impl Drop for Ns3 {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}
