//! Opening the halves of lanes by AF_PACKET, for both directions of a pair, or the one side that AF_XDP leaves.
//!
//! Called by [`join`](super) for pairs without AF_XDP, and by its `xdp` for halves.

use std::{collections::VecDeque, panic, thread};

use super::{End, Halves, Joined, directions, pages::Pages, within};
use crate::{
    coalesce::Kinds,
    config::Config,
    error::{Error, Result},
    memory::{FramePool, PoolSize, Region},
    port::{RxQueue, TxQueue, packet},
};

/// Buffers of a lane without AF_XDP: a few bursts of small ones, for what stages and queues hold, and a burst of large
/// ones.
const POOL: PoolSize = PoolSize {
    small: 1024,
    large: 64,
};

pub(super) fn open_packet(ends: &[End], config: &Config) -> Result<Joined> {
    let lanes = |(from, to): (usize, usize)| config.lanes(ends[from].name, ends[to].name);
    let total = directions(ends).into_iter().map(lanes).sum();
    let region = Region::map(POOL.bytes() * total, config.huge_pages)?;
    let pages = Pages::of(&region);
    let mut pools = FramePool::split(region, POOL, total).into_iter();
    let mut halves = Vec::new();
    for ((from, to), rx, tx) in open_side_by_side(ends, config, lanes)? {
        let (rx, tx) = (rx?, tx?);
        for (queue, (((rx, gate), tx), pool)) in rx.into_iter().zip(tx).zip(&mut pools).enumerate()
        {
            halves.push(Halves {
                from: ends[from].id,
                to: ends[to].id,
                queue,
                rx,
                tx,
                pool,
                kinds: Kinds::default(),
                gate: Some(gate),
            });
        }
    }
    Ok(Joined {
        halves,
        how: "packet".into(),
        pages,
    })
}

/// What was opened for a direction.
type Opened = (
    (usize, usize),
    Result<Gated>,
    Result<VecDeque<Box<dyn TxQueue>>>,
);

/// Opens both halves of all directions at once: for each ring the kernel waits until no CPU can still be in the socket
/// (net/packet/af_packet.c, packet_set_ring: synchronize_net), which takes about ten milliseconds, however many wait.
fn open_side_by_side(
    ends: &[End],
    config: &Config,
    lanes: impl Fn((usize, usize)) -> usize + Sync,
) -> Result<Vec<Opened>> {
    let no_thread = |error| {
        let remedy = "raise the limit on threads (ulimit -u)";
        Error::system("start", "a thread that opens ports", error, remedy)
    };
    thread::scope(|scope| {
        let lanes = &lanes;
        let mut opening = Vec::new();
        for way @ (from, to) in directions(ends) {
            let rx = move || packet_rx(&ends[from], config, lanes(way));
            let tx = move || packet_tx(&ends[to], config, lanes(way));
            let rx = thread::Builder::new()
                .spawn_scoped(scope, rx)
                .map_err(no_thread)?;
            let tx = thread::Builder::new()
                .spawn_scoped(scope, tx)
                .map_err(no_thread)?;
            opening.push((way, rx, tx));
        }
        let opened = opening
            .into_iter()
            .map(|(way, rx, tx)| (way, joined(rx), joined(tx)));
        Ok(opened.collect())
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let panicked = |payload| panic::resume_unwind(payload);
    thread.join().unwrap_or_else(panicked)
}

fn settings(config: &Config, queues: usize) -> packet::Settings {
    packet::Settings {
        ring: config.slots(),
        promiscuous: config.promiscuous,
        qdisc: config.qdisc,
        queues,
    }
}

/// Receive queues, with their gates.
type Gated = VecDeque<(Box<dyn RxQueue>, packet::Gate)>;

pub(super) fn packet_rx(end: &End, config: &Config, queues: usize) -> Result<Gated> {
    let open = || packet::open_rx_gated(end.interface, &settings(config, queues), end.gate);
    let gated = |rx: packet::PacketRx| {
        let gate = rx.gate(queues > 1).map_err(|error| {
            let remedy = "raise the limit on open files: ulimit -n";
            Error::system("share a socket of", end.name.to_string(), error, remedy)
        })?;
        Ok((Box::new(rx) as Box<dyn RxQueue>, gate))
    };
    within(end, open)?.into_iter().map(gated).collect()
}

pub(super) fn packet_tx(
    end: &End,
    config: &Config,
    queues: usize,
) -> Result<VecDeque<Box<dyn TxQueue>>> {
    let open = || packet::open_tx(end.interface, end.link, &settings(config, queues));
    let boxed = |tx| Box::new(tx) as Box<dyn TxQueue>;
    Ok(within(end, open)?.into_iter().map(boxed).collect())
}
