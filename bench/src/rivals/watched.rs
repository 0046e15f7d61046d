//! Our relay while somebody reads its statistics all the time: what that costs.

use anyhow::{Context, Result};

use super::{Rival, Running, START, Setup, l2relay_missing};
use crate::process::Program;
use crate::run::Run;
use crate::topology::Topology;

/// A relay of ours, and `l2relay stats --watch` beside it.
pub(super) struct Watched {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The relay, by name.
    pub(super) relay: &'static str,
}

/// Seconds between two readings.
const INTERVAL: &str = "0.01";

impl Rival for Watched {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn missing(&self, setup: &Setup) -> Option<String> {
        l2relay_missing(setup)
    }

    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running> {
        let name = run.name("watched");
        let mut named = setup.clone();
        named
            .l2relay_args
            .extend(["--name", &name].map(str::to_owned));
        let mut relay = super::find(self.relay)?.start(run, &named, topology)?;
        let watch = Program::new(setup.l2relay.to_string_lossy())
            .args(["stats", "--watch", INTERVAL, "--name", &name])
            .on_cpu(setup.other_cpu)
            .within(&topology.site()?.namespace);
        let mut watch = watch.start(run)?;
        watch
            .wait_until(run, START, "it printed statistics", |watch| {
                watch.written().contains("r0>r1")
            })
            .context("reading the relay's statistics")?;
        relay.watch = Some(watch);
        Ok(relay)
    }
}
