//! The contract of the back ends (`port/mod.rs`): every back end passes the same tests.
//!
//! A [`Bed`] is a lane under test with both its ends in the test's hands. The memory bed needs nothing; the others lie
//! in network namespaces of their own between two pairs of veth interfaces, and need root.

#![expect(
    clippy::unwrap_used,
    reason = "a bed that cannot be made fails its test"
)]

use std::{
    process::Command,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use l2relay::{
    interface::Interface,
    lane::Lane,
    memory::{FramePool, HugePages, LARGE_FRAME, Offload, PoolSize, Region},
    netns,
    port::{
        Link,
        memory::{self, Packet, Wire},
        packet::{self, Settings},
    },
    stats::{Reason, Tally},
};

const POOL: PoolSize = PoolSize {
    small: 256,
    large: 16,
};
const RING: usize = 256;

/// A lane, and what is around it.
struct Bed {
    lane: Lane,
    sender: Wire,
    receiver: Wire,
    /// Carry frames between the wires above and the kernel. The memory bed has none.
    feeder: Option<Lane>,
    collector: Option<Lane>,
    /// Takes the transmit port's link down, or up again.
    set_up: Box<dyn Fn(bool)>,
    namespace: Option<Namespace>,
}

/// What a bed is built with.
#[derive(Clone, Copy)]
struct Shape {
    pool: PoolSize,
    /// The transmit port's MTU.
    mtu: u32,
    qdisc: bool,
}

const JUMBO: Shape = Shape {
    pool: POOL,
    mtu: 65_535,
    qdisc: false,
};

fn pool(size: PoolSize) -> FramePool {
    FramePool::split(Region::map(size.bytes(), HugePages::Auto).unwrap(), size, 1).remove(0)
}

fn memory_bed(shape: Shape) -> Bed {
    let (rx, _, sender) = memory::port(RING, 0);
    let (_, tx, receiver) = memory::port(RING, shape.mtu as usize + 14);
    let link = receiver.clone();
    Bed {
        lane: Lane::new(Box::new(rx), Vec::new(), Box::new(tx), pool(shape.pool)),
        sender,
        receiver,
        feeder: None,
        collector: None,
        set_up: Box::new(move |up| link.set_up(up)),
        namespace: None,
    }
}

/// What receives and what sends in a bed with interfaces.
#[derive(Clone, Copy)]
struct Via {
    rx: Kind,
    tx: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Packet,
    #[cfg(feature = "xdp")]
    Xdp(l2relay::config::XdpMode),
    /// To send: plain frames by AF_XDP, bursts with super-frames by AF_PACKET.
    #[cfg(feature = "xdp")]
    Both,
}

const PACKET: Via = Via {
    rx: Kind::Packet,
    tx: Kind::Packet,
};

fn packet_bed(shape: Shape) -> Option<Bed> {
    kernel_bed(shape, PACKET)
}

/// The halves of a lane from r0 to r1, and its frames.
fn open_lane(
    shape: Shape,
    via: Via,
    from: &Interface,
    to: &Interface,
    links: &[Arc<Link>],
) -> Lane {
    let settings = |qdisc| Settings {
        ring: RING,
        promiscuous: true,
        qdisc,
        queues: 1,
    };
    let rx = || packet::open_rx(from, &settings(false)).unwrap().remove(0);
    let tx = || {
        packet::open_tx(to, &links[1], &settings(shape.qdisc))
            .unwrap()
            .remove(0)
    };
    match (via.rx, via.tx) {
        (Kind::Packet, Kind::Packet) => {
            Lane::new(Box::new(rx()), Vec::new(), Box::new(tx()), pool(shape.pool))
        }
        #[cfg(feature = "xdp")]
        _ => xdp::open_lane(via, from, to, links, rx, tx),
    }
}

/// c0 -- r0 (lane) r1 -- s0, all in one namespace.
fn kernel_bed(shape: Shape, via: Via) -> Option<Bed> {
    let namespace = Namespace::make()?;
    for (end, port) in [("c0", "r0"), ("s0", "r1")] {
        namespace.ip(&format!("link add {end} type veth peer name {port}"));
        for name in [end, port] {
            namespace.ip(&format!("link set {name} mtu 65535 up"));
        }
    }
    namespace.ip(&format!("link set r1 mtu {}", shape.mtu));
    let link = Arc::new(Link::new(true, shape.mtu));
    let open = |name: &str, link: &Arc<Link>, qdisc: bool| {
        let settings = Settings {
            ring: RING,
            promiscuous: true,
            qdisc,
            queues: 1,
        };
        netns::within(Some(&namespace.0), || {
            let interface = Interface::find(name).unwrap().unwrap();
            packet::open(&interface, link, &settings).unwrap().remove(0)
        })
        .unwrap()
    };
    let plenty = Arc::new(Link::new(true, 65_535));
    let links = [Arc::new(Link::new(true, 65_535)), Arc::clone(&link)];
    let lane = netns::within(Some(&namespace.0), || {
        let [from, to] = ["r0", "r1"].map(|name| Interface::find(name).unwrap().unwrap());
        open_lane(shape, via, &from, &to, &links)
    })
    .unwrap();
    let ((collector_rx, _), (_, feeder_tx)) =
        (open("s0", &plenty, false), open("c0", &plenty, false));
    let (feeder_rx, _, sender) = memory::port(2 * RING, 0);
    let (_, collector_tx, receiver) = memory::port(8 * RING, usize::MAX);
    let name = namespace.0.clone();
    Some(Bed {
        lane,
        sender,
        receiver,
        feeder: Some(Lane::new(
            Box::new(feeder_rx),
            Vec::new(),
            Box::new(feeder_tx),
            pool(POOL),
        )),
        collector: Some(Lane::new(
            Box::new(collector_rx),
            Vec::new(),
            Box::new(collector_tx),
            pool(POOL),
        )),
        set_up: Box::new(move |up| {
            ip(&format!(
                "-n {name} link set r1 {}",
                if up { "up" } else { "down" }
            ));
            link.set(up, shape.mtu);
        }),
        namespace: Some(namespace),
    })
}

impl Bed {
    /// Puts a frame on the wire in front of the lane, without turning the lane.
    fn send(&mut self, packet: &Packet) -> bool {
        let sent = self.sender.send(packet.clone()).is_ok();
        if let Some(feeder) = &mut self.feeder {
            feeder.turn(0);
        }
        sent
    }

    /// Turns the lane until nothing moves; returns what has come out.
    fn settle(&mut self) -> Vec<Packet> {
        let mut out = Vec::new();
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(5) {
            let mut moved = self.lane.turn(0);
            moved += self
                .collector
                .as_mut()
                .map_or(0, |collector| collector.turn(0));
            while let Some(packet) = self.receiver.receive() {
                out.push(packet);
                moved += 1;
            }
            if moved > 0 {
                quiet = Instant::now();
            }
        }
        out
    }

    /// The lane's tally, which must be conserved with nothing held, and no frame lost.
    fn tally(&mut self) -> Tally {
        self.lane.refresh();
        let tally = self.lane.counters().read();
        assert!(tally.is_conserved(), "{tally:?}");
        assert_eq!(tally.held, 0);
        // What is not in the pool is with the kernel.
        assert_eq!(self.lane.pool().outstanding(), self.lane.lent());
        tally
    }
}

/// A frame of an experimental protocol with a serial number, of `len` bytes.
fn numbered(serial: u32, len: usize) -> Packet {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.extend(serial.to_be_bytes());
    bytes.extend((bytes.len()..len).map(|at| (at as u32).wrapping_mul(serial + 7) as u8));
    Packet {
        bytes,
        offload: Offload::default(),
    }
}

/// The same frames in the same order, byte for byte. Says which are not by their serials and lengths, not their bytes.
#[track_caller]
fn assert_same(received: &[Packet], sent: &[Packet]) {
    let names = |packets: &[Packet]| -> Vec<_> {
        packets
            .iter()
            .map(|packet| {
                (
                    packet.bytes.get(14..18).map(<[u8]>::to_vec),
                    packet.bytes.len(),
                )
            })
            .collect()
    };
    assert_eq!(names(received), names(sent));
    let different = received
        .iter()
        .zip(sent)
        .position(|(received, sent)| received.bytes != sent.bytes);
    assert_eq!(
        different, None,
        "the place of the first frame whose bytes differ"
    );
}

// ---- the contract ----

fn carries_every_size_in_order(mut bed: Bed) {
    let sizes = [
        60, 61, 64, 127, 512, 1513, 1514, 1515, 1900, 1983, 1984, 1985, 2100, 4096, 9014, 40_000,
        65_549, 60, 65_549, 60,
    ];
    let sent: Vec<Packet> = (0..)
        .zip(sizes)
        .map(|(serial, len)| numbered(serial, len))
        .collect();
    let mut received = Vec::new();
    for packet in &sent {
        assert!(bed.send(packet));
        received.extend(bed.settle());
    }
    // And mixed in one burst: small ones may take another path than large ones, but never overtake them.
    for packet in &sent {
        assert!(bed.send(packet));
    }
    received.extend(bed.settle());
    let twice = [&sent[..], &sent[..]].concat();
    assert_same(&received, &twice);
    let tally = bed.tally();
    assert_eq!((tally.rx_packets, tally.tx_packets), (40, 40));
}

fn carries_bursts_of_every_length(mut bed: Bed) {
    let mut serial = 0;
    for burst in [1, 2, 63, 64, 65, 127, 128, 129, 200] {
        let sent: Vec<Packet> = (0..burst)
            .map(|at| numbered(serial + at, 60 + at as usize))
            .collect();
        serial += burst;
        sent.iter().for_each(|packet| assert!(bed.send(packet)));
        assert_same(&bed.settle(), &sent);
    }
    assert_eq!(bed.tally().tx_packets, u64::from(serial));
}

fn counts_what_nobody_took(mut bed: Bed) {
    let count = 3 * RING as u32;
    let sent: Vec<Packet> = (0..count).map(|serial| numbered(serial, 60)).collect();
    sent.iter().for_each(|packet| {
        bed.send(packet);
    });
    let received = bed.settle();
    let tally = bed.tally();
    assert_eq!(
        tally.rx_packets + tally.kernel_drops,
        u64::from(count),
        "{tally:?}"
    );
    assert!(tally.kernel_drops > 0);
    assert_eq!(tally.tx_packets, received.len() as u64);
    // What was there first is there still, in order.
    assert_same(&received, &sent[..received.len()]);
}

fn an_almost_empty_pool_delays_and_loses_nothing(mut bed: Bed) {
    let sent: Vec<Packet> = (0..60)
        .map(|serial| numbered(serial, if serial % 5 == 0 { 5000 } else { 70 }))
        .collect();
    sent.iter().for_each(|packet| assert!(bed.send(packet)));
    assert_same(&bed.settle(), &sent);
    assert_eq!(bed.tally().dropped_total(), 0);
}

fn a_link_that_is_down_takes_everything_and_comes_back(mut bed: Bed) {
    (bed.set_up)(false);
    for serial in 0..100 {
        bed.send(&numbered(serial, 60));
    }
    assert_eq!(bed.settle().len(), 0);
    let tally = bed.tally();
    assert_eq!(
        (tally.rx_packets, tally.dropped_for(Reason::LinkDown)),
        (100, 100),
        "{tally:?}"
    );
    (bed.set_up)(true);
    let sent: Vec<Packet> = (200..230).map(|serial| numbered(serial, 60)).collect();
    sent.iter().for_each(|packet| assert!(bed.send(packet)));
    assert_same(&bed.settle(), &sent);
}

fn counts_frames_longer_than_the_mtu(mut bed: Bed) {
    let fits = numbered(0, 1514);
    let tagged = Packet::new(&[&fits.bytes[..12], &[0x81, 0, 0, 5], &fits.bytes[12..]].concat());
    bed.send(&fits);
    bed.send(&numbered(1, 1515));
    bed.send(&numbered(2, 9000));
    let mut expected = vec![fits];
    if bed.feeder.is_some() {
        // Tags don't count towards an interface's MTU. (The memory port counts plain bytes.)
        bed.send(&tagged);
        expected.push(tagged);
    }
    assert_same(&bed.settle(), &expected);
    assert_eq!(bed.tally().dropped_for(Reason::Oversize), 2);
}

/// A TCP super-frame of `payload` bytes with a partial checksum, as a stack hands it to a device that can split it.
fn super_frame(payload: usize) -> Packet {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 1, 512)
        .ack(1);
    let data: Vec<u8> = (0..payload).map(|at| at as u8).collect();
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &data).unwrap();
    // The checksum field holds the sum of the pseudo-header alone.
    let pseudo =
        l2relay::wire::checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, bytes.len() - 34);
    bytes[50..52].copy_from_slice(&l2relay::wire::checksum::fold(pseudo).to_be_bytes());
    let offload = Offload {
        flags: Offload::NEEDS_CSUM,
        gso_type: 1,
        hdr_len: 54,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
    };
    Packet { bytes, offload }
}

fn carries_super_frames_whole_and_in_order(mut bed: Bed) {
    let (large, small) = (super_frame(60_000), super_frame(4000));
    let plain: Vec<Packet> = (0..3).map(|serial| numbered(serial, 60)).collect();
    let sent = [&plain[0], &large, &plain[1], &small, &large, &plain[2]].map(Packet::clone);
    sent.iter().for_each(|packet| assert!(bed.send(packet)));
    let received = bed.settle();
    assert_same(&received, &sent);
    let state = |packet: &Packet| {
        let Offload {
            flags,
            gso_type,
            gso_size,
            csum_start,
            csum_offset,
            ..
        } = packet.offload;
        (
            flags & Offload::NEEDS_CSUM,
            gso_type,
            gso_size,
            csum_start,
            csum_offset,
        )
    };
    assert!(received.iter().map(state).eq(sent.iter().map(state)));
    let tally = bed.tally();
    assert_eq!(
        tally.tx_packets,
        3 + 2 * 60_000_u64.div_ceil(1460) + 4000_u64.div_ceil(1460)
    );
}

/// Each test of the contract, for each back end.
macro_rules! contract {
    ($($name:ident: $shape:expr;)*) => {
        mod on_memory {
            $(#[test] fn $name() { super::$name(super::memory_bed($shape)); })*
        }
        mod on_packet {
            $(#[test] fn $name() { if let Some(bed) = super::packet_bed($shape) { super::$name(bed); } })*
        }
        mod on_packet_through_the_qdisc {
            $(#[test] fn $name() {
                let shape = super::Shape { qdisc: true, ..$shape };
                if let Some(bed) = super::packet_bed(shape) { super::$name(bed); }
            })*
        }
    };
}

contract! {
    carries_every_size_in_order: super::JUMBO;
    carries_bursts_of_every_length: super::JUMBO;
    counts_what_nobody_took: super::JUMBO;
    an_almost_empty_pool_delays_and_loses_nothing:
        super::Shape { pool: super::PoolSize { small: 2, large: 1 }, ..super::JUMBO };
    a_link_that_is_down_takes_everything_and_comes_back: super::JUMBO;
    counts_frames_longer_than_the_mtu: super::Shape { mtu: 1500, ..super::JUMBO };
    carries_super_frames_whole_and_in_order: super::JUMBO;
}

/// AF_XDP, alone and mixed with AF_PACKET.
///
/// Two tests of the contract it can't pass. With an empty pool the kernel has nowhere to leave frames, so it drops and
/// counts them (`counts_what_nobody_took` sees to that). And super-frames don't cross whole: they become their segments.
#[cfg(feature = "xdp")]
mod xdp {
    use l2relay::{
        config::{XdpMode, XdpSettings},
        memory::FramePool,
        port::{
            RxQueue, TxQueue,
            dual::DualTx,
            xdp::{self, End, Plan},
        },
        wire::{checksum, partial},
    };

    use super::*;

    const NATIVE: Kind = Kind::Xdp(XdpMode::Native);
    const GENERIC: Kind = Kind::Xdp(XdpMode::Generic);

    pub(super) fn open_lane<R: RxQueue + 'static, T: TxQueue + 'static>(
        via: Via,
        from: &Interface,
        to: &Interface,
        links: &[Arc<Link>],
        packet_rx: impl FnOnce() -> R,
        packet_tx: impl FnOnce() -> T,
    ) -> Lane {
        let ends = [(from, &links[0]), (to, &links[1])].map(|(interface, link)| End {
            netns: None,
            interface,
            link,
        });
        let mode = [via.rx, via.tx].into_iter().find_map(|kind| match kind {
            Kind::Xdp(mode) => Some(mode),
            Kind::Both => Some(XdpMode::Native),
            Kind::Packet => None,
        });
        let plan = Plan {
            rx: (
                0,
                if via.rx == Kind::Packet {
                    vec![]
                } else {
                    vec![0]
                },
            ),
            tx: (1, (via.tx != Kind::Packet).then_some(0)),
            shared: via.tx == Kind::Both && via.rx != Kind::Packet,
        };
        let settings = xdp::Settings {
            ring: RING,
            xdp: XdpSettings {
                mode: mode.unwrap(),
                ..XdpSettings::default()
            },
            promiscuous: true,
            huge_pages: HugePages::Auto,
            whole: true,
        };
        let (mut opened, how) = xdp::open(&ends, &[plan], &settings).unwrap();
        let word = match via.rx {
            NATIVE => "native, copy",
            GENERIC => "generic, copy",
            _ => "",
        };
        assert!(how[0].starts_with(word), "{how:?}");
        let opened = opened.remove(0);
        let rx: Box<dyn RxQueue> = match opened.rx {
            Some(rx) => Box::new(rx),
            None => Box::new(packet_rx()),
        };
        let tx: Box<dyn TxQueue> = match opened.tx {
            Some(tx) if via.tx == Kind::Both => {
                Box::new(DualTx::new(Box::new(tx), Box::new(packet_tx())))
            }
            Some(tx) => Box::new(tx),
            None => Box::new(packet_tx()),
        };
        let pool: FramePool = opened.pool;
        Lane::new(rx, Vec::new(), tx, pool)
    }

    /// The segments that leave where a super-frame was sent: all of it, in order, with right checksums.
    fn carries_super_frames_as_their_segments(mut bed: Bed) {
        const PAYLOAD: usize = 60_000;
        assert!(bed.send(&super_frame(PAYLOAD)));
        let received = bed.settle();
        assert_eq!(received.len(), PAYLOAD.div_ceil(1460));
        let mut payload: Vec<u8> = Vec::new();
        for packet in &received {
            // The last leg is AF_PACKET's: it tells whether a checksum is still to be completed.
            let mut bytes = packet.bytes.clone();
            if packet.offload.needs_csum() {
                let Offload {
                    csum_start,
                    csum_offset,
                    ..
                } = packet.offload;
                assert!(checksum::complete(
                    &mut bytes,
                    csum_start.into(),
                    csum_offset.into()
                ));
            }
            let ip = etherparse::SlicedPacket::from_ethernet(&bytes).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = &ip.transport else {
                panic!("no TCP");
            };
            let Some(etherparse::NetSlice::Ipv4(header)) = &ip.net else {
                panic!("no IPv4");
            };
            let sum = tcp
                .calc_checksum_ipv4(header.header().source(), header.header().destination())
                .unwrap();
            assert_eq!(tcp.checksum(), sum);
            assert_eq!(partial::find(&bytes), None);
            payload.extend_from_slice(tcp.payload());
        }
        let sent: Vec<u8> = (0..PAYLOAD).map(|at| at as u8).collect();
        assert_eq!(payload, sent);
        assert_eq!(bed.tally().dropped_total(), 0);
    }

    macro_rules! xdp_contract {
        ($($bed:ident: $rx:expr, $tx:expr;)*) => {
            $(mod $bed {
                use super::*;

                fn bed(shape: Shape) -> Option<Bed> {
                    kernel_bed(shape, Via { rx: $rx, tx: $tx })
                }

                #[test]
                fn carries_every_size_in_order() {
                    bed(JUMBO).map(super::super::carries_every_size_in_order);
                }

                #[test]
                fn carries_bursts_of_every_length() {
                    bed(JUMBO).map(super::super::carries_bursts_of_every_length);
                }

                #[test]
                fn counts_what_nobody_took() {
                    bed(JUMBO).map(super::super::counts_what_nobody_took);
                }

                #[test]
                fn a_link_that_is_down_takes_everything_and_comes_back() {
                    bed(JUMBO).map(super::super::a_link_that_is_down_takes_everything_and_comes_back);
                }

                #[test]
                fn counts_frames_longer_than_the_mtu() {
                    bed(Shape { mtu: 1500, ..JUMBO })
                        .map(super::super::counts_frames_longer_than_the_mtu);
                }
            })*
        };
    }

    xdp_contract! {
        native: NATIVE, NATIVE;
        generic: GENERIC, GENERIC;
        native_to_packet: NATIVE, Kind::Packet;
        generic_to_packet: GENERIC, Kind::Packet;
        packet_to_xdp: Kind::Packet, NATIVE;
        native_to_both: NATIVE, Kind::Both;
        packet_to_both: Kind::Packet, Kind::Both;
    }

    #[test]
    fn both_ways_carry_super_frames_whole_and_in_order() {
        let via = Via {
            rx: Kind::Packet,
            tx: Kind::Both,
        };
        if let Some(bed) = kernel_bed(JUMBO, via) {
            super::carries_super_frames_whole_and_in_order(bed);
        }
    }

    #[test]
    fn native_carries_super_frames_as_their_segments() {
        for tx in [NATIVE, Kind::Packet] {
            if let Some(bed) = kernel_bed(JUMBO, Via { rx: NATIVE, tx }) {
                carries_super_frames_as_their_segments(bed);
            }
        }
    }

    #[test]
    fn packet_to_xdp_cuts_super_frames() {
        let via = Via {
            rx: Kind::Packet,
            tx: NATIVE,
        };
        if let Some(bed) = kernel_bed(JUMBO, via) {
            carries_super_frames_as_their_segments(bed);
        }
    }
}

// ---- of one back end only ----

#[test]
fn memory_holds_frames_back_when_the_transmit_side_is_full() {
    let mut bed = memory_bed(JUMBO);
    let sent: Vec<Packet> = (0..RING as u32 + 50)
        .map(|serial| numbered(serial, 60))
        .collect();
    sent[..RING]
        .iter()
        .for_each(|packet| assert!(bed.send(packet)));
    while bed.lane.turn(0) > 0 {}
    sent[RING..]
        .iter()
        .for_each(|packet| assert!(bed.send(packet)));
    assert_eq!(bed.lane.turn(0), 0, "nothing is taken in that can't go out");
    assert_same(&bed.settle(), &sent);
    assert_eq!(bed.tally().dropped_total(), 0);
}

#[test]
fn memory_counts_a_frame_longer_than_any_buffer() {
    let mut bed = memory_bed(JUMBO);
    bed.send(&numbered(0, LARGE_FRAME + 1));
    bed.send(&numbered(1, 60));
    assert_eq!(bed.settle().len(), 1);
    assert_eq!(bed.tally().dropped_for(Reason::Oversize), 1);
}

#[test]
fn packet_counts_frames_for_an_interface_that_is_gone() {
    let Some(mut bed) = packet_bed(JUMBO) else {
        return;
    };
    bed.namespace.as_ref().unwrap().ip("link del r1");
    for serial in 0..10 {
        bed.send(&numbered(serial, if serial % 2 == 0 { 60 } else { 3000 }));
    }
    bed.settle();
    assert_eq!(bed.tally().dropped_for(Reason::LinkDown), 10);
}

/// The device takes a frame and drops it, because its peer's MTU is smaller: this must not stop those behind it.
#[test]
fn packet_does_not_stall_behind_frames_that_the_device_refuses() {
    let Some(mut bed) = packet_bed(JUMBO) else {
        return;
    };
    bed.namespace.as_ref().unwrap().ip("link set s0 mtu 1000");
    for serial in 0..20 {
        bed.send(&numbered(serial, if serial % 2 == 0 { 1500 } else { 100 }));
    }
    let (mut received, mut now_ns) = (Vec::new(), 0);
    for _ in 0..100 {
        bed.lane.turn(now_ns);
        now_ns += 100_000;
        bed.collector.as_mut().unwrap().turn(0);
        received.extend(std::iter::from_fn(|| bed.receiver.receive()));
    }
    let small: Vec<Packet> = (0..20)
        .filter(|serial| serial % 2 == 1)
        .map(|serial| numbered(serial, 100))
        .collect();
    assert_same(&received, &small);
    assert_eq!(bed.tally().dropped_for(Reason::Refused), 10);
}

// ---- a namespace ----

/// A network namespace that is removed when dropped.
struct Namespace(String);

impl Namespace {
    /// `None`, said aloud, without root.
    fn make() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "l2c-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|output| output.status.success()) {
            assert!(
                std::env::var_os("L2RELAY_REQUIRE_ROOT").is_none(),
                "root is required"
            );
            eprintln!("skipped: needs root");
            return None;
        }
        let namespace = Self(name);
        for scope in ["all", "default"] {
            ip(&format!(
                "netns exec {} sysctl -qw net.ipv6.conf.{scope}.disable_ipv6=1",
                namespace.0
            ));
        }
        Some(namespace)
    }

    fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.0));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
