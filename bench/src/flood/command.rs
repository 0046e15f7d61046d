//! `l2relay-bench flood`: a flood by hand, for looking at one relay with one's own tools.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::frame::{Ends, parse_mac};
use super::{Flood, Interface, Sent, Spec};
use crate::count::{self, Counter, Counts, Verdict};
use crate::run::Run;
use crate::say;

/// Sends a steady flood of UDP frames out of an interface, and counts what arrives at another.
#[derive(Args, Clone, Debug)]
pub(crate) struct Flags {
    /// Network namespace of the sender.
    #[arg(long)]
    ns: String,
    /// Interface to send from; on a veth the peer needs GRO on.
    #[arg(long)]
    dev: String,
    /// Destination MAC; default: that of the --count interface, else a made-up one.
    #[arg(long)]
    to_mac: Option<String>,
    /// Source address and port of the first flow.
    #[arg(long, default_value = "10.9.0.1:20000")]
    from: SocketAddr,
    /// Destination address and port.
    #[arg(long, default_value = "10.9.0.2:9000")]
    to: SocketAddr,
    /// IPv6 between made-up addresses, ports as given.
    #[arg(long)]
    ipv6: bool,
    /// Bytes of a frame, from the Ethernet header to the payload's end, without check sequence.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Number of flows, one source port each.
    #[arg(long, default_value_t = 64)]
    flows: u32,
    /// Frames per second; 0: as many as possible.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// How long.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// CPU to send from.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Frames made between two chances for softirqs, 1 to 256.
    #[arg(long, default_value_t = 64)]
    batch: u32,
    /// Count arrivals at this interface, given as NAMESPACE:INTERFACE.
    #[arg(long)]
    count: Option<String>,
    /// Let what is counted go on to the receiver's stack.
    #[arg(long)]
    pass: bool,
}

/// What is printed, as one line of JSON.
#[derive(Debug, Serialize)]
struct Outcome {
    sent: Sent,
    arrived: Option<Arrived>,
}

/// What the counter saw.
#[derive(Debug, Serialize)]
struct Arrived {
    #[serde(flatten)]
    counts: Counts,
    pps: f64,
}

/// Sends, waits, prints.
pub(crate) fn flood(run: &Run, flags: &Flags) -> Result<()> {
    let from = Interface::find(run, &flags.ns, &flags.dev)?;
    let place = flags
        .count
        .as_deref()
        .map(|place| {
            place
                .split_once(':')
                .with_context(|| format!("--count {place}: NAMESPACE:INTERFACE is expected"))
        })
        .transpose()?;
    let to = match (&flags.to_mac, place) {
        (Some(mac), _) => parse_mac(mac)?,
        (None, Some((namespace, interface))) => Interface::find(run, namespace, interface)?.mac,
        (None, None) => [0x02, 0, 0, 0, 0x09, 0x02],
    };
    let mut ends = Ends {
        addresses: (flags.from.ip(), flags.to.ip()),
        first_port: flags.from.port(),
        port: flags.to.port(),
        ..Ends::between(from.mac, to)
    };
    if flags.ipv6 {
        let address = |n| Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, n).into();
        ends.addresses = (address(1), address(2));
    }
    let duration = Duration::try_from_secs_f64(flags.seconds)
        .with_context(|| format!("--seconds {}", flags.seconds))?;
    let counter = place
        .map(|(namespace, interface)| {
            let verdict = if flags.pass {
                Verdict::Pass
            } else {
                Verdict::Drop
            };
            let spec = count::Spec {
                verdict,
                gaps: true,
                ..count::Spec::port(ends.port)
            };
            Counter::attach(run, namespace, interface, &spec)
        })
        .transpose()?;

    let flood = Flood::start(
        run,
        &Spec {
            namespace: flags.ns.clone(),
            interface: flags.dev.clone(),
            ends,
            size: flags.size,
            flows: flags.flows,
            rate_pps: flags.rate,
            cpu: flags.cpu,
            batch: flags.batch,
            duration,
        },
    )?;
    run.sleep(duration)?;
    let sent = flood.stop(run)?;
    // What is still on its way.
    run.sleep(Duration::from_millis(20))?;
    let arrived = counter
        .map(|counter| {
            let counts = counter.read()?;
            anyhow::Ok(Arrived {
                pps: counts.packets as f64 / sent.seconds,
                counts,
            })
        })
        .transpose()?;
    say::out(&serde_json::to_string(&Outcome { sent, arrived })?);
    Ok(())
}
