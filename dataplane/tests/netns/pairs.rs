//! Several pairs, and ports that go down, come up, vanish and return, while the others notice nothing.

use crate::common::{
    Capture, Net, PATIENCE, Peer, Relay, Signal, cpus, eventually, mac_text, plain, send_raw,
};

/// Two chains through one relay namespace: clients `ca`, `cb` with `c0`; servers `sa`, `sb` with `s0`; ports `a0 a1 b0 b1`.
fn two_chains() -> Option<Net> {
    let net = Net::open(&["ca", "sa", "cb", "sb", "relay"])?;
    for (client, server, port, far_port) in [("ca", "sa", "a0", "a1"), ("cb", "sb", "b0", "b1")] {
        net.veth((client, "c0"), ("relay", port));
        net.veth((server, "s0"), ("relay", far_port));
        addresses(&net, client, server);
    }
    Some(net)
}

/// Addresses and neighbour entries, so that nothing but the tests' frames is on the wires.
fn addresses(net: &Net, client: &str, server: &str) {
    net.sh(
        client,
        &format!(
            "ip address replace 10.9.0.1/24 dev c0; ip neigh replace 10.9.0.2 lladdr {} dev c0",
            mac_text("s0")
        ),
    );
    net.sh(
        server,
        &format!(
            "ip address replace 10.9.0.2/24 dev s0; ip neigh replace 10.9.0.1 lladdr {} dev s0",
            mac_text("c0")
        ),
    );
}

const RUN: &[&str] = &["--pair", "a0,a1", "--pair", "b0,b1"];

fn ping(net: &Net, client: &str) -> bool {
    net.try_sh(client, "ping -n -c 1 -W 1 10.9.0.2")
        .status
        .success()
}

#[test]
fn two_pairs_on_two_workers() {
    let Some(net) = two_chains() else { return };
    let cores = cpus();
    let [first, .., last] = cores[..] else {
        println!("skipped: needs two CPUs");
        return;
    };
    let relay = Relay::start(
        &net,
        "relay",
        &[RUN, &["--cores", &format!("{first},{last}")]].concat(),
    );
    let pinned = relay.thread_cpus();
    for core in [first, last] {
        assert!(
            pinned.contains(&core.to_string()),
            "no worker on {core}: {pinned:?}"
        );
    }
    let line = "--address 10.9.0.2 --count 3000";
    let receivers =
        ["sa", "sb"].map(|server| Peer::listen(&net, server, &format!("udp-receive {line}")));
    let senders = ["ca", "cb"]
        .map(|client| Peer::start(&net, client, &format!("udp-send {line} --gso --flows 4")));
    for peer in senders {
        assert_eq!(peer.result()["acked"], 3000);
    }
    let wanted = serde_json::json!({"received": 3000, "corrupt": 0, "reordered": 0, "gaps": 0, "doubled": 0});
    for peer in receivers {
        assert_eq!(peer.result(), wanted);
    }
    let last = relay.stop(Signal::Term);
    // The 3000 and not one of the other pair's.
    for (rx, tx) in [("a0", "a1"), ("b0", "b1")] {
        assert_eq!(
            (last.way(rx, tx).rx_packets, last.way(rx, tx).tx_packets),
            (3000, 3000),
            "{last:?}"
        );
    }
    assert_eq!(last.lanes.len(), 4);
}

#[test]
fn a_port_that_is_down_at_the_start_is_waited_for() {
    let Some(net) = two_chains() else { return };
    net.sh("relay", "ip link set a1 down");
    let mut relay = Relay::launch(&net, "relay", &[], RUN);
    let told = relay.says("a1")
        && eventually(PATIENCE, || {
            relay
                .said()
                .lines()
                .any(|line| line.contains("a1") && line.contains("down"))
        });
    assert!(told, "{}", relay.said());
    assert!(
        eventually(PATIENCE, || ping(&net, "cb")),
        "the other pair forwards: {}",
        relay.said()
    );
    assert!(!ping(&net, "ca"));
    assert_eq!(relay.live_snapshot().port("a1").state, "down");
    net.sh("relay", "ip link set a1 up");
    assert!(
        eventually(PATIENCE, || ping(&net, "ca")),
        "forwarding begins when it comes up: {}",
        relay.said()
    );
    relay.wait_ready();
    assert_eq!(relay.live_snapshot().port("a1").state, "up");
    relay.stop(Signal::Term);
}

/// A lane whose far port is down drains and counts; what is old by then does not burst out when it comes up.
#[test]
fn a_link_that_goes_down_is_counted_and_comes_back() {
    let Some(net) = two_chains() else { return };
    let mut relay = Relay::start(&net, "relay", RUN);
    assert!(ping(&net, "ca") && ping(&net, "cb"));
    net.sh("relay", "ip link set a1 down");
    relay.snapshot_when("seen a1 down", |snapshot| {
        snapshot.port("a1").state == "down"
    });
    let before = relay.snapshot().way("a0", "a1");
    let stale: Vec<Vec<u8>> = (0..50).map(|n| plain(300, n)).collect();
    send_raw(&net, "ca", "c0", &stale);
    relay.snapshot_when("drained 50", |snapshot| {
        snapshot.way("a0", "a1").rx_packets == before.rx_packets + 50
    });
    let down = relay.snapshot().way("a0", "a1");
    assert_eq!(down.tx_packets, before.tx_packets, "{down:?}");
    assert_eq!(down.dropped.get("link_down"), Some(&50), "{down:?}");
    assert!(ping(&net, "cb"), "the other pair");

    let capture = Capture::start(&net, "sa", "s0", "");
    net.sh("relay", "ip link set a1 up");
    relay.snapshot_when("seen a1 up", |snapshot| snapshot.port("a1").state == "up");
    let fresh: Vec<Vec<u8>> = (100..150).map(|n| plain(200, n)).collect();
    send_raw(&net, "ca", "c0", &fresh);
    assert_eq!(
        capture.frames(50),
        fresh,
        "the new ones and none of the stale ones"
    );
    // The other direction: the port that went down receives again.
    let capture = Capture::start(&net, "ca", "c0", "");
    send_raw(&net, "sa", "s0", &fresh);
    assert_eq!(capture.frames(50), fresh);
    relay.stop(Signal::Term);
}

/// The far host's end goes down: the relay's port loses its carrier. Nothing may be counted as sent that was not.
#[test]
fn a_peer_that_goes_down_is_a_link_that_is_down() {
    let Some(net) = two_chains() else { return };
    let mut relay = Relay::start(&net, "relay", RUN);
    net.sh("sa", "ip link set s0 down");
    relay.snapshot_when("seen a1 down", |snapshot| {
        snapshot.port("a1").state == "down"
    });
    let before = net.counters("sa", "s0").rx_packets;
    send_raw(
        &net,
        "ca",
        "c0",
        &(0..50).map(|n| plain(300, n)).collect::<Vec<_>>(),
    );
    relay.snapshot_when("drained 50", |snapshot| {
        snapshot.way("a0", "a1").rx_packets == 50
    });
    let way = relay.snapshot().way("a0", "a1");
    assert_eq!(
        (way.tx_packets, way.lost()),
        (net.counters("sa", "s0").rx_packets - before, 50),
        "{way:?}"
    );
    assert_eq!(way.dropped.get("link_down"), Some(&50), "{way:?}");
    net.sh("sa", "ip link set s0 up");
    addresses(&net, "ca", "sa");
    assert!(
        eventually(PATIENCE, || ping(&net, "ca")),
        "{}",
        relay.said()
    );
    relay.stop(Signal::Term);
}

#[test]
fn a_deleted_interface_that_returns_forwards_again() {
    let Some(net) = two_chains() else { return };
    let mut relay = Relay::start(&net, "relay", RUN);
    assert!(ping(&net, "ca"));
    // The other pair is asked through all of it, every 20 ms.
    let _echo = Peer::listen(&net, "sb", "echo --address 10.9.0.2");
    let line = "ask --address 10.9.0.2 --count 120 --pause 0.02 --idle 3";
    let witness = Peer::start(&net, "cb", line);
    for round in 0..2 {
        net.sh("relay", "ip link delete a1");
        let gone = relay.snapshot_when("seen a1 gone", |snapshot| {
            snapshot.port("a1").state == "gone"
        });
        assert_eq!(gone.port("a0").state, "up");
        let before = gone.way("a0", "a1");
        send_raw(
            &net,
            "ca",
            "c0",
            &(0..20).map(|n| plain(300, n)).collect::<Vec<_>>(),
        );
        relay.snapshot_when("drained 20", |snapshot| {
            snapshot.way("a0", "a1").rx_packets == before.rx_packets + 20
        });
        assert_eq!(
            relay.snapshot().way("a0", "a1").tx_packets,
            before.tx_packets
        );

        net.veth(("sa", "s0"), ("relay", "a1"));
        addresses(&net, "ca", "sa");
        assert!(
            eventually(PATIENCE, || ping(&net, "ca")),
            "round {round}: {}",
            relay.said()
        );
        assert_eq!(relay.live_snapshot().port("a1").state, "up");
        assert_eq!(net.link("relay", "a1")["promiscuity"], 1, "as at the start");
    }
    let answers = witness.result();
    let last = relay.stop(Signal::Term);
    let wanted = serde_json::json!({"sent": 120, "received": 120, "different": 120});
    assert_eq!(answers, wanted, "{last:?}");
}

/// Several lanes a direction: both get flows, and no flow is split between them.
#[test]
fn fanout_spreads_flows_and_keeps_their_order() {
    let Some(net) = two_chains() else { return };
    let cores = cpus();
    let [first, .., last] = cores[..] else {
        println!("skipped: needs two CPUs");
        return;
    };
    let options = [
        "--pair",
        "a0,a1",
        "--queues",
        "2",
        "--cores",
        &format!("{first},{last}"),
    ];
    let relay = Relay::start(&net, "relay", &options);
    let line = "--address 10.9.0.2 --count 8000";
    let receiver = Peer::listen(&net, "sa", &format!("udp-receive {line}"));
    let sent = Peer::start(
        &net,
        "ca",
        &format!("udp-send {line} --gso --flows 64 --seed 9"),
    )
    .result();
    let wanted = serde_json::json!({"received": 8000, "corrupt": 0, "reordered": 0, "gaps": 0, "doubled": 0});
    let received = receiver.result();
    let last = relay.stop(Signal::Term);
    assert_eq!(received, wanted, "{sent} {last:?}");
    let shares: Vec<u64> = last
        .lanes
        .iter()
        .filter(|lane| lane.rx == "a0")
        .map(|lane| lane.rx_packets)
        .collect();
    assert_eq!(shares.len(), 2, "{last:?}");
    assert!(
        shares.iter().all(|&share| share > 800),
        "64 flows spread over two lanes: {shares:?}"
    );
    assert_eq!(shares.iter().sum::<u64>(), 8000);
    assert_eq!(last.port("a0").kernel_drops, 0);
}

/// The ports in namespaces of their own, the relay in a third that has neither.
#[test]
fn ports_may_be_in_other_namespaces() {
    let Some(net) = Net::open(&["client", "server", "left", "right", "relay"]) else {
        return;
    };
    net.veth(("client", "c0"), ("left", "eth0"));
    net.veth(("server", "s0"), ("right", "eth0"));
    addresses(&net, "client", "server");
    let (left, right) = (
        format!("{}:eth0", net.ns("left")),
        format!("{}:eth0", net.ns("right")),
    );
    let mut relay = Relay::start(&net, "relay", &["--pair", &format!("{left},{right}")]);
    assert!(ping(&net, "client"), "{}", relay.said());
    let snapshot = relay.snapshot();
    assert_eq!(snapshot.way(&left, &right).tx_packets, 1);
    assert!(
        net.sh("relay", "ip -o link").lines().count() == 1,
        "the relay's own namespace has lo alone"
    );
    // Link events come from there, too.
    net.sh("right", "ip link set eth0 down");
    relay.snapshot_when("seen it down", |snapshot| {
        snapshot.port(&right).state == "down"
    });
    net.sh("right", "ip link set eth0 up");
    assert!(
        eventually(PATIENCE, || ping(&net, "client")),
        "{}",
        relay.said()
    );
    relay.stop(Signal::Term);
}
