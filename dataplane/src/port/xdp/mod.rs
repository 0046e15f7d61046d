//! The `xdp` back end: AF_XDP, in native or generic mode.
//!
//! The ports of a pair share one UMEM, of which each lane owns a part: so a frame crosses without a copy in user space,
//! its chunk moves from the receive ring of one port to the transmit ring of the other, and comes back by the completion
//! ring. Our own XDP program, held by a link, hands the frames over; nothing stays attached when the process dies.
//!
//! The kernel tells nothing about a frame but its bytes. Checksums that the sender left to its device are therefore found
//! by their value ([`wire::partial`](crate::wire::partial)) and completed when the frame leaves by AF_XDP. Super-frames
//! can't be carried: in native mode the kernel makes none (veth then switches segmentation offload off at the peer), in
//! generic mode those longer than the MTU are counted `gso_unsupported`.

mod bind;
pub(crate) mod program;
mod rx;
mod tags;
mod tx;

use std::sync::Arc;

pub use rx::XdpRx;
pub use tx::XdpTx;

use self::bind::{Sockets, chunks};
use super::Link;
use crate::{
    config::XdpSettings,
    error::{Error, Result},
    interface::{Interface, XdpMode},
    memory::{Chunks, FramePool, HugePages, PoolSize, Region},
    netns,
    sys::{
        packet::PacketSocket,
        xdp::{Attached, Features},
        xsk::{self, Share},
    },
};

/// How to open the ports of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Slots of each ring, rounded up to a power of two.
    pub ring: usize,
    /// The program, and what the kernel does.
    pub xdp: XdpSettings,
    /// Receive frames for every address, not just the interface's own.
    pub promiscuous: bool,
    /// Whether frames lie on huge pages.
    pub huge_pages: HugePages,
    /// Whether to refuse where frames as long as the MTU would be lost, because neither copies nor this kernel allow frames in pieces.
    pub whole: bool,
}

/// An interface to open.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// Its namespace; `None` for the calling thread's.
    pub netns: Option<&'a str>,
    /// The interface.
    pub interface: &'a Interface,
    /// What is known of its link.
    pub link: &'a Arc<Link>,
}

/// A lane to open the halves of. Ends are named by their place in the list given to [`open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it receives, and by which queues; none if another back end receives.
    pub rx: (usize, Vec<u32>),
    /// Where it sends, and by which queue; `None` if another back end sends.
    pub tx: (usize, Option<u32>),
    /// Whether another back end sends as well, so that only some of what was received leaves by this one.
    pub shared: bool,
}

/// What was opened for a [`Plan`].
pub struct Opened {
    /// The receive half, if AF_XDP receives.
    pub rx: Option<XdpRx>,
    /// The transmit half, if AF_XDP sends.
    pub tx: Option<XdpTx>,
    /// The lane's frames.
    pub pool: FramePool,
}

/// Large buffers of a lane, for frames longer than a chunk.
const LARGE: usize = 64;

/// Opens the halves of the lanes between some ports, which share their memory. Returns them in the order of the plans,
/// and for each end how it is open: `native, copy`.
///
/// # Errors
/// No permission, a program is there already, a mode or a queue that the interface lacks, too little memory.
pub fn open(
    ends: &[End],
    plans: &[Plan],
    settings: &Settings,
) -> Result<(Vec<Opened>, Vec<String>)> {
    let mut ports = Vec::new();
    for (at, end) in ends.iter().enumerate() {
        let receives = plans
            .iter()
            .any(|plan| plan.rx.0 == at && !plan.rx.1.is_empty());
        ports.push(within(end, || Port::attach(end, receives, settings))?);
    }
    let sockets = bind::bind(ends, plans, settings)?;
    start(ends, plans, settings, &ports, sockets)
}

/// What a port has besides its sockets.
struct Port {
    /// The program and where it runs, if frames are received here.
    program: Option<(Arc<Attached>, XdpMode)>,
    /// Why it doesn't run in the driver, if it was to be tried.
    fallback: Option<String>,
    promiscuous: Option<Arc<PacketSocket>>,
    /// Whether the device keeps VLAN tags to itself.
    strips_tags: bool,
}

impl Port {
    fn attach(end: &End, receives: bool, settings: &Settings) -> Result<Self> {
        if !receives {
            return Ok(Self {
                program: None,
                fallback: None,
                promiscuous: None,
                strips_tags: false,
            });
        }
        let (program, mode, fallback) = program::attach(end.interface, &settings.xdp)?;
        let promiscuous = if settings.promiscuous {
            // AF_XDP has no way to ask for it.
            let socket = PacketSocket::open(end.interface.index)
                .and_then(|socket| socket.promiscuous().map(|()| socket))
                .map_err(|error| program::refused("make promiscuous", end.interface, error))?;
            Some(Arc::new(socket))
        } else {
            None
        };
        Ok(Self {
            program: Some((Arc::new(program), mode)),
            fallback,
            promiscuous,
            strips_tags: tags::are_stripped(end.interface),
        })
    }
}

/// Divides memory and sockets among the lanes, and lets the frames come.
fn start(
    ends: &[End],
    plans: &[Plan],
    settings: &Settings,
    ports: &[Port],
    sockets: Sockets,
) -> Result<(Vec<Opened>, Vec<String>)> {
    let ring = settings.ring.next_power_of_two();
    let mut shares: Vec<Share> = Vec::new();
    let mut parts: Vec<Chunks> = Vec::new();
    let umem = &sockets.umem;
    let mapped = umem
        .mapping()
        .map_err(|error| program::refused("use the memory of", ends[0].interface, error))?;
    let region = Arc::new(Region::from_mapping(mapped));
    let mut first = 0;
    for plan in plans {
        let count = chunks(plan, ring).1;
        shares.push(umem.share(first, count));
        parts.push(Chunks {
            region: Arc::clone(&region),
            first,
            count,
            size: umem.chunk(),
            headroom: xsk::HEADROOM,
        });
        first += count;
    }
    let large = PoolSize {
        small: 0,
        large: LARGE * plans.len(),
    };
    let large = Region::map(large.bytes(), settings.huge_pages)?;
    let pools = FramePool::in_umem(parts, large, LARGE);

    let how = ends
        .iter()
        .zip(ports)
        .enumerate()
        .map(|(at, (end, port))| describe(at, end.interface, port, &sockets))
        .collect();
    let longest = sockets.longest_whole();
    let Sockets { umem, bound, way } = sockets;
    // What the kernel takes of a frame that lies in several chunks.
    let pieces = if way.pieces { xsk::MAX_PIECES } else { 1 };
    let mut rx_halves: Vec<Vec<_>> = plans.iter().map(|_| Vec::new()).collect();
    let mut tx_halves: Vec<Option<_>> = plans.iter().map(|_| None).collect();
    for (end, queue, bound) in bound {
        let receiver = plans
            .iter()
            .position(|plan| plan.rx.0 == end && plan.rx.1.contains(&queue));
        let sender = plans.iter().position(|plan| plan.tx == (end, Some(queue)));
        let share = |lane: Option<usize>| {
            lane.map_or_else(|| umem.share(0, 0), |lane| shares[lane].clone())
        };
        let (rx, tx) = bound.divide(share(receiver), share(sender));
        if let Some(lane) = receiver {
            rx_halves[lane].push((queue, rx));
        }
        if let Some(lane) = sender {
            // What comes by AF_XDP is never a super-frame.
            let cuts = plans[lane].rx.1.is_empty();
            let longest = if cuts { longest } else { usize::MAX };
            tx_halves[lane] = Some(XdpTx::new(tx, Arc::clone(ends[end].link), longest, pieces));
        }
    }
    let mut opened = Vec::new();
    for (((plan, mut pool), rx), tx) in plans.iter().zip(pools).zip(rx_halves).zip(tx_halves) {
        let end = &ends[plan.rx.0];
        let rx = match &ports[plan.rx.0].program {
            Some((program, mode)) if !rx.is_empty() => {
                let promiscuous = ports[plan.rx.0].promiscuous.clone();
                let merged = (*mode == XdpMode::Generic).then(|| Arc::clone(end.link));
                let started = XdpRx::start(
                    rx,
                    ring,
                    Arc::clone(program),
                    promiscuous,
                    merged,
                    &mut pool,
                );
                Some(started.map_err(|error| {
                    program::refused("register sockets for", end.interface, error)
                })?)
            }
            _ => None,
        };
        opened.push(Opened { rx, tx, pool });
    }
    Ok((opened, how))
}

/// How an end is open, in words.
fn describe(end: usize, interface: &Interface, port: &Port, sockets: &Sockets) -> String {
    let mut words = Vec::new();
    if let Some((_, mode)) = &port.program {
        words.push(mode.to_string());
    }
    let mut own = sockets.bound.iter().filter(|socket| socket.0 == end);
    let mut notes = Vec::new();
    if own.clone().next().is_some() {
        let zero_copy = own.all(|(_, _, bound)| bound.is_zero_copy());
        words.push(if zero_copy { "zero-copy" } else { "copy" }.into());
    }
    if let Some(reason) = &port.fallback {
        notes.push(format!("not native: {reason}"));
    }
    if !sockets.way.pieces {
        notes.push(format!(
            "frames of up to {} bytes, as none are taken in pieces",
            sockets.longest_whole()
        ));
    }
    if matches!(port.program, Some((_, XdpMode::Generic))) {
        notes.push(SUPER_FRAMES.into());
    }
    if port.program.is_some() {
        notes.extend(tags::lost(interface, port.strips_tags));
    }
    match &notes[..] {
        [] => words.join(", "),
        notes => format!("{} ({})", words.join(", "), notes.join("; ")),
    }
}

/// What a user of generic mode must know.
const SUPER_FRAMES: &str = "super-frames are lost, but those that are not longer than the MTU pass joined and uncounted: \
     ethtool -K PEER tso off tx-udp-segmentation off at the hosts behind it";

/// Whether the driver of an interface runs XDP programs and can redirect to sockets; `None` if it does not say (before Linux 6.3). Asked
/// in its namespace.
pub fn is_native(interface: &Interface) -> Option<bool> {
    Features::of(interface.index).map_or(Some(false), |features| features.native)
}

/// Whether a device takes VLAN tags out of what it receives, so that an XDP program's frame is without (`rx-vlan-offload` of `ethtool -k`).
/// Asked in its namespace.
pub fn strips_tags(interface: &Interface) -> bool {
    tags::are_stripped(interface)
}

fn within<T: Send>(end: &End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    netns::within(end.netns, work)
        .map_err(|error| Error::system("enter the namespace of", &end.interface.name, error, ""))?
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{
        burst::Burst,
        config,
        lane::Turn,
        memory::Offload,
        port::{RxQueue, TxQueue},
        stats::{Reason, Tally},
        sys::{
            netns::testing::Namespace,
            packet::{Receive, SendBatch},
        },
        wire::checksum,
    };

    /// c0 -- r0, r1 -- s0: the ports of a pair, both lanes open.
    fn open_pair(
        namespace: &Namespace,
        mode: config::XdpMode,
    ) -> (Vec<Opened>, PacketSocket, Arc<Link>) {
        for (end, port) in [("c0", "r0"), ("s0", "r1")] {
            namespace.ip(&format!("link add {end} type veth peer name {port}"));
            namespace.ip(&format!("link set {end} up"));
            namespace.ip(&format!("link set {port} up"));
        }
        netns::within(Some(&namespace.name), || {
            let ports = ["r0", "r1"].map(|name| Interface::find(name).unwrap().unwrap());
            let link = Arc::new(Link::new(true, 1500));
            let ends = ports.each_ref().map(|interface| End {
                netns: None,
                interface,
                link: &link,
            });
            let plan = |from, to| Plan {
                rx: (from, vec![0]),
                tx: (to, Some(0)),
                shared: false,
            };
            let settings = Settings {
                ring: 64,
                xdp: XdpSettings {
                    mode,
                    ..XdpSettings::default()
                },
                promiscuous: false,
                huge_pages: HugePages::Off,
                whole: true,
            };
            let (opened, _) = open(&ends, &[plan(0, 1), plan(1, 0)], &settings).unwrap();
            let c0 = Interface::find("c0").unwrap().unwrap();
            let client = PacketSocket::open(c0.index).unwrap();
            client.set_vnet_hdr().unwrap();
            client.bind(Receive::Nothing).unwrap();
            (opened, client, link)
        })
        .unwrap()
    }

    fn send_from(client: &PacketSocket, frame: &[u8]) {
        let (sent, error) = client.send(
            &mut SendBatch::new(),
            std::iter::once((Offload::default(), std::iter::once(frame))),
        );
        assert_eq!(sent, 1, "{error:?}");
    }

    /// How long the kernel may take.
    const PATIENCE: Duration = Duration::from_secs(5);

    fn receive_one(rx: &mut XdpRx, burst: &mut Burst, turn: &mut Turn) {
        let deadline = Instant::now() + PATIENCE;
        while burst.is_empty() && Instant::now() < deadline {
            rx.rx_burst(burst, 1, turn);
        }
    }

    /// Sends a burst, until the kernel has given every chunk back.
    fn send_all(tx: &mut XdpTx, burst: &mut Burst, turn: &mut Turn) {
        let deadline = Instant::now() + PATIENCE;
        tx.tx_burst(burst, turn);
        while tx.lent() > 0 && Instant::now() < deadline {
            tx.tx_burst(burst, turn);
        }
    }

    #[test]
    fn a_frame_leaves_from_where_it_was_received() {
        for (label, mode) in [
            ("zc-native", config::XdpMode::Native),
            ("zc-generic", config::XdpMode::Generic),
        ] {
            let Some(namespace) = Namespace::make(label) else {
                return;
            };
            namespace.without_ipv6();
            let (mut opened, client, _) = open_pair(&namespace, mode);
            let Opened { rx, tx, mut pool } = opened.remove(0);
            let (mut rx, mut tx) = (rx.unwrap(), tx.unwrap());
            let mut tally = Tally::default();
            let mut turn = Turn {
                pool: &mut pool,
                tally: &mut tally,
                now_ns: 0,
                room: Burst::MIN,
            };
            // UDP with a partial checksum: even completing it moves nothing.
            let mut frame = [2; 60];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14..34].copy_from_slice(&[
                0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]);
            frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
            let pseudo = checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 17, 26);
            frame[40..42].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
            send_from(&client, &frame);
            let mut burst = Burst::new();
            receive_one(&mut rx, &mut burst, &mut turn);
            let received: Vec<*const u8> = burst
                .iter()
                .map(|frame| turn.pool.bytes(frame).as_ptr())
                .collect();
            assert_eq!(received.len(), 1);
            send_all(&mut tx, &mut burst, &mut turn);
            assert_eq!((tally.tx_packets, tx.lent()), (1, 0));
            // The chunk whose sending the kernel has confirmed is the next to be taken, and the frame is still in it.
            let last = pool.alloc(60).unwrap();
            assert_eq!(pool.bytes(&last).as_ptr(), received[0]);
            let whole = pool.bytes(&last);
            assert_eq!(whole[..40], frame[..40]);
            let sum = checksum::sum(&whole[34..]) + pseudo;
            assert_eq!(checksum::fold(sum), 0xffff);
            pool.free(last);
            assert_eq!(pool.outstanding(), rx.lent());
        }
    }

    #[test]
    fn what_is_in_the_ring_waits_for_the_link_without_retries() {
        let Some(namespace) = Namespace::make("ring-down") else {
            return;
        };
        namespace.without_ipv6();
        let (mut opened, _, link) = open_pair(&namespace, config::XdpMode::Native);
        let Opened { rx, tx, mut pool } = opened.remove(0);
        let (_rx, mut tx) = (rx.unwrap(), tx.unwrap());
        let mut tally = Tally::default();
        let mut turn = Turn {
            pool: &mut pool,
            tally: &mut tally,
            now_ns: 0,
            room: Burst::MIN,
        };
        // The kernel knows it first.
        namespace.ip("link set r1 down");
        let mut burst = Burst::new();
        let frame = turn.pool.alloc(60).unwrap();
        turn.pool.bytes_mut(&frame).fill(2);
        turn.tally.received(1, 60);
        burst.push(frame);
        tx.tx_burst(&mut burst, &mut turn);
        assert_eq!((tx.held(), tx.wants_retry()), (1, true));
        link.set(false, 1500);
        tx.tx_burst(&mut burst, &mut turn);
        assert_eq!((tx.held(), tx.wants_retry()), (1, false));
        namespace.ip("link set r1 up");
        link.set(true, 1500);
        assert!(tx.wants_retry());
        tx.tx_burst(&mut burst, &mut turn);
        assert_eq!((tx.held(), turn.tally.tx_packets), (0, 1));
    }

    /// As with a kernel before 6.6, or a driver that takes one piece a frame without copies.
    #[test]
    fn without_pieces_what_fits_no_chunk_is_counted() {
        const LEN: usize = 5000;
        let Some(namespace) = Namespace::make("no-pieces") else {
            return;
        };
        namespace.without_ipv6();
        for (end, port) in [("c0", "r0"), ("s0", "r1")] {
            namespace.ip(&format!(
                "link add {end} mtu 9000 type veth peer name {port} mtu 9000"
            ));
            namespace.ip(&format!("link set {end} up"));
            namespace.ip(&format!("link set {port} up"));
        }
        let frame = |len| {
            let mut frame = vec![2; len];
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            frame
        };
        netns::within(Some(&namespace.name), || {
            let ports = ["r0", "r1"].map(|name| Interface::find(name).unwrap().unwrap());
            let link = Arc::new(Link::new(true, 9000));
            let ends = ports.each_ref().map(|interface| End {
                netns: None,
                interface,
                link: &link,
            });
            let plans = [Plan {
                rx: (0, vec![0]),
                tx: (1, Some(0)),
                shared: false,
            }];
            let settings = Settings {
                ring: 64,
                xdp: XdpSettings::default(),
                promiscuous: false,
                huge_pages: HugePages::Off,
                whole: false,
            };
            let way = xsk::Way {
                zero_copy: false,
                pieces: false,
            };
            let ports = [
                Port::attach(&ends[0], true, &settings).unwrap(),
                Port::attach(&ends[1], false, &settings).unwrap(),
            ];
            let sockets = bind::bind_all(&ends, &plans, &settings, 4096, way).unwrap();
            let longest = sockets.longest_whole();
            let (mut opened, how) = start(&ends, &plans, &settings, &ports, sockets).unwrap();
            assert!(
                how[0].contains(&format!("frames of up to {longest} bytes")),
                "{how:?}"
            );
            let Opened { rx, tx, mut pool } = opened.remove(0);
            let (mut rx, mut tx) = (rx.unwrap(), tx.unwrap());
            let mut tally = Tally::default();
            let mut turn = Turn {
                pool: &mut pool,
                tally: &mut tally,
                now_ns: 0,
                room: Burst::MIN,
            };
            // On the way in the kernel counts it, and what follows comes.
            let c0 = Interface::find("c0").unwrap().unwrap();
            let client = PacketSocket::open(c0.index).unwrap();
            client.set_vnet_hdr().unwrap();
            client.bind(Receive::Nothing).unwrap();
            for len in [LEN, longest] {
                send_from(&client, &frame(len));
            }
            let mut burst = Burst::new();
            receive_one(&mut rx, &mut burst, &mut turn);
            assert_eq!(burst.len(), 1);
            assert_eq!(turn.tally.rx_bytes, longest as u64);
            // On the way out it is counted here: one that came by another back end, or a segment.
            let long = turn.pool.alloc(LEN).unwrap();
            turn.pool.bytes_mut(&long).copy_from_slice(&frame(LEN));
            turn.tally.received(1, LEN);
            burst.push(long);
            send_all(&mut tx, &mut burst, &mut turn);
            assert_eq!(tally.tx_packets, 1);
            assert_eq!(tally.dropped[Reason::Oversize as usize], 1);
            assert!(tally.is_conserved(), "{tally:?}");
            assert_eq!(pool.outstanding(), rx.lent());
            assert!(rx.kernel_drops() > 0);
        })
        .unwrap();
    }
}
