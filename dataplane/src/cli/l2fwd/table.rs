//! The statistics as l2fwd prints them.

use std::fmt;

use serde::Serialize;

use super::L2fwd;
use crate::snapshot::{PortSnapshot, Snapshot};

/// Clears a terminal and goes to its top left: what l2fwd writes before each table, whoever reads it.
const CLEAR: &str = "\x1b[2J\x1b[1;1H";

/// A snapshot in the layout of l2fwd's table.
#[derive(Serialize)]
pub struct Table<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    #[serde(skip)]
    ports: &'a [(usize, crate::config::PortName)],
}

impl<'a> Table<'a> {
    /// What `snapshot` says of the ports of `l2fwd`.
    pub fn new(l2fwd: &'a L2fwd, snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            ports: &l2fwd.ports,
        }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What was on the screen last stays there, the last table below it.
        f.write_str(if self.snapshot.last { "" } else { CLEAR })?;
        f.write_str("\nPort statistics ====================================")?;
        let [mut sent, mut received, mut dropped] = [0; 3];
        for (id, name) in self.ports {
            let name = name.to_string();
            let Some(PortSnapshot {
                tx_packets: tx,
                rx_packets: rx,
                dropped: lost,
                ..
            }) = self.snapshot.ports.iter().find(|port| port.name == name)
            else {
                continue;
            };
            write!(
                f,
                "\nStatistics for port {id} ------------------------------\
                 \nPackets sent: {tx:24}\nPackets received: {rx:20}\nPackets dropped: {lost:21}"
            )?;
            (sent, received, dropped) = (sent + tx, received + rx, dropped + lost);
        }
        write!(
            f,
            "\nAggregate statistics ===============================\
             \nTotal packets sent: {sent:18}\nTotal packets received: {received:14}\nTotal packets dropped: {dropped:15}\
             \n===================================================="
        )
    }
}
