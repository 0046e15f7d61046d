//! The relay's JSON, as a reader of its documentation would take it, and the law that every snapshot obeys.

use std::collections::BTreeMap;

use serde::Deserialize;

/// One line of `--json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) version: u32,
    pub(crate) time_s: f64,
    pub(crate) uptime_s: f64,
    pub(crate) last: bool,
    pub(crate) ports: Vec<Port>,
    pub(crate) lanes: Vec<Lane>,
    #[serde(default)]
    pub(crate) workers: Vec<Worker>,
}

/// A worker's part of a snapshot.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Worker {
    pub(crate) idle: f64,
}

/// A port's part of a snapshot.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) kernel_drops: u64,
    pub(crate) device_drops: u64,
    pub(crate) state: String,
}

/// A lane's part of a snapshot.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) rx: String,
    pub(crate) tx: String,
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) created: u64,
    pub(crate) merged_packets: u64,
    pub(crate) super_frames: u64,
    pub(crate) held: u64,
    pub(crate) dropped: BTreeMap<String, u64>,
    pub(crate) rates: Rates,
}

/// What a lane carries a second, over the time since the snapshot before.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub(crate) struct Rates {
    pub(crate) rx_pps: f64,
    pub(crate) rx_bps: f64,
    pub(crate) tx_pps: f64,
    pub(crate) tx_bps: f64,
}

impl Lane {
    /// Frames dropped for any reason.
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.values().sum()
    }
}

impl Snapshot {
    /// A port by its name.
    pub(crate) fn port(&self, name: &str) -> &Port {
        self.ports
            .iter()
            .find(|port| port.name == name)
            .unwrap_or_else(|| panic!("no port {name} in {self:?}"))
    }

    /// The sum over the lanes from one port to another: with `--queues` there are several.
    pub(crate) fn way(&self, rx: &str, tx: &str) -> Lane {
        let mut lanes = self
            .lanes
            .iter()
            .filter(|lane| lane.rx == rx && lane.tx == tx);
        let mut sum = lanes
            .next()
            .unwrap_or_else(|| panic!("no lane {rx}>{tx} in {self:?}"))
            .clone();
        for lane in lanes {
            sum.rx_packets += lane.rx_packets;
            sum.rx_bytes += lane.rx_bytes;
            sum.tx_packets += lane.tx_packets;
            sum.tx_bytes += lane.tx_bytes;
            sum.created += lane.created;
            sum.held += lane.held;
            for (reason, count) in &lane.dropped {
                *sum.dropped.entry(reason.clone()).or_default() += count;
            }
        }
        sum
    }

    /// What every snapshot of quiet lanes obeys: conservation in each lane, and ports that are the sums of their lanes.
    pub(crate) fn check(&self) {
        assert_eq!(self.version, 1);
        for lane in &self.lanes {
            let (input, output) = (
                lane.rx_packets + lane.created,
                lane.tx_packets + lane.lost() + lane.held,
            );
            assert_eq!(
                input, output,
                "received + created = sent + dropped + held does not hold in {lane:?}"
            );
        }
        for port in &self.ports {
            let sum = |count: fn(&Lane) -> u64, end: fn(&Lane) -> &String| -> u64 {
                self.lanes
                    .iter()
                    .filter(|lane| *end(lane) == port.name)
                    .map(count)
                    .sum()
            };
            assert_eq!(
                port.rx_packets,
                sum(|l| l.rx_packets, |l| &l.rx),
                "rx packets of {port:?} in {self:?}"
            );
            assert_eq!(
                port.rx_bytes,
                sum(|l| l.rx_bytes, |l| &l.rx),
                "rx bytes of {port:?} in {self:?}"
            );
            assert_eq!(
                port.tx_packets,
                sum(|l| l.tx_packets, |l| &l.tx),
                "tx packets of {port:?} in {self:?}"
            );
            assert_eq!(
                port.tx_bytes,
                sum(|l| l.tx_bytes, |l| &l.tx),
                "tx bytes of {port:?} in {self:?}"
            );
        }
    }
}
