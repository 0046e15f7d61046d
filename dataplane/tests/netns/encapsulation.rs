//! Super-frames in tunnels for which this kernel may have no devices, made by hand: GRE and Geneve beside VXLAN.

use etherparse::{SlicedPacket, TransportSlice};

use crate::common::{
    Capture, Relay, Signal, Tag, checksums_hold, noise, offloaded, sum, tagged, tap_and_server,
    tcp_frame, vnet,
};

const RUNS: &[&[&str]] = &[
    &["--pair", "t0,r1"],
    // It has no super-frames at all, so it cuts every one.
    #[cfg(feature = "xdp")]
    &["--pair", "t0,r1", "--rx", "packet", "--tx", "xdp"],
];

/// The outer headers of hand-made tunnels, by name: what comes before the inner Ethernet frame (or, for `ip`, before the
/// inner IP packet), without lengths and checksums.
fn encapsulations() -> Vec<(&'static str, Vec<u8>, bool)> {
    let outer = |protocol: u8| {
        let mut header = tcp_frame(&[], 0)[..34].to_vec();
        header[14 + 9] = protocol;
        header[18..20].copy_from_slice(&0x4321_u16.to_be_bytes());
        header
    };
    let udp = |port: u16, rest: &[u8]| {
        [
            &outer(17)[..],
            &4444_u16.to_be_bytes(),
            &port.to_be_bytes(),
            &[0; 4],
            rest,
        ]
        .concat()
    };
    let gre = |flags: u16, kind: u16, rest: &[u8]| {
        [
            &outer(47)[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            rest,
        ]
        .concat()
    };
    vec![
        ("vxlan", udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0]), true),
        ("geneve", udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0]), true),
        (
            "geneve with options",
            udp(
                6081,
                &[2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 1, 9, 9, 9, 9],
            ),
            true,
        ),
        ("gre", gre(0, 0x6558, &[]), true),
        ("gre with key", gre(0x2000, 0x6558, &[0, 0, 0, 5]), true),
        ("gre of ip", gre(0, 0x0800, &[]), false),
    ]
}

/// A super-frame of TCP inside a tunnel, its virtio header, and what it carries.
fn tunnelled(prefix: &[u8], ethernet: bool, stack: &[Tag]) -> ((Vec<u8>, Vec<u8>), Vec<u8>) {
    let payload: Vec<u8> = noise(8).take(20 * 1000 + 77).collect();
    let (_, inner) = offloaded(&tcp_frame(&payload, 9000), 14, Some(1000));
    let inner = if ethernet { &inner[..] } else { &inner[14..] };
    let mut frame = [prefix, inner].concat();
    let length = frame.len();
    frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    if frame[23] == 17 {
        frame[38..40].copy_from_slice(&((length - 34) as u16).to_be_bytes());
    }
    frame[24..26].fill(0);
    let checksum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let start = 4 * stack.len() + length - payload.len() - 20;
    (
        (vnet(1, start + 20, 1000, start, 16), tagged(&frame, stack)),
        payload,
    )
}

#[test]
fn super_frames_in_every_tunnel_are_cut_right() {
    for run in RUNS {
        let Some((net, mut tap)) = tap_and_server() else {
            return;
        };
        for (name, prefix, ethernet) in encapsulations() {
            for stack in [
                &[][..],
                &[Tag {
                    tpid: 0x8100,
                    tci: 10,
                }],
            ] {
                let (frame, payload) = tunnelled(&prefix, ethernet, stack);
                let relay = Relay::start(&net, "relay", run);
                let capture = Capture::start(&net, "server", "s0", "");
                tap.send(&[frame]);
                let arrived = capture.frames(21);
                let last = relay.stop(Signal::Term);
                let way = last.way("t0", "r1");
                assert_eq!(
                    (way.rx_packets, way.tx_packets, arrived.len()),
                    (21, 21, 21),
                    "{name}: {last:?}"
                );
                let (mut carried, mut seq, mut ids) = (Vec::new(), 9000, Vec::new());
                for (n, frame) in arrived.iter().enumerate() {
                    let at = 4 * stack.len();
                    assert_eq!(
                        frame[..12 + at],
                        tagged(&prefix, stack)[..12 + at],
                        "{name}: addresses and tag"
                    );
                    let length = usize::from(u16::from_be_bytes([frame[16 + at], frame[17 + at]]));
                    assert_eq!(length + 14 + at, frame.len(), "{name}: outer length");
                    assert_eq!(
                        sum(&frame[14 + at..34 + at]),
                        0xffff,
                        "{name}: outer header checksum"
                    );
                    if frame[23 + at] == 17 {
                        let udp = usize::from(u16::from_be_bytes([frame[38 + at], frame[39 + at]]));
                        assert_eq!(udp + 34 + at, frame.len(), "{name}: outer UDP length");
                    }
                    ids.push(u16::from_be_bytes([frame[18 + at], frame[19 + at]]));
                    let inner = &frame[prefix.len() + at..];
                    let inner = if ethernet {
                        inner.to_vec()
                    } else {
                        [&prefix[..14], inner].concat()
                    };
                    checksums_hold(&inner)
                        .unwrap_or_else(|error| panic!("{name}, segment {n}: inner {error}"));
                    let packet = SlicedPacket::from_ethernet(&inner).expect("it was just parsed");
                    let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
                        panic!("{name}: no TCP")
                    };
                    assert_eq!(
                        (tcp.sequence_number(), tcp.psh()),
                        (seq, n == 20),
                        "{name}: PSH on the last alone"
                    );
                    seq += tcp.payload().len() as u32;
                    carried.extend_from_slice(tcp.payload());
                }
                assert!(carried == payload, "{name}: contents");
                assert!(
                    ids.windows(2)
                        .all(|pair| pair[1] == pair[0].wrapping_add(1)),
                    "{name}: outer ids {ids:?}"
                );
            }
        }
    }
}

/// What the relay cannot cut it must not send on either: it says so in a counter.
#[test]
fn an_unknown_tunnel_is_counted_and_not_sent() {
    for run in RUNS {
        let Some((net, mut tap)) = tap_and_server() else {
            return;
        };
        let unknown = {
            let mut prefix = encapsulations().remove(0).1;
            // A protocol for experiments (RFC 3692): nothing says what is inside.
            prefix[23] = 253;
            prefix
        };
        let (frame, _) = tunnelled(&unknown, true, &[]);
        let relay = Relay::start(&net, "relay", run);
        let capture = Capture::start(&net, "server", "s0", "");
        let plain = tcp_frame(&[1; 100], 1);
        tap.send(&[frame, (vec![0; 10], plain.clone())]);
        assert_eq!(capture.frames(1), [plain], "what follows passes");
        let way = relay.stop(Signal::Term).way("t0", "r1");
        assert_eq!((way.rx_packets, way.tx_packets), (22, 1), "{way:?}");
        assert_eq!(way.dropped.get("gso_unsupported"), Some(&21), "{way:?}");
    }
}
