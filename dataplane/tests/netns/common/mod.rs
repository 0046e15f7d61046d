//! What the tests share: namespaces, the relay as a black box, independent senders and captures, hand-made frames.
//!
//! Nothing here shares code with the relay. Every guard removes what it made when it is dropped, also when a test panics.

mod capture;
mod frames;
mod net;
mod relay;
mod snapshot;
mod tool;

pub(crate) use capture::Capture;
pub(crate) use frames::{
    Tag, checksums_hold, multicast, noise, offloaded, plain, sum, tagged, tcp_frame, udp_frame,
    vnet,
};
pub(crate) use net::{Chain, Counters, Net, mac, mac_text};
pub(crate) use relay::{Relay, Signal, attempt, program};
pub(crate) use snapshot::{Lane, Snapshot, Worker};
pub(crate) use tool::{
    Peer, hex, receive_raw, send_raw, send_vnet, tap_and_server, tcp_both_ways, unhex,
};

use std::time::{Duration, Instant};

/// How long anything bounded may take before a test gives up. Long, because a busy machine is slow and not wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The CPUs this process may use.
pub(crate) fn cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .expect("Linux says so");
    let number = |text: &str| text.trim().parse::<usize>().expect("a CPU number");
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first)..=number(last),
        None => number(part)..=number(part),
    };
    list.split(',').flat_map(range).collect()
}

/// Polls until `holds` says so; false when `limit` has passed first.
pub(crate) fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
