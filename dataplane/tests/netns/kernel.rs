//! Pairs that the kernel carries: the contract of a relay, as a black box, at each place where a program can be attached.

use std::{process::Command, time::Duration};

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, Snapshot, Tag, attempt, eventually, mac,
    mac_text, multicast, offloaded, plain, receive_raw, send_raw, send_vnet, tagged,
    tap_and_server, tcp_both_ways, tcp_frame, udp_frame,
};

const KERNEL: &[&str] = &["--pair", "r0,r1", "--backend", "kernel"];
const CLSACT: &[&str] = &[
    "--pair",
    "r0,r1",
    "--backend",
    "kernel",
    "--kernel-hook",
    "clsact",
];
const MIB: u64 = 1 << 20;

/// Everything of tc and of XDP that is attached to the relay's ports and outlives its owner.
pub(crate) fn attached(net: &Net) -> String {
    let look = |port: &str| {
        let line = format!(
            "tc qdisc show dev {port} clsact; tc filter show dev {port} ingress; ip -d link show {port} | grep -o prog/xdp || true"
        );
        net.sh("relay", &line)
    };
    look("r0") + &look("r1")
}

/// The links that a relay holds programs by, as the kernel numbers them.
pub(crate) fn links(relay: &Relay) -> Vec<String> {
    let infos = std::fs::read_dir(format!("/proc/{}/fdinfo", relay.pid())).expect("it runs");
    let texts = infos
        .flatten()
        .filter_map(|info| std::fs::read_to_string(info.path()).ok());
    texts
        .filter_map(|text| {
            let id = text
                .lines()
                .find_map(|line| line.strip_prefix("link_id:"))?;
            Some(id.trim().to_owned())
        })
        .collect()
}

/// Whether bpftool knows the link.
pub(crate) fn exists(link: &str) -> bool {
    let shown = Command::new("bpftool")
        .args(["link", "show", "id", link])
        .output();
    shown
        .expect("bpftool (bpftool) is installed")
        .status
        .success()
}

#[test]
fn frames_of_every_size_arrive_in_order_and_untouched() {
    for run in [KERNEL, CLSACT] {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let relay = Relay::start(net, "relay", run);
        let mut frames: Vec<Vec<u8>> = (60..=1514).map(|size| plain(size, size as u32)).collect();
        for tags in [1, 2] {
            let tag = Tag {
                tpid: if tags == 1 { 0x8100 } else { 0x88a8 },
                tci: 0x2005,
            };
            // A sender's packet socket has room for one 802.1Q tag above the MTU, and no other.
            let size = if tags == 1 { 1514 } else { 1506 };
            frames.push(tagged(&udp_frame(size, 9), &vec![tag; tags]));
        }
        frames.push(multicast([0xff; 6], 200, 7));
        let (there, back) = (
            Capture::start(net, "server", "s0", ""),
            Capture::start(net, "client", "c0", ""),
        );
        send_raw(net, "client", "c0", &frames);
        let arrived = there.frames(frames.len());
        assert!(arrived == frames, "{} of {}", arrived.len(), frames.len());
        send_raw(net, "server", "s0", &frames);
        assert!(back.frames(frames.len()) == frames);
        let last = relay.stop(Signal::Term);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        for way in [last.way("r0", "r1"), last.way("r1", "r0")] {
            assert_eq!(
                (way.rx_packets, way.tx_packets, way.rx_bytes, way.tx_bytes),
                (
                    frames.len() as u64,
                    frames.len() as u64,
                    bytes as u64,
                    bytes as u64
                ),
                "{way:?}"
            );
        }
        assert_eq!(attached(net), "");
    }
}

#[test]
fn tcp_with_default_offloads_and_every_mac_mode() {
    let to = [
        format!("r0={}", mac_text("c0")),
        format!("r1={}", mac_text("s0")),
    ];
    let update = ["--mac", "update", "--dst-mac", &to[0], "--dst-mac", &to[1]];
    for run in [KERNEL, CLSACT] {
        for mac in [&[][..], &update] {
            let Some(chain) = Chain::open(1500) else {
                return;
            };
            let net = &chain.net;
            let relay = Relay::start(net, "relay", &[run, mac].concat());
            tcp_both_ways(net, Chain::SERVER, 8 * MIB);
            chain.ping(3, "-s 1400", Chain::SERVER);
            chain.settle();
            let device = net.counters("relay", "r0");
            let last = relay.stop(Signal::Term);
            let way = last.way("r0", "r1");
            assert_eq!((way.lost(), last.way("r1", "r0").lost()), (0, 0), "{way:?}");
            assert!(
                way.rx_packets > 2 * device.rx_packets,
                "super-frames crossed whole: {device:?} {way:?}"
            );
            assert_eq!(way.rx_bytes, device.rx_bytes, "{way:?}");
        }
    }
}

/// The checksum left to the device, and the segments left to it, are left to the next one.
#[test]
fn offloads_travel_with_the_frame() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", &[KERNEL, &["--mac", "swap"]].concat());
    let frames = [
        offloaded(&tcp_frame(&[3; 30_000], 1), 14, Some(1000)),
        offloaded(&tcp_frame(&[4; 700], 2), 14, None),
        offloaded(&udp_frame(1200, 5), 14, None),
    ];
    let receiver = receive_raw(net, "server", "s0", frames.len());
    send_vnet(net, "client", "c0", &frames);
    let mut arrived = receiver.frames();
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!(arrived.len(), frames.len(), "{way:?}");
    for (arrived, (header, frame)) in arrived.iter_mut().zip(&frames) {
        arrived.bytes[..12].rotate_left(6);
        assert!(arrived.bytes == *frame);
        // All but the header length, which is a hint.
        assert_eq!(
            (&arrived.vnet[..2], &arrived.vnet[4..]),
            (&header[..2], &header[4..])
        );
    }
    assert_eq!((way.rx_packets, way.tx_packets), (32, 32), "{way:?}");
}

/// Of a super-frame that a virtual machine sends, nobody but the program counts the segments.
#[test]
fn segments_of_a_taps_super_frames_are_counted() {
    let Some((net, mut tap)) = tap_and_server() else {
        return;
    };
    let relay = Relay::start(&net, "relay", &["--pair", "t0,r1", "--backend", "kernel"]);
    let vlan = Tag {
        tpid: 0x8100,
        tci: 7,
    };
    let plain = tcp_frame(&[5; 20_500], 1);
    let (header, frame) = offloaded(&plain, 14, Some(1000));
    let (tagged_header, tagged_frame) = offloaded(&tagged(&plain, &[vlan]), 18, Some(1000));
    let receiver = receive_raw(&net, "server", "s0", 2);
    tap.send(&[(header, frame), (tagged_header, tagged_frame)]);
    assert_eq!(receiver.frames().len(), 2);
    let way = relay.stop(Signal::Term).way("t0", "r1");
    assert_eq!((way.rx_packets, way.tx_packets), (42, 42), "{way:?}");
}

#[test]
fn swap_and_update_write_the_addresses() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    for (mode, wanted) in [
        ("swap", [mac("c0"), mac("s0")]),
        ("update", [[2, 0, 0, 0, 0, 1], mac("r1")]),
    ] {
        let relay = Relay::start(net, "relay", &[KERNEL, &["--mac", mode]].concat());
        let capture = Capture::start(net, "server", "s0", "");
        let frame = udp_frame(300, 4);
        send_raw(net, "client", "c0", std::slice::from_ref(&frame));
        let arrived = capture.frames(1).pop().expect("it arrives");
        assert_eq!(arrived[..12], wanted.concat(), "{mode}");
        assert_eq!(arrived[12..], frame[12..]);
        relay.stop(Signal::Term);
    }
    // The address is the one that the port has, also when it is changed under way.
    let mut relay = Relay::start(net, "relay", &[KERNEL, &["--mac", "update"]].concat());
    net.sh("relay", "ip link set r1 address 02:00:00:00:77:01");
    let capture = Capture::start(net, "server", "s0", "ether src 02:00:00:00:77:01");
    assert!(eventually(PATIENCE, || {
        send_raw(net, "client", "c0", &[plain(100, 1)]);
        capture.has_any()
    }));
    relay.snapshot();
    relay.stop(Signal::Term);
}

#[test]
fn a_hairpin_reflects_and_its_guard_drops_groups() {
    let Some(net) = Net::open(&["host", "relay"]) else {
        return;
    };
    net.veth(("host", "h0"), ("relay", "r0"));
    let args = [
        "--hairpin",
        "r0",
        "--backend",
        "kernel",
        "--mac",
        "swap",
        "--hairpin-guard",
    ];
    let relay = Relay::start(&net, "relay", &args);
    let frames: Vec<Vec<u8>> = (0..40)
        .map(|n| {
            if n % 2 == 0 {
                plain(100, n)
            } else {
                multicast([0x33, 0x33, 0, 0, 0, 1], 100, n)
            }
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

/// The two MTUs differ: what is too long is counted, super-frames by the length of their segments.
#[test]
fn oversize_is_counted_and_stops_nothing() {
    let Some(chain) = Chain::open(9000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("relay", "ip link set r1 mtu 1500");
    let mut relay = Relay::start(net, "relay", KERNEL);
    let tag = Tag {
        tpid: 0x8100,
        tci: 3,
    };
    // The kernel takes the first tag off before it counts, so two are needed to have one inside.
    let tagged_twice = tagged(&udp_frame(1514, 3), &[tag, tag]);
    let frames = [
        plain(1514, 1),
        plain(1515, 2),
        tagged_twice.clone(),
        plain(4000, 4),
        plain(60, 5),
    ];
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    let passed = [frames[0].clone(), tagged_twice, frames[4].clone()];
    assert!(capture.frames(3) == passed);
    let way = relay.snapshot().way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.dropped.get("oversize")),
        (5, 3, Some(&2)),
        "{way:?}"
    );
    // 1460 bytes of TCP make a frame of 1514, 1461 one too many.
    let receiver = receive_raw(net, "server", "s0", 1);
    let fits = offloaded(&tcp_frame(&[1; 14_600], 1), 14, Some(1460));
    let exceeds = offloaded(&tcp_frame(&[2; 14_610], 1), 14, Some(1461));
    send_vnet(net, "client", "c0", &[exceeds, fits.clone()]);
    let arrived = receiver.frames();
    assert_eq!(arrived.len(), 1);
    assert!(arrived[0].bytes == fits.1);
    // Raised under way, the MTU holds at once.
    net.sh("relay", "ip link set r1 mtu 9000");
    let capture = Capture::start(net, "server", "s0", "");
    assert!(eventually(PATIENCE, || {
        send_raw(net, "client", "c0", &[plain(4000, 6)]);
        capture.has_any()
    }));
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert!(way.dropped["oversize"] >= 12, "{way:?}");
}

/// What the far end of the cable does not take, the port has dropped after it was sent: shown apart.
#[test]
fn what_the_device_drops_is_shown_apart() {
    let Some(chain) = Chain::open(9000).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("server", "ip link set s0 mtu 1500");
    let relay = Relay::start(net, "relay", KERNEL);
    let frames: Vec<Vec<u8>> = (0..100)
        .map(|n| plain(if n % 2 == 0 { 4000 } else { 400 }, n))
        .collect();
    send_raw(net, "client", "c0", &frames);
    chain.settle();
    let last = relay.stop(Signal::Term);
    let way = last.way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets, way.lost()),
        (100, 100, 0),
        "{way:?}"
    );
    assert_eq!(
        (
            last.port("r1").device_drops,
            net.counters("server", "s0").rx_packets
        ),
        (50, 50)
    );
}

#[test]
fn links_that_go_down_are_counted_and_up_again_carry() {
    for run in [KERNEL, CLSACT] {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let mut relay = Relay::start(net, "relay", run);
        // The port itself, and the far end of its cable.
        for (space, interface) in [("relay", "r1"), ("server", "s0")] {
            net.sh(space, &format!("ip link set {interface} down"));
            relay.snapshot_when("seen r1 down", |snapshot| {
                snapshot.port("r1").state == "down"
            });
            let before = relay.snapshot().way("r0", "r1");
            send_raw(
                net,
                "client",
                "c0",
                &(0..50).map(|n| plain(80, n)).collect::<Vec<_>>(),
            );
            let after = relay.snapshot().way("r0", "r1");
            let down = |way: &crate::common::Lane| way.dropped.get("link_down").copied();
            assert_eq!(
                down(&after).unwrap_or_default() - down(&before).unwrap_or_default(),
                50,
                "{after:?}"
            );
            net.sh(space, &format!("ip link set {interface} up"));
            relay.snapshot_when("seen r1 up", |snapshot| snapshot.port("r1").state == "up");
            let capture = Capture::start(net, "server", "s0", "");
            send_raw(net, "client", "c0", &[plain(90, 1)]);
            assert_eq!(capture.frames(1), [plain(90, 1)]);
        }
        relay.stop(Signal::Term);
    }
}

/// Under traffic, with links that flap: what came is received, what was sent arrives or is in the device's own count.
#[test]
fn flapping_links_keep_the_account() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let last = flapped(&chain, KERNEL);
    assert_eq!(
        last.way("r0", "r1").rx_packets,
        chain.net.counters("relay", "r0").rx_packets
    );
}

/// The last word of a relay, started with these arguments, under whose traffic r1 went down and up. Every snapshot was exact, at full
/// speed too, and what was sent arrived or is in the device's own count.
pub(crate) fn flapped(chain: &Chain, args: &[&str]) -> Snapshot {
    let net = &chain.net;
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let mut relay = Relay::start(net, "relay", args);
    let line = format!(
        "flood --address {} --count 60000 --size 200 --flows 4 --pause 0.001",
        Chain::SERVER
    );
    let load = Peer::listen(net, "client", &line);
    for _ in 0..8 {
        net.sh("relay", "ip link set r1 down");
        std::thread::sleep(Duration::from_millis(30));
        net.sh("relay", "ip link set r1 up");
        std::thread::sleep(Duration::from_millis(60));
        relay.live_snapshot().check();
    }
    load.result();
    chain.settle();
    let last = relay.stop(Signal::Term);
    let (way, r1) = (last.way("r0", "r1"), last.port("r1"));
    assert!(way.dropped.get("link_down") > Some(&0), "{way:?}");
    assert_eq!(
        way.tx_packets,
        net.counters("server", "s0").rx_packets + r1.device_drops,
        "{way:?} {r1:?}"
    );
    last
}

#[test]
fn a_deleted_interface_that_returns_is_attached_again() {
    for run in [KERNEL, CLSACT] {
        let Some(chain) = Chain::open(1500) else {
            return;
        };
        let net = &chain.net;
        let mut relay = Relay::start(net, "relay", run);
        let mut used = Vec::new();
        for (port, host, space, address) in [
            ("r1", "s0", "server", Chain::SERVER),
            ("r0", "c0", "client", Chain::CLIENT),
        ] {
            tcp_both_ways(net, Chain::SERVER, MIB);
            used.push(relay.descriptors_and_threads());
            let before = relay.snapshot();
            net.sh("relay", &format!("ip link delete {port}"));
            relay.snapshot_when("seen it gone", |snapshot| {
                snapshot.port(port).state == "gone"
            });
            net.veth((space, host), ("relay", port));
            net.sh(space, &format!("ip address add {address}/24 dev {host}"));
            assert!(relay.says("is open again"));
            relay.snapshot_when("seen it up", |snapshot| snapshot.port(port).state == "up");
            let after = relay.snapshot();
            assert!(
                after.way("r0", "r1").tx_packets >= before.way("r0", "r1").tx_packets,
                "counts go on"
            );
        }
        tcp_both_ways(net, Chain::SERVER, MIB);
        used.push(relay.descriptors_and_threads());
        assert!(used.iter().all(|count| *count == used[0]), "{used:?}");
        relay.stop(Signal::Term);
        assert_eq!(attached(net), "");
    }
}

#[test]
fn killed_it_leaves_nothing_or_what_the_next_one_takes_over() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", KERNEL);
    tcp_both_ways(net, Chain::SERVER, MIB);
    let links = links(&relay);
    assert!(links.len() == 2 && links.iter().all(|link| exists(link)));
    relay.kill();
    assert!(eventually(PATIENCE, || !links
        .iter()
        .any(|link| exists(link))));
    assert_eq!(attached(net), "");

    // Without tcx the filters stay, and go on forwarding. Either hook takes them over.
    for next in [CLSACT, KERNEL] {
        let relay = Relay::start(net, "relay", CLSACT);
        relay.kill();
        assert!(
            attached(net).contains("l2relay_forward"),
            "{}",
            attached(net)
        );
        let relay = Relay::start(net, "relay", next);
        tcp_both_ways(net, Chain::SERVER, MIB);
        let last = relay.stop(Signal::Term);
        assert!(last.way("r0", "r1").tx_packets > 100, "{last:?}");
        assert_eq!(attached(net), "", "after {next:?}");
    }
}

/// Tries to start another, which must be refused with these texts and change nothing.
pub(crate) fn refused(net: &Net, wrapper: &[&str], args: &[&str], texts: &[&str]) {
    let before = attached(net);
    let output = attempt(net, "relay", wrapper, &[&["run"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for text in texts {
        assert!(said.contains(text), "no {text:?} in\n{said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(attached(net), before);
}

#[test]
fn who_is_on_the_hook_already_is_named() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    for run in [KERNEL, CLSACT] {
        let other = Relay::start(net, "relay", run);
        for next in [KERNEL, CLSACT] {
            let texts = ["r0, from which another l2relay forwards", "stop that one"];
            refused(net, &[], next, &texts);
        }
        tcp_both_ways(net, Chain::SERVER, MIB);
        other.stop(Signal::Term);
    }
    // A foreign filter.
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../bpf/forward.bpf.o");
    net.sh("relay", "tc qdisc add dev r1 clsact");
    net.sh(
        "relay",
        &format!("tc filter add dev r1 ingress bpf direct-action obj {object} sec tc"),
    );
    for run in [KERNEL, CLSACT] {
        let texts = ["bpf filter", "r1", "tc filter del dev r1 ingress"];
        refused(net, &[], run, &texts);
    }
    net.sh("relay", "tc filter del dev r1 ingress");
    // One that is iproute2's own, and no BPF.
    net.sh(
        "relay",
        "tc filter add dev r1 ingress protocol ip u32 match u32 0 0",
    );
    for run in [KERNEL, CLSACT] {
        let texts = ["u32 filter", "r1", "tc filter del dev r1 ingress"];
        refused(net, &[], run, &texts);
    }
    net.sh("relay", "tc filter del dev r1 ingress");
    // Somebody's program on tcx, held by a link.
    let somebody = Peer::listen(net, "relay", "tcx --interface r1");
    for run in [KERNEL, CLSACT] {
        let texts = ["somebody", "tcx of r1", "bpftool link show id"];
        refused(net, &[], run, &texts);
    }
    somebody.result();
    // A qdisc that somebody else made stays.
    Relay::start(net, "relay", CLSACT).stop(Signal::Term);
    assert_eq!(
        net.sh(
            "relay",
            "tc filter show dev r1 ingress; tc qdisc show dev r0 clsact"
        ),
        ""
    );
    assert!(
        net.sh("relay", "tc qdisc show dev r1 clsact")
            .contains("clsact")
    );
}

#[test]
fn what_needs_user_space_is_refused_all_at_once() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let links = [
        "--link",
        "r0>r1 delay 5ms",
        "--link",
        "r1>r0 delay 5ms",
        "--rx",
        "xdp",
    ];
    refused(
        net,
        &[],
        &[KERNEL, &links].concat(),
        &["'r0>r1'", "'r1>r0'", "user space", "--rx xdp", "fastest"],
    );
    refused(
        net,
        &[
            "setpriv",
            "--bounding-set=-bpf,-sys_admin",
            "--inh-caps=-all",
        ],
        KERNEL,
        &["r0", "CAP_BPF", "setcap"],
    );
    refused(
        net,
        &[
            "setpriv",
            "--bounding-set=-net_admin,-sys_admin",
            "--inh-caps=-all",
        ],
        KERNEL,
        &["r0", "CAP_NET_ADMIN"],
    );
    refused(
        net,
        &[],
        &[KERNEL, &["--kernel-hook", "egress"]].concat(),
        &["egress", "clsact"],
    );
    let apart = format!("r0,{}:s0", net.ns("server"));
    refused(
        net,
        &[],
        &["--pair", &apart, "--backend", "kernel"],
        &["two network namespaces", "packet"],
    );
}

/// What the manual says is enough is enough.
#[test]
fn three_rights_suffice() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let few = [
        "setpriv",
        "--bounding-set=-all,+bpf,+net_admin,+net_raw",
        "--inh-caps=-all",
    ];
    for run in [KERNEL, CLSACT] {
        let mut relay = Relay::launch(net, "relay", &few, run);
        relay.wait_ready();
        tcp_both_ways(net, Chain::SERVER, MIB);
        relay.stop(Signal::Term);
        assert_eq!(attached(net), "");
    }
    // Without promiscuous mode one less.
    let fewer = [
        "setpriv",
        "--bounding-set=-all,+bpf,+net_admin",
        "--inh-caps=-all",
    ];
    let mut relay = Relay::launch(net, "relay", &fewer, &[KERNEL, &["--no-promisc"]].concat());
    relay.wait_ready();
    tcp_both_ways(net, Chain::SERVER, MIB);
    relay.stop(Signal::Term);
}

#[test]
fn the_fastest_is_the_kernel_where_nothing_needs_user_space() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let fastest = ["--pair", "r0,r1", "--backend", "fastest"];
    let link = ["--link", "r0>r1 delay 1ms"];
    let no_rights = [
        "setpriv",
        "--bounding-set=-bpf,-sys_admin",
        "--inh-caps=-all",
    ];
    for (wrapper, more, texts) in [
        (&[][..], &[][..], &["kernel [r0 tcx; r1 tcx]"][..]),
        (&[], &link, &["(auto: a link is emulated"]),
        (
            &no_rights,
            &[],
            &["(auto: r0 is a veth", "not the kernel", "CAP_BPF"],
        ),
    ] {
        let mut relay = Relay::launch(net, "relay", wrapper, &[&fastest, more].concat());
        relay.wait_ready();
        tcp_both_ways(net, Chain::SERVER, MIB);
        for text in texts {
            assert!(relay.says(text), "no {text:?} in {}", relay.said());
        }
        relay.stop(Signal::Term);
    }
}

/// Both ports in another namespace than the relay.
#[test]
fn ports_in_another_namespace() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let there = net.ns("relay");
    let pair = format!("{there}:r0,{there}:r1");
    for hook in ["tc", "clsact"] {
        let args = [
            "--pair",
            &pair,
            "--backend",
            "kernel",
            "--kernel-hook",
            hook,
        ];
        let relay = Relay::start(net, "server", &args);
        tcp_both_ways(net, Chain::SERVER, MIB);
        relay.stop(Signal::Term);
        assert_eq!(attached(net), "");
    }
}

/// Whatever is said of spinning: nothing of ours runs.
#[test]
fn it_uses_no_cpu() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", &[KERNEL, &["--idle", "spin"]].concat());
    let stat = format!("/proc/{}/stat", relay.pid());
    let ticks = || {
        let text = std::fs::read_to_string(&stat).expect("it runs");
        let fields: Vec<u64> = text
            .rsplit(')')
            .next()
            .expect("fields")
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        // utime and stime; the state before them is no number.
        fields[10] + fields[11]
    };
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks();
    chain.ping(20, "-s 1000", Chain::SERVER);
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks() - before <= 1, "{} ticks", ticks() - before);
    relay.stop(Signal::Term);
}

/// Taps run before tc: whoever looks at a port sees what comes in by it and what leaves by it.
#[test]
fn captures_at_the_ports_see_the_frames() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", KERNEL);
    let frames: Vec<Vec<u8>> = (100..150).map(|size| plain(size, size as u32)).collect();
    // Counts what it sees and ends by itself.
    let watch = |port: &str, direction: &str| {
        let line = format!("timeout 10 tcpdump -q -n -i {port} -Q {direction} -c 50 2>/dev/null");
        let mut command = net.command("relay", "sh");
        let command = command.args(["-c", &line]);
        command.stdout(std::process::Stdio::piped()).spawn()
    };
    let watches = [("r0", "in"), ("r1", "out")]
        .map(|(port, direction)| watch(port, direction).expect("sh runs"));
    // When tcpdump looks is not known: what it needs is sent until both have seen enough.
    let mut watches = watches;
    assert!(eventually(PATIENCE, || {
        send_raw(net, "client", "c0", &frames);
        watches
            .iter_mut()
            .all(|watch| watch.try_wait().is_ok_and(|status| status.is_some()))
    }));
    for watch in watches {
        let seen = watch.wait_with_output().expect("it is our child");
        let lines = String::from_utf8_lossy(&seen.stdout).lines().count();
        assert_eq!(lines, 50, "{}", String::from_utf8_lossy(&seen.stdout));
    }
    relay.stop(Signal::Term);
}

/// The largest number of pairs the bench measures, each with programs of its own; all gone at the end.
#[test]
fn many_pairs() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    let count = 24;
    let script: String = (0..count)
        .map(|n| {
            format!(
                "ip link add a{n} type veth peer name x{n}; ip link add b{n} type veth peer name y{n}; \
                 for i in a{n} b{n} x{n} y{n}; do ip link set $i up; done; "
            )
        })
        .collect();
    net.sh("relay", &script);
    let pairs: Vec<String> = (0..count).map(|n| format!("a{n},b{n}")).collect();
    let mut args = vec!["--backend", "kernel"];
    for pair in &pairs {
        args.extend(["--pair", pair]);
    }
    let mut relay = Relay::start(&net, "relay", &args);
    for n in [0, 11, 23] {
        let capture = Capture::start(&net, "relay", &format!("y{n}"), "");
        send_raw(&net, "relay", &format!("x{n}"), &[plain(100, n)]);
        assert_eq!(capture.frames(1), [plain(100, n)]);
        let way = relay.snapshot().way(&format!("a{n}"), &format!("b{n}"));
        assert_eq!(way.tx_packets, 1);
    }
    let links = links(&relay);
    assert_eq!(links.len(), 2 * count as usize);
    relay.stop(Signal::Term);
    assert!(!links.iter().any(|link| exists(link)));
}
