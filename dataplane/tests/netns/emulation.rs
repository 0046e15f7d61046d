//! Emulated links on real interfaces: changed under load, with lanes, super-frames, interfaces and clocks that do not stand still.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{
    Capture, Chain, Lane, PATIENCE, Peer, Relay, Signal, eventually, plain, send_raw,
};
use crate::control::{ask, tell};

/// A chain with a relay of this test's own name and these links.
fn linked(options: &[&str]) -> Option<(Chain, Relay, String)> {
    let chain = Chain::open(1500).map(Chain::without_arp)?;
    let name = chain.net.ns("relay");
    let args = [&["--pair", "r0,r1", "--name", &name], options].concat();
    let relay = Relay::start(&chain.net, "relay", &args);
    Some((chain, relay, name))
}

fn frames(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|n| plain(200 + n as usize, n)).collect()
}

/// What the relay says of the link of its first lane.
fn link(name: &str) -> Value {
    let mut answer = ask(name, r#"{"v":1,"cmd":"stats"}"#);
    answer["stats"]["lanes"][0]["link"].take()
}

/// Rate, delay and loss change under a flood, over and over: what came is sent, dropped by a reason that a link has, or held.
#[test]
fn links_change_under_load() {
    let Some((chain, mut relay, name)) = linked(&["--link", "r0>r1 rate 20mbit limit 50p"]) else {
        return;
    };
    let net = &chain.net;
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let line = format!(
        "flood --address {} --count 20000 --size 200 --flows 4 --pause 0.002",
        Chain::SERVER
    );
    let mut load = Peer::listen(net, "client", &line);
    let steps = [
        "rate 5mbit delay 30ms limit 64kb",
        "delay 200ms 100ms unordered loss 20%",
        "rate 100mbit codel ecn duplicate 10% corrupt 10%",
        "slot 5ms 10ms order loss,delay,rate",
        "delay 1ms",
    ];
    let mut changes = 0;
    while !load.has_ended() {
        let words = format!("r0>r1 {}", steps[changes % steps.len()]);
        let (status, said, error) = tell(net, &name, &["set", "--link", &words]);
        assert!(status == 0 && said.contains("link r0>r1"), "{said}{error}");
        changes += 1;
    }
    assert!(changes >= steps.len(), "{changes}");
    // All mistakes at once, and nothing is changed by them.
    let wrong = "set --carry r0,r1=foo --link"
        .split(' ')
        .collect::<Vec<_>>();
    let wrong = [
        &wrong[..],
        &["r0>r1 delay 2ms", "--link", "r0>r1 delay 3ms"],
    ]
    .concat();
    let (status, _, error) = tell(net, &name, &wrong);
    assert!(
        status == 2 && error.contains("foo") && error.contains("'r0>r1': given twice"),
        "{error}"
    );
    assert_eq!(tell(net, &name, &["set", "--link", "r0>r1 delay 0s"]).0, 0);
    relay.snapshot_when("let go of all it held", |snapshot| {
        snapshot.way("r0", "r1").held == 0
    });
    chain.settle();
    let sent = net.counters("client", "c0").tx_packets;
    let arrived = net.counters("server", "s0").rx_packets;
    let last = relay.stop(Signal::Term);
    let (way, port) = (last.way("r0", "r1"), last.port("r0"));
    assert_eq!(port.rx_packets + port.kernel_drops, sent, "{port:?}");
    assert_eq!((way.tx_packets, way.held), (arrived, 0), "{way:?}");
    let known = ["queue_full", "early_drop", "lost", "outage"];
    let other =
        |(reason, count): &(&String, &u64)| **count > 0 && !known.contains(&reason.as_str());
    let strange: Vec<_> = way.dropped.iter().filter(other).collect();
    assert!(strange.is_empty() && way.lost() > 0, "{strange:?} {way:?}");
}

/// What is held when a link changes comes as it would have, before what comes after the change; then the new delay holds.
#[test]
fn what_is_held_at_a_change_is_kept() {
    let Some((chain, mut relay, name)) = linked(&["--link", "r0>r1 delay 800ms"]) else {
        return;
    };
    let net = &chain.net;
    let capture = Capture::start(net, "server", "s0", "");
    let start = Instant::now();
    send_raw(net, "client", "c0", &frames(0..100));
    let held = |count| move |way: &Lane| (way.rx_packets, way.tx_packets, way.held) == count;
    relay.snapshot_when("held 100", |snapshot| {
        held((100, 0, 100))(&snapshot.way("r0", "r1"))
            || start.elapsed() > Duration::from_millis(700)
    });
    assert_eq!(
        tell(net, &name, &["set", "--link", "r0>r1 delay 30ms"]).0,
        0
    );
    let changed = start.elapsed() < Duration::from_millis(700);
    send_raw(net, "client", "c0", &frames(100..150));
    assert_eq!(capture.frames(150), frames(0..150));
    assert!(start.elapsed() > Duration::from_millis(800) || !changed);
    let least = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    for (words, wanted) in [
        ("delay 30ms", 30.0),
        ("delay 60ms", 60.0),
        ("delay 5ms", 5.0),
    ] {
        let words = format!("r0>r1 {words}");
        assert_eq!(tell(net, &name, &["set", "--link", &words]).0, 0);
        let found = least(chain.ping(6, "", Chain::SERVER));
        assert!(
            (wanted..wanted + 15.0).contains(&found),
            "{words}: {found} ms"
        );
    }
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!((way.rx_packets, way.tx_packets), (168, 168), "{way:?}");
}

/// A link is one line with one queue: its direction has one lane, the other one as many as were asked for.
#[test]
fn a_link_has_one_lane_among_several() {
    let link = ["--queues", "2", "--link", "r0>r1 rate 8mbit limit 1000p"];
    let Some((chain, mut relay, name)) = linked(&link) else {
        return;
    };
    let net = &chain.net;
    let lanes = |relay: &mut Relay| {
        let names = relay.snapshot().lanes.into_iter().map(|lane| lane.name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(lanes(&mut relay), ["r0>r1", "r1>r0", "r1>r0#1"]);
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames(0..200));
    assert_eq!(
        capture.frames(200),
        frames(0..200),
        "one line keeps the order"
    );
    let set = |words| tell(net, &name, &["set", "--link", words]);
    assert_eq!(set("r1>r0 delay 2ms").0, 0);
    assert_eq!(lanes(&mut relay).len(), 2);
    chain.ping(2, "", Chain::SERVER);
    relay.stop(Signal::Term);
}

/// The hosts send super-frames; the link has the rate that it was given, in packets of the wire.
#[test]
fn a_rate_holds_with_the_hosts_own_offloads() {
    const MBIT: f64 = 20.0;
    let Some((chain, relay, _)) = linked(&["--link", "r0>r1 rate 20mbit limit 100p"]) else {
        return;
    };
    let net = &chain.net;
    let mut server = net
        .command("server", "iperf3")
        .args(["-s", "-1"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("iperf3 runs");
    let listens = || net.sh("server", "ss -Hltn sport = 5201").contains("5201");
    assert!(eventually(PATIENCE, listens));
    let line = format!("iperf3 -J -C cubic -O 1 -t 3 -c {}", Chain::SERVER);
    let result: Value = serde_json::from_str(&net.sh("client", &line)).expect("JSON");
    assert!(eventually(PATIENCE, || server
        .try_wait()
        .expect("our child")
        .is_some()));
    let bits = result["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .expect("a rate");
    // 1448 bytes of payload in a frame of 1514.
    let share = bits / 1e6 / (MBIT * 1448.0 / 1514.0);
    assert!((0.96..1.02).contains(&share), "{share}");
    let way = relay.stop(Signal::Term).way("r0", "r1");
    let sent = net.counters("client", "c0").tx_packets;
    assert!(
        way.rx_packets > 2 * sent,
        "super-frames came: {sent} {way:?}"
    );
    assert_eq!(net.counters("server", "s0").rx_packets, way.tx_packets);
}

/// Datagrams that sockets hand over as super-frames (UDP_SEGMENT), of IPv4 and IPv6: each packet is lost, counted and
/// delivered for itself, and comes with its checksum right.
#[test]
fn super_frames_are_packets_to_a_link() {
    let words = "r0>r1 rate 200mbit limit 100000p delay 2ms loss pattern 0001 seed 1";
    for (client, server) in [(Chain::CLIENT, Chain::SERVER), ("fd09::1", "fd09::2")] {
        let Some((chain, mut relay, _)) = linked(&["--link", words]) else {
            return;
        };
        let net = &chain.net;
        let is_v6 = server.contains(':');
        if is_v6 {
            for (space, interface, address) in [("client", "c0", client), ("server", "s0", server)]
            {
                net.sh(
                    space,
                    &format!(
                        "ip link set {interface} addrgenmode none && \
                         sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0 && \
                         ip -6 address add {address}/64 dev {interface} nodad"
                    ),
                );
            }
            net.sh(
                "client",
                &format!(
                    "ip neigh replace {server} lladdr {} dev c0",
                    crate::common::mac_text("s0")
                ),
            );
        }
        let line = format!("udp-receive --no-acks --address {server} --count 1500");
        let receive = Peer::listen(net, "server", &line);
        let line = format!(
            "udp-send --no-acks --gso --flows 4 --segments 20 --large 1000 --count 2000 --seed 3 --address {server}"
        );
        let sent = Peer::start(net, "client", &line).result();
        assert!(sent["supers"].as_u64() > Some(20), "{sent}");
        let snapshot = relay.snapshot_when("let go of all it held", |snapshot| {
            let way = snapshot.way("r0", "r1");
            way.rx_packets >= 2000 && way.held == 0
        });
        let way = snapshot.way("r0", "r1");
        let lost = way.dropped.get("lost").copied().unwrap_or(0);
        // Every fourth packet, whatever it came in.
        assert_eq!((lost, way.lost()), (way.rx_packets / 4, lost), "{way:?}");
        let client = net.counters("client", "c0");
        assert!(client.tx_packets < 1500, "super-frames came: {client:?}");
        // One by one, and with checksums that the receiving kernel finds right.
        assert_eq!(net.counters("server", "s0").rx_packets, way.tx_packets);
        let received = receive.result();
        let count = received["received"].as_u64().expect("a count");
        assert!(count.abs_diff(1500) <= 8, "{received} {way:?}");
        assert_eq!(
            (&received["corrupt"], &received["doubled"]),
            (&0.into(), &0.into())
        );
        relay.stop(Signal::Term);
    }
}

/// AF_XDP does not tell when a frame came: a link on a pair that was given to it by name works, and the relay says what that means.
#[test]
fn a_link_over_af_xdp_is_told() {
    for (options, told) in [
        (&["--backend", "xdp"][..], true),
        (&["--rx", "xdp", "--tx", "packet"], true),
        (&["--rx", "packet", "--tx", "xdp"], false),
        (&[], false),
    ] {
        let link = ["--link", "r0>r1 delay 20ms"];
        let Some((chain, relay, _)) = linked(&[&link, options].concat()) else {
            return;
        };
        let said = relay.said();
        assert_eq!(
            said.contains("--rx packet counts from its arrival"),
            told,
            "{said}"
        );
        let least = chain
            .ping(4, "", Chain::SERVER)
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        assert!((20.0..40.0).contains(&least), "{options:?}: {least} ms");
        let way = relay.stop(Signal::Term).way("r0", "r1");
        assert_eq!((way.rx_packets, way.tx_packets), (4, 4), "{way:?}");
    }
}

/// A hairpin's link is `e>e`.
#[test]
fn a_hairpin_has_a_link() {
    let Some(net) = crate::common::Net::open(&["host", "relay"]) else {
        return;
    };
    net.veth(("host", "h0"), ("relay", "r0"));
    let options = ["--hairpin", "r0", "--link", "r0>r0 delay 300ms"];
    let relay = Relay::start(&net, "relay", &options);
    let capture = Capture::start(&net, "host", "h0", "");
    let start = Instant::now();
    send_raw(&net, "host", "h0", &frames(0..5));
    assert_eq!(capture.frames(5), frames(0..5));
    assert!(start.elapsed() >= Duration::from_millis(300));
    let way = relay.stop(Signal::Term).way("r0", "r0");
    assert_eq!((way.rx_packets, way.tx_packets), (5, 5), "{way:?}");
}

/// One seed for all links that have none of their own: the same losses in every run, and others in each direction.
#[test]
fn one_seed_for_all_links() {
    let lost = |seed: &str| {
        let options = [
            "--seed",
            seed,
            "--link",
            "r0>r1 loss 30%",
            "--link",
            "r1>r0 loss 30% seed 8",
        ];
        let (chain, relay, name) = linked(&options)?;
        let lanes = ask(&name, r#"{"v":1,"cmd":"stats"}"#)["stats"]["lanes"].take();
        let seeds = [0, 1].map(|lane: usize| lanes[lane]["link"]["seed"].to_string());
        assert_eq!(seeds, [seed, "8"]);
        let capture = Capture::start(&chain.net, "server", "s0", "");
        send_raw(&chain.net, "client", "c0", &frames(0..100));
        chain.settle();
        let way = relay.stop(Signal::Term).way("r0", "r1");
        assert_eq!(way.rx_packets, 100, "{way:?}");
        Some(capture.frames(way.tx_packets as usize))
    };
    let Some(first) = lost("5") else { return };
    assert!((40..=90).contains(&first.len()), "{}", first.len());
    assert_eq!(lost("5"), Some(first.clone()));
    assert_ne!(lost("6"), Some(first));
}

/// The interface goes while frames are on their way to it: each of them is counted, and its successor carries on.
#[test]
fn an_interface_lost_with_frames_held() {
    let Some((chain, mut relay, name)) = linked(&["--link", "r0>r1 delay 400ms seed 5"]) else {
        return;
    };
    let net = &chain.net;
    send_raw(net, "client", "c0", &frames(0..50));
    let start = Instant::now();
    net.sh("relay", "ip link delete r1");
    relay.snapshot_when("seen r1 gone", |snapshot| {
        snapshot.port("r1").state == "gone"
    });
    let gone = relay.snapshot_when("let go of what it held", |snapshot| {
        snapshot.way("r0", "r1").held == 0 && start.elapsed() > Duration::from_millis(450)
    });
    gone.check();
    let way = gone.way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.tx_packets + way.lost()),
        (50, 50),
        "{way:?}"
    );
    net.veth(("server", "s0"), ("relay", "r1"));
    relay.snapshot_when("seen r1 up", |snapshot| snapshot.port("r1").state == "up");
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames(50..60));
    assert_eq!(capture.frames(10), frames(50..60));
    assert_eq!(link(&name)["settings"], "delay 400ms seed 5");
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!(
        (way.rx_packets, way.lost(), way.held),
        (60, 60 - way.tx_packets, 0)
    );
    assert!(way.tx_packets >= 10, "{way:?}");
}

/// Time jumps for a process that is stopped. It loses nothing by that, keeps the order, and says how late it was.
#[test]
fn a_relay_that_was_stopped_says_how_late_it_is() {
    let Some((chain, relay, name)) = linked(&["--link", "r0>r1 delay 100ms"]) else {
        return;
    };
    let net = &chain.net;
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames(0..50));
    relay.signal(Signal::Freeze);
    send_raw(net, "client", "c0", &frames(50..100));
    std::thread::sleep(Duration::from_millis(1200));
    relay.signal(Signal::Thaw);
    assert_eq!(capture.frames(100), frames(0..100));
    let late = link(&name)["lateness"].take();
    assert_eq!(late["count"], 100);
    assert!(late["max_ns"].as_u64() > Some(900_000_000), "{late}");
    // Those that came meanwhile were due before it went on, too; the others may have left before it was stopped.
    let buckets = late["buckets"].as_array().expect("a histogram");
    let late = |bucket: &&Value| bucket[0].as_u64() > Some(900_000_000);
    let count = buckets
        .iter()
        .filter(late)
        .filter_map(|bucket| bucket[1].as_u64());
    assert!(count.sum::<u64>() >= 50, "{buckets:?}");
    let way = relay.stop(Signal::Term).way("r0", "r1");
    assert_eq!((way.rx_packets, way.tx_packets, way.lost()), (100, 100, 0));
}

/// A link's counts begin anew with the others, and go on when its ports are opened again.
#[test]
fn counts_of_a_link_are_reset_and_kept() {
    let words = "r0>r1 delay 1ms corrupt 100%";
    let Some((chain, relay, name)) = linked(&["--link", words]) else {
        return;
    };
    let net = &chain.net;
    let counts = || {
        let link = link(&name);
        (
            link["corrupted"].as_u64(),
            link["lateness"]["count"].as_u64(),
        )
    };
    let seed = link(&name)["seed"].take();
    let send = |numbers: std::ops::Range<u32>| {
        let capture = Capture::start(net, "server", "s0", "");
        let sent = frames(numbers);
        send_raw(net, "client", "c0", &sent);
        assert_eq!(capture.frames(sent.len()).len(), sent.len());
    };
    send(0..20);
    assert_eq!(counts(), (Some(20), Some(20)));
    assert_eq!(tell(net, &name, &["stats", "--reset"]).0, 0);
    assert_eq!(counts(), (Some(0), Some(0)));
    assert_eq!(link(&name)["lateness"]["max_ns"], 0);
    send(20..25);
    assert_eq!(counts(), (Some(5), Some(5)));
    for way in ["--down", "--up"] {
        assert_eq!(tell(net, &name, &["set", way, "r0,r1"]).0, 0);
    }
    assert_eq!(
        (counts(), link(&name)["seed"].take()),
        ((Some(5), Some(5)), seed)
    );
    send(25..28);
    assert_eq!(counts(), (Some(8), Some(8)));
    relay.stop(Signal::Term);
}
