//! Joining two ports: which back end carries a pair, and the halves of the lanes between them.
//!
//! Called by the relay when it starts, and again when an interface was created anew. Receiving and sending may be by
//! different back ends; then each opens its halves, and the lane's frames lie where AF_XDP needs them.

mod merging;

use std::{collections::VecDeque, os::fd::BorrowedFd, panic, sync::Arc, thread};

use self::merging::Merging;
use crate::{
    coalesce::Kinds,
    config::{Backend, Config, PortName},
    error::{Error, Result},
    interface::Interface,
    memory::{FramePool, HugePages, PoolSize, Region},
    port::{Link, RxQueue, TxQueue, packet},
    sys::netns,
};

/// A port to join.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    /// The port's id.
    pub(crate) id: usize,
    pub(crate) name: &'a PortName,
    pub(crate) interface: &'a Interface,
    pub(crate) link: &'a Arc<Link>,
    /// Decides which frames packet sockets receive.
    pub(crate) gate: Option<BorrowedFd<'a>>,
}

/// What a lane is made of.
pub(crate) struct Halves {
    /// The id of the port that it receives from.
    pub(crate) from: usize,
    /// The id of the port that it sends by.
    pub(crate) to: usize,
    /// Which it is of those between the same ports.
    pub(crate) queue: usize,
    pub(crate) rx: Box<dyn RxQueue>,
    pub(crate) tx: Box<dyn TxQueue>,
    pub(crate) pool: FramePool,
    /// What is merged of what passes.
    pub(crate) kinds: Kinds,
    /// If packet sockets receive.
    pub(crate) gate: Option<packet::Gate>,
}

/// A pair, open.
pub(crate) struct Joined {
    /// What every lane is made of.
    pub(crate) halves: Vec<Halves>,
    /// By what it is carried, in words.
    pub(crate) how: String,
    /// What its frames lie on.
    pub(crate) pages: Pages,
}

/// Memory for frames, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    huge: usize,
    ordinary: usize,
}

impl Pages {
    fn of(region: &Region) -> Self {
        let mut pages = Self::default();
        pages.count(region.len(), region.is_huge());
        pages
    }

    /// Of one lane alone.
    #[cfg(feature = "xdp")]
    fn of_pool(pool: &FramePool) -> Self {
        let mut pages = Self::default();
        for (bytes, huge) in pool.pages() {
            pages.count(bytes, huge);
        }
        pages
    }

    fn count(&mut self, bytes: usize, huge: bool) {
        *(if huge {
            &mut self.huge
        } else {
            &mut self.ordinary
        }) += bytes;
    }

    /// Adds what other frames lie on.
    pub(crate) fn add(&mut self, other: Self) {
        self.huge += other.huge;
        self.ordinary += other.ordinary;
    }

    /// In a sentence, with the remedy where huge pages were wanted.
    pub(crate) fn describe(self, wanted: HugePages) -> String {
        let huge = format!("frames on huge pages ({} KiB)", self.huge >> 10);
        let ordinary = match wanted {
            HugePages::Auto => format!(
                "frames on ordinary pages: {}",
                Region::huge_page_remedy(self.ordinary)
            ),
            _ => "frames on ordinary pages".into(),
        };
        match (self.huge, self.ordinary) {
            (_, 0) => huge,
            (0, _) => ordinary,
            _ => format!("{huge}, others: {ordinary}"),
        }
    }
}

/// What carries a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    rx: Backend,
    tx: Backend,
    /// Why, if nobody has named it.
    why: Option<String>,
}

/// Buffers of a lane without AF_XDP: a few bursts of small ones, for what stages and queues hold, and a burst of large
/// ones.
const POOL: PoolSize = PoolSize {
    small: 1024,
    large: 64,
};

/// Opens the ports of a pair, or the one of a hairpin.
pub(crate) fn join(ends: &[End], config: &Config) -> Result<Joined> {
    let choice = choose(ends, config);
    match open(ends, config, &choice) {
        // Nobody asked for it, so do without.
        Err(error) if choice.rx == Backend::Xdp && is_automatic(config) => {
            let error = error.to_string().replace("\n ", ";");
            let why = Some(format!("no xdp: {error}"));
            let choice = Choice {
                rx: Backend::Packet,
                tx: Backend::Packet,
                why,
            };
            open(ends, config, &choice)
        }
        result => result,
    }
}

/// Whether nobody has named a back end, so that no xdp is better than a bad one.
fn is_automatic(config: &Config) -> bool {
    [config.rx, config.tx] == [None; 2]
        && matches!(config.backend, Backend::Auto | Backend::Fastest)
}

/// Which back ends are to carry a pair.
fn choose(ends: &[End], config: &Config) -> Choice {
    // Where the kernel does not carry a pair, the fastest is what suits the interfaces.
    let or_auto = |named| match named {
        Backend::Fastest => Backend::Auto,
        named => named,
    };
    let (rx, tx) = (or_auto(config.receives_by()), or_auto(config.sends_by()));
    if rx != Backend::Auto && tx != Backend::Auto {
        return Choice { rx, tx, why: None };
    }
    let (auto, why) = automatic(ends, config);
    let or = |named| if named == Backend::Auto { auto } else { named };
    Choice {
        rx: or(rx),
        tx: or(tx),
        why: Some(why),
    }
}

/// What suits the interfaces best, and why.
fn automatic(ends: &[End], config: &Config) -> (Backend, String) {
    if config.qdisc {
        return (Backend::Packet, "--qdisc".into());
    }
    if is_linked(ends, config) {
        let why = "a link is emulated, and packet sockets tell when a frame came";
        return (Backend::Packet, why.into());
    }
    for end in ends {
        let (name, packet) = (end.name, Backend::Packet);
        if let Some(kind) = &end.interface.kind {
            // A virtual interface hands over super-frames, which only AF_PACKET carries whole.
            return (
                packet,
                format!("{name} is a {kind}, which sends super-frames"),
            );
        }
        if is_native(end) == Some(false) {
            return (packet, format!("the driver of {name} runs no XDP programs"));
        }
        if strips_tags(end) {
            let why = format!(
                "{name} takes VLAN tags out of what it receives, and XDP doesn't see them; for xdp: ethtool -K {name} rxvlan off"
            );
            return (packet, why);
        }
    }
    // Where one does not say, it is tried.
    (Backend::Xdp, "the drivers run XDP programs".into())
}

fn is_linked(ends: &[End], config: &Config) -> bool {
    directions(ends)
        .into_iter()
        .any(|(from, to)| config.link(ends[from].name, ends[to].name).is_some())
}

/// Whether a driver runs XDP programs; `None` if it does not say.
#[cfg(feature = "xdp")]
fn is_native(end: &End) -> Option<bool> {
    let ask = || crate::port::xdp::is_native(end.interface);
    netns::within(end.name.netns.as_deref(), ask).unwrap_or(Some(false))
}

#[cfg(not(feature = "xdp"))]
fn is_native(_: &End) -> Option<bool> {
    Some(false)
}

#[cfg(feature = "xdp")]
fn strips_tags(end: &End) -> bool {
    let ask = || crate::port::xdp::strips_tags(end.interface);
    netns::within(end.name.netns.as_deref(), ask).unwrap_or(false)
}

#[cfg(not(feature = "xdp"))]
fn strips_tags(_: &End) -> bool {
    false
}

fn open(ends: &[End], config: &Config, choice: &Choice) -> Result<Joined> {
    let merging: Vec<Merging> = directions(ends)
        .into_iter()
        .map(|(from, to)| Merging::choose(&ends[from], &ends[to], config, choice))
        .collect();
    let mut joined = if choice.rx == Backend::Xdp || choice.tx == Backend::Xdp {
        let merges = merging
            .iter()
            .any(|merging| merging.kinds != Kinds::default());
        open_xdp(ends, config, choice, merges)?
    } else {
        open_packet(ends, config)?
    };
    for halves in &mut joined.halves {
        let way =
            |&(from, to): &(usize, usize)| (ends[from].id, ends[to].id) == (halves.from, halves.to);
        if let Some(at) = directions(ends).iter().position(way) {
            halves.kinds = merging[at].kinds;
        }
    }
    let mut said: Vec<String> = merging.iter().map(Merging::describe).collect();
    said.dedup();
    joined.how = format!("{}; {}", joined.how, said.join("; back: "));
    if choice.rx == Backend::Xdp && is_linked(ends, config) {
        joined.how +=
            "; the link counts from when a frame is looked at: --rx packet counts from its arrival";
    }
    if let Some(why) = &choice.why {
        joined.how = format!("{} (auto: {why})", joined.how);
    }
    Ok(joined)
}

/// The lanes there are between the ends: from which to which, by their place.
fn directions(ends: &[End]) -> Vec<(usize, usize)> {
    match ends.len() {
        1 => vec![(0, 0)],
        _ => vec![(0, 1), (1, 0)],
    }
}

fn open_packet(ends: &[End], config: &Config) -> Result<Joined> {
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

fn packet_rx(end: &End, config: &Config, queues: usize) -> Result<Gated> {
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

fn packet_tx(end: &End, config: &Config, queues: usize) -> Result<VecDeque<Box<dyn TxQueue>>> {
    let open = || packet::open_tx(end.interface, end.link, &settings(config, queues));
    let boxed = |tx| Box::new(tx) as Box<dyn TxQueue>;
    Ok(within(end, open)?.into_iter().map(boxed).collect())
}

#[cfg(not(feature = "xdp"))]
fn open_xdp(_: &[End], _: &Config, _: &Choice, _: bool) -> Result<Joined> {
    let mistake = "this l2relay was built without AF_XDP (cargo feature xdp): use packet";
    Err(Error::Config(vec![mistake.into()]))
}

/// As [`open_packet`], with AF_XDP on one side or both. `merges`: frames of a flow that are in a ring together leave as one.
#[cfg(feature = "xdp")]
fn open_xdp(ends: &[End], config: &Config, choice: &Choice, merges: bool) -> Result<Joined> {
    use crate::{
        config::XdpMode,
        port::{dual::DualTx, xdp},
    };

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
#[cfg(feature = "xdp")]
fn sends_both_ways(to: &End, config: &Config, choice: &Choice, lanes: usize) -> bool {
    let bypasses = !config.qdisc && !packet::one_path(to.interface);
    choice.rx == Backend::Xdp
        && choice.tx == Backend::Packet
        && bypasses
        && queues(to, false) == 1
        && lanes == 1
}

/// How many queues an interface has in use.
#[cfg(feature = "xdp")]
fn queues(end: &End, receive: bool) -> usize {
    use crate::sys::ethtool::Ethtool;

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

fn within<T: Send>(end: &End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    netns::within(end.name.netns.as_deref(), work)
        .map_err(|error| Error::system("enter the namespace of", end.name.to_string(), error, ""))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet::MacAddress;

    /// What would carry a pair of such interfaces.
    fn choice(kinds: [Option<&str>; 2], config: &Config) -> Choice {
        let names: Vec<PortName> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        let link = Arc::new(Link::new(true, 1500));
        let interfaces = kinds.map(|kind| Interface {
            name: "no-such".into(),
            // A number that no interface has, so no driver says that it runs programs.
            index: i32::MAX.cast_unsigned(),
            mac: MacAddress::default(),
            mtu: 1500,
            kind: kind.map(Into::into),
            qdisc: None,
            up: true,
            carrier: true,
            loopback: false,
            ethernet: true,
            rx_queues: 1,
            tx_queues: 1,
            promiscuity: 0,
            master: None,
            master_kind: None,
            xdp: Vec::new(),
            tx_dropped: 0,
        });
        let ends: Vec<End> = (0..2)
            .map(|id| End {
                id,
                name: &names[id],
                interface: &interfaces[id],
                link: &link,
                gate: None,
            })
            .collect();
        choose(&ends, config)
    }

    #[test]
    fn what_is_named_is_taken_and_the_rest_chosen_with_a_reason() {
        let named = |backend, rx, tx| Config {
            backend,
            rx,
            tx,
            ..Config::default()
        };
        let veth = [Some("veth"), None];
        let (auto, packet, xdp) = (Backend::Auto, Backend::Packet, Backend::Xdp);
        for (config, rx, tx) in [
            (named(xdp, None, None), xdp, xdp),
            (named(packet, Some(xdp), None), xdp, packet),
            (named(auto, Some(xdp), Some(packet)), xdp, packet),
        ] {
            assert_eq!(choice(veth, &config), Choice { rx, tx, why: None });
        }
        for (kinds, config, reason) in [
            (veth, named(auto, None, None), "a is a veth"),
            ([None, Some("tun")], named(auto, None, None), "driver of a"),
            (
                [None, None],
                named(auto, None, None),
                "runs no XDP programs",
            ),
        ] {
            let choice = choice(kinds, &config);
            assert_eq!((choice.rx, choice.tx), (packet, packet));
            assert!(choice.why.as_ref().unwrap().contains(reason), "{choice:?}");
        }
        // A link counts from the arrival of a frame, which AF_XDP does not tell; who asks for it gets it.
        let links = vec![crate::config::parse_link("b>a delay 1ms").unwrap()];
        let linked = |rx| Config {
            links: links.clone(),
            ..named(auto, rx, None)
        };
        let found = choice([None; 2], &linked(None));
        assert_eq!((found.rx, found.tx), (packet, packet));
        assert!(found.why.unwrap().contains("a link is emulated"));
        assert_eq!(choice([None; 2], &linked(Some(xdp))).rx, xdp);
        let half = choice(veth, &named(auto, Some(xdp), None));
        assert_eq!((half.rx, half.tx), (xdp, packet));
    }
}
