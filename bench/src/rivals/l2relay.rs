//! Our own relay, in the ways that are compared.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Rival, Running, START, Setup};
use crate::container;
use crate::process::Program;
use crate::run::Run;
use crate::topology::Topology;

/// What most of them have in common.
const PLAIN: L2relay = L2relay {
    name: "",
    about: "",
    args: "",
    idle_pairs: 0,
    kernel_merges: false,
};

/// Every way: the arguments of `l2relay run`.
pub(super) const ALL: [L2relay; 13] = [
    L2relay {
        name: "l2relay",
        about: "l2relay with its defaults (adaptive idle)",
        args: "",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-spin",
        about: "l2relay that never sleeps (--idle spin)",
        args: "--idle spin",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-single",
        about: "the same, each frame sent alone (--coalesce off)",
        args: "--idle spin --coalesce off",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-gro",
        about: "l2relay-spin, with the kernel's GRO merging UDP at its ports",
        args: "--idle spin",
        kernel_merges: true,
        ..PLAIN
    },
    L2relay {
        name: "l2relay-macswap",
        about: "the same, MAC addresses swapped",
        args: "--idle spin --mac swap",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-xdp",
        about: "l2relay on AF_XDP, native, spinning",
        args: "--idle spin --backend xdp --xdp-mode native",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-xdp-macswap",
        about: "the same, MAC addresses swapped",
        args: "--idle spin --backend xdp --xdp-mode native --mac swap",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-xdp-generic",
        about: "l2relay on AF_XDP, generic, spinning",
        args: "--idle spin --backend xdp --xdp-mode generic",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-xdp-packet",
        about: "l2relay that receives by AF_XDP and sends by AF_PACKET, each frame alone, spinning",
        args: "--idle spin --rx xdp --tx packet --coalesce off",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-coalesce",
        about: "the same, frames of a flow merged",
        args: "--idle spin --rx xdp --tx packet --coalesce on",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-kernel",
        about: "l2relay whose frames stay in the kernel (at tc, on the sender's CPU, as the bridge)",
        args: "--backend kernel",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-kernel-xdp",
        about: "the same at XDP (GRO on at the hosts, which take no XDP frames without)",
        args: "--backend kernel --kernel-hook xdp",
        ..PLAIN
    },
    L2relay {
        name: "l2relay-kernel-64",
        about: "l2relay-kernel, with 63 more pairs that have nothing to do",
        args: "--backend kernel",
        idle_pairs: 63,
        ..PLAIN
    },
];

/// Ours.
pub(super) struct L2relay {
    name: &'static str,
    about: &'static str,
    args: &'static str,
    /// Further pairs, of interfaces that nobody uses.
    idle_pairs: usize,
    /// Whether the kernel's GRO is told to merge at the relay's ports (`rx-udp-gro-forwarding`), which is off by default.
    kernel_merges: bool,
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

    fn swaps_macs(&self) -> bool {
        self.args.contains("--mac swap")
    }

    fn start(&self, run: &Run, setup: &Setup, topology: &Topology) -> Result<Running> {
        let site = topology.site()?;
        let (how, ports) = match site.ports.len() {
            1 => ("--hairpin", site.ports[0].to_owned()),
            _ => ("--pair", site.ports.join(",")),
        };
        let relay = match &site.containers {
            Some(containers) => containers.relay(&site.namespace),
            None => {
                let program = Program::new(setup.l2relay.to_string_lossy()).within(&site.namespace);
                match setup.confined {
                    true => program.on_cpu(setup.relay_cpu),
                    false => program,
                }
            }
        };
        let relay = relay
            .args(["run", how, &ports, "--json", "--cores"])
            .arg(setup.relay_cpu)
            .args(self.args.split_whitespace())
            .args(topology.idle_pairs(run, self.idle_pairs)?)
            .args(setup.l2relay_args.iter().cloned());
        if self.args.contains("--kernel-hook xdp") {
            topology.poll(run)?;
        }
        for port in site.ports.iter().filter(|_| self.kernel_merges) {
            Program::new("ethtool")
                .args(["-K", port, "gro", "on", "rx-udp-gro-forwarding", "on"])
                .within(&site.namespace)
                .run(run, START)?;
        }
        let mut running = start_l2relay(run, &relay)?;
        if site.containers.is_some() {
            let name = container::relay_of(&site.namespace);
            running.forwards = Some(container::pid(run, &name)?);
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
