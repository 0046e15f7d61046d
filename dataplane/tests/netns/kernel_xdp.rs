//! Pairs that the kernel carries at XDP, in the drivers of veth: what differs from tc.

use std::time::Duration;

use l2relay::{
    config::{Backend, Config, KernelHook},
    relay::Relay as Library,
};

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, Tag, attempt, eventually, mac, mac_text,
    multicast, offloaded, plain, receive_raw, send_raw, send_vnet, tagged, tcp_both_ways,
    tcp_frame, udp_frame,
};
use crate::kernel::{attached, exists, flapped, links, refused};

const XDP: &[&str] = &[
    "--pair",
    "r0,r1",
    "--backend",
    "kernel",
    "--kernel-hook",
    "xdp",
];
const MIB: u64 = 1 << 20;

/// A chain whose hosts take XDP frames.
fn open(mtu: u32) -> Option<Chain> {
    let chain = Chain::open(mtu)?;
    for (space, host) in [("client", "c0"), ("server", "s0")] {
        chain.net.sh(space, &format!("ethtool -K {host} gro on"));
    }
    Some(chain)
}

#[test]
fn frames_of_every_size_arrive_in_order_and_untouched() {
    let Some(chain) = open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", XDP);
    assert!(relay.says("kernel [r0 xdp; r1 xdp]"), "{}", relay.said());
    let mut frames: Vec<Vec<u8>> = (60..=1514).map(|size| plain(size, size as u32)).collect();
    let tag = Tag {
        tpid: 0x8100,
        tci: 0x2005,
    };
    frames.push(tagged(&udp_frame(1514, 9), &[tag]));
    frames.push(multicast([0xff; 6], 200, 7));
    let (there, back) = (
        Capture::start(net, "server", "s0", ""),
        Capture::start(net, "client", "c0", ""),
    );
    // A sender's ring is short; what does not fit it is the sender's loss.
    for some in frames.chunks(100) {
        send_raw(net, "client", "c0", some);
        send_raw(net, "server", "s0", some);
    }
    let arrived = there.frames(frames.len());
    assert!(arrived == frames, "{} of {}", arrived.len(), frames.len());
    assert!(back.frames(frames.len()) == frames);
    let last = relay.stop(Signal::Term);
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let (count, bytes) = (frames.len() as u64, bytes as u64);
    for way in [last.way("r0", "r1"), last.way("r1", "r0")] {
        assert_eq!(
            (way.rx_packets, way.tx_packets, way.rx_bytes, way.tx_bytes),
            (count, count, bytes, bytes),
            "{way:?}"
        );
    }
    assert_eq!(attached(net), "");
}

/// What a host leaves to its device to sum up, nobody would.
#[test]
fn partial_checksums_are_completed() {
    let Some(chain) = open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", XDP);
    let tag = Tag {
        tpid: 0x8100,
        tci: 7,
    };
    let mut plains: Vec<(Vec<u8>, usize)> = (0..40)
        .chain([511, 512, 513, 1023, 1024, 1400])
        .map(|size| {
            // Apart, so that the receiver merges none of them.
            let seq = size as u32 * 10_000;
            (tcp_frame(&vec![size as u8 | 1; size], seq), 14)
        })
        .collect();
    plains.push((udp_frame(1201, 5), 14));
    plains.push((tagged(&udp_frame(700, 6), &[tag, tag]), 22));
    let partial: Vec<_> = plains
        .iter()
        .map(|(frame, network)| offloaded(frame, *network, None))
        .collect();
    assert!(
        partial
            .iter()
            .zip(&plains)
            .all(|(sent, whole)| sent.1 != whole.0)
    );
    let receiver = receive_raw(net, "server", "s0", plains.len());
    send_vnet(net, "client", "c0", &partial);
    let arrived = receiver.frames();
    assert_eq!(arrived.len(), plains.len());
    for (arrived, (whole, _)) in arrived.iter().zip(&plains) {
        // The receiver's kernel takes the outermost tag off.
        let mut whole = whole.clone();
        if whole[12..14] == [0x81, 0] {
            whole.drain(12..16);
        }
        assert!(arrived.bytes == whole, "{} bytes", whole.len());
    }
    relay.stop(Signal::Term);
}

#[test]
fn tcp_with_default_offloads_and_every_mac_mode() {
    let to = [
        format!("r0={}", mac_text("c0")),
        format!("r1={}", mac_text("s0")),
    ];
    let update = ["--mac", "update", "--dst-mac", &to[0], "--dst-mac", &to[1]];
    for mac in [&[][..], &update] {
        let Some(chain) = open(1500) else {
            return;
        };
        let net = &chain.net;
        let relay = Relay::start(net, "relay", &[XDP, mac].concat());
        tcp_both_ways(net, Chain::SERVER, 8 * MIB);
        chain.ping(3, "-s 1400", Chain::SERVER);
        chain.settle();
        let last = relay.stop(Signal::Term);
        let (way, back) = (last.way("r0", "r1"), last.way("r1", "r0"));
        assert_eq!((way.lost(), back.lost()), (0, 0), "{way:?}");
        assert!(way.tx_packets > 8 * MIB / 1500, "{way:?}");
    }
    let Some(chain) = open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    for (mode, wanted) in [
        ("swap", [mac("c0"), mac("s0")]),
        ("update", [[2, 0, 0, 0, 0, 1], mac("r1")]),
    ] {
        let relay = Relay::start(net, "relay", &[XDP, &["--mac", mode]].concat());
        let capture = Capture::start(net, "server", "s0", "");
        let frame = udp_frame(300, 4);
        send_raw(net, "client", "c0", std::slice::from_ref(&frame));
        let arrived = capture.frames(1).pop().expect("it arrives");
        assert_eq!(arrived[..12], wanted.concat(), "{mode}");
        assert_eq!(arrived[12..], frame[12..]);
        relay.stop(Signal::Term);
    }
}

#[test]
fn a_hairpin_reflects_and_its_guard_drops_groups() {
    let Some(net) = Net::open(&["host", "relay"]) else {
        return;
    };
    net.veth(("host", "h0"), ("relay", "r0"));
    net.sh("host", "ethtool -K h0 gro on");
    let hairpin = ["--hairpin", "r0", "--mac", "swap", "--hairpin-guard"];
    let relay = Relay::start(&net, "relay", &[&hairpin, &XDP[2..]].concat());
    let frames: Vec<Vec<u8>> = (0..40)
        .map(|n| match n % 2 {
            0 => plain(100, n),
            _ => multicast([0x33, 0x33, 0, 0, 0, 1], 100, n),
        })
        .collect();
    let receiver = receive_raw(&net, "host", "h0", 20);
    send_raw(&net, "host", "h0", &frames);
    assert_eq!(receiver.frames().len(), 20);
    let way = relay.stop(Signal::Term).way("r0", "r0");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.dropped.get("filtered")),
        (40, 20, Some(&20)),
        "{way:?}"
    );
}

/// A frame for an end that does not poll would be lost without a word.
#[test]
fn a_far_end_that_takes_no_xdp_frames_is_named_and_what_it_loses_counted() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let texts = [
        "r0: its other end",
        "r1: its other end",
        "gro on",
        "--kernel-hook tc",
    ];
    refused(net, &[], XDP, &texts);
    net.sh("client", "ethtool -K c0 gro on");
    net.sh("server", "ethtool -K s0 gro on");

    let mut relay = Relay::start(net, "relay", XDP);
    let frames: Vec<Vec<u8>> = (0..50).map(|n| plain(200, n)).collect();
    send_raw(net, "client", "c0", &frames);
    net.sh("server", "ethtool -K s0 gro off");
    send_raw(net, "client", "c0", &frames);
    // Nobody asks: it looks by itself.
    assert!(
        eventually(PATIENCE, || relay
            .says("50 frames were redirected to it and lost")),
        "{}",
        relay.said()
    );
    let now = relay.snapshot();
    let way = now.way("r0", "r1");
    assert_eq!((way.rx_packets, way.tx_packets), (100, 100), "{way:?}");
    assert_eq!(now.port("r1").device_drops, 50);
    net.sh("server", "ethtool -K s0 gro on");
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert!(capture.frames(50) == frames);
    assert_eq!(relay.stop(Signal::Term).port("r1").device_drops, 50);
}

#[test]
fn mtus_that_differ_are_counted_here_or_by_the_device() {
    let Some(chain) = open(3000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("server", "ip link set s0 mtu 1500");
    let frames: Vec<Vec<u8>> = (0..100)
        .map(|n| plain(if n % 2 == 0 { 2500 } else { 400 }, n))
        .collect();
    for (mtu, sent, oversize, by_device) in [(3000, 100, None, 50), (1500, 50, Some(&50), 0)] {
        net.sh("relay", &format!("ip link set r1 mtu {mtu}"));
        let relay = Relay::start(net, "relay", XDP);
        let before = net.counters("server", "s0").rx_packets;
        send_raw(net, "client", "c0", &frames);
        chain.settle();
        let last = relay.stop(Signal::Term);
        let way = last.way("r0", "r1");
        assert_eq!(
            (way.rx_packets, way.tx_packets, way.dropped.get("oversize")),
            (100, sent, oversize),
            "{way:?}"
        );
        assert_eq!(
            (
                last.port("r1").device_drops,
                net.counters("server", "s0").rx_packets - before
            ),
            (by_device, 50)
        );
    }
    // More than a page has no place in an XDP frame in one piece.
    net.sh("client", "ip link set c0 mtu 9000");
    net.sh("relay", "ip link set r0 mtu 9000");
    refused(net, &[], XDP, &["r0", "mtu 9000", "--kernel-hook tc"]);
}

#[test]
fn flapping_links_keep_the_account() {
    let Some(chain) = open(1500).map(Chain::without_arp) else {
        return;
    };
    flapped(&chain, XDP);
}

#[test]
fn a_deleted_interface_that_returns_is_attached_again() {
    let Some(chain) = open(1500) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(net, "relay", XDP);
    let mut used = Vec::new();
    for (port, host, space, address) in [
        ("r1", "s0", "server", Chain::SERVER),
        ("r0", "c0", "client", Chain::CLIENT),
    ] {
        tcp_both_ways(net, Chain::SERVER, MIB);
        used.push(relay.descriptors_and_threads());
        net.sh("relay", &format!("ip link delete {port}"));
        relay.snapshot_when("seen it gone", |snapshot| {
            snapshot.port(port).state == "gone"
        });
        net.veth((space, host), ("relay", port));
        // Until its other end polls, the pair is not opened.
        net.sh(
            space,
            &format!("ip address add {address}/24 dev {host}; ethtool -K {host} gro on"),
        );
        assert!(relay.says("is open again"));
        relay.snapshot_when("seen it up", |snapshot| snapshot.port(port).state == "up");
    }
    tcp_both_ways(net, Chain::SERVER, MIB);
    used.push(relay.descriptors_and_threads());
    assert!(used.iter().all(|count| *count == used[0]), "{used:?}");
    relay.stop(Signal::Term);
    assert_eq!(attached(net), "");
}

#[test]
fn killed_it_leaves_nothing_and_who_is_there_already_is_named() {
    let Some(chain) = open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", XDP);
    tcp_both_ways(net, Chain::SERVER, MIB);
    let links = links(&relay);
    assert!(links.len() == 2 && links.iter().all(|link| exists(link)));
    refused(net, &[], XDP, &["l2relay_devmap", "runs on r0", "link"]);
    relay.kill();
    assert!(eventually(PATIENCE, || !links
        .iter()
        .any(|link| exists(link))));
    assert_eq!(attached(net), "");

    // Somebody else's.
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf/relay.bpf.o");
    net.sh(
        "relay",
        &format!("ip link set dev r1 xdpdrv obj {object} sec xdp.frags"),
    );
    refused(net, &[], XDP, &["runs on r1", "--replace-xdp", "xdp off"]);
    let relay = Relay::start(net, "relay", &[XDP, &["--replace-xdp"]].concat());
    tcp_both_ways(net, Chain::SERVER, MIB);
    relay.stop(Signal::Term);
    assert_eq!(attached(net), "");
}

/// What the manual says is enough is enough, and what is missing is named.
#[test]
fn rights_that_suffice_and_those_that_do_not() {
    let Some(chain) = open(1500) else {
        return;
    };
    let net = &chain.net;
    let few = |set: &str| -> [String; 3] {
        [
            "setpriv".into(),
            format!("--bounding-set=-all,{set}"),
            "--inh-caps=-all".into(),
        ]
    };
    let enough = few("+bpf,+perfmon,+net_admin,+net_raw");
    let enough: Vec<&str> = enough.iter().map(String::as_str).collect();
    let mut relay = Relay::launch(net, "relay", &enough, XDP);
    relay.wait_ready();
    tcp_both_ways(net, Chain::SERVER, MIB);
    relay.stop(Signal::Term);
    assert_eq!(attached(net), "");
    for (set, missing) in [
        ("+bpf,+net_admin,+net_raw", "CAP_PERFMON"),
        ("+perfmon,+net_admin,+net_raw", "CAP_BPF"),
        ("+bpf,+perfmon,+net_raw", "CAP_NET_ADMIN"),
        ("+bpf,+perfmon,+net_admin", "CAP_NET_RAW"),
    ] {
        let wrapper = few(set);
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        refused(net, &wrapper, XDP, &["r0", missing]);
    }
}

/// Nothing can look on there, and the relay says so.
#[test]
fn a_capture_is_refused_with_the_remedy() {
    let Some(chain) = open(1500) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let relay = Relay::start(net, "relay", &[XDP, &["--name", &name]].concat());
    let look = ["capture", "--name", &name, "--port", "r0", "-c", "1"];
    let output = attempt(net, "relay", &[], &look);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("XDP") && said.contains("--kernel-hook tc"),
        "{said}"
    );
    relay.stop(Signal::Term);
}

/// A flood crosses while its pair moves between packet sockets and XDP: nothing is duplicated or reordered, and what is missing was
/// counted, here or by the devices.
#[test]
fn a_pair_moves_under_load() {
    let Some(chain) = open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let space = net.ns("relay");
    let pair = ["r0", "r1"].map(|port| format!("{space}:{port}").parse().expect("a port's name"));
    let relay = Library::start(Config {
        pairs: vec![pair.clone()],
        backend: Backend::Kernel,
        kernel_hook: KernelHook::Xdp,
        ..Config::default()
    });
    let relay = relay.expect("it starts");
    let line = format!("--address {} --count 60000 --flows 8", Chain::SERVER);
    let receiver = Peer::listen(
        net,
        "server",
        &format!("udp-receive {line} --no-acks --idle 3"),
    );
    let sender = Peer::start(
        net,
        "client",
        &format!("udp-send {line} --no-acks --limit 20"),
    );
    std::thread::sleep(Duration::from_millis(200));
    for stop in [Backend::Packet, Backend::Kernel].iter().cycle().take(6) {
        let how = relay.carry(&pair, *stop).expect("it moves");
        assert!(how.starts_with(&stop.to_string()), "{stop}: {how}");
        assert!(relay.snapshot().is_conserved());
        std::thread::sleep(Duration::from_millis(60));
    }
    let sent = sender.result();
    chain.settle();
    let last = relay.stop();
    let received = receiver.result();
    assert!(last.is_conserved(), "{last}");
    for wrong in ["corrupt", "reordered", "doubled"] {
        assert_eq!(received[wrong], 0, "{sent} {received} {last}");
    }
    assert_eq!(
        received["received"].as_u64().expect("a count") + last.ports[1].device_drops,
        last.lanes[0].tx_packets,
        "{sent} {received} {last}"
    );
    // AF_XDP wants the same place.
    let error = relay_to_xdp_and_back(&chain);
    assert!(error.contains("=packet first"), "{error}");
}

/// What is said to who moves a pair from AF_XDP to the kernel at XDP at once.
fn relay_to_xdp_and_back(chain: &Chain) -> String {
    let name = chain.net.ns("relay");
    let relay = Relay::start(&chain.net, "relay", &[XDP, &["--name", &name]].concat());
    let set = |carry: &str| {
        let words = ["set", "--name", &name, "--carry", carry];
        let output = attempt(&chain.net, "relay", &[], &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = set("r0,r1=xdp");
    assert_eq!(code, Some(0), "{said}");
    tcp_both_ways(&chain.net, Chain::SERVER, MIB);
    let (code, error) = set("r0,r1=kernel");
    assert_eq!(code, Some(2), "{error}");
    assert_eq!(set("r0,r1=packet").0, Some(0));
    assert_eq!(set("r0,r1=kernel").0, Some(0));
    tcp_both_ways(&chain.net, Chain::SERVER, MIB);
    relay.stop(Signal::Term);
    error
}
