//! The traffic of a measurement: sockperf, iperf3 and a probe, from client to server.
//!
//! A [`Load`] is one run of one tool. [`Load::measure`] starts the server, waits until it listens, runs
//! the client and parses all that it says. Both run on the hosts' CPU.

pub(crate) mod iperf3;
pub(crate) mod probe;
pub(crate) mod sockperf;

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::run::Run;
use crate::topology::Topology;

/// Transport protocol of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        })
    }
}

/// One run of one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "tool")]
#[expect(
    clippy::enum_variant_names,
    reason = "under-load is sockperf's own word"
)]
pub(crate) enum Load {
    /// sockperf: one message in flight, the next when its answer has come.
    PingPong {
        /// Transport protocol.
        protocol: Protocol,
    },
    /// sockperf: so many messages a second, each answered.
    UnderLoad {
        /// Transport protocol.
        protocol: Protocol,
        /// Messages a second.
        mps: u32,
    },
    /// sockperf: as many messages as the sender can, none answered, counted at the server.
    Throughput {
        /// Transport protocol.
        protocol: Protocol,
        /// Bytes of a message.
        size: u32,
    },
    /// iperf3: as fast as it goes, measured at the receiver.
    Iperf3 {
        /// Transport protocol.
        protocol: Protocol,
        /// Flows at the same time.
        streams: u32,
    },
}

impl Load {
    /// Its transport protocol.
    pub(crate) fn protocol(&self) -> Protocol {
        match *self {
            Self::PingPong { protocol }
            | Self::UnderLoad { protocol, .. }
            | Self::Throughput { protocol, .. }
            | Self::Iperf3 { protocol, .. } => protocol,
        }
    }

    /// The protocols that must find a way: iperf3 controls its UDP runs over TCP.
    pub(crate) fn needs(&self) -> &'static [Protocol] {
        match (self, self.protocol()) {
            (Self::Iperf3 { .. }, Protocol::Udp) => &[Protocol::Tcp, Protocol::Udp],
            (_, Protocol::Udp) => &[Protocol::Udp],
            (_, Protocol::Tcp) => &[Protocol::Tcp],
        }
    }

    /// True if its result is latencies.
    pub(crate) fn is_latency(&self) -> bool {
        matches!(self, Self::PingPong { .. } | Self::UnderLoad { .. })
    }

    /// How long a run of `seconds` takes, with start and end. sockperf's client sleeps 2 s after its
    /// warm-up (measured: strace of sockperf 3.7).
    pub(crate) fn duration(&self, seconds: u32) -> Duration {
        let overhead = match self {
            Self::Iperf3 { .. } => 200,
            _ => 2400,
        };
        Duration::from_secs(seconds.into()) + Duration::from_millis(overhead)
    }

    /// Runs it for `seconds`.
    pub(crate) fn measure(&self, place: &Place<'_>, seconds: u32) -> Result<(String, Figures)> {
        match *self {
            Self::Iperf3 { protocol, streams } => {
                iperf3::measure(place, protocol, streams, seconds)
            }
            _ => sockperf::measure(place, self, seconds),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingPong { protocol } => write!(f, "sockperf ping-pong {protocol}"),
            Self::UnderLoad { protocol, mps } => {
                write!(f, "sockperf under-load {protocol}, {mps} messages/s")
            }
            Self::Throughput { protocol, size } => {
                write!(f, "sockperf throughput {protocol}, {size} B")
            }
            Self::Iperf3 {
                protocol,
                streams: 1,
            } => write!(f, "iperf3 {protocol}"),
            Self::Iperf3 { protocol, streams } => write!(f, "iperf3 {protocol}, {streams} flows"),
        }
    }
}

/// Where a load runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The run it belongs to.
    pub(crate) run: &'a Run,
    /// Client and server.
    pub(crate) topology: &'a Topology,
    /// The CPU of both.
    pub(crate) cpu: usize,
}

/// What a load measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figures {
    /// sockperf ping-pong and under-load.
    Latency(sockperf::Latency),
    /// sockperf throughput.
    Throughput(sockperf::Throughput),
    /// iperf3.
    Goodput(iperf3::Goodput),
}

impl Figures {
    /// The figures that matter most, for the progress on the terminal.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::Latency(l) => {
                let at = |wanted: f64| {
                    let mut points = l.percentiles.iter();
                    let point = points.find(|p| (p.percentile - wanted).abs() < 1e-6);
                    point.map_or("–".into(), |p| format!("{:.1}", p.us))
                };
                format!("p50 {} us, p99 {} us", at(50.0), at(99.0))
            }
            Self::Throughput(t) => format!("{:.0} Mbit/s received", t.received_mbps),
            Self::Goodput(g) => format!("{:.2} Gbit/s received", g.received_bps / 1e9),
        }
    }
}

/// How long a tool may take beyond the time it was asked for.
pub(crate) const SLACK: Duration = Duration::from_secs(10);
