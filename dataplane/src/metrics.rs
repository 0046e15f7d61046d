//! A snapshot as Prometheus reads it: the text exposition format, version 0.0.4.
//!
//! Called by the HTTP server of `--metrics`; an embedder may serve it however it likes. The names are those of the JSON form with
//! `l2relay_` before and the unit or `_total` behind: `rx_packets` is `l2relay_rx_packets_total`. docs/metrics.md lists them.

use std::fmt::{Display, Write};

use crate::{
    activity::FIRST_TURN_NS,
    snapshot::{LaneSnapshot, PortState, Snapshot},
    stage::link::LinkSnapshot,
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

    out.family(
        "device_dropped_packets_total",
        "counter",
        "Frames that were sent by the port, and that its device dropped after that.",
    );
    for port in &snapshot.ports {
        out.sample(&[("port", &port.name)], port.device_drops);
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
    for (name, help, level) in LEVELS {
        out.family(name, "gauge", help);
        for lane in &snapshot.lanes {
            out.sample(&[("lane", &lane.name), ("port", &lane.tx)], level(lane));
        }
    }
    links(&mut out, snapshot);
    workers(&mut out, snapshot);
    out.text
}

/// What emulated links do, where there are any.
fn links(out: &mut Exposition, snapshot: &Snapshot) {
    let lanes: Vec<(&LaneSnapshot, &LinkSnapshot)> = snapshot
        .lanes
        .iter()
        .filter_map(|lane| Some((lane, lane.link.as_ref()?)))
        .collect();
    if lanes.is_empty() {
        return;
    }
    for (name, kind, help, value) in LINKS {
        out.family(name, kind, help);
        for (lane, link) in &lanes {
            out.sample(&[("lane", &lane.name), ("port", &lane.tx)], value(link));
        }
    }
    out.family(
        "link_lateness_seconds",
        "histogram",
        "How late packets left the link.",
    );
    for (lane, link) in &lanes {
        let late = &link.lateness;
        // The snapshot's steps end at powers of two, among others: a quarter of those, from 1 us to 1 s, will do.
        let below = |limit_ns: u64| -> u64 {
            let steps = late
                .buckets
                .iter()
                .filter(|[bound_ns, _]| *bound_ns < limit_ns);
            steps.map(|[_, frames]| frames).sum()
        };
        let steps: Vec<(String, u64)> = (10..=30)
            .step_by(2)
            .map(|power| 1u64 << power)
            .map(|limit_ns| ((limit_ns as f64 / 1e9).to_string(), below(limit_ns)))
            .collect();
        let labels = [("lane", lane.name.as_str()), ("port", &lane.tx)];
        out.histogram(&labels, &steps, late.count, late.sum_ns as f64 / 1e9);
    }
}

/// A metric of links: name, type, help, value.
type OfLink = (
    &'static str,
    &'static str,
    &'static str,
    fn(&LinkSnapshot) -> u64,
);

const LINKS: [OfLink; 6] = [
    (
        "link_marked_packets_total",
        "counter",
        "Packets that the link marked instead of dropping them.",
        |link| link.marked,
    ),
    (
        "link_corrupted_packets_total",
        "counter",
        "Packets in which the link turned a bit over.",
        |link| link.corrupted,
    ),
    (
        "link_reordered_packets_total",
        "counter",
        "Packets that overtook another on the link.",
        |link| link.reordered,
    ),
    (
        "link_queue_packets",
        "gauge",
        "Packets that wait for the link's rate.",
        |link| link.queue_packets,
    ),
    (
        "link_queue_bytes",
        "gauge",
        "Bytes that wait for the link's rate, as it counts them.",
        |link| link.queue_bytes,
    ),
    (
        "link_memory_bytes",
        "gauge",
        "Memory that frames held take, bookkeeping included.",
        |link| link.memory_bytes,
    ),
];

/// What workers do with their time.
fn workers(out: &mut Exposition, snapshot: &Snapshot) {
    let ids: Vec<String> = (0..snapshot.workers.len())
        .map(|at| at.to_string())
        .collect();
    let workers = || ids.iter().zip(&snapshot.workers);
    out.family(
        "worker_seconds_total",
        "counter",
        "Time of the worker in turns that moved frames (busy), that found none (looking), and asleep.",
    );
    for (id, worker) in workers() {
        let times = [
            ("busy", worker.busy_s),
            ("looking", worker.looking_s),
            ("asleep", worker.asleep_s),
        ];
        for (state, seconds) in times {
            out.sample(&[("worker", id), ("state", state)], seconds);
        }
    }
    out.family(
        "turn_seconds",
        "histogram",
        "How long turns of all the worker's lanes took that moved frames.",
    );
    for (id, worker) in workers() {
        let limit = |at: usize| ((FIRST_TURN_NS << at) as f64 / 1e9).to_string();
        let (steps, count) = up_to(&worker.turns, limit);
        out.histogram(&[("worker", id)], &steps, count, worker.busy_s);
    }
    out.family(
        "burst_frames",
        "histogram",
        "How many frames a lane's turn moved, of those that moved some.",
    );
    for (id, worker) in workers() {
        let limit = |at: usize| ((2u64 << at) - 1).to_string();
        let (steps, count) = up_to(&worker.bursts, limit);
        out.histogram(&[("worker", id)], &steps, count, worker.frames);
    }
}

/// Counts of buckets as Prometheus wants them: of all up to a limit. The last bucket has none.
fn up_to(buckets: &[u64], limit: impl Fn(usize) -> String) -> (Vec<(String, u64)>, u64) {
    let bounded = buckets.len().saturating_sub(1);
    let steps = buckets[..bounded].iter().scan(0, |total, count| {
        *total += count;
        Some(*total)
    });
    let steps = steps
        .enumerate()
        .map(|(at, total)| (limit(at), total))
        .collect();
    (steps, buckets.iter().sum())
}

/// A gauge of lanes: name, help, value.
type Level = (&'static str, &'static str, fn(&LaneSnapshot) -> u64);

const LEVELS: [Level; 4] = [
    ("held_packets", "Packets inside the lane.", |lane| lane.held),
    (
        "pool_used_buffers",
        "Buffers of the lane's pool that are in use, by the lane or by the kernel.",
        |lane| lane.pool_used,
    ),
    (
        "pool_size_buffers",
        "Buffers that the lane's pool has.",
        |lane| lane.pool_size,
    ),
    (
        "tx_room_frames",
        "Frames that the ring or socket which the lane sends by would take now.",
        |lane| lane.tx_room,
    ),
];

/// A counter of lanes.
struct Counter {
    name: &'static str,
    help: &'static str,
    /// The port where it counts.
    end: fn(&LaneSnapshot) -> &str,
    count: fn(&LaneSnapshot) -> u64,
}

const COUNTERS: [Counter; 8] = [
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
    Counter {
        name: "merged_packets_total",
        help: "Packets that were merged into super-frames.",
        end: |lane| &lane.tx,
        count: |lane| lane.merged_packets,
    },
    Counter {
        name: "super_frames_total",
        help: "Super-frames that packets were merged into.",
        end: |lane| &lane.tx,
        count: |lane| lane.super_frames,
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

    /// A histogram: the limit of each step with the count of all up to it, the count of all, and their sum.
    fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        steps: &[(String, u64)],
        count: u64,
        sum: impl Display,
    ) {
        let name = self.name.clone();
        self.name = format!("{name}_bucket");
        let all = ("+Inf".to_owned(), count);
        for (limit, below) in steps.iter().chain([&all]) {
            let mut labels = labels.to_vec();
            labels.push(("le", limit));
            self.sample(&labels, below);
        }
        self.name = format!("{name}_sum");
        self.sample(labels, sum);
        self.name = format!("{name}_count");
        self.sample(labels, count);
        self.name = name;
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
    use crate::{
        snapshot::WorkerSnapshot,
        stage::link::LatenessSnapshot,
        stats::{Levels, Tally},
    };

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
        let levels = Levels {
            pool_used: 30,
            pool_size: 40,
            tx_room: 50,
        };
        let mut lane = LaneSnapshot::new("a>b".into(), "a".into(), "b".into(), tally, levels);
        lane.link = Some(LinkSnapshot {
            marked: 60,
            queue_bytes: 70,
            lateness: LatenessSnapshot {
                count: 9,
                sum_ns: 3_000_000,
                buckets: vec![[255, 4], [1023, 1], [1087, 2], [u64::MAX, 2]],
                ..LatenessSnapshot::default()
            },
            settings: String::new(),
            seed: 0,
            corrupted: 0,
            reordered: 0,
            queue_packets: 0,
            memory_bytes: 0,
        });
        let worker = WorkerSnapshot {
            busy_s: 1.5,
            asleep_s: 7.5,
            frames: 42,
            bursts: vec![3, 4, 5],
            turns: vec![2, 0, 7],
            ..WorkerSnapshot::default()
        };
        let ports = vec![
            ("a".into(), PortState::Up, 0),
            ("b".into(), PortState::Gone, 0),
        ];
        Snapshot::new(
            [Duration::from_secs(9); 2],
            false,
            ports,
            vec![lane],
            vec![worker],
        )
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
            "l2relay_pool_used_buffers{lane=\"a>b\",port=\"b\"} 30",
            "l2relay_tx_room_frames{lane=\"a>b\",port=\"b\"} 50",
            "l2relay_link_marked_packets_total{lane=\"a>b\",port=\"b\"} 60",
            "l2relay_link_queue_bytes{lane=\"a>b\",port=\"b\"} 70",
            "l2relay_link_lateness_seconds_bucket{lane=\"a>b\",port=\"b\",le=\"0.000001024\"} 5",
            "l2relay_link_lateness_seconds_bucket{lane=\"a>b\",port=\"b\",le=\"0.000004096\"} 7",
            "l2relay_link_lateness_seconds_bucket{lane=\"a>b\",port=\"b\",le=\"+Inf\"} 9",
            "l2relay_link_lateness_seconds_sum{lane=\"a>b\",port=\"b\"} 0.003",
            "l2relay_worker_seconds_total{worker=\"0\",state=\"asleep\"} 7.5",
            "l2relay_turn_seconds_bucket{worker=\"0\",le=\"0.000000256\"} 2",
            "l2relay_turn_seconds_bucket{worker=\"0\",le=\"+Inf\"} 9",
            "l2relay_turn_seconds_sum{worker=\"0\"} 1.5",
            "l2relay_turn_seconds_count{worker=\"0\"} 9",
            "l2relay_burst_frames_bucket{worker=\"0\",le=\"1\"} 3",
            "l2relay_burst_frames_bucket{worker=\"0\",le=\"3\"} 7",
            "l2relay_burst_frames_count{worker=\"0\"} 12",
            "l2relay_burst_frames_sum{worker=\"0\"} 42",
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
