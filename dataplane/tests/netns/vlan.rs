//! VLAN tags. The kernel takes the outer tag out of a frame on its way to a packet socket and a relay must put it back,
//! with its own identifier; all that the virtio header says about offsets moves with it.

use etherparse::SlicedPacket;

use crate::common::{
    Capture, Chain, Relay, Signal, Tag, checksums_hold, noise, offloaded, plain, receive_raw,
    send_raw, send_vnet, tagged, tcp_frame, udp_frame,
};

const RUN: &[&str] = &["--pair", "r0,r1"];
#[cfg(feature = "xdp")]
const XDP: &[&str] = &["--pair", "r0,r1", "--backend", "xdp"];
/// Nothing is merged, so all leaves by packet sockets.
#[cfg(feature = "xdp")]
const RX: &[&str] = &[
    "--pair",
    "r0,r1",
    "--rx",
    "xdp",
    "--tx",
    "packet",
    "--coalesce",
    "off",
];
#[cfg(feature = "xdp")]
const TX: &[&str] = &["--pair", "r0,r1", "--rx", "packet", "--tx", "xdp"];

const ALL: &[&[&str]] = &[
    RUN,
    #[cfg(feature = "xdp")]
    XDP,
    #[cfg(feature = "xdp")]
    RX,
    #[cfg(feature = "xdp")]
    TX,
];
/// Where what leaves has the header that it came with.
const PACKET_SENDS: &[&[&str]] = &[
    RUN,
    #[cfg(feature = "xdp")]
    RX,
];
/// Where super-frames come in.
const PACKET_RECEIVES: &[&[&str]] = &[
    RUN,
    #[cfg(feature = "xdp")]
    TX,
];

const fn tag(tpid: u16, tci: u16) -> Tag {
    Tag { tpid, tci }
}

/// Every stack of tags that must survive: 802.1Q, 802.1ad, both, doubled, the old 0x9100 and 0x9200; the control
/// information with priority and drop eligibility; and zero, which only a flag tells from no tag at all.
const STACKS: &[&[Tag]] = &[
    &[tag(0x8100, 10)],
    &[tag(0x8100, 0)],
    &[tag(0x8100, 0xefff)],
    &[tag(0x8100, 0x7001)],
    &[tag(0x88a8, 20)],
    &[tag(0x88a8, 0)],
    &[tag(0x88a8, 0xa014), tag(0x8100, 0x600a)],
    &[tag(0x8100, 1), tag(0x8100, 2)],
    &[tag(0x8100, 1), tag(0x88a8, 2)],
    &[tag(0x88a8, 3), tag(0x88a8, 4), tag(0x8100, 5)],
    &[tag(0x9100, 30)],
    &[tag(0x9100, 30), tag(0x8100, 31)],
    &[tag(0x9200, 32)],
];

#[test]
fn tags_survive_with_their_identifiers() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut frames = Vec::new();
    for (seed, &stack) in (1..).zip(STACKS) {
        // A packet socket may send four bytes more than the MTU and the header, if they are an 802.1Q tag.
        let longest = if stack[0].tpid == 0x8100 { 1518 } else { 1514 };
        for size in [60, 61, 700, longest - 4 * stack.len()] {
            frames.push(tagged(&plain(size, seed), stack));
            frames.push(tagged(&udp_frame(size, seed), stack));
            // Untagged ones between: a tag must not leak into the next frame of a burst.
            frames.push(plain(size, seed + 100));
        }
    }
    let ways = ALL
        .iter()
        .flat_map(|run| ["keep", "swap"].map(|mac| (run, mac)));
    for (run, mac) in ways {
        let relay = Relay::start(net, "relay", &[run, &["--mac", mac][..]].concat());
        let capture = Capture::start(net, "server", "s0", "");
        send_raw(net, "client", "c0", &frames);
        let arrived = capture.frames(frames.len());
        let last = relay.stop(Signal::Term);
        assert_eq!(arrived.len(), frames.len(), "{run:?}: {last:?}");
        for (sent, mut arrived) in frames.iter().zip(arrived) {
            if mac == "swap" {
                arrived[..12].rotate_left(6);
            }
            assert_eq!(sent, &arrived);
        }
        // A tag is part of the frame, on the way in and on the way out.
        let (way, bytes) = (
            last.way("r0", "r1"),
            frames.iter().map(Vec::len).sum::<usize>() as u64,
        );
        assert_eq!((way.rx_bytes, way.tx_bytes), (bytes, bytes));
    }
}

/// The stacks whose checksum can be left to the next device, with a datagram that has its checksum.
fn datagrams() -> Vec<(Vec<u8>, usize)> {
    let stacks: [&[Tag]; 4] = [
        &[],
        &[tag(0x8100, 10)],
        &[tag(0x88a8, 20)],
        &[tag(0x88a8, 0xa014), tag(0x8100, 0x600a)],
    ];
    let sizes = [60, 333, 1200];
    let all = stacks
        .into_iter()
        .flat_map(|stack| sizes.map(|size| (stack, size)));
    all.map(|(stack, size)| (tagged(&udp_frame(size, 9), stack), 14 + 4 * stack.len()))
        .collect()
}

#[test]
fn a_partial_checksum_behind_a_tag_stays_where_it_belongs() {
    for run in PACKET_SENDS {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let relay = Relay::start(net, "relay", run);
        let sent: Vec<_> = datagrams()
            .iter()
            .map(|(frame, link)| offloaded(frame, *link, None))
            .collect();
        let receiver = receive_raw(net, "server", "s0", sent.len());
        send_vnet(net, "client", "c0", &sent);
        let arrived = receiver.frames();
        relay.stop(Signal::Term);
        assert_eq!(arrived.len(), sent.len());
        for ((header, frame), arrived) in sent.iter().zip(arrived) {
            let (mut bytes, mut header, mut seen) = (arrived.bytes, header.clone(), arrived.vnet);
            if let Some((tci, tpid)) = arrived.tag {
                bytes = tagged(&bytes, &[tag(tpid, tci)]);
                // The reader's kernel counts without the tag it took out.
                header[6] -= 4;
            }
            assert_eq!(&bytes, frame);
            seen[2..6].fill(0);
            assert_eq!(
                seen,
                header,
                "virtio header of {} bytes with tag {:?}",
                frame.len(),
                arrived.tag
            );
        }
    }
}

/// With offloads off on the relay's own port the kernel completes the checksum there, from what the relay told it.
#[test]
fn a_partial_checksum_behind_a_tag_is_completed_right() {
    for run in ALL {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        net.sh("relay", "ethtool -K r1 tx off");
        let relay = Relay::start(net, "relay", run);
        let whole = datagrams();
        let sent: Vec<_> = whole
            .iter()
            .map(|(frame, link)| offloaded(frame, *link, None))
            .collect();
        let capture = Capture::start(net, "server", "s0", "");
        send_vnet(net, "client", "c0", &sent);
        let arrived = capture.frames(sent.len());
        relay.stop(Signal::Term);
        assert_eq!(arrived.len(), whole.len());
        for ((frame, _), arrived) in whole.iter().zip(&arrived) {
            checksums_hold(arrived).expect("as the sender would have computed it");
            assert_eq!(frame, arrived);
        }
    }
}

const SEGMENT: usize = 1000;

/// A super-frame of TCP behind these tags, and what it carries.
fn super_frame(stack: &[Tag]) -> ((Vec<u8>, Vec<u8>), Vec<u8>) {
    let payload: Vec<u8> = noise(4).take(30 * SEGMENT + 321).collect();
    let frame = tagged(&tcp_frame(&payload, 5000), stack);
    (
        offloaded(&frame, 14 + 4 * stack.len(), Some(SEGMENT as u16)),
        payload,
    )
}

const GSO_STACKS: [&[Tag]; 3] = [&[], &[tag(0x8100, 0xa00a)], &[tag(0x88a8, 20)]];

#[test]
fn a_tagged_super_frame_crosses_whole() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    for stack in GSO_STACKS {
        let relay = Relay::start(net, "relay", RUN);
        let ((header, frame), _) = super_frame(stack);
        let receiver = receive_raw(net, "server", "s0", 1);
        send_vnet(net, "client", "c0", &[(header.clone(), frame.clone())]);
        let arrived = receiver.frames();
        let last = relay.stop(Signal::Term);
        assert_eq!(arrived.len(), 1, "{last:?}");
        let arrived = &arrived[0];
        assert_eq!(arrived.tag, stack.first().map(|tag| (tag.tci, tag.tpid)));
        assert_eq!(tagged(&arrived.bytes, stack), frame);
        let (mut wanted, mut seen) = (header, arrived.vnet.clone());
        wanted[6] -= 4 * stack.len() as u8;
        // The header length is a hint, which each kernel fills in as it likes.
        wanted[2..4].fill(0);
        seen[2..4].fill(0);
        assert_eq!(seen, wanted, "checksum or segmentation");
        let way = last.way("r0", "r1");
        assert_eq!(
            (way.rx_packets, way.tx_packets),
            (31, 31),
            "31 segments: {way:?}"
        );
        assert_eq!(
            (way.rx_bytes, way.tx_bytes),
            (frame.len() as u64, frame.len() as u64),
            "{way:?}"
        );
    }
}

/// With offloads off on the relay's port the kernel cuts the super-frame there, from what the relay told it.
#[test]
fn a_tagged_super_frame_is_cut_right() {
    for run in PACKET_RECEIVES {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        net.sh("relay", "ethtool -K r1 tx off tso off gso off");
        for stack in GSO_STACKS {
            let relay = Relay::start(net, "relay", run);
            let (frame, payload) = super_frame(stack);
            let capture = Capture::start(net, "server", "s0", "");
            send_vnet(net, "client", "c0", &[frame]);
            let arrived = capture.frames(31);
            let last = relay.stop(Signal::Term);
            assert_eq!(arrived.len(), 31, "{last:?}");
            let (mut carried, mut seq) = (Vec::new(), 5000);
            for frame in &arrived {
                checksums_hold(frame).expect("every segment has its checksums");
                let packet = SlicedPacket::from_ethernet(frame).expect("it was just parsed");
                let tags: Vec<u16> = packet.vlan_ids().iter().map(|id| id.value()).collect();
                assert_eq!(
                    tags,
                    stack.iter().map(|tag| tag.tci & 0xfff).collect::<Vec<_>>()
                );
                assert_eq!(
                    frame[12..12 + 4 * stack.len()],
                    tagged(&[0; 14], stack)[12..12 + 4 * stack.len()]
                );
                let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else {
                    panic!("no TCP: {frame:?}")
                };
                assert_eq!(tcp.sequence_number(), seq);
                seq += tcp.payload().len() as u32;
                carried.extend_from_slice(tcp.payload());
            }
            assert_eq!(carried, payload);
        }
    }
}
