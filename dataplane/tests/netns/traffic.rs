//! Everyday traffic with veth's default offloads: what unmodified hosts send must arrive as it was.

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, eventually, plain, send_raw, udp_frame,
};

const RUN: &[&str] = &["--pair", "r0,r1"];
const MIB: u64 = 1 << 20;

/// A relay that loops its own or its neighbours' frames back makes duplicate address detection fail, or answers twice.
#[test]
fn ping_by_both_ip_versions_without_duplicates() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    // Only now IPv6 and its addresses: the probes for duplicates must cross the relay.
    for (space, interface, address) in [("client", "c0", "fd09::1"), ("server", "s0", "fd09::2")] {
        net.sh(
            space,
            &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0"),
        );
        net.sh(
            space,
            &format!("ip address add {address}/64 dev {interface}"),
        );
    }
    for (space, interface) in [("client", "c0"), ("server", "s0")] {
        let list = || net.sh(space, &format!("ip -6 address show dev {interface}"));
        assert!(
            eventually(PATIENCE, || !list().contains("tentative")),
            "{}",
            list()
        );
        assert_eq!(
            list().matches("inet6").count(),
            2,
            "a link-local address and ours: {}",
            list()
        );
        assert!(!list().contains("dadfailed"), "{}", list());
    }
    for target in [Chain::SERVER, "fd09::2"] {
        chain.ping(10, "", target);
        // Duplicates show when ping waits for more; the last answer may come too late for it.
        let text = net.sh("client", &format!("ping -n -c 5 -i 0.1 {target}"));
        assert!(!text.contains("DUP"), "{text}");
    }
    let last = relay.stop(Signal::Term);
    assert_eq!(
        last.way("r0", "r1").lost() + last.way("r1", "r0").lost(),
        0,
        "{last:?}"
    );
}

/// TCP both ways at once; returns nothing, for all it has to say it asserts.
pub(crate) fn tcp_both_ways(net: &Net, server: &str, size: u64) {
    let serve = Peer::listen(
        net,
        "server",
        &format!("tcp-serve --address {server} --size {size} --seed 11"),
    );
    let client = Peer::start(
        net,
        "client",
        &format!("tcp-connect --address {server} --size {size} --seed 22"),
    )
    .result();
    let server = serve.result();
    assert_eq!(client["received"], size);
    assert_eq!(server["received"], size);
    assert_eq!(
        client["received_sha"], server["sent_sha"],
        "server to client"
    );
    assert_eq!(
        server["received_sha"], client["sent_sha"],
        "client to server"
    );
}

/// A relay that loses the virtio header delivers no byte (checksums are only partial); one that segments in software
/// or switches offloads off delivers no frame above the MTU.
#[test]
fn tcp_crosses_in_whole_super_frames() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    let capture = Capture::start(net, "server", "s0", "tcp and greater 9000");
    tcp_both_ways(net, Chain::SERVER, 20 * MIB);
    chain.settle();
    let (client, server) = (net.counters("client", "c0"), net.counters("server", "s0"));
    let last = relay.stop(Signal::Term);

    let large = capture.lengths(10);
    assert!(
        large.len() >= 10,
        "only {} frames above 9000 bytes at the far end",
        large.len()
    );
    assert!(
        large.iter().any(|&length| length > 32_000),
        "no super-frame above 32 KB crossed: {large:?}"
    );
    for (way, sent, received) in [
        (last.way("r0", "r1"), client.tx_packets, server.rx_packets),
        (last.way("r1", "r0"), server.tx_packets, client.rx_packets),
    ] {
        assert_eq!(way.lost() + way.held, 0, "{way:?}");
        // 1448 bytes of TCP in a segment: the lane counts segments, the interfaces socket buffers.
        assert!(
            way.tx_packets > 20 * MIB / 1448,
            "segments are counted: {way:?}"
        );
        assert!(
            received <= sent,
            "{received} buffers left the relay where {sent} came in"
        );
        assert!(
            received < way.tx_packets / 3,
            "{received} buffers for {} segments",
            way.tx_packets
        );
    }
    for port in ["r0", "r1"] {
        assert_eq!(last.port(port).kernel_drops, 0, "{last:?}");
    }
}

#[test]
fn tcp_over_ipv6() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    for (space, interface, address) in [("client", "c0", "fd09::1"), ("server", "s0", "fd09::2")] {
        net.sh(
            space,
            &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0"),
        );
        net.sh(
            space,
            &format!("ip address add {address}/64 dev {interface} nodad"),
        );
    }
    let relay = Relay::start(net, "relay", RUN);
    tcp_both_ways(net, "fd09::2", 8 * MIB);
    let last = relay.stop(Signal::Int);
    assert_eq!(
        last.way("r0", "r1").lost() + last.way("r1", "r0").lost(),
        0,
        "{last:?}"
    );
}

/// Sends numbered datagrams one way, and demands each of them, unharmed and in its place.
pub(crate) fn udp_one_way(
    net: &Net,
    from: &str,
    to: &str,
    address: &str,
    options: &str,
    count: u64,
) -> serde_json::Value {
    let receive = Peer::listen(
        net,
        to,
        &format!("udp-receive --address {address} --count {count}"),
    );
    let sent = Peer::start(
        net,
        from,
        &format!("udp-send --address {address} --count {count} {options}"),
    )
    .result();
    let received = receive.result();
    let wanted = serde_json::json!({"received": count, "corrupt": 0, "reordered": 0, "gaps": 0, "doubled": 0});
    assert_eq!(received, wanted, "sender: {sent}");
    assert_eq!(sent["sent"], count);
    sent
}

#[test]
fn udp_both_ways_with_default_offloads() {
    // The kernel itself lets frames that waited for ARP be overtaken.
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    udp_one_way(
        net,
        "client",
        "server",
        Chain::SERVER,
        "--flows 8 --large 1472",
        4000,
    );
    udp_one_way(
        net,
        "server",
        "client",
        Chain::CLIENT,
        "--flows 8 --large 1472",
        4000,
    );
    let last = relay.stop(Signal::Term);
    for way in [last.way("r0", "r1"), last.way("r1", "r0")] {
        assert!(way.tx_packets >= 4000 && way.lost() == 0, "{way:?}");
    }
}

/// Small, large and super-frames of 32 flows mixed: two transmit paths (ring and socket) must not overtake each other.
#[test]
fn udp_super_frames_keep_their_place_among_small_ones() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    let sent = udp_one_way(
        net,
        "client",
        "server",
        Chain::SERVER,
        "--gso --flows 32 --seed 5",
        12_000,
    );
    let supers = sent["supers"].as_u64().expect("a count");
    assert!(supers > 100, "the sender made {supers} super-frames");
    chain.settle();
    let (client, server) = (net.counters("client", "c0"), net.counters("server", "s0"));
    let last = relay.stop(Signal::Term);
    let way = last.way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (12_000, 12_000, 0),
        "segments are counted: {way:?}"
    );
    assert!(
        server.rx_packets <= client.tx_packets,
        "super-frames were taken apart: {server:?}, {client:?}"
    );
    assert!(
        client.tx_packets < 12_000 / 2,
        "the sender's offload is on: {client:?}"
    );
}

/// The relay stands still while a mixed backlog builds up, then takes it in full bursts: the hardest case for order.
#[test]
fn a_backlog_of_mixed_frames_leaves_in_order() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(net, "relay", RUN);
    let receive = Peer::listen(
        net,
        "server",
        &format!(
            "udp-receive --no-acks --address {} --count 700",
            Chain::SERVER
        ),
    );
    relay.signal(Signal::Freeze);
    let line = "udp-send --no-acks --gso --flows 4 --segments 4 --large 1000 --count 700 --seed 3 --address";
    let sent = Peer::start(net, "client", &format!("{line} {}", Chain::SERVER)).result();
    let buffers = net.counters("client", "c0").tx_packets;
    relay.signal(Signal::Thaw);
    let received = receive.result();
    assert!(
        sent["supers"].as_u64() > Some(50) && buffers > 100,
        "{sent}"
    );
    assert_eq!(
        (
            &received["reordered"],
            &received["corrupt"],
            &received["doubled"]
        ),
        (&0.into(), &0.into(), &0.into())
    );
    chain.settle();
    let snapshot = relay.snapshot();
    let (way, port) = (snapshot.way("r0", "r1"), snapshot.port("r0"));
    // Kernel drops count socket buffers, so with any the exact sum is not known; the ring has room for all of these.
    assert_eq!(port.kernel_drops, 0, "{snapshot:?}");
    assert_eq!(received["received"], 700, "{snapshot:?}");
    assert_eq!((way.rx_packets, way.tx_packets), (700, 700), "{way:?}");
}

#[test]
fn frames_of_every_size_arrive_byte_for_byte() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    // Datagrams with their checksums, and frames no parser knows, of all lengths from the shortest to the longest.
    let known = (60..=1514).map(|size| udp_frame(size, size as u32));
    let unknown = (14..=1514).map(|size| plain(size, size as u32));
    let frames: Vec<Vec<u8>> = known.chain(unknown).collect();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    let arrived = capture.frames(frames.len());
    let last = relay.stop(Signal::Term);
    assert_eq!(arrived.len(), frames.len(), "{last:?}");
    for (sent, arrived) in frames.iter().zip(&arrived) {
        assert_eq!(sent, arrived);
    }
    let way = last.way("r0", "r1");
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!(
        (way.rx_packets, way.tx_packets),
        (frames.len() as u64, frames.len() as u64)
    );
    assert_eq!((way.rx_bytes, way.tx_bytes), (bytes as u64, bytes as u64));
}
