//! The relays that can stand between client and server, ours among them.
//!
//! A [`Rival`] knows whether it is installed, which topology it needs and how it is started; [`all`] is
//! the table of them. To add one, write its `impl` and add a line there.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::container;
use crate::meter;
use crate::process::{Output, Process, Program, installed};
use crate::run::Run;
use crate::topology::{self, Shape, Topology};

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

    /// Whether it can run in a container.
    fn fits_container(&self) -> bool {
        false
    }

    /// The topology it is measured in; none if it cannot be attached so.
    fn shape(&self, layout: Layout) -> Option<Shape> {
        Some(match layout {
            Layout::Pairs => Shape::Pairs,
            Layout::Hairpin => Shape::Hairpin { steered: true },
        })
    }

    /// Starts it; returns when it forwards.
    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running>;
}

/// Every relay the bench knows, in the order of a report.
pub(crate) fn all() -> Vec<Box<dyn Rival>> {
    vec![
        Box::new(Nothing),
        Box::new(Bridge),
        Box::new(Testpmd {
            name: "testpmd",
            about: "DPDK's testpmd, io mode, on af_packet; offloads at their defaults",
            driver: "af_packet",
            offloads_off: false,
        }),
        Box::new(Testpmd {
            name: "testpmd-txoff",
            about: "DPDK's testpmd after `ethtool -K … tx off`, as its users do",
            driver: "af_packet",
            offloads_off: true,
        }),
        Box::new(Testpmd {
            name: "testpmd-xdp",
            about: "DPDK's testpmd, io mode, on af_xdp; offloads at their defaults",
            driver: "af_xdp",
            offloads_off: false,
        }),
        Box::new(Testpmd {
            name: "testpmd-xdp-txoff",
            about: "the same after `ethtool -K … tx off`",
            driver: "af_xdp",
            offloads_off: true,
        }),
        Box::new(L2relay {
            name: "l2relay",
            about: "l2relay with its defaults (adaptive idle)",
            args: &[],
        }),
        Box::new(L2relay {
            name: "l2relay-spin",
            about: "l2relay that never sleeps (--idle spin)",
            args: &["--idle", "spin"],
        }),
        Box::new(L2relay {
            name: "l2relay-xdp",
            about: "l2relay on AF_XDP, native, spinning",
            args: &["--idle", "spin", "--backend", "xdp", "--xdp-mode", "native"],
        }),
        Box::new(L2relay {
            name: "l2relay-xdp-generic",
            about: "l2relay on AF_XDP, generic, spinning",
            args: &[
                "--idle",
                "spin",
                "--backend",
                "xdp",
                "--xdp-mode",
                "generic",
            ],
        }),
        Box::new(L2relay {
            name: "l2relay-xdp-packet",
            about: "l2relay that receives by AF_XDP and sends by AF_PACKET, spinning",
            args: &["--idle", "spin", "--rx", "xdp", "--tx", "packet"],
        }),
    ]
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
}

impl Running {
    fn process(process: Process, program: &Program) -> Self {
        Self {
            process: Some(process),
            command: program.command_line(),
            forwards: None,
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

/// DPDK's own test program, as Debian packages it, on AF_PACKET or AF_XDP sockets and without huge pages.
struct Testpmd {
    name: &'static str,
    about: &'static str,
    driver: &'static str,
    offloads_off: bool,
}

impl Rival for Testpmd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn missing(&self, setup: &Setup) -> Option<String> {
        if installed("dpdk-testpmd").is_none() {
            return Some("dpdk-testpmd is not installed (Debian: apt-get install dpdk-dev)".into());
        }
        (setup.relay_cpu == setup.other_cpu).then(|| "testpmd needs two CPUs".into())
    }

    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running> {
        let site = topology.site()?;
        if self.offloads_off {
            topology.switch_offloads_off(run)?;
        }
        let (main, cpu) = (setup.other_cpu, setup.relay_cpu);
        let devices = site.ports.iter().enumerate();
        let testpmd = Program::new("dpdk-testpmd")
            .args(["-l", &format!("{main},{cpu}"), "--main-lcore"])
            .arg(main)
            .args("--no-huge --no-pci --no-shconf --no-telemetry -m 512".split(' '))
            .args(devices.map(|(i, port)| format!("--vdev=net_{}{i},iface={port}", self.driver)))
            // The default number of buffers does not fit into 512 MB.
            .args(
                "-- --forward-mode=io --nb-cores=1 --total-num-mbufs=16384 --auto-start".split(' '),
            )
            .args((site.ports.len() == 1).then_some("--port-topology=loop"))
            .within(&site.namespace)
            .line_buffered()
            .hold_stdin();
        let mut process = testpmd.start(run)?;
        process.wait_for(run, "Press enter to exit", START)?;
        Ok(Running::process(process, &testpmd))
    }
}

/// Ours.
struct L2relay {
    name: &'static str,
    about: &'static str,
    args: &'static [&'static str],
}

impl Rival for L2relay {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn missing(&self, setup: &Setup) -> Option<String> {
        l2relay_missing(setup)
    }

    fn fits_container(&self) -> bool {
        true
    }

    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running> {
        let site = topology.site()?;
        let (how, ports) = match site.ports.len() {
            1 => ("--hairpin", site.ports[0].to_owned()),
            _ => ("--pair", site.ports.join(",")),
        };
        let relay = match &site.containers {
            Some(containers) => containers.relay(&site.namespace),
            None => Program::new(setup.l2relay.to_string_lossy()).within(&site.namespace),
        };
        let relay = relay
            .args(["run", how, &ports, "--json", "--cores"])
            .arg(setup.relay_cpu)
            .args(self.args.iter().copied())
            .args(setup.l2relay_args.iter().cloned());
        let mut running = start_l2relay(run, &relay)?;
        if site.containers.is_some() {
            running.forwards = Some(container::pid(run, &container::relay_of(&site.namespace))?);
        }
        Ok(running)
    }
}

/// Why `l2relay` cannot be started, if it cannot.
pub(crate) fn l2relay_missing(setup: &Setup) -> Option<String> {
    (!setup.l2relay.is_file()).then(|| {
        format!(
            "{} does not exist (build it, or give its place with --l2relay)",
            setup.l2relay.display()
        )
    })
}

fn start_l2relay(run: &Run, relay: &Program) -> Result<Running> {
    let mut process = relay.start(run)?;
    process.wait_until(run, START, "it forwarded (\"ready\")", |p| {
        p.written().lines().any(|line| line.trim() == "ready")
    })?;
    Ok(Running::process(process, relay))
}

/// Starts what plays the delayed cables of a topology: there may be no netem, so a relay of ours does.
/// It runs on the hosts' CPU and sleeps when idle, and is the same for every relay measured.
pub(crate) fn play_links(
    run: &Run,
    setup: &Setup,
    topology: &Topology,
    delay: Duration,
) -> Result<Running> {
    let Some((namespace, cables)) = &topology.links else {
        return Ok(Running::default());
    };
    let mut relay = Program::new(setup.l2relay.to_string_lossy())
        .args(["run", "--idle", "adaptive", "--cores"])
        .arg(setup.other_cpu)
        .within(namespace);
    let delay = format!("{}us", delay.as_micros());
    for (a, b) in cables {
        relay = relay.args(["--pair", &format!("{a},{b}")]);
        for (from, to) in [(a, b), (b, a)] {
            relay = relay.args(["--link", &format!("{from}>{to} delay {delay}")]);
        }
    }
    start_l2relay(run, &relay).context("playing the delayed links")
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
