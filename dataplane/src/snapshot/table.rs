//! A snapshot as the table that people read. Printed at intervals and at the end; [`si`] also by `l2relay top`.

use std::fmt;

use super::{LaneSnapshot, Snapshot};
use crate::{
    activity::{FIRST_TURN_NS, quantile},
    text::{columns, visible},
};

/// The table that `--stats-interval` prints.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0).max(8);
        let last = if self.last { ", stopped" } else { "" };
        writeln!(f, "Port statistics after {:.1} s{last}", self.counted_s)?;
        let name = width(&mut self.ports.iter().map(|port| columns(&port.name)));
        writeln!(
            f,
            "{:name$} {:>5} {:>14} {:>17} {:>14} {:>17} {:>12} {:>12} {:>12}",
            "port",
            "state",
            "received",
            "bytes",
            "sent",
            "bytes",
            "dropped",
            "kernel drops",
            "device drops"
        )?;
        for port in &self.ports {
            writeln!(
                f,
                "{:name$} {:>5} {:>14} {:>17} {:>14} {:>17} {:>12} {:>12} {:>12}",
                visible(&port.name),
                port.state,
                port.rx_packets,
                port.rx_bytes,
                port.tx_packets,
                port.tx_bytes,
                port.dropped,
                port.kernel_drops,
                port.device_drops
            )?;
        }
        let name = width(&mut self.lanes.iter().map(|lane| columns(&lane.name)));
        writeln!(
            f,
            "{:name$} {:>10} {:>10} {:>10} {:>10} {:>8} {:>12} {:>8}  dropped",
            "lane", "in pps", "in bit/s", "out pps", "out bit/s", "held", "pool used", "tx room"
        )?;
        for lane in &self.lanes {
            let rates = &lane.rates;
            write!(
                f,
                "{:name$} {:>10} {:>10} {:>10} {:>10} {:>8} {:>12} {:>8} ",
                visible(&lane.name),
                si(rates.rx_pps),
                si(rates.rx_bps),
                si(rates.tx_pps),
                si(rates.tx_bps),
                lane.held,
                lane.pool_words(),
                lane.tx_room
            )?;
            if lane.dropped.is_empty() {
                f.write_str(" none")?;
            }
            for (reason, count) in &lane.dropped {
                write!(f, " {reason} {count}")?;
            }
            writeln!(f)?;
        }
        for lane in self.lanes.iter().filter(|lane| lane.super_frames > 0) {
            let (packets, frames) = (lane.merged_packets, lane.super_frames);
            let mean = packets as f64 / frames as f64;
            let name = visible(&lane.name);
            writeln!(
                f,
                "{name}: {packets} merged into {frames} super-frames, {mean:.1} each"
            )?;
        }
        for lane in &self.lanes {
            let Some(link) = &lane.link else { continue };
            writeln!(
                f,
                "link {}: {}; {} waiting, {} marked, {} corrupted, {} reordered",
                visible(&lane.name),
                link.lateness,
                link.queue_packets,
                link.marked,
                link.corrupted,
                link.reordered
            )?;
        }
        if self.workers.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:name$} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "worker", "idle", "burst p50", "p99", "turn p50", "p99"
        )?;
        for (at, worker) in self.workers.iter().enumerate() {
            let core = worker
                .core
                .map_or_else(|| at.to_string(), |core| format!("core {core}"));
            write!(f, "{core:name$} {:>8.1} %", worker.idle * 100.0)?;
            for share in [0.5, 0.99] {
                write!(
                    f,
                    " {:>10}",
                    quantile(&worker.bursts, 2, share).saturating_sub(1)
                )?;
            }
            for share in [0.5, 0.99] {
                let us = quantile(&worker.turns, FIRST_TURN_NS, share) as f64 / 1e3;
                write!(f, " {:>7.1} us", us)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl LaneSnapshot {
    /// Buffers in use, of how many; a lane of the kernel has none.
    fn pool_words(&self) -> String {
        match self.pool_size {
            0 => "-".into(),
            size => format!("{}/{size}", self.pool_used),
        }
    }
}

/// A number with an SI prefix and three or four digits: `1.234 M`.
pub(crate) fn si(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => return format!("{v:.0}"),
    };
    format!("{scaled:.3}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [si(0.0), si(999.0), si(1234.0), si(2.5e9)],
            ["0", "999", "1.234 k", "2.500 G"]
        );
    }
}
