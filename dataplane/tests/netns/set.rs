//! Settings of a running relay are changed; what is not concerned goes on.

use crate::common::{Capture, Chain, Peer, Relay, Signal, mac, plain, receive_raw, send_raw};
use crate::control::{ask, assert_crosses, named_relay, tell};

/// What one frame looks like at the server.
fn through(chain: &Chain, frame: &[u8]) -> Vec<u8> {
    let receiver = receive_raw(&chain.net, "server", "s0", 1);
    send_raw(&chain.net, "client", "c0", &[frame]);
    receiver.frames().pop().expect("it arrives").bytes
}

#[test]
fn addresses_are_rewritten_otherwise_from_now_on() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let frame = plain(100, 7);
    assert_eq!(through(&chain, &frame), frame);
    for (args, dst, src) in [
        (&["--mac", "swap"][..], &frame[6..12], &frame[..6]),
        (&["--mac", "update"], &[2, 0, 0, 0, 0, 1], &mac("r1")[..]),
        (
            &["--dst-mac", "r1=02:00:00:00:00:99"],
            &[2, 0, 0, 0, 0, 0x99],
            &mac("r1"),
        ),
        (&["--mac", "keep"], &frame[..6], &frame[6..12]),
    ] {
        let (status, said, error) = tell(net, &name, &[&["set"], args].concat());
        assert!(status == 0 && said.contains("mac"), "{said}{error}");
        let seen = through(&chain, &frame);
        assert_eq!((&seen[..6], &seen[6..12]), (dst, src), "{args:?}");
    }
    let last = relay.stop(Signal::Term);
    assert_eq!(last.way("r0", "r1").rx_packets, 5, "counts go on");
}

/// Pairs come and go beside one under load, and that loses nothing by it.
#[test]
fn pairs_come_and_go_while_others_run() {
    let Some((chain, mut relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    net.veth(("client", "c2"), ("relay", "r2"));
    net.veth(("server", "s3"), ("relay", "r3"));
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let line = format!(
        "flood --address {} --count 20000 --size 200 --flows 4 --pause 0.0002",
        Chain::SERVER
    );
    let used = relay.descriptors_and_threads();
    let mut load = Peer::listen(net, "client", &line);
    let mut rounds = 0;
    while !load.has_ended() {
        let (status, said, error) = tell(net, &name, &["set", "--add", "r2,r3"]);
        assert!(
            status == 0 && said.contains("r2 <-> r3 is open"),
            "{said}{error}"
        );
        let capture = Capture::start(net, "server", "s3", "");
        send_raw(net, "client", "c2", &[plain(100, rounds)]);
        assert_eq!(capture.frames(1), [plain(100, rounds)]);
        let (status, said, error) =
            tell(net, &name, &["set", "--idle", "sleep", "--remove", "r3,r2"]);
        assert!(status == 0 && said.contains("removed"), "{said}{error}");
        rounds += 1;
    }
    chain.settle();
    let snapshot = relay.snapshot();
    assert_eq!((snapshot.ports.len(), snapshot.lanes.len()), (2, 2));
    let arrived = net.counters("relay", "r0").rx_packets;
    let (descriptors, threads) = relay.descriptors_and_threads();
    assert!(
        descriptors <= used.0 && threads <= used.1,
        "{rounds} rounds"
    );
    let last = relay.stop(Signal::Term);
    let port = last.port("r0");
    assert_eq!(port.rx_packets + port.kernel_drops, arrived, "{port:?}");
    assert_eq!(last.way("r0", "r1").lost(), 0);
}

#[test]
fn a_pair_is_closed_and_opened() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    assert_crosses(net, 60..63);
    let promiscuity = || net.link("relay", "r0")["promiscuity"].as_u64();
    assert_eq!(promiscuity(), Some(1));
    assert_eq!(tell(net, &name, &["set", "--down", "r0,r1"]).0, 0);
    assert_eq!(promiscuity(), Some(0), "the port is let go of");
    send_raw(net, "client", "c0", &[plain(100, 1)]);
    let info = ask(&name, r#"{"v":1,"cmd":"info"}"#);
    assert_eq!(info["info"]["pairs"][0]["down"], true);
    assert_eq!(tell(net, &name, &["health"]).0, 0, "it is as it should be");
    assert_eq!(tell(net, &name, &["set", "--up", "r1,r0"]).0, 0);
    assert_crosses(net, 70..75);
    assert_eq!(relay.stop(Signal::Term).way("r0", "r1").rx_packets, 8);
}

#[test]
fn mistakes_are_told_at_once_and_change_nothing() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let args = [
        "set",
        "--mac",
        "shuffle",
        "--idle",
        "nap",
        "--add",
        "r0,r1",
        "--add",
        "lo,x,y",
        "--remove",
        "r8,r9",
        "--down",
        "r7",
        "--dst-mac",
        "r1=zz",
    ];
    let (status, _, said) = tell(net, &name, &args);
    assert_eq!(status, 2);
    for text in [
        "shuffle",
        "nap",
        "\"x,y\"",
        "r8,r9: no such pair",
        "r7",
        "zz",
    ] {
        assert!(said.contains(text), "no {text} in {said}");
    }
    // Against the machine, all at once too.
    let (status, _, said) = tell(net, &name, &["set", "--add", "nope,r1", "--add", "lo,none"]);
    assert_eq!(status, 2);
    for text in [
        "nope: no such interface",
        "r1 is named 2 times",
        "loopback",
        "none: no such",
    ] {
        assert!(said.contains(text), "no {text} in {said}");
    }
    let (status, _, said) = tell(net, &name, &["set"]);
    assert!(status == 2 && said.contains("nothing to change"), "{said}");
    assert_crosses(net, 60..65);
    let last = relay.stop(Signal::Term);
    assert_eq!(last.ports.len(), 2);
}

/// A bridge, a second pair and the relay on two cores: a hairpin can be added, and takes the idler worker.
#[test]
fn a_hairpin_is_added_on_two_workers() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let cores: Vec<String> = crate::common::cpus()
        .iter()
        .take(2)
        .map(usize::to_string)
        .collect();
    let name = net.ns("relay");
    net.veth(("client", "c2"), ("relay", "r2"));
    let args = [
        "--pair",
        "r0,r1",
        "--name",
        &name,
        "--cores",
        &cores.join(","),
    ];
    let relay = Relay::start(net, "relay", &args);
    assert_eq!(tell(net, &name, &["set", "--add", "r2"]).0, 0);
    let receiver = receive_raw(net, "client", "c2", 1);
    send_raw(net, "client", "c2", &[plain(80, 1)]);
    assert_eq!(receiver.frames()[0].bytes, plain(80, 1));
    assert_crosses(net, 60..65);
    relay.stop(Signal::Term);
}

/// What was done by order is in the relay's own messages, once; and an option that means nothing yet is told.
#[cfg(feature = "xdp")]
#[test]
fn what_is_done_is_said_once() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let (net, name) = (&chain.net, chain.net.ns("relay"));
    let args = [
        "--pair",
        "r0,r1",
        "--backend",
        "kernel",
        "--queues",
        "2",
        "--name",
        &name,
    ];
    let relay = Relay::start(net, "relay", &args);
    assert!(relay.says("--queues 2: the kernel carries every pair now"));
    let (status, said, _) = tell(net, &name, &["set", "--mac", "swap"]);
    assert!(status == 0 && said.contains("is open again"), "{said}");
    assert!(relay.says("frames: mac swap"));
    assert_eq!(relay.said().matches("is open again").count(), 1);
    let (status, _, said) = tell(net, &name, &["set", "--carry", "r0,r1=packet"]);
    assert_eq!(status, 0, "{said}");
    assert!(relay.says("pair r0 <-> r1 is carried by packet"));
    relay.stop(Signal::Term);
    let args = [
        "--pair",
        "r0,r1",
        "--backend",
        "packet",
        "--kernel-hook",
        "tc",
    ];
    let relay = Relay::start(net, "relay", &args);
    assert!(relay.says("--kernel-hook tc: no pair is carried by the kernel now"));
    relay.stop(Signal::Term);
}

/// Orders that can't be obeyed together are told before anything is done; and where the kernel refuses, what was done before.
#[cfg(feature = "xdp")]
#[test]
fn all_parts_are_checked_before_any_is_done() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let (net, name) = (&chain.net, chain.net.ns("relay"));
    net.veth(("client", "c2"), ("relay", "r2"));
    net.veth(("server", "s3"), ("relay", "r3"));
    let args = [
        "--pair",
        "r0,r1",
        "--pair",
        "r2,r3",
        "--backend",
        "packet",
        "--link",
        "r0>r1 delay 1ms",
        "--xdp-copy",
        "zero-copy",
        "--name",
        &name,
    ];
    let relay = Relay::start(net, "relay", &args);
    let state = || {
        let info = ask(&name, r#"{"v":1,"cmd":"info"}"#)["info"]["pairs"].clone();
        (info, ask(&name, r#"{"v":1,"cmd":"config"}"#))
    };
    let before = state();
    for (set, code, parts) in [
        (
            r#""carry":["r2,r3=xdp","r0,r1=kernel"]"#,
            "refused",
            &["r0,r1 has a --link"][..],
        ),
        (
            r#""mac":"swap","carry":["r0,r1=kernel"]"#,
            "refused",
            &["r0,r1 has a --link"],
        ),
        (
            r#""down":["r0,r1"],"carry":["r1,r0=xdp"]"#,
            "invalid",
            &["r1,r0: both down and carried"],
        ),
        (
            r#""up":["r0,r1"],"down":["r1,r0"]"#,
            "invalid",
            &["r0,r1: both up and down"],
        ),
        (
            r#""mac":"swap","link":["r2>r3 delay 2ms"],"carry":["r3,r2=kernel","r2,r3=xdp"]"#,
            "invalid",
            &["r2,r3: carried by two back ends"],
        ),
        (
            r#""mac":"swap","link":["r2>r3 delay 2ms"],"carry":["r3,r2=kernel"],"add":["nope"]"#,
            "refused",
            &["r2,r3 has a --link", "nope: no such interface"],
        ),
        (
            r#""mac":"swap","down":["r0,r1"],"add":["r2"]"#,
            "refused",
            &["r2 is named 2 times"],
        ),
    ] {
        let answer = ask(&name, &format!(r#"{{"v":1,"cmd":"set",{set}}}"#));
        assert_eq!(answer["error"]["code"], code, "{set}: {answer}");
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        for part in parts {
            assert!(said.contains(part), "{set}: no {part} in {said}");
        }
        assert_eq!(state(), before, "{set}");
    }
    // What the kernel refuses is not known before.
    let many = r#"{"v":1,"cmd":"set","mac":"swap","down":["r0,r1"],"carry":["r2,r3=xdp"]}"#;
    let answer = ask(&name, many);
    let said = answer["error"]["message"].as_str().unwrap_or_default();
    for part in [
        "without copies",
        "(done: frames: mac swap)",
        "(done: pair r0 <-> r1 is down)",
    ] {
        assert!(said.contains(part), "no {part} in {answer}");
    }
    let receiver = receive_raw(net, "server", "s3", 1);
    send_raw(net, "client", "c2", &[plain(100, 1)]);
    assert_eq!(receiver.frames()[0].bytes[..6], plain(100, 1)[6..12]);
    relay.stop(Signal::Term);
}

/// Many absent pairs are told shortly, and too many not at all.
#[test]
fn absent_pairs_are_told_shortly() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let add = |count: usize| {
        let pairs: Vec<String> = (0..count).map(|at| format!("a{at},b{at}")).collect();
        let line = serde_json::json!({"v": 1, "cmd": "set", "add": pairs}).to_string();
        let answer = ask(&name, &line)["error"]["message"].clone();
        answer.as_str().expect("it is refused").to_owned()
    };
    let said = add(500);
    assert_eq!(said.lines().count(), 1000);
    assert_eq!(said.matches("there are:").count(), 1, "{said}");
    assert_eq!(add(8000), "8001 pairs: at most 1024");
    assert_crosses(&chain.net, 60..65);
    relay.stop(Signal::Term);
}
