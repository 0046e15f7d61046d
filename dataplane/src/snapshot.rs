//! What a relay has counted, at one moment: for tables, JSON and embedders.

pub(crate) mod table;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    activity::Activity,
    stage::link::LinkSnapshot,
    stats::{Levels, Reason, Tally},
};

/// The counters of a relay at one moment.
///
/// The JSON form is one object a line: `version` 1, counts in packets and bytes, times in seconds, rates per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Of this form.
    pub version: u32,
    /// Since the Unix epoch, in seconds.
    pub time_s: f64,
    /// Since the relay was started, in seconds.
    pub uptime_s: f64,
    /// Since counting began, in seconds: at the start, or when it was last begun anew.
    pub counted_s: f64,
    /// Whether the relay has stopped: no other snapshot follows.
    pub last: bool,
    /// In order of their ids.
    pub ports: Vec<PortSnapshot>,
    /// In the order of the pairs; both directions of a pair together.
    pub lanes: Vec<LaneSnapshot>,
    /// In the order of their cores. None after the end.
    #[serde(default)]
    pub workers: Vec<WorkerSnapshot>,
}

/// What a worker does with its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// Share of the time without frames, 0 to 1, since the snapshot before, or since counting began: asleep or looking for some.
    pub idle: f64,
    /// Time in turns that moved frames, in seconds.
    pub busy_s: f64,
    /// Time in turns that found nothing, in seconds.
    pub looking_s: f64,
    /// Time asleep, in seconds.
    pub asleep_s: f64,
    /// Frames that its lanes moved.
    #[serde(default)]
    pub frames: u64,
    /// Turns of a lane that moved frames, by how many: entry `i` counts those of 2^i to 2^(i+1) - 1, the last one all larger.
    pub bursts: Vec<u64>,
    /// Turns of all lanes that moved frames, by how long they took: entry 0 counts those below 256 ns, each further one those below
    /// twice as much, the last one all longer.
    pub turns: Vec<u64>,
}

/// The counters of a port: the sums over its lanes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortSnapshot {
    /// As it was named.
    pub name: String,
    /// Whether frames can pass.
    pub state: PortState,
    /// Packets received from it.
    pub rx_packets: u64,
    /// Bytes received from it.
    pub rx_bytes: u64,
    /// Packets sent by it.
    pub tx_packets: u64,
    /// Bytes sent by it.
    pub tx_bytes: u64,
    /// Packets that should have left by it and were discarded.
    pub dropped: u64,
    /// Packets that arrived but were dropped by the kernel, because the relay did not take them in time.
    pub kernel_drops: u64,
    /// Frames that the interface dropped after they were sent, by its own count since the relay was started. Not part of
    /// `dropped`; a super-frame may count as one.
    pub device_drops: u64,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// Up, with a carrier.
    Up,
    /// Down, or without a carrier.
    #[default]
    Down,
    /// The interface does not exist, any more or yet.
    Gone,
}

/// The counters of one direction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaneSnapshot {
    /// `a>b`, and `a>b#1` and so on for further lanes of the same direction.
    pub name: String,
    /// The port it receives from.
    pub rx: String,
    /// The port it sends by.
    pub tx: String,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that stages made.
    pub created: u64,
    /// Packets inside the lane.
    pub held: u64,
    /// Packets discarded, by reason; reasons that never occurred are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Packets that arrived but were dropped by the kernel, because the relay did not take them in time. Not in `rx_packets`.
    pub kernel_drops: u64,
    /// Buffers of its pool that are in use, by the lane or by the kernel.
    #[serde(default)]
    pub pool_used: u64,
    /// Buffers that its pool has.
    #[serde(default)]
    pub pool_size: u64,
    /// Frames that the ring or socket it sends by would take now.
    #[serde(default)]
    pub tx_room: u64,
    /// Packets that were merged into super-frames here.
    #[serde(default)]
    pub merged_packets: u64,
    /// Super-frames that they were merged into.
    #[serde(default)]
    pub super_frames: u64,
    /// The emulated link, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkSnapshot>,
    /// Since the snapshot before, or since counting began.
    pub rates: Rates,
}

/// Packets and bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Packets received per second.
    pub rx_pps: f64,
    /// Bits received per second.
    pub rx_bps: f64,
    /// Packets sent per second.
    pub tx_pps: f64,
    /// Bits sent per second.
    pub tx_bps: f64,
}

impl Snapshot {
    /// `times`: since the relay was started, and since counting began.
    pub(crate) fn new(
        times: [Duration; 2],
        last: bool,
        ports: Vec<(String, PortState, u64)>,
        lanes: Vec<LaneSnapshot>,
        workers: Vec<WorkerSnapshot>,
    ) -> Self {
        let ids: HashMap<&str, usize> = ports
            .iter()
            .enumerate()
            .map(|(id, (name, ..))| (name.as_str(), id))
            .collect();
        let id = |name: &String| ids.get(name.as_str()).copied();
        let ends = lanes.iter().map(|lane| (id(&lane.rx), id(&lane.tx)));
        let ends: Vec<_> = ends.collect();
        let mut ports: Vec<PortSnapshot> = ports
            .into_iter()
            .map(|(name, state, device_drops)| PortSnapshot {
                device_drops,
                ..PortSnapshot::new(name, state)
            })
            .collect();
        for (lane, (rx, tx)) in lanes.iter().zip(ends) {
            if let Some(id) = rx {
                ports[id].add_rx(lane);
            }
            if let Some(id) = tx {
                ports[id].add_tx(lane);
            }
        }
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut snapshot = Self {
            version: 1,
            time_s: time.as_secs_f64(),
            uptime_s: times[0].as_secs_f64(),
            counted_s: times[1].as_secs_f64(),
            last,
            ports,
            lanes,
            workers,
        };
        snapshot.set_rates(None);
        snapshot
    }

    /// The last snapshot of a relay that never started, because its ports did not come.
    pub fn never_started(waited: Duration, ports: Vec<String>) -> Self {
        let gone = |name| (name, PortState::Gone, 0);
        Self::new(
            [waited; 2],
            true,
            ports.into_iter().map(gone).collect(),
            Vec::new(),
            Vec::new(),
        )
    }

    /// Computes rates since an earlier snapshot of the same relay, instead of since counting began.
    pub fn since(mut self, earlier: &Self) -> Self {
        self.set_rates(Some(earlier));
        self
    }

    fn set_rates(&mut self, earlier: Option<&Self>) {
        // One from before counting began anew has nothing to compare with.
        let since = |earlier: &&Self| self.uptime_s - earlier.uptime_s;
        let earlier = earlier.filter(|earlier| since(earlier) <= self.counted_s);
        let seconds = earlier.as_ref().map_or(self.counted_s, since);
        for (at, worker) in self.workers.iter_mut().enumerate() {
            let before = earlier.and_then(|earlier| earlier.workers.get(at));
            worker.set_idle(before);
        }
        let before: HashMap<&str, &LaneSnapshot> = earlier
            .iter()
            .flat_map(|earlier| &earlier.lanes)
            .map(|lane| (lane.name.as_str(), lane))
            .collect();
        for lane in &mut self.lanes {
            let before = before.get(lane.name.as_str()).copied();
            let rate = |count: fn(&LaneSnapshot) -> u64| {
                let counted = count(lane).saturating_sub(before.map_or(0, count));
                if seconds > 0.0 {
                    counted as f64 / seconds
                } else {
                    0.0
                }
            };
            lane.rates = Rates {
                rx_pps: rate(|lane| lane.rx_packets),
                rx_bps: rate(|lane| lane.rx_bytes) * 8.0,
                tx_pps: rate(|lane| lane.tx_packets),
                tx_bps: rate(|lane| lane.tx_bytes) * 8.0,
            };
        }
    }

    /// Whether the conservation law holds in every lane.
    pub fn is_conserved(&self) -> bool {
        self.lanes.iter().all(|lane| {
            lane.rx_packets + lane.created == lane.tx_packets + lane.dropped_total() + lane.held
        })
    }
}

impl PortSnapshot {
    fn new(name: String, state: PortState) -> Self {
        Self {
            name,
            state,
            rx_packets: 0,
            rx_bytes: 0,
            tx_packets: 0,
            tx_bytes: 0,
            dropped: 0,
            kernel_drops: 0,
            device_drops: 0,
        }
    }

    fn add_rx(&mut self, lane: &LaneSnapshot) {
        self.rx_packets += lane.rx_packets;
        self.rx_bytes += lane.rx_bytes;
        self.kernel_drops += lane.kernel_drops;
    }

    fn add_tx(&mut self, lane: &LaneSnapshot) {
        self.tx_packets += lane.tx_packets;
        self.tx_bytes += lane.tx_bytes;
        self.dropped += lane.dropped_total();
    }
}

impl WorkerSnapshot {
    pub(crate) fn new(core: Option<usize>, activity: Activity) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            core,
            idle: 0.0,
            busy_s: seconds(activity.busy_ns),
            looking_s: seconds(activity.looking_ns),
            asleep_s: seconds(activity.asleep_ns),
            frames: activity.frames,
            bursts: activity.bursts.to_vec(),
            turns: activity.turns.to_vec(),
        }
    }

    fn set_idle(&mut self, before: Option<&Self>) {
        // A worker that has done less than before is another: counting began anew, or the cores have changed.
        let times: [fn(&Self) -> f64; 3] = [
            |worker| worker.busy_s,
            |worker| worker.looking_s,
            |worker| worker.asleep_s,
        ];
        let before = before.filter(|before| times.iter().all(|time| time(before) <= time(self)));
        let since = |time: fn(&Self) -> f64| time(self) - before.map_or(0.0, time);
        let idle = since(|worker| worker.looking_s + worker.asleep_s);
        let all = idle + since(|worker| worker.busy_s);
        self.idle = if all > 0.0 { idle / all } else { 1.0 };
    }
}

impl LaneSnapshot {
    pub(crate) fn new(name: String, rx: String, tx: String, tally: Tally, levels: Levels) -> Self {
        let dropped = Reason::ALL
            .iter()
            .filter(|reason| tally.dropped_for(**reason) > 0)
            .map(|reason| (reason.name().to_owned(), tally.dropped_for(*reason)))
            .collect();
        let Tally {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            created,
            held,
            kernel_drops,
            merged_packets,
            super_frames,
            ..
        } = tally;
        let rates = Rates::default();
        Self {
            name,
            rx,
            tx,
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            created,
            held,
            dropped,
            kernel_drops,
            pool_used: levels.pool_used,
            pool_size: levels.pool_size,
            tx_room: levels.tx_room,
            merged_packets,
            super_frames,
            link: None,
            rates,
        }
    }

    /// Packets discarded for whatever reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Gone => "gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::link::LatenessSnapshot;

    fn snapshot(uptime: u64, rx: u64) -> Snapshot {
        let mut dropped = [0; Reason::COUNT];
        dropped[Reason::Oversize as usize] = 2;
        let tally = Tally {
            rx_packets: rx,
            rx_bytes: rx * 100,
            tx_packets: rx - 2,
            dropped,
            ..Tally::default()
        };
        let lane = LaneSnapshot::new(
            "a>b".into(),
            "a".into(),
            "b".into(),
            tally,
            Levels {
                pool_used: 30,
                pool_size: 40,
                tx_room: 57,
            },
        );
        let ports = vec![
            ("a".into(), PortState::Up, 0),
            ("b".into(), PortState::Down, 4),
        ];
        let times = [Duration::from_secs(uptime); 2];
        let worker = WorkerSnapshot::new(
            Some(3),
            Activity {
                busy_ns: 1,
                asleep_ns: 3,
                ..Activity::default()
            },
        );
        Snapshot::new(times, false, ports, vec![lane], vec![worker])
    }

    #[test]
    fn ports_are_sums_of_lanes_and_drops_belong_to_the_output() {
        let snapshot = snapshot(10, 1000);
        assert!(snapshot.is_conserved());
        let [a, b] = &snapshot.ports[..] else {
            panic!()
        };
        assert_eq!(
            (a.rx_packets, a.dropped, b.tx_packets, b.dropped),
            (1000, 0, 998, 2)
        );
        assert_eq!(b.device_drops, 4);
        assert_eq!(
            snapshot.lanes[0].dropped,
            BTreeMap::from([("oversize".into(), 2)])
        );
    }

    #[test]
    fn rates_are_since_the_snapshot_before() {
        let rates = snapshot(12, 3000).since(&snapshot(10, 1000)).lanes[0].rates;
        assert_eq!((rates.rx_pps, rates.rx_bps), (1000.0, 800_000.0));
        assert_eq!(snapshot(10, 1000).lanes[0].rates.rx_pps, 100.0);
    }

    /// After the cores have changed, a worker's times begin at 0 again.
    #[test]
    fn a_worker_that_is_another_is_compared_with_nothing() {
        let at = |looking_s, asleep_s| WorkerSnapshot {
            busy_s: 1.0,
            looking_s,
            asleep_s,
            ..WorkerSnapshot::default()
        };
        let idle = |mut now: WorkerSnapshot, before: &WorkerSnapshot| {
            now.set_idle(Some(before));
            now.idle
        };
        assert_eq!(idle(at(9.0, 0.0), &at(6.0, 0.0)), 1.0);
        assert_eq!(idle(at(1.0, 2.0), &at(6.0, 0.0)), 0.75);
    }

    #[test]
    fn the_table_names_what_happened() {
        let table = snapshot(10, 1000).to_string();
        for part in [
            "a>b",
            "oversize 2",
            "down",
            "100000",
            "core 3",
            "75.0 %",
            "30/40",
            " 57 ",
        ] {
            assert!(table.contains(part), "{part} missing in\n{table}");
        }
    }

    #[test]
    fn the_table_tells_what_was_merged() {
        let mut snapshot = snapshot(10, 1000);
        assert!(!snapshot.to_string().contains("merged"));
        (
            snapshot.lanes[0].merged_packets,
            snapshot.lanes[0].super_frames,
        ) = (900, 20);
        let line = "a>b: 900 merged into 20 super-frames, 45.0 each";
        assert!(snapshot.to_string().contains(line), "{snapshot}");
    }

    #[test]
    fn the_table_tells_how_late_a_link_is() {
        let mut snapshot = snapshot(10, 1000);
        assert!(!snapshot.to_string().contains("late"));
        snapshot.lanes[0].link = Some(LinkSnapshot {
            settings: "delay 5ms".into(),
            seed: 7,
            marked: 1,
            corrupted: 2,
            reordered: 3,
            queue_packets: 4,
            queue_bytes: 5,
            memory_bytes: 6,
            lateness: LatenessSnapshot {
                p50_ns: 12_340,
                p99_ns: 56_700,
                max_ns: 89_000,
                ..LatenessSnapshot::default()
            },
        });
        let line = "link a>b: late by 12.3 us (half), 56.7 us (99 %), 89.0 us (most); 4 waiting, 1 marked, 2 corrupted, 3 reordered";
        assert!(snapshot.to_string().contains(line), "{snapshot}");
    }
}
