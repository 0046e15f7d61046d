//! One port that sends back what it receives.

use crate::common::{
    Capture, Net, PATIENCE, Relay, Signal, Tag, eventually, mac, multicast, offloaded, plain,
    receive_raw, send_raw, send_vnet, tagged, tcp_frame, udp_frame,
};

const RUN: &[&str] = &["--hairpin", "r0"];

fn host_and_relay() -> Option<Net> {
    let net = Net::open(&["host", "relay"])?;
    net.veth(("host", "h0"), ("relay", "r0"));
    Some(net)
}

/// Everything once, in order, untouched: a relay that also sees its own frames would send them for ever.
#[test]
fn a_hairpin_reflects_each_frame_once() {
    let Some(net) = host_and_relay() else { return };
    let mut frames: Vec<Vec<u8>> = (60..260).map(|size| plain(size, size as u32)).collect();
    frames.push(tagged(
        &udp_frame(1000, 1),
        &[Tag {
            tpid: 0x88a8,
            tci: 5,
        }],
    ));
    frames.push(multicast([0xff; 6], 100, 2));
    frames.push(multicast([0x33, 0x33, 0, 0, 0, 1], 100, 3));
    for (mode, destination, source) in [
        ("keep", None, None),
        ("update", Some([2, 0, 0, 0, 0, 0]), Some(mac("r0"))),
    ] {
        let relay = Relay::start(&net, "relay", &[RUN, &["--mac", mode]].concat());
        let capture = Capture::start(&net, "host", "h0", "");
        send_raw(&net, "host", "h0", &frames);
        let arrived = capture.frames(frames.len());
        let last = relay.stop(Signal::Term);
        assert_eq!(arrived.len(), frames.len(), "{last:?}");
        for (sent, arrived) in frames.iter().zip(&arrived) {
            assert_eq!(
                arrived[..6],
                destination.map_or(sent[..6].to_vec(), |mac: [u8; 6]| mac.to_vec())
            );
            assert_eq!(
                arrived[6..12],
                source.map_or(sent[6..12].to_vec(), |mac| mac.to_vec())
            );
            assert_eq!(arrived[12..], sent[12..]);
        }
        let way = last.way("r0", "r0");
        let (count, bytes) = (
            frames.len() as u64,
            frames.iter().map(Vec::len).sum::<usize>() as u64,
        );
        assert_eq!(
            (way.rx_packets, way.tx_packets, way.rx_bytes, way.tx_bytes),
            (count, count, bytes, bytes)
        );
        assert_eq!(
            (last.port("r0").rx_packets, last.port("r0").tx_packets),
            (count, count)
        );
    }
}

#[test]
fn a_hairpin_swaps_addresses_of_super_frames_too() {
    let Some(net) = host_and_relay() else { return };
    let relay = Relay::start(&net, "relay", &[RUN, &["--mac", "swap"]].concat());
    let (header, frame) = offloaded(&tcp_frame(&[7; 20_000], 1), 14, Some(1000));
    let receiver = receive_raw(&net, "host", "h0", 1);
    send_vnet(&net, "host", "h0", &[(header.clone(), frame.clone())]);
    let mut arrived = receiver.frames();
    relay.stop(Signal::Term);
    assert_eq!(arrived.len(), 1);
    let mut arrived = arrived.remove(0);
    arrived.bytes[..12].rotate_left(6);
    assert_eq!(arrived.bytes, frame);
    // Flags and kind; segment size, start and offset. The header length between them is a hint.
    assert_eq!(
        (&arrived.vnet[..2], &arrived.vnet[4..]),
        (&header[..2], &header[4..])
    );
}

#[test]
fn the_guard_drops_multicast_and_counts_it() {
    let Some(net) = host_and_relay() else { return };
    let relay = Relay::start(&net, "relay", &[RUN, &["--hairpin-guard"]].concat());
    let groups = [
        [0x33, 0x33, 0, 0, 0, 1],
        [1, 0, 0x5e, 0, 0, 1],
        [1, 0x80, 0xc2, 0, 0, 0x0e],
        [0xff; 6],
    ];
    let frames: Vec<Vec<u8>> = (0..40)
        .map(|n| {
            if n % 2 == 0 {
                plain(100, n)
            } else {
                multicast(groups[n as usize / 2 % 4], 100, n)
            }
        })
        .collect();
    let unicast: Vec<Vec<u8>> = frames
        .iter()
        .filter(|frame| frame[0] & 1 == 0)
        .cloned()
        .collect();
    let capture = Capture::start(&net, "host", "h0", "");
    send_raw(&net, "host", "h0", &frames);
    assert_eq!(capture.frames(20), unicast);
    let way = relay.stop(Signal::Term).way("r0", "r0");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (40, 20, 20),
        "{way:?}"
    );
    assert_eq!(way.dropped.get("filtered"), Some(&20), "{way:?}");
}

/// The reason for the guard, and the proof that the test sees it: without it a host takes its own probe for a duplicate's.
/// (Hosts that send a nonce with it, RFC 7527, know better; that is switched off here.)
#[test]
fn duplicate_address_detection_needs_the_guard() {
    let Some(net) = host_and_relay() else { return };
    for (options, failed) in [(&["--hairpin-guard"][..], false), (&[], true)] {
        let relay = Relay::start(&net, "relay", &[RUN, options].concat());
        net.sh(
            "host",
            "sysctl -qw net.ipv6.conf.all.enhanced_dad=0 net.ipv6.conf.h0.enhanced_dad=0",
        );
        net.sh(
            "host",
            "sysctl -qw net.ipv6.conf.h0.disable_ipv6=0; ip address add fd09::1/64 dev h0",
        );
        let list = || net.sh("host", "ip -6 address show dev h0 to fd09::/64");
        assert!(
            eventually(PATIENCE, || !list().contains("tentative")
                || list().contains("dadfailed")),
            "{}",
            list()
        );
        assert_eq!(
            list().contains("dadfailed"),
            failed,
            "guard {options:?}: {}",
            list()
        );
        net.sh("host", "sysctl -qw net.ipv6.conf.h0.disable_ipv6=1");
        relay.stop(Signal::Int);
    }
}

/// The guard is for hairpins: a pair beside one passes multicast as before.
#[test]
fn the_guard_leaves_pairs_alone() {
    let Some(net) = Net::open(&["host", "client", "relay", "server"]) else {
        return;
    };
    net.veth(("host", "h0"), ("relay", "h1"));
    net.veth(("client", "c0"), ("relay", "r0"));
    net.veth(("server", "s0"), ("relay", "r1"));
    let relay = Relay::start(
        &net,
        "relay",
        &["--pair", "r0,r1", "--hairpin", "h1", "--hairpin-guard"],
    );
    let frame = multicast([0x33, 0x33, 0, 0, 0, 1], 100, 1);
    let (at_server, at_host) = (
        Capture::start(&net, "server", "s0", ""),
        Capture::start(&net, "host", "h0", ""),
    );
    send_raw(&net, "host", "h0", &[&frame, &plain(80, 5)]);
    send_raw(&net, "client", "c0", &[&frame]);
    assert_eq!(at_server.frames(1), [frame]);
    assert_eq!(at_host.frames(1), [plain(80, 5)]);
    let last = relay.stop(Signal::Term);
    assert_eq!(
        (last.way("h1", "h1").lost(), last.way("r0", "r1").lost()),
        (1, 0),
        "{last:?}"
    );
}
