//! Large and unequal MTUs.

use crate::common::{
    Capture, Chain, Relay, Signal, offloaded, plain, receive_raw, send_raw, send_vnet,
    tcp_both_ways, tcp_frame, udp_frame,
};

#[test]
fn mtu_9000_for_ping_frames_and_tcp() {
    let Some(chain) = Chain::open(9000) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
    chain.ping(3, "-M do -s 8972", Chain::SERVER);

    let frames: Vec<Vec<u8>> = [1515, 2034, 2048, 4096, 8999, 9000, 9014]
        .map(|size| udp_frame(size, size as u32))
        .into();
    let capture = Capture::start(net, "server", "s0", "udp port 4001");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(frames.len()), frames);

    tcp_both_ways(net, Chain::SERVER, 8388608);
    let last = relay.stop(Signal::Term);
    assert_eq!(
        last.way("r0", "r1").lost() + last.way("r1", "r0").lost(),
        0,
        "{last:?}"
    );
}

/// What the far port cannot take is counted as that, and must not stop what comes behind it.
#[test]
fn frames_above_the_far_mtu_are_counted_and_stop_nothing() {
    let Some(chain) = Chain::open(9000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("relay", "ip link set r1 mtu 1500");
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
    let frames: Vec<Vec<u8>> = (0..200)
        .map(|n| plain(if n % 2 == 0 { 4000 } else { 400 }, n))
        .collect();
    let small: Vec<Vec<u8>> = frames
        .iter()
        .filter(|frame| frame.len() == 400)
        .cloned()
        .collect();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(100), small);
    let last = relay.stop(Signal::Term);
    let way = last.way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (200, 100, 100),
        "{way:?}"
    );
    assert_eq!(way.dropped.get("oversize"), Some(&100), "{way:?}");
}

/// The same where only the far host's interface is smaller, which the relay's port does not show: the device drops them.
#[test]
fn frames_above_the_peers_mtu_are_counted_and_stop_nothing() {
    let Some(chain) = Chain::open(9000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("server", "ip link set s0 mtu 1500");
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
    let frames: Vec<Vec<u8>> = (0..200)
        .map(|n| plain(if n % 2 == 0 { 4000 } else { 400 }, n))
        .collect();
    let small: Vec<Vec<u8>> = frames
        .iter()
        .filter(|frame| frame.len() == 400)
        .cloned()
        .collect();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(100), small);
    chain.settle();
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (200, 100, 100),
        "{way:?}"
    );
    assert_eq!(net.counters("server", "s0").rx_packets, 100);
}

/// While the ring waits for a frame that the device does not take, nothing may pass it on the other path.
#[test]
fn super_frames_do_not_overtake_what_a_refused_frame_holds_up() {
    let Some(chain) = Chain::open(9000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("server", "ip link set s0 mtu 1500");
    for round in 0..3 {
        let relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
        let large = offloaded(&tcp_frame(&[1; 9000], 1), 14, Some(1000));
        // Refused, twenty small ones in the ring behind it, and a super-frame after each five.
        let mut sent = vec![(vec![0; 10], plain(1900, 1))];
        for n in 0..20 {
            sent.push((vec![0; 10], plain(100 + n, 2)));
            if n % 5 == 4 {
                sent.push(large.clone());
            }
        }
        let wanted: Vec<usize> = sent[1..].iter().map(|(_, frame)| frame.len()).collect();
        let receiver = receive_raw(net, "server", "s0", wanted.len());
        // All in one burst.
        relay.signal(Signal::Freeze);
        send_vnet(net, "client", "c0", &sent);
        relay.signal(Signal::Thaw);
        let arrived: Vec<usize> = receiver
            .frames()
            .iter()
            .map(|frame| frame.bytes.len())
            .collect();
        let last = relay.stop(Signal::Term);
        assert_eq!(arrived, wanted, "round {round}: {last:?}");
        assert_eq!(last.way("r0", "r1").lost(), 1, "{last:?}");
    }
}
