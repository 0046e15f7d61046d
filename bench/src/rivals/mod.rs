//! The relays that can stand between client and server, ours among them.
//!
//! A [`Rival`] knows whether it is installed, which topology it needs and how it is started; [`all`] is
//! the table of them. To add one, write its `impl` and add a line there.

mod l2relay;
mod testpmd;
mod watched;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::meter;
use crate::process::{Output, Process, Program};
use crate::run::Run;
use crate::topology::{self, Shape, Topology};
pub(crate) use l2relay::{l2relay_missing, play_links};
use watched::Watched;

/// How long a relay may take until it forwards. testpmd needs about one second.
const START: Duration = Duration::from_secs(20);

/// How long a relay may take to stop before it is killed.
const STOP: Duration = Duration::from_secs(3);

/// How the relay is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layout {
    /// A relay with two ports between client and server.
    Pairs,
    /// A relay with one port on a switch (as in ComNetsEmu's example).
    Hairpin,
}

/// What all relays are told.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The CPU of the relay's forwarding thread.
    pub(crate) relay_cpu: usize,
    /// A CPU for what else it has (testpmd's main thread, which sleeps).
    pub(crate) other_cpu: usize,
    /// Whether all threads of l2relay keep to the relay's CPU, as in a container that has no other.
    pub(crate) confined: bool,
    /// The program `l2relay`.
    pub(crate) l2relay: PathBuf,
    /// Further arguments for `l2relay run`.
    pub(crate) l2relay_args: Vec<String>,
}

/// A relay that can be measured.
pub(crate) trait Rival {
    /// The name by which it is asked for, and by which it goes in reports.
    fn name(&self) -> &'static str;

    /// One line for the legend.
    fn about(&self) -> &'static str;

    /// Why it cannot run here, if it cannot.
    fn missing(&self, setup: &Setup) -> Option<String>;

    /// The topology it is measured in; none if it cannot be attached so.
    fn shape(&self, layout: Layout) -> Option<Shape> {
        Some(match layout {
            Layout::Pairs => Shape::Pairs,
            Layout::Hairpin => Shape::Hairpin { steered: true },
        })
    }

    /// Whether it can run in a container.
    fn fits_container(&self) -> bool {
        false
    }

    /// Whether it swaps the MAC addresses of what it forwards.
    fn swaps_macs(&self) -> bool {
        false
    }

    /// Whether it forwards nothing, but sends floods itself, from the relay's place.
    fn is_limit(&self) -> bool {
        false
    }

    /// Starts it; returns when it forwards.
    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running>;
}

/// Every relay the bench knows, in the order of a report.
pub(crate) fn all() -> Vec<Box<dyn Rival>> {
    let mut all: Vec<Box<dyn Rival>> = vec![Box::new(Nothing), Box::new(Bridge)];
    all.extend(testpmd::ALL.map(|relay| Box::new(relay) as Box<dyn Rival>));
    all.extend(l2relay::ALL.map(|relay| Box::new(relay) as Box<dyn Rival>));
    all.push(Box::new(Watched {
        name: "l2relay-watched",
        about: "l2relay-spin while its statistics are read 100 times a second",
        relay: "l2relay-spin",
    }));
    all.push(Box::new(Limit));
    all
}

/// The relay of this name.
pub(crate) fn find(name: &str) -> Result<Box<dyn Rival>> {
    let mut rivals = all();
    match rivals.iter().position(|r| r.name() == name) {
        Some(at) => Ok(rivals.swap_remove(at)),
        None => {
            let known: Vec<_> = rivals.iter().map(|r| r.name()).collect();
            bail!("no relay named {name}; there are: {}", known.join(", "));
        }
    }
}

/// A relay that forwards; stopped when dropped.
#[derive(Debug, Default)]
pub(crate) struct Running {
    process: Option<Process>,
    command: String,
    /// The process that forwards, if it is another than the one that was started.
    forwards: Option<u32>,
    /// What reads its statistics meanwhile.
    watch: Option<Process>,
}

impl Running {
    fn process(process: Process, program: &Program) -> Self {
        Self {
            process: Some(process),
            command: program.command_line(),
            forwards: None,
            watch: None,
        }
    }

    /// The command that started it; empty if it is no program.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// The process that forwards, if it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.forwards.or(self.process.as_ref().map(Process::pid))
    }

    /// CPU time its process has used so far; none if it is no process.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        meter::cpu_time(self.pid()?)
    }

    /// An error, with its last words, if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && !process.is_running()
        {
            bail!("`{}` ended by itself:\n{}", self.command, process.written());
        }
        if let Some(watch) = &mut self.watch
            && !watch.is_running()
        {
            bail!("nobody reads its statistics: {}", watch.written());
        }
        Ok(())
    }

    /// Stops it and gives what it wrote, if it is a program.
    pub(crate) fn stop(self) -> Option<Output> {
        self.process.map(|p| p.stop(Signal::INT, STOP))
    }
}

/// No relay: a cable, or a switch that forwards directly.
struct Nothing;

impl Rival for Nothing {
    fn name(&self) -> &'static str {
        "none"
    }

    fn about(&self) -> &'static str {
        "no relay: client and server joined directly"
    }

    fn missing(&self, _: &Setup) -> Option<String> {
        None
    }

    fn fits_container(&self) -> bool {
        true
    }

    fn shape(&self, layout: Layout) -> Option<Shape> {
        Some(match layout {
            Layout::Pairs => Shape::Direct,
            Layout::Hairpin => Shape::Hairpin { steered: false },
        })
    }

    fn start(&self, _: &Run, _: &Setup, _: &Topology) -> Result<Running> {
        Ok(Running::default())
    }
}

/// The kernel's own bridge. It has no CPU of its own: it runs where the sender does.
struct Bridge;

impl Rival for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn about(&self) -> &'static str {
        "the Linux bridge (in the kernel, on the sender's CPU)"
    }

    fn missing(&self, _: &Setup) -> Option<String> {
        None
    }

    fn shape(&self, layout: Layout) -> Option<Shape> {
        (layout == Layout::Pairs).then_some(Shape::Pairs)
    }

    fn start(&self, run: &Run, _: &Setup, topology: &Topology) -> Result<Running> {
        let site = topology.site()?;
        let [a, b] = site.ports[..] else {
            bail!("a bridge needs two ports");
        };
        topology::ip(
            run,
            Some(&site.namespace),
            format!(
                "link add br0 type bridge\nlink set {a} master br0\nlink set {b} master br0\n\
                 link set br0 up\n"
            ),
        )?;
        Ok(Running::default())
    }
}

/// No relay either: where one would stand, an AF_XDP socket that sends as fast as the kernel takes frames. Floods only.
struct Limit;

impl Rival for Limit {
    fn name(&self) -> &'static str {
        "tx-limit"
    }

    fn about(&self) -> &'static str {
        "the kernel's own limit: AF_XDP transmit on the relay's CPU, nothing received (floods only)"
    }

    fn missing(&self, _: &Setup) -> Option<String> {
        None
    }

    fn shape(&self, layout: Layout) -> Option<Shape> {
        (layout == Layout::Pairs).then_some(Shape::Pairs)
    }

    fn is_limit(&self) -> bool {
        true
    }

    /// A flood starts it ([`crate::limit`]), which knows what is to be sent.
    fn start(&self, _: &Run, _: &Setup, _: &Topology) -> Result<Running> {
        Ok(Running::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    #[test]
    fn names_are_unique_and_found() {
        let names: Vec<_> = all().iter().map(|r| r.name()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|n| n == &name).count(), 1, "{name}");
            assert_eq!(find(name).expect("it is known").name(), *name);
        }
        let error = find("cisco").err().expect("unknown").to_string();
        assert!(
            error.contains("cisco") && error.contains("bridge"),
            "{error}"
        );
    }

    #[test]
    fn a_bridge_carries_a_ping() {
        let Some(run) = run::for_test("a_bridge_carries_a_ping") else {
            return;
        };
        let setup = Setup {
            relay_cpu: 0,
            other_cpu: 0,
            confined: false,
            l2relay: PathBuf::new(),
            l2relay_args: vec![],
        };
        let topology = Topology::build(&run, Shape::Pairs, false).expect("a topology");
        let ping = Program::new("ping")
            .args(["-c", "1", "-W", "1", &topology.server.address.to_string()])
            .within(&topology.client.namespace);
        let limit = Duration::from_secs(5);
        let before = ping.finish(&run, limit).expect("ping ends");
        assert!(
            !before.status.success(),
            "a relay forwards that was not started"
        );
        let relay = Bridge.start(&run, &setup, &topology).expect("a bridge");
        // The first may be lost while the bridge's ports come up.
        let answered = (0..10).any(|_| ping.run(&run, limit).is_ok());
        assert!(answered, "no ping came back in ten");
        drop(relay);
    }
}
