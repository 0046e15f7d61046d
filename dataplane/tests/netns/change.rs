//! What an administrator changes under a running relay: MTU, addresses, names, and interfaces that return as others.

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, attempt, eventually, mac, plain, send_raw,
};
use crate::control::tell;
use crate::stop::udp_counters;

const RUN: &[&str] = &["--pair", "r0,r1"];

/// Sends these from the client until they arrive at the server: a change takes a moment to be noticed.
fn arrives(net: &Net, frame: &[u8]) -> Vec<u8> {
    let capture = Capture::start(net, "server", "s0", "");
    for _ in 0..100 {
        send_raw(net, "client", "c0", &[frame]);
        if capture.has_any() {
            break;
        }
    }
    capture.frames(1).pop().expect("something arrives")
}

#[test]
fn an_mtu_raised_while_running_is_used() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let relay = Relay::start(net, "relay", RUN);
    assert_eq!(arrives(net, &plain(1514, 1)), plain(1514, 1));
    for (space, interface) in [
        ("client", "c0"),
        ("relay", "r0"),
        ("relay", "r1"),
        ("server", "s0"),
    ] {
        net.sh(space, &format!("ip link set {interface} mtu 9000"));
    }
    let frames: Vec<Vec<u8>> = [9014, 60, 9014, 2049, 5000]
        .map(|size| plain(size, size as u32))
        .into();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(5), frames);
    relay.stop(Signal::Term);
}

/// With every back end: what is too long for an interface since its MTU was lowered is counted, never sent.
#[test]
fn an_mtu_lowered_while_running_is_kept() {
    const RUNS: &[&[&str]] = &[
        &["--backend", "packet"],
        #[cfg(feature = "xdp")]
        &["--backend", "xdp"],
        #[cfg(feature = "xdp")]
        &["--rx", "xdp", "--tx", "packet"],
        #[cfg(feature = "xdp")]
        &["--rx", "packet", "--tx", "xdp"],
        #[cfg(feature = "xdp")]
        &["--backend", "kernel"],
    ];
    for run in RUNS {
        let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
            return;
        };
        let net = &chain.net;
        let mut relay = Relay::start(net, "relay", &[RUN, run].concat());
        assert_eq!(arrives(net, &plain(1514, 1)), plain(1514, 1), "{run:?}");
        let oversize = |snapshot: &crate::common::Snapshot| {
            let way = snapshot.way("r0", "r1");
            way.dropped.get("oversize").copied().unwrap_or_default()
        };
        net.sh("relay", "ip link set r1 mtu 1000");
        relay.snapshot_when("seen the MTU", |snapshot| {
            send_raw(net, "client", "c0", &[plain(1514, 2)]);
            oversize(snapshot) > 0
        });
        let before = oversize(&relay.snapshot());
        let frames = [1014, 1015, 60, 1514].map(|size| plain(size, 3));
        let capture = Capture::start(net, "server", "s0", "");
        send_raw(net, "client", "c0", &frames);
        let passed = [frames[0].clone(), frames[2].clone()];
        assert_eq!(capture.frames(2), passed, "{run:?}");
        relay.snapshot_when("counted them", |snapshot| oversize(snapshot) == before + 2);
        net.sh("relay", "ip link set r1 mtu 1500");
        assert_eq!(arrives(net, &plain(1514, 4)), plain(1514, 4), "{run:?}");
        relay.stop(Signal::Term);
    }
}

/// A TAP gets its qdisc when it comes up: made anew, its pair is opened once, and not before it is up.
#[test]
fn an_interface_that_returns_is_opened_once() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    let make = "ip tuntap add r1 mode tap; ip link set r1 addrgenmode none";
    net.sh("relay", make);
    net.sh("relay", "ip link set r1 up");
    let mut relay = Relay::start(&net, "relay", RUN);
    for round in 1..3 {
        net.sh("relay", "ip link delete r1");
        relay.snapshot_when("seen r1 gone", |snapshot| {
            snapshot.port("r1").state == "gone"
        });
        net.sh("relay", make);
        relay.snapshot_when("seen r1 back", |snapshot| {
            snapshot.port("r1").state == "down"
        });
        let opened = || relay.said().matches("is open again").count();
        assert_eq!(opened(), round - 1, "{}", relay.said());
        net.sh("relay", "ip link set r1 up");
        assert!(eventually(PATIENCE, || opened() == round));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(opened(), round, "{}", relay.said());
    }
    relay.stop(Signal::Term);
}

/// `update` writes the address the port has, not the one it had.
#[test]
fn an_interface_that_returns_with_another_address_is_another_source() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(net, "relay", &[RUN, &["--mac", "update"]].concat());
    assert_eq!(arrives(net, &plain(100, 1))[6..12], mac("r1"));
    net.sh("relay", "ip link delete r1");
    relay.snapshot_when("seen r1 gone", |snapshot| {
        snapshot.port("r1").state == "gone"
    });
    let peer = format!("peer name s0 netns {}", net.ns("server"));
    net.sh(
        "relay",
        &format!("ip link add r1 address 02:aa:bb:cc:dd:ee type veth {peer}; ip link set r1 up"),
    );
    net.sh("server", "ip link set s0 up");
    relay.snapshot_when("seen r1 up", |snapshot| snapshot.port("r1").state == "up");
    assert_eq!(
        arrives(net, &plain(100, 1))[6..12],
        [2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee]
    );
    relay.stop(Signal::Term);
}

/// A hairpin's port goes and returns, several times: nothing is used up by it.
#[test]
fn interfaces_that_return_again_and_again_leak_nothing() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    net.veth(("server", "s0"), ("relay", "r1"));
    let mut relay = Relay::start(&net, "relay", &["--pair", "r0,r1"]);
    let mut used = Vec::new();
    for round in 0..6 {
        let frame = plain(100 + round, 1);
        assert_eq!(arrives(&net, &frame), frame, "round {round}");
        used.push(relay.descriptors_and_threads());
        net.sh("relay", "ip link delete r1");
        relay.snapshot_when("seen r1 gone", |snapshot| {
            snapshot.port("r1").state == "gone"
        });
        net.veth(("server", "s0"), ("relay", "r1"));
        relay.snapshot_when("seen r1 up", |snapshot| snapshot.port("r1").state == "up");
    }
    assert!(
        used.iter().all(|count| *count == used[0]),
        "descriptors and threads: {used:?}"
    );
    relay.stop(Signal::Term);
}

/// Links that flap under traffic: every snapshot stays exact, and what was sent is what arrived.
#[test]
fn flapping_links_keep_the_account_exact() {
    const RUNS: &[(&[&str], &str)] = &[
        (RUN, "off"),
        (RUN, "on"),
        #[cfg(feature = "xdp")]
        (&["--pair", "r0,r1", "--backend", "xdp"], "off"),
        #[cfg(feature = "xdp")]
        (&["--pair", "r0,r1", "--rx", "xdp", "--tx", "packet"], "off"),
    ];
    for (run, coalesce) in RUNS {
        flap(run, coalesce);
    }
}

fn flap(run: &[&str], coalesce: &str) {
    const DOWNS: u64 = 8;
    const FLOWS: u64 = 4;
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let mut relay = Relay::start(net, "relay", &[run, &["--coalesce", coalesce]].concat());
    let line = format!(
        "flood --address {} --count 60000 --size 200 --flows {FLOWS} --pause 0.001",
        Chain::SERVER
    );
    let load = Peer::listen(net, "client", &line);
    for _ in 0..DOWNS {
        net.sh("relay", "ip link set r1 down");
        std::thread::sleep(std::time::Duration::from_millis(30));
        net.sh("relay", "ip link set r1 up");
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
    let sent = load.result();
    chain.settle();
    assert!(eventually(PATIENCE, || relay
        .live_snapshot()
        .port("r1")
        .state
        == "up"));
    let arrived = net.counters("relay", "r0").rx_packets;
    let last = relay.stop(Signal::Term);
    let (way, port) = (last.way("r0", "r1"), last.port("r0"));
    let port_out = last.port("r1");
    assert_eq!(
        port.rx_packets + port.kernel_drops,
        arrived,
        "{sent} {port:?}"
    );
    assert!(way.dropped.get("link_down") > Some(&0), "{way:?}");
    assert_eq!(way.super_frames > 0, coalesce == "on", "{way:?}");
    // A poll sends what is in the ring of AF_XDP, too (`xsk_poll`), and tells no error: what the device then dropped, it counts alone.
    let unseen = if run.ends_with(&["--backend", "xdp"]) {
        port_out.device_drops - way.dropped.get("refused").unwrap_or(&0)
    } else {
        0
    };
    let sent = way.tx_packets - unseen;
    if coalesce == "off" {
        let interface = net.counters("server", "s0").rx_packets;
        assert_eq!(sent, interface, "{run:?} {way:?} {port_out:?}");
    }
    // An interface counts a super-frame as one; UDP each datagram. Super-frames go through the queueing layer, and while an interface is on its
    // way down that takes what it drops for sent, and counts it nowhere (`noop_enqueue` in `net/sched/sch_generic.c` gives NET_XMIT_CN, which
    // `net_xmit_errno` makes 0): a burst at most each time.
    let silent = match coalesce {
        "on" => DOWNS * FLOWS * 64,
        _ => 0,
    };
    let seen = || (sent - silent..=sent).contains(&udp_counters(net));
    assert!(
        eventually(PATIENCE, seen),
        "UDP has seen {}: {way:?}",
        udp_counters(net)
    );
}

/// An interface may be called what no option can say: it is followed, and its port is called as before.
#[test]
fn a_name_that_no_option_can_say_changes_no_settings() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let mut relay = Relay::start(net, "relay", &[RUN, &["--name", &name]].concat());
    let print = || tell(net, &name, &["config", "--running", "--print"]).1;
    let before = print();
    let rename = |old: &str, new: &str| {
        // Before Linux 6.2 an interface goes down for it.
        let line = format!(
            "ip link set '{old}' down; ip link set '{old}' name '{new}'; ip link set '{new}' up"
        );
        net.sh("relay", &line);
    };
    let up =
        |snapshot: &crate::common::Snapshot| snapshot.ports.iter().all(|port| port.state == "up");
    rename("r1", "a>b,c=");
    assert!(relay.says("which no option can name: it is followed, and the port stays r1"));
    relay.snapshot_when("seen it up", up);
    assert_eq!(arrives(net, &plain(100, 1)), plain(100, 1));
    assert_eq!(print(), before);
    // It is there by its name for whoever changes settings, also such as need its ports opened anew.
    let (status, _, said) = tell(net, &name, &["set", "--down", "r0,r1"]);
    assert_eq!(status, 0, "{said}");
    let (status, _, said) = tell(
        net,
        &name,
        &["set", "--up", "r0,r1", "--link", "r0>r1 delay 1ms"],
    );
    assert_eq!(status, 0, "{said}");
    assert_eq!(arrives(net, &plain(100, 2)), plain(100, 2));
    // A name with a sign that options use elsewhere can be told and read.
    rename("a>b,c=", "b=c");
    assert!(relay.says("port r1 is called b=c now"));
    relay.snapshot_when("seen it up", up);
    let set = [
        "set",
        "--mac",
        "update",
        "--dst-mac",
        "b=c=02:00:00:00:00:99",
    ];
    let (status, _, said) = tell(net, &name, &set);
    assert_eq!(status, 0, "{said}");
    assert_eq!(arrives(net, &plain(100, 3))[..6], [2, 0, 0, 0, 0, 0x99]);
    let file = net.file("printed.toml");
    std::fs::write(&file, print()).expect("it can be written");
    let path = file.to_str().expect("a name of ours");
    let read = attempt(net, "relay", &[], &["config", "-c", path]);
    std::fs::remove_file(&file).expect("it is there");
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    relay.stop(Signal::Term);
}
