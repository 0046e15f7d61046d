//! iperf3: flows as fast as they go; what counts is what the receiver got.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Figures, Place, Protocol, SLACK, probe};
use crate::process::Program;

/// iperf3's own port (of its control connection, which is TCP also when UDP is measured).
const PORT: u16 = 5201;

/// What the receiver got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Goodput {
    /// Payload at the receiver.
    pub(crate) received_bps: f64,
    /// Payload that the sender sent.
    pub(crate) sent_bps: f64,
    /// TCP: segments sent again.
    pub(crate) retransmits: Option<u64>,
    /// UDP: datagrams lost.
    pub(crate) lost_percent: Option<f64>,
    /// UDP: jitter.
    pub(crate) jitter_ms: Option<f64>,
    /// TCP: the sender's congestion control, as iperf3 found it.
    pub(crate) congestion_control: Option<String>,
}

/// Runs server and client; gives the client's command and the figures.
pub(super) fn measure(
    place: &Place<'_>,
    protocol: Protocol,
    streams: u32,
    seconds: u32,
) -> Result<(String, Figures)> {
    let (client, server) = (&place.topology.client, &place.topology.server);
    let limit = Duration::from_secs(seconds.into()) + SLACK;
    let mut serving = Program::new("iperf3")
        .args(["-s", "-1", "-B", &server.address.to_string()])
        .within(&server.namespace)
        .on_cpu(place.cpu)
        .start(place.run)?;
    probe::wait_listening(place.run, &mut serving, Protocol::Tcp, PORT)?;

    let iperf3 = Program::new("iperf3")
        .args(["-J", "-c", &server.address.to_string(), "-t"])
        .arg(seconds)
        .args(["--connect-timeout", "3000"])
        .args((streams > 1).then(|| format!("-P{streams}")))
        .args(match protocol {
            Protocol::Tcp => vec![],
            Protocol::Udp => vec!["-u", "-b", "0"],
        })
        .within(&client.namespace)
        .on_cpu(place.cpu);
    let output = iperf3.finish(place.run, limit)?;
    let figures =
        parse(&output.stdout).with_context(|| format!("`{}`{}", output.command, output.tail()))?;
    Ok((iperf3.command_line(), Figures::Goodput(figures)))
}

/// Parses what `iperf3 -J` prints.
pub(crate) fn parse(json: &str) -> Result<Goodput> {
    #[derive(Deserialize)]
    struct Whole {
        end: End,
        error: Option<String>,
    }
    #[derive(Deserialize)]
    struct End {
        sum_sent: Option<Sum>,
        sum_received: Option<Sum>,
        sender_tcp_congestion: Option<String>,
    }
    #[derive(Deserialize)]
    struct Sum {
        bits_per_second: f64,
        retransmits: Option<u64>,
        lost_percent: Option<f64>,
        jitter_ms: Option<f64>,
    }

    let whole: Whole = serde_json::from_str(json).context("iperf3 printed no JSON")?;
    if let Some(error) = whole.error {
        bail!("iperf3: {error}");
    }
    let (Some(sent), Some(received)) = (whole.end.sum_sent, whole.end.sum_received) else {
        bail!("iperf3 printed no sums");
    };
    Ok(Goodput {
        received_bps: received.bits_per_second,
        sent_bps: sent.bits_per_second,
        retransmits: sent.retransmits,
        lost_percent: received.lost_percent,
        jitter_ms: received.jitter_ms,
        congestion_control: whole.end.sender_tcp_congestion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_parsed() {
        let tcp = parse(include_str!("fixtures/iperf3-tcp.json")).expect("it parses");
        assert_eq!(tcp.received_bps.round(), 15_434_433_867.0);
        assert_eq!(tcp.sent_bps.round(), 15_445_385_525.0);
        assert_eq!(tcp.retransmits, Some(0));
        assert_eq!((tcp.lost_percent, tcp.jitter_ms), (None, None));
        assert_eq!(tcp.congestion_control.as_deref(), Some("cubic"));
    }

    #[test]
    fn udp_is_what_the_receiver_got() {
        let udp = parse(include_str!("fixtures/iperf3-udp.json")).expect("it parses");
        assert_eq!(udp.received_bps.round(), 396_257_089.0);
        assert_eq!(udp.sent_bps.round(), 697_949_085.0);
        let percent = udp.lost_percent.expect("loss is counted");
        assert!((percent - 43.2168).abs() < 1e-4, "{percent}");
        assert_eq!(udp.retransmits, None);
    }

    #[test]
    fn failures_say_what_happened() {
        let error = |text: &str| format!("{:#}", parse(text).expect_err("no figures"));
        let refused = error(include_str!("fixtures/iperf3-refused.json"));
        assert!(refused.contains("Connection refused"), "{refused}");
        let garbage = error("iperf3: command not found");
        assert!(garbage.contains("no JSON"), "{garbage}");
    }
}
