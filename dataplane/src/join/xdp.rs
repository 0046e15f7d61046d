//! Opening the halves of lanes with AF_XDP on one side or both, in builds with the cargo feature `xdp`.
//!
//! Called by [`join`](super) for pairs whose [`Choice`] names it. Frames lie where AF_XDP needs them.

use std::collections::VecDeque;

use super::{
    End, Halves, Joined,
    choice::{Choice, is_automatic},
    directions,
    packet::{packet_rx, packet_tx},
    pages::Pages,
};
use crate::{
    coalesce::Kinds,
    config::{Backend, Config, XdpMode},
    error::{Error, Result},
    port::{RxQueue, TxQueue, dual::DualTx, packet, xdp},
    sys::{ethtool::Ethtool, netns},
};

/// As [`open_packet`](super::packet::open_packet), with AF_XDP on one side or both. `merges`: frames of a flow that are in a ring together leave as one.
pub(super) fn open_xdp(
    ends: &[End],
    config: &Config,
    choice: &Choice,
    merges: bool,
) -> Result<Joined> {
    let (mut plans, mut named) = (Vec::new(), Vec::new());
    let (mut packet_halves_rx, mut packet_halves_tx) = (VecDeque::new(), VecDeque::new());
    let plenty = vec![config.queues; 2];
    let rx_queues = match choice.rx {
        Backend::Xdp => ends.iter().map(|end| queues(end, true)).collect(),
        _ => plenty.clone(),
    };
    let tx_queues = match choice.tx {
        Backend::Xdp => ends.iter().map(|end| queues(end, false)).collect(),
        _ => plenty,
    };
    let most = |&(from, to): &(usize, usize)| rx_queues[from].min(tx_queues[to]);
    let wanted = |&(from, to): &(usize, usize)| config.lanes(ends[from].name, ends[to].name);
    let widest = directions(ends).into_iter().max_by_key(most);
    if let Some(way @ (from, to)) = widest
        && wanted(&way) > most(&way)
    {
        return Err(Error::Config(vec![format!(
            "--queues {}: {} has {} receive queues and {} has {} transmit queues: use at most {}",
            wanted(&way),
            ends[from].name,
            rx_queues[from],
            ends[to].name,
            tx_queues[to],
            most(&way)
        )]));
    }
    for way @ (from, to) in directions(ends) {
        // In one direction there may be fewer.
        let lanes = wanted(&way).min(most(&way));
        if choice.rx != Backend::Xdp {
            packet_halves_rx.extend(packet_rx(&ends[from], config, lanes)?);
        }
        let both = merges && sends_both_ways(&ends[to], config, choice, lanes);
        if choice.tx != Backend::Xdp {
            packet_halves_tx.extend(packet_tx(&ends[to], config, lanes)?);
        }
        for queue in 0..lanes {
            // No two lanes share a queue, and none of those that receive is left out.
            let receive = (queue..rx_queues[from])
                .step_by(lanes)
                .filter(|_| choice.rx == Backend::Xdp)
                .map(|queue| queue as u32);
            let send = (both || choice.tx == Backend::Xdp).then_some(queue as u32);
            plans.push(xdp::Plan {
                rx: (from, receive.collect()),
                tx: (to, send),
                shared: both,
            });
            named.push((ends[from].id, ends[to].id, queue));
        }
    }
    let automatic = is_automatic(config);
    let mut xdp = config.xdp;
    if automatic && xdp.mode == XdpMode::Auto {
        // In generic mode it loses what packet carries.
        xdp.mode = XdpMode::Native;
    }
    let settings = xdp::Settings {
        ring: config.xdp_slots(merges),
        xdp,
        promiscuous: config.promiscuous,
        huge_pages: config.huge_pages,
        whole: automatic,
    };
    let xdp_ends: Vec<xdp::End> = ends
        .iter()
        .map(|end| xdp::End {
            netns: end.name.netns.as_deref(),
            interface: end.interface,
            link: end.link,
        })
        .collect();
    let (opened, modes) = xdp::open(&xdp_ends, &plans, &settings)?;
    let pages: Vec<Pages> = opened
        .iter()
        .map(|lane| Pages::of_pool(&lane.pool))
        .collect();
    let mut halves = Vec::new();
    for (opened, (from, to, queue)) in opened.into_iter().zip(named) {
        let (rx, gate) = match opened.rx {
            Some(rx) => (Some(Box::new(rx) as Box<dyn RxQueue>), None),
            None => packet_halves_rx.pop_front().unzip(),
        };
        let other = match choice.tx {
            Backend::Xdp => None,
            _ => packet_halves_tx.pop_front(),
        };
        let tx = match (opened.tx, other) {
            (Some(xdp), Some(packet)) => {
                Some(Box::new(DualTx::new(Box::new(xdp), packet)) as Box<dyn TxQueue>)
            }
            (Some(xdp), None) => Some(Box::new(xdp) as Box<dyn TxQueue>),
            (None, packet) => packet,
        };
        // Each plan without a half of AF_XDP's has one of AF_PACKET's in the same place.
        let (Some(rx), Some(tx)) = (rx, tx) else {
            continue;
        };
        halves.push(Halves {
            from,
            to,
            queue,
            rx,
            tx,
            pool: opened.pool,
            kinds: Kinds::default(),
            gate,
        });
    }
    let modes = ends
        .iter()
        .zip(modes)
        .map(|(end, mode)| format!("{} {mode}", end.name));
    let modes = modes.collect::<Vec<_>>().join("; ");
    let carried = if choice.rx == choice.tx {
        choice.rx.to_string()
    } else {
        format!("{} to receive, {} to send", choice.rx, choice.tx)
    };
    let mut all = Pages::default();
    pages.into_iter().for_each(|pages| all.add(pages));
    Ok(Joined {
        halves,
        how: format!("{carried} [{modes}]"),
        pages: all,
    })
}

/// Whether frames that could not be merged leave by AF_XDP, which costs less for each, and only super-frames by AF_PACKET.
///
/// Not with several transmit queues: AF_XDP sends by the one that it is bound to, AF_PACKET by one for each flow, and nobody keeps order between
/// queues.
fn sends_both_ways(to: &End, config: &Config, choice: &Choice, lanes: usize) -> bool {
    let bypasses = !config.qdisc && !packet::one_path(to.interface);
    choice.rx == Backend::Xdp
        && choice.tx == Backend::Packet
        && bypasses
        && queues(to, false) == 1
        && lanes == 1
}

/// How many queues an interface has in use.
fn queues(end: &End, receive: bool) -> usize {
    let interface = end.interface;
    let ask = || Ethtool::open(&interface.name).and_then(|ethtool| ethtool.channels());
    let channels = netns::within(end.name.netns.as_deref(), ask).and_then(|answer| answer);
    let count = match (channels, receive) {
        (Ok(channels), true) => channels.rx + channels.combined,
        (Ok(channels), false) => channels.tx + channels.combined,
        // A driver that does not tell uses what it has.
        (Err(_), true) => interface.rx_queues,
        (Err(_), false) => interface.tx_queues,
    };
    (count as usize).max(1)
}
