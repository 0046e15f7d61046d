//! Pairs that move from one back end to another under traffic, by the library.

use std::time::{Duration, Instant};

use l2relay::{
    config::{Backend, Config, PortName},
    relay::Relay,
};

use crate::common::{Chain, Peer, Relay as BlackBox, Signal, attempt, tcp_both_ways};

fn pair(chain: &Chain) -> [PortName; 2] {
    let space = chain.net.ns("relay");
    ["r0", "r1"].map(|port| format!("{space}:{port}").parse().expect("a port's name"))
}

fn start(chain: &Chain, backend: Backend, queues: usize) -> Relay {
    let config = Config {
        pairs: vec![pair(chain)],
        backend,
        queues,
        ..Config::default()
    };
    Relay::start(config).expect("it starts")
}

/// Carries a flood while its pair moves along `stops`. What was sent is received or in the account, once and in order.
fn under_load(stops: &[Backend], queues: usize) {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = start(&chain, stops[0], queues);
    let line = format!("--address {} --count 60000 --flows 8", Chain::SERVER);
    let receiver = Peer::listen(
        net,
        "server",
        &format!("udp-receive {line} --no-acks --idle 3"),
    );
    let sender = Peer::start(
        net,
        "client",
        &format!("udp-send {line} --no-acks --large 600 --limit 20"),
    );
    std::thread::sleep(Duration::from_millis(200));
    let (mut moves, mut took) = (0, Duration::ZERO);
    for stop in stops.iter().cycle().skip(1).take(8) {
        let start = Instant::now();
        let how = relay.carry(&pair(&chain), *stop).expect("it moves");
        took += start.elapsed();
        assert!(how.starts_with(&stop.to_string()), "{stop}: {how}");
        assert!(relay.snapshot().is_conserved());
        moves += 1;
        std::thread::sleep(Duration::from_millis(60));
    }
    let sent = sender.result();
    chain.settle();
    let arrived = net.counters("relay", "r0").rx_packets;
    let last = relay.stop();
    let received = receiver.result();
    let (lane, port) = (&last.lanes[0], &last.ports[0]);
    println!("{moves} moves in {took:?}: {sent} {received} {last}");
    assert!(last.is_conserved(), "{last}");
    for wrong in ["corrupt", "reordered", "doubled"] {
        assert_eq!(received[wrong], 0, "{received} {last}");
    }
    let [received, way_in, way_out] = [
        received["received"].as_u64().expect("a count"),
        last.lanes
            .iter()
            .filter(|other| other.rx == lane.rx)
            .map(|lane| lane.rx_packets)
            .sum(),
        last.lanes
            .iter()
            .filter(|other| other.rx == lane.rx)
            .map(|lane| lane.tx_packets)
            .sum(),
    ];
    // Whatever came was received, or dropped before that for want of room in a ring.
    assert_eq!(way_in + port.kernel_drops, arrived, "{last}");
    assert_eq!(received + last.ports[1].device_drops, way_out, "{last}");
    assert!(
        lane.dropped.contains_key("moved"),
        "the gap is counted: {last}"
    );
}

#[test]
fn between_packet_sockets_and_the_kernel() {
    under_load(&[Backend::Packet, Backend::Kernel], 1);
}

#[test]
fn between_queues_that_share_frames_and_the_kernel() {
    under_load(&[Backend::Kernel, Backend::Packet], 2);
}

#[test]
fn from_lanes_to_lanes() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let relay = start(&chain, Backend::Packet, 1);
    for stop in [Backend::Xdp, Backend::Kernel, Backend::Xdp, Backend::Packet] {
        let how = relay.carry(&pair(&chain), stop).expect("it moves");
        assert!(how.starts_with(&stop.to_string()), "{stop}: {how}");
        tcp_both_ways(&chain.net, Chain::SERVER, 1 << 20);
    }
    let last = relay.stop();
    assert!(
        last.is_conserved() && last.lanes[0].tx_packets > 1000,
        "{last}"
    );
    assert_eq!(last.lanes.len(), 2);
}

/// What can't be leaves everything as it was.
#[test]
fn what_cannot_be_moved_stays() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = start(&chain, Backend::Kernel, 1);
    // A program on the hook of one port, so that the kernel can't be had again; and a pair that is none.
    let [a, b] = pair(&chain);
    let error = relay
        .carry(&[a.clone(), a.clone()], Backend::Packet)
        .expect_err("no such pair");
    assert!(error.to_string().contains("no such pair"), "{error}");
    relay.carry(&[b, a], Backend::Packet).expect("either order");
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf/forward.bpf.o");
    net.sh(
        "relay",
        &format!(
            "tc qdisc add dev r1 clsact; tc filter add dev r1 ingress bpf direct-action obj {object} sec tc"
        ),
    );
    let error = relay
        .carry(&pair(&chain), Backend::Kernel)
        .expect_err("somebody is there");
    assert!(error.to_string().contains("bpf filter"), "{error}");
    // That filter has no target, so it must go before frames can pass.
    net.sh("relay", "tc qdisc del dev r1 clsact");
    tcp_both_ways(net, Chain::SERVER, 1 << 20);
    relay
        .carry(&pair(&chain), Backend::Kernel)
        .expect("nobody is there");
    tcp_both_ways(net, Chain::SERVER, 1 << 20);
    assert!(relay.stop().is_conserved());
}

/// The same by the control socket.
#[test]
fn by_the_command_set() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = BlackBox::start(net, "relay", &["--pair", "r0,r1", "--name", "mover"]);
    let set = |carry: &str| {
        let output = attempt(
            net,
            "relay",
            &[],
            &["set", "--name", "mover", "--carry", carry],
        );
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            output.status.code(),
            said + &String::from_utf8_lossy(&output.stderr),
        )
    };
    for (carry, status, text) in [
        ("r0,r1=kernel", 0, "kernel [r0 tcx; r1 tcx]"),
        ("r0,r1=packet", 0, "carried by packet"),
        ("r0,r9=kernel", 2, "no such pair"),
        ("r0,r1=magic", 2, "magic"),
    ] {
        let (code, said) = set(carry);
        assert!(
            code == Some(status) && said.contains(text),
            "{carry}: {code:?} {said}"
        );
        tcp_both_ways(net, Chain::SERVER, 1 << 18);
    }
    // An emulated link brings the pair back to lanes.
    let (code, said) = set("r0,r1=kernel");
    assert_eq!(code, Some(0), "{said}");
    let link = ["set", "--name", "mover", "--link", "r0>r1 delay 40ms"];
    let output = attempt(net, "relay", &[], &link);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("carried by packet"),
        "{said}"
    );
    assert!(chain.ping(2, "", Chain::SERVER).iter().all(|ms| *ms > 39.0));
    let (code, said) = set("r0,r1=kernel");
    assert!(code == Some(2) && said.contains("--link"), "{said}");
    relay.stop(Signal::Term);
}
