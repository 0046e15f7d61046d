//! The command line of the bench: definitions only.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::rivals::Layout;
use crate::traffic::Protocol;
use crate::{accuracy, dumbbell, flood, peers};

/// Measures relays between a client and a server, on this machine, in network namespaces.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Client — relay — server: latency and goodput by sockperf and iperf3, with and without relay.
    Chain(Chain),
    /// Relays side by side in interleaved rounds: latency, TCP, floods, a real socket, idle CPU, start, memory.
    ///
    /// Without options: the relays that people choose from, by latency, TCP, flood, idle CPU, start and memory, in some 10 minutes. How long
    /// it will take is said at the start; a relay that is not installed is skipped aloud.
    ///
    /// Relays: none, bridge, testpmd with -xdp, -macswap and -txoff as you like, l2relay (defaults), l2relay-spin, l2relay-macswap, l2relay-xdp,
    /// l2relay-xdp-macswap, l2relay-xdp-generic, l2relay-xdp-packet (each frame alone), l2relay-coalesce (frames merged), l2relay-single (AF_PACKET,
    /// each frame alone), l2relay-gro (the kernel merges), l2relay-watched (statistics read all the time), l2relay-kernel, -kernel-xdp, -kernel-64; and
    /// tx-limit, which is no relay but the rate at which the kernel takes frames from an AF_XDP socket on the relay's CPU.
    ///
    /// Metrics: start, idle, memory; ping-pong; transit (interface to interface, without sockets); under-load-N with N of 100, 1000, 10000,
    /// 50000 messages/s (with the relay's CPU); throughput-N with N of 64, 1472 bytes; udp; tcp, with -off (hosts' offloads off) and -8 (flows);
    /// flood-SIZE-FLOWS with SIZE of 64, 512, 1500 and FLOWS of 1, 64, 1024; lossless-SIZE-FLOWS; socket-default-SIZE-FLOWS and socket-4m-SIZE-FLOWS
    /// (what a real UDP socket with that receive buffer reads at several rates).
    ///
    /// Examples: `peers --preset goals`; `peers --rounds 15 --metrics transit --only l2relay-xdp,testpmd-xdp-txoff`.
    Peers(peers::Flags),
    /// TCP over emulated links, six hosts a run: the dumbbell experiment of DCE Cradle, with the published figures beside it.
    Dumbbell(dumbbell::Flags),
    /// How exact emulated links are, from outside: delay, rate, loss, jitter, queue, steps; the kernel's TBF beside them.
    LinkAccuracy(accuracy::Flags),
    /// A steady flood of UDP frames out of an interface, by hand.
    Flood(flood::command::Flags),
    /// Make the image of client and server, l2relay-bench-ends, from this machine's sockperf and iperf3, as `chain --containers` does.
    Ends,
}

/// Options of `chain`.
#[derive(Debug, Args)]
pub(crate) struct Chain {
    /// How the relay is attached [default: pairs; hairpin with --preset comnetsemu].
    #[arg(long, value_enum)]
    pub(crate) topology: Option<Layout>,

    /// One-way delay of the client's and of the server's link, such as 50ms (played by l2relay).
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) delay: Option<Duration>,

    /// Seconds of each measurement [default: 3; 10 with --preset comnetsemu].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: Option<u32>,

    /// Rounds, each beginning with another relay and another place; figures are medians with their range.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Messages a second of sockperf's under-load runs [default: 1000,10000].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rates: Option<Vec<u32>>,

    /// Protocols of sockperf's latency runs [default: udp; udp,tcp with --preset comnetsemu].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) protocols: Option<Vec<Protocol>>,

    /// What to put between: none, bridge, testpmd, testpmd-txoff, l2relay, l2relay-spin [default:
    /// none,l2relay].
    #[arg(long, value_delimiter = ',')]
    pub(crate) relays: Option<Vec<String>>,

    /// A measurement as others have published it.
    #[arg(long, value_enum)]
    pub(crate) preset: Option<Preset>,

    /// Directory for report.json, report.md and report.html.
    #[arg(long, default_value = "report")]
    pub(crate) out: PathBuf,

    /// The program l2relay [default: the one beside this program; with --containers that of the image].
    #[arg(long)]
    pub(crate) l2relay: Option<PathBuf>,

    /// Further arguments for `l2relay run`, such as '--idle spin'.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub(crate) l2relay_args: String,

    /// Measure everything in Docker containers too, in each round, and compare: client, relay and server.
    #[arg(long)]
    pub(crate) containers: bool,

    /// With --containers: the relay's image (make image).
    #[arg(long, default_value = "l2relay")]
    pub(crate) image: String,

    /// With --containers: further options of the relay's `docker run`, such as '--cpus 1.0'.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub(crate) container_args: String,

    /// The CPU of client and server.
    #[arg(long, default_value_t = 0)]
    pub(crate) host_cpu: usize,

    /// The CPU of the relay.
    #[arg(long, default_value_t = 1)]
    pub(crate) relay_cpu: usize,
}

/// Known measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The DPDK example of ComNetsEmu: hairpin, 50 ms links, 50 messages a second for 10 s; then
    /// without delay.
    Comnetsemu,
}
