//! A snapshot as Prometheus reads it: the text exposition format, version 0.0.4.
//!
//! Called by the HTTP server of `--metrics`; an embedder may serve it however it likes. The names are those of the JSON form with
//! `l2relay_` before and the unit or `_total` behind: `rx_packets` is `l2relay_rx_packets_total`. docs/metrics.md lists them.

use std::fmt::{Display, Write};

use crate::{
    snapshot::{LaneSnapshot, PortState, Snapshot},
    stats::Reason,
};

/// What [`text`] returns, as a content type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of a relay. `start_s` is when it was started, since the Unix epoch.
pub fn text(snapshot: &Snapshot, start_s: f64) -> String {
    let mut out = Exposition::default();
    out.family(
        "build_info",
        "gauge",
        "The version of the program; always 1.",
    );
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.family(
        "start_time_seconds",
        "gauge",
        "When the relay was started, since the Unix epoch.",
    );
    out.sample(&[], start_s);

    out.family(
        "port_state",
        "gauge",
        "1 for the state that the port is in, 0 for the others.",
    );
    for port in &snapshot.ports {
        for state in [PortState::Up, PortState::Down, PortState::Gone] {
            out.sample(
                &[("port", &port.name), ("state", &state.to_string())],
                u8::from(state == port.state),
            );
        }
    }

    for Counter {
        name,
        help,
        end,
        count,
    } in COUNTERS
    {
        out.family(name, "counter", help);
        for lane in &snapshot.lanes {
            out.sample(&[("lane", &lane.name), ("port", end(lane))], count(lane));
        }
    }
    out.family(
        "dropped_packets_total",
        "counter",
        "Packets discarded by the lane, by reason.",
    );
    for lane in &snapshot.lanes {
        // Reasons that never occurred too: a rate needs a value before the first drop.
        for reason in Reason::ALL.map(Reason::name) {
            let labels = [
                ("lane", lane.name.as_str()),
                ("port", &lane.tx),
                ("reason", reason),
            ];
            out.sample(
                &labels,
                lane.dropped.get(reason).copied().unwrap_or_default(),
            );
        }
    }
    out.family("held_packets", "gauge", "Packets inside the lane.");
    for lane in &snapshot.lanes {
        out.sample(&[("lane", &lane.name), ("port", &lane.tx)], lane.held);
    }
    out.text
}

/// A counter of lanes.
struct Counter {
    name: &'static str,
    help: &'static str,
    /// The port where it counts.
    end: fn(&LaneSnapshot) -> &str,
    count: fn(&LaneSnapshot) -> u64,
}

const COUNTERS: [Counter; 6] = [
    Counter {
        name: "rx_packets_total",
        help: "Packets received from the port; a super-frame counts its segments.",
        end: |lane| &lane.rx,
        count: |lane| lane.rx_packets,
    },
    Counter {
        name: "rx_bytes_total",
        help: "Bytes received from the port.",
        end: |lane| &lane.rx,
        count: |lane| lane.rx_bytes,
    },
    Counter {
        name: "tx_packets_total",
        help: "Packets sent by the port; a super-frame counts its segments.",
        end: |lane| &lane.tx,
        count: |lane| lane.tx_packets,
    },
    Counter {
        name: "tx_bytes_total",
        help: "Bytes sent by the port.",
        end: |lane| &lane.tx,
        count: |lane| lane.tx_bytes,
    },
    Counter {
        name: "created_packets_total",
        help: "Packets that stages of the lane made.",
        end: |lane| &lane.tx,
        count: |lane| lane.created,
    },
    Counter {
        name: "kernel_dropped_packets_total",
        help: "Packets that arrived at the port but were dropped by the kernel, because the relay did not take them in time.",
        end: |lane| &lane.rx,
        count: |lane| lane.kernel_drops,
    },
];

/// Text under construction: families, and the samples of the last one.
#[derive(Default)]
struct Exposition {
    text: String,
    name: String,
}

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.name = format!("l2relay_{name}");
        let name = &self.name;
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.name);
        let mut before = '{';
        for (label, text) in labels {
            self.text.push(before);
            let _ = write!(self.text, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
            before = ',';
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Tally;

    fn sample() -> Snapshot {
        let mut tally = Tally {
            rx_packets: 10,
            rx_bytes: 1000,
            tx_packets: 6,
            tx_bytes: 600,
            created: 1,
            held: 2,
            kernel_drops: 7,
            ..Tally::default()
        };
        tally.dropped[Reason::TxFull as usize] = 3;
        let lane = LaneSnapshot::new("a>b".into(), "a".into(), "b".into(), tally);
        let ports = vec![("a".into(), PortState::Up), ("b".into(), PortState::Gone)];
        Snapshot::new([Duration::from_secs(9); 2], false, ports, vec![lane])
    }

    #[test]
    fn every_count_is_there_once() {
        let text = text(&sample(), 5.5);
        for line in [
            "l2relay_start_time_seconds 5.5",
            "l2relay_port_state{port=\"b\",state=\"gone\"} 1",
            "l2relay_port_state{port=\"b\",state=\"up\"} 0",
            "l2relay_rx_packets_total{lane=\"a>b\",port=\"a\"} 10",
            "l2relay_rx_bytes_total{lane=\"a>b\",port=\"a\"} 1000",
            "l2relay_tx_packets_total{lane=\"a>b\",port=\"b\"} 6",
            "l2relay_tx_bytes_total{lane=\"a>b\",port=\"b\"} 600",
            "l2relay_created_packets_total{lane=\"a>b\",port=\"b\"} 1",
            "l2relay_kernel_dropped_packets_total{lane=\"a>b\",port=\"a\"} 7",
            "l2relay_dropped_packets_total{lane=\"a>b\",port=\"b\",reason=\"tx_full\"} 3",
            "l2relay_dropped_packets_total{lane=\"a>b\",port=\"b\",reason=\"stopped\"} 0",
            "l2relay_held_packets{lane=\"a>b\",port=\"b\"} 2",
        ] {
            let count = text.lines().filter(|other| *other == line).count();
            assert_eq!(count, 1, "{line} in\n{text}");
        }
    }

    #[test]
    fn names_of_interfaces_are_escaped() {
        let mut out = Exposition::default();
        out.family("x", "gauge", "X.");
        out.sample(&[("port", "a\"b\\c\nd"), ("state", "up")], 1);
        assert!(
            out.text
                .ends_with("l2relay_x{port=\"a\\\"b\\\\c\\nd\",state=\"up\"} 1\n"),
            "{}",
            out.text
        );
    }
}
