//! The delay of an emulated link, and the way through or past an interface's own qdisc.

use std::time::{Duration, Instant};

use crate::common::{Capture, Chain, Relay, Signal, plain, send_raw, tcp_both_ways};

#[test]
fn a_delay_holds_frames_of_its_direction_only() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    for (links, wanted) in [
        (&["r0>r1 delay 50ms"][..], 50.0),
        (&["r0>r1 delay 40ms", "r1>r0 delay 30ms"], 70.0),
    ] {
        let options: Vec<&str> = links.iter().flat_map(|link| ["--link", link]).collect();
        let relay = Relay::start(
            &chain.net,
            "relay",
            &[&["--pair", "r0,r1"], &options[..]].concat(),
        );
        let least = chain
            .ping(6, "", Chain::SERVER)
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        relay.stop(Signal::Term);
        // Never early; late only as far as a busy machine is (the bench measures how exact it is).
        assert!(
            (wanted..wanted + 15.0).contains(&least),
            "{links:?}: {least} ms"
        );
    }
}

#[test]
fn delayed_frames_are_held_then_sent_in_order() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(
        net,
        "relay",
        &["--pair", "r0,r1", "--link", "r0>r1 delay 700ms"],
    );
    let frames: Vec<Vec<u8>> = (60..360).map(|size| plain(size, size as u32)).collect();
    let capture = Capture::start(net, "server", "s0", "");
    let start = Instant::now();
    send_raw(net, "client", "c0", &frames);
    let snapshot = relay.snapshot_when("held all 300", |snapshot| {
        snapshot.way("r0", "r1").rx_packets == 300
    });
    if start.elapsed() < Duration::from_millis(600) {
        assert_eq!(
            (
                snapshot.way("r0", "r1").held,
                snapshot.way("r0", "r1").tx_packets
            ),
            (300, 0)
        );
    }
    assert_eq!(capture.frames(300), frames);
    assert!(start.elapsed() > Duration::from_millis(700));
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.held, way.lost()),
        (300, 300, 0, 0),
        "{way:?}"
    );
}

/// What is still held at the end is neither sent nor forgotten.
#[test]
fn stopping_accounts_for_what_is_held() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(
        net,
        "relay",
        &["--pair", "r0,r1", "--link", "r0>r1 delay 60s"],
    );
    send_raw(
        net,
        "client",
        "c0",
        &(0..50).map(|n| plain(100, n)).collect::<Vec<_>>(),
    );
    relay.snapshot_when("received all", |snapshot| {
        snapshot.way("r0", "r1").rx_packets == 50
    });
    let start = Instant::now();
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "stopping does not wait for the link"
    );
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.held + way.lost()),
        (50, 0, 50),
        "{way:?}"
    );
    assert_eq!(net.counters("server", "s0").rx_packets, 0);
}

#[test]
fn tcp_crosses_a_delayed_link() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(
        net,
        "relay",
        &["--pair", "r0,r1", "--link", "r0>r1 delay 5ms"],
    );
    tcp_both_ways(net, Chain::SERVER, 3000000);
    let last = relay.stop(Signal::Term);
    assert!(last.way("r0", "r1").rx_packets > 2000, "{last:?}");
}

/// What the qdisc of the relay's port has counted.
fn qdisc_packets(chain: &Chain) -> u64 {
    let text = chain.net.sh("relay", "tc -s -j qdisc show dev r1 root");
    let list: serde_json::Value = serde_json::from_str(&text).expect("tc prints JSON");
    list[0]["packets"]
        .as_u64()
        .unwrap_or_else(|| panic!("{text}"))
}

const TBF: &str = "tc qdisc replace dev r1 root handle 1: tbf rate 1gbit burst 100k limit 1m";

/// A port that has a qdisc at the start sends everything through it, asked or not: two paths would reorder.
#[test]
fn a_qdisc_on_the_port_is_not_passed_by() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("relay", TBF);
    let frames: Vec<Vec<u8>> = (0..100).map(|n| plain(400, n)).collect();
    for options in [&[][..], &["--qdisc"]] {
        let before = qdisc_packets(&chain);
        let relay = Relay::start(net, "relay", &[&["--pair", "r0,r1"], options].concat());
        let capture = Capture::start(net, "server", "s0", "");
        send_raw(net, "client", "c0", &frames);
        assert_eq!(capture.frames(100), frames);
        relay.stop(Signal::Term);
        assert_eq!(qdisc_packets(&chain) - before, 100, "{options:?}");
    }
}

/// One that comes later is heeded when that was asked for.
#[test]
fn a_qdisc_that_comes_later_needs_the_option() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1", "--qdisc"]);
    net.sh("relay", TBF);
    let frames: Vec<Vec<u8>> = (0..100).map(|n| plain(400, n)).collect();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(100), frames);
    relay.stop(Signal::Term);
    assert_eq!(qdisc_packets(&chain), 100);
}

/// A qdisc that refuses frames makes drops of the relay's, counted with a reason.
#[test]
fn what_the_qdisc_refuses_is_counted() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh(
        "relay",
        "tc qdisc replace dev r1 root handle 1: tbf rate 2mbit burst 5k limit 5k",
    );
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1", "--qdisc"]);
    send_raw(
        net,
        "client",
        "c0",
        &(0..200).map(|n| plain(1000, n)).collect::<Vec<_>>(),
    );
    chain.settle();
    let way = relay.stop(Signal::Term).way("r0", "r1");
    let arrived = net.counters("server", "s0").rx_packets;
    assert!(arrived < 200, "the qdisc has to refuse some");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (200, arrived, 200 - arrived),
        "{way:?}"
    );
}
