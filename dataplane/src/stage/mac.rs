//! Rewriting MAC addresses.

use super::Stage;
use crate::{
    burst::Burst,
    lane::Turn,
    wire::ethernet::{self, MacAddress},
};

/// What a lane does to the MAC addresses of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Exchanges source and destination.
    Swap,
    /// Sets both, as DPDK's l2fwd does.
    Update {
        /// The new source: the transmit port's own address.
        src: MacAddress,
        /// The new destination.
        dst: MacAddress,
    },
}

impl Rewrite {
    /// The destination that l2fwd gives frames sent by the port of this id: `02:00:00:00:00:<id>`.
    ///
    /// Source: DPDK `examples/l2fwd/main.c`, `l2fwd_mac_updating`, which writes the id into the last byte.
    pub fn l2fwd_dst(port_id: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, port_id])
    }
}

impl Stage for Rewrite {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        for frame in burst.iter() {
            let bytes = turn.pool.bytes_mut(frame);
            match self {
                Self::Swap => ethernet::swap_macs(bytes),
                Self::Update { src, dst } => ethernet::set_macs(bytes, *dst, *src),
            }
        }
    }
}
