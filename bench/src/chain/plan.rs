//! What a chain will measure, from its command line, and what of it cannot be.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::{Chain, Preset};
use crate::process::installed;
use crate::rivals::{self, Layout, Rival, Setup};
use crate::traffic::{Load, Protocol};

/// Payload of a throughput message: the largest UDP payload in an Ethernet frame.
const THROUGHPUT_SIZE: u32 = 1472;

/// Load average of a minute above which figures are not to be trusted.
pub(super) const BUSY: f64 = 0.7;

/// Loads and relays of one section.
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) delay: Duration,
    pub(super) seconds: u32,
    pub(super) loads: Vec<Load>,
    pub(super) relays: Vec<Box<dyn Rival>>,
}

/// What the relays are told.
pub(super) fn setup(args: &Chain) -> Result<Setup> {
    let l2relay = match &args.l2relay {
        Some(path) => path.clone(),
        None => {
            let own = std::env::current_exe().context("finding this program")?;
            own.with_file_name("l2relay")
        }
    };
    // It is started from within a namespace, but from this directory: a relative path stays right.
    let words = args.l2relay_args.split_whitespace();
    Ok(Setup {
        relay_cpu: args.relay_cpu,
        other_cpu: args.host_cpu,
        // Both places are to differ in nothing else.
        confined: args.containers,
        l2relay: if l2relay.is_relative() {
            PathBuf::from(".").join(l2relay)
        } else {
            l2relay
        },
        l2relay_args: words.map(Into::into).collect(),
    })
}

/// One plan, or the two of a preset.
pub(super) fn plans(args: &Chain) -> Result<Vec<Plan>> {
    let preset = args.preset == Some(Preset::Comnetsemu);
    let relays = || -> Result<Vec<Box<dyn Rival>>> {
        let default = match preset {
            false => vec!["none", "l2relay"],
            true => vec!["none", "testpmd", "testpmd-txoff", "l2relay"],
        };
        match &args.relays {
            Some(names) => names.iter().map(|n| rivals::find(n)).collect(),
            None => default.into_iter().map(rivals::find).collect(),
        }
    };
    let protocols = args.protocols.clone().unwrap_or(match preset {
        false => vec![Protocol::Udp],
        true => vec![Protocol::Udp, Protocol::Tcp],
    });
    let rates = |default: &[u32]| args.rates.clone().unwrap_or(default.to_vec());
    let under_load = |mps| {
        protocols
            .iter()
            .map(move |&protocol| Load::UnderLoad { protocol, mps })
    };

    if preset {
        let loads: Vec<Load> = rates(&[50]).into_iter().flat_map(under_load).collect();
        let delays = [
            args.delay.unwrap_or(Duration::from_millis(50)),
            Duration::ZERO,
        ];
        return delays
            .into_iter()
            .map(|delay| {
                Ok(Plan {
                    layout: args.topology.unwrap_or(Layout::Hairpin),
                    delay,
                    seconds: args.seconds.unwrap_or(10),
                    loads: loads.clone(),
                    relays: relays()?,
                })
            })
            .collect();
    }
    let ping_pong = protocols
        .iter()
        .map(|&protocol| Load::PingPong { protocol });
    let mut loads: Vec<Load> = ping_pong
        .chain(rates(&[1000, 10_000]).into_iter().flat_map(under_load))
        .collect();
    loads.extend([
        Load::Throughput {
            protocol: Protocol::Udp,
            size: THROUGHPUT_SIZE,
        },
        Load::Iperf3 {
            protocol: Protocol::Tcp,
            streams: 1,
        },
        Load::Iperf3 {
            protocol: Protocol::Udp,
            streams: 1,
        },
    ]);
    Ok(vec![Plan {
        layout: args.topology.unwrap_or(Layout::Pairs),
        delay: args.delay.unwrap_or_default(),
        seconds: args.seconds.unwrap_or(3),
        loads,
        relays: relays()?,
    }])
}

/// Says what is missing before anything is made.
pub(super) fn check(setup: &Setup, plans: &[Plan]) -> Result<()> {
    let mut missing: Vec<String> = [
        "ip", "bridge", "tc", "ping", "taskset", "setpriv", "sockperf", "iperf3",
    ]
    .into_iter()
    .filter(|program| installed(program).is_none())
    .map(|program| format!("{program} is not installed (run `make setup`)"))
    .collect();
    let delayed = plans.iter().any(|p| !p.delay.is_zero());
    let ours = plans
        .iter()
        .flat_map(|p| &p.relays)
        .any(|r| r.name().starts_with("l2relay"));
    if delayed || ours {
        missing.extend(rivals::l2relay_missing(setup));
    }
    let allowed = rustix::thread::sched_getaffinity(None).context("reading the allowed CPUs")?;
    for (option, cpu) in [
        ("--host-cpu", setup.other_cpu),
        ("--relay-cpu", setup.relay_cpu),
    ] {
        if cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu) {
            missing.push(format!(
                "CPU {cpu} is not one of ours: choose another with {option}"
            ));
        }
    }
    if !missing.is_empty() {
        bail!("{}", missing.join("\n"));
    }
    Ok(())
}

/// Topology and delay, in words.
pub(super) fn title(plan: &Plan) -> String {
    let layout = match plan.layout {
        Layout::Pairs => "Relay with two ports",
        Layout::Hairpin => "Relay with one port on a switch (client to server only)",
    };
    if plan.delay.is_zero() {
        return format!("{layout}, links without delay");
    }
    let delay = plan.delay.as_secs_f64() * 1e3;
    format!("{layout}, {delay} ms on the client's and on the server's link")
}

/// What a reader must know to read the figures.
pub(super) fn notes(plans: &[Plan], rounds: usize, load: f64) -> Vec<String> {
    let delayed = plans.iter().any(|p| !p.delay.is_zero());
    let hairpin = plans.iter().any(|p| p.layout == Layout::Hairpin);
    let mut notes = vec![
        "sockperf prints half the round trip and calls it latency; so do these tables. It leaves out \
         the first 400 ms and the last 50 ms of a run (\"valid duration\").",
        "sockperf under-load counts as dropped also the messages whose answer was still on its way \
         when the test ended: rate × round trip of them. With 50 messages/s and 200 ms that is 10, \
         and no loss at all.",
        "Client and server share one CPU, as in ComNetsEmu's example. Under load they wait for each \
         other, so the upper percentiles of under-load say more about the scheduler than about a \
         relay; ping-pong has one message in flight and does not suffer from it.",
        "All interfaces keep their default offloads, except with testpmd-txoff. With the defaults, \
         frames carry unfinished checksums and TCP super-frames, which DPDK's af_packet does not \
         understand: then there is no connection.",
        "TCP uses cubic (set on the route). Goodput and received throughput are counted at the \
         receiver. sockperf's own BandWidth is the sender's, in units of 1024 × 1024.",
        "The Linux bridge and \"none\" run on the sender's CPU; a relay in user space has a CPU to \
         itself. Its CPU figure is that of the busiest stretch of the run; below 100 % for a relay that \
         spins, something else took its CPU.",
        match rounds {
            1 => {
                "Each figure is one run; on a virtual machine, repeat it (--rounds) before you believe a \
                 difference below 15 %."
            }
            _ => {
                "Figures are medians of the rounds, with their range. Every relay is started anew in each round, \
                 and rounds begin with another relay and another place each. Places are compared by the median of \
                 ratios within a round. A curve is that of the round whose average is in the middle."
            }
        },
    ];
    if hairpin {
        notes.push(
            "On the switch only the way from client to server leads through the relay; half the round \
             trip therefore shows half of what the relay costs.",
        );
    }
    if delayed {
        notes.push(
            "The delayed links are played by a further l2relay, on the CPU of client and server, the \
             same for every relay. 2 × 50 ms hide any relay: compare them without delay.",
        );
    }
    let mut notes: Vec<String> = notes.into_iter().map(Into::into).collect();
    if load > BUSY {
        notes.insert(0, busy(load));
    }
    notes
}

/// Said when the machine was busy before the start.
pub(super) fn busy(load: f64) -> String {
    format!(
        "The machine was busy with something else before the start (load average {load:.2}): the \
         figures are worse than they could be, and they scatter."
    )
}
