//! Ending: exact accounts under load, and nothing left behind, however it ends.

use std::process::Stdio;
use std::time::Duration;

use crate::common::{
    Capture, Chain, Counters, Net, PATIENCE, Peer, Relay, Signal, Snapshot, attempt, cpus,
    eventually, plain, program, send_raw,
};

const RUN: &[&str] = &["--pair", "r0,r1"];
/// Where accounts must be exact to the last frame.
const RUNS: &[&[&str]] = &[
    RUN,
    #[cfg(feature = "xdp")]
    &["--pair", "r0,r1", "--backend", "xdp"],
    #[cfg(feature = "xdp")]
    &["--pair", "r0,r1", "--rx", "xdp", "--tx", "packet"],
];

/// What the server's UDP has counted: delivered, without a port, in error (a full buffer among them).
pub(crate) fn udp_counters(net: &Net) -> u64 {
    let text = net.sh("server", "cat /proc/net/snmp");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("Udp:"))
        .collect();
    let value = |name: &str| -> u64 {
        let at = lines[0]
            .split_whitespace()
            .position(|word| word == name)
            .expect("a column");
        lines[1]
            .split_whitespace()
            .nth(at)
            .expect("a value")
            .parse()
            .expect("a number")
    };
    value("InDatagrams") + value("NoPorts") + value("InErrors")
}

/// The server's side of the account: each frame that was sent arrived at the interface, and at UDP above it.
fn assert_sent_is_received(net: &Net, last: &Snapshot) {
    let way = last.way("r0", "r1");
    let server = net.counters("server", "s0");
    // An interface counts a super-frame as one; UDP each datagram.
    let frames = way.tx_packets - way.merged_packets + way.super_frames;
    assert_eq!(frames, server.rx_packets, "{way:?} {server:?}");
    assert_eq!(way.tx_bytes, server.rx_bytes, "{way:?} {server:?}");
    assert_eq!(net.counters("relay", "r1").tx_dropped, 0);
    let at_udp = eventually(Duration::from_secs(2), || {
        udp_counters(net) == way.tx_packets
    });
    assert!(
        at_udp,
        "UDP has seen {} of {}",
        udp_counters(net),
        way.tx_packets
    );
}

/// The sender's side: what came in at the relay's interface was received by the relay or dropped by the kernel.
fn assert_received_is_accounted(relay: Counters, last: &Snapshot) {
    let port = last.port("r0");
    assert_eq!(
        port.rx_packets + port.kernel_drops,
        relay.rx_packets,
        "{port:?} {relay:?}"
    );
}

/// No answers: the server takes datagrams for a port that a deaf socket has open.
fn quiet_chain() -> Option<(Chain, Peer)> {
    let chain = Chain::open(1500).map(Chain::without_arp)?;
    let sink = Peer::listen(
        &chain.net,
        "server",
        &format!("sink --address {}", Chain::SERVER),
    );
    Some((chain, sink))
}

fn flood(chain: &Chain, count: u32, options: &str) -> Peer {
    let line = format!(
        "flood --address {} --count {count} --flows 4 {options}",
        Chain::SERVER
    );
    Peer::listen(&chain.net, "client", &line)
}

#[test]
fn a_flood_is_accounted_for_to_the_last_frame() {
    for run in RUNS {
        let Some((chain, _sink)) = quiet_chain() else {
            return;
        };
        let net = &chain.net;
        let mut relay = Relay::start(net, "relay", run);
        let sent = flood(&chain, 100_000, "--size 22").result();
        assert_eq!(sent["sent"], 100_000, "{sent}");
        chain.settle();
        let arrived = net.counters("relay", "r0");
        assert_eq!(arrived.rx_packets, 100_000);
        let snapshot = relay.snapshot();
        assert_received_is_accounted(arrived, &snapshot);
        let last = relay.stop(Signal::Term);
        assert_eq!(
            last.way("r0", "r1").rx_packets,
            snapshot.way("r0", "r1").rx_packets
        );
        assert_received_is_accounted(arrived, &last);
        assert_sent_is_received(net, &last);
        assert!(last.way("r0", "r1").tx_packets > 1000, "{last:?}");
    }
}

/// The signal comes while frames pour in: what was received was sent or counted, what was sent arrived.
#[test]
fn a_stop_under_load_loses_no_count() {
    for run in RUNS {
        for signal in [Signal::Term, Signal::Int] {
            let Some((chain, _sink)) = quiet_chain() else {
                return;
            };
            let net = &chain.net;
            let mut relay = Relay::start(net, "relay", run);
            let load = flood(&chain, 400_000, "--size 400");
            relay.snapshot_when("forwarded 5000", |snapshot| {
                snapshot.way("r0", "r1").tx_packets > 5000
            });
            let last = relay.stop(signal);
            let after = net.counters("relay", "r0").rx_packets;
            assert!(
                after < 400_000,
                "the load had ended before the stop: {after}"
            );
            drop(load);
            let (way, port) = (last.way("r0", "r1"), last.port("r0"));
            assert_eq!(way.held, 0, "{way:?}");
            assert!(
                port.rx_packets + port.kernel_drops <= after,
                "more than has come: {port:?}, {after}"
            );
            assert_sent_is_received(net, &last);
        }
    }
}

/// A backlog in the relay's ring at the signal: it was received by the kernel for the relay, so it is in the account.
#[test]
fn a_backlog_at_the_stop_is_in_the_account() {
    for run in RUNS {
        let Some((chain, _sink)) = quiet_chain() else {
            return;
        };
        let net = &chain.net;
        let relay = Relay::start(net, "relay", run);
        relay.signal(Signal::Freeze);
        assert_eq!(flood(&chain, 5000, "--size 100").result()["sent"], 5000);
        let arrived = net.counters("relay", "r0");
        assert_eq!(arrived.rx_packets, 5000);
        // Pending already when it runs again.
        relay.signal(Signal::Term);
        relay.signal(Signal::Thaw);
        let last = relay.stop(Signal::Term);
        assert!(
            last.port("r0").kernel_drops > 0,
            "more than a ring was sent: {last:?}"
        );
        assert_received_is_accounted(arrived, &last);
        assert_sent_is_received(net, &last);
    }
}

/// Everything about the relay's namespace that an end must not change.
fn state_of(net: &Net) -> String {
    let links = ["r0", "r1"].map(|port| {
        let mut link = net.link("relay", port);
        link["stats64"].take();
        link["stats"].take();
        link
    });
    format!(
        "{links:?}\n{}",
        net.sh(
            "relay",
            &format!(
                "ip address; ip route; tc qdisc; ip netns list | grep -c {}",
                net.ns("")
            )
        )
    )
}

fn promiscuity(net: &Net) -> [u64; 2] {
    ["r0", "r1"].map(|port| {
        net.link("relay", port)["promiscuity"]
            .as_u64()
            .expect("ip -d prints it")
    })
}

#[test]
fn nothing_is_left_behind_however_it_ends() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let before = state_of(net);
    assert_eq!(promiscuity(net), [0, 0]);
    for signal in [Signal::Kill, Signal::Term, Signal::Int, Signal::Kill] {
        // Started again at once each time.
        let relay = Relay::start(net, "relay", RUN);
        assert!(
            promiscuity(net).iter().all(|&count| count > 0),
            "promiscuous while it runs"
        );
        chain.ping(1, "", Chain::SERVER);
        match signal {
            Signal::Kill => relay.kill(),
            signal => drop(relay.stop(signal)),
        }
        let left = || state_of(net) != before;
        assert!(
            eventually(Duration::from_secs(2), || !left()),
            "after {signal:?}\n{before}\n{}",
            state_of(net)
        );
        assert_eq!(
            net.sh("relay", &format!("ip netns pids {}", net.ns("relay")))
                .lines()
                .count(),
            2,
            "the shell and ip alone"
        );
    }
}

#[test]
fn promiscuous_mode_is_optional() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let relay = Relay::start(&chain.net, "relay", &[RUN, &["--no-promisc"]].concat());
    assert_eq!(promiscuity(&chain.net), [0, 0]);
    chain.ping(1, "", Chain::SERVER);
    relay.stop(Signal::Term);
}

#[test]
fn a_signal_brings_a_snapshot() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mut relay = Relay::start(net, "relay", RUN);
    let first = relay.snapshot();
    send_raw(
        net,
        "client",
        "c0",
        &(0..10).map(|n| plain(100, n)).collect::<Vec<_>>(),
    );
    let second = relay.snapshot_when("seen 10", |snapshot| {
        snapshot.way("r0", "r1").tx_packets == 10
    });
    assert_eq!(
        (
            first.way("r0", "r1").rx_packets,
            second.way("r0", "r1").rx_bytes
        ),
        (0, 1000)
    );
    assert!(
        second.uptime_s > first.uptime_s && second.time_s > first.time_s,
        "{first:?} {second:?}"
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs_f64();
    assert!(
        (now - second.time_s).abs() < 5.0,
        "{} is not the time",
        second.time_s
    );
    for name in ["r0", "r1"] {
        assert_eq!(second.port(name).state, "up");
    }
    assert_eq!(
        second
            .lanes
            .iter()
            .map(|lane| lane.name.as_str())
            .collect::<Vec<_>>(),
        ["r0>r1", "r1>r0"]
    );
    relay.stop(Signal::Term);
}

/// Snapshots that come by themselves come on time, and their rates are the differences of their counters.
#[test]
fn a_period_brings_snapshots_with_rates() {
    let Some((chain, _sink)) = quiet_chain() else {
        return;
    };
    let mut relay = Relay::start(
        &chain.net,
        "relay",
        &[RUN, &["--stats-interval", "0.25"]].concat(),
    );
    let load = flood(&chain, 1_000_000, "--size 158 --pause 0.002");
    let mut before = relay.periodic_snapshot();
    for _ in 0..6 {
        let now = relay.periodic_snapshot();
        let time = now.uptime_s - before.uptime_s;
        assert!((0.1..1.0).contains(&time), "a period of {time} s");
        let (then, lane) = (before.way("r0", "r1"), now.way("r0", "r1"));
        let per_second = |now: u64, then: u64| (now - then) as f64 / time;
        for (rate, counted) in [
            (
                lane.rates.rx_pps,
                per_second(lane.rx_packets, then.rx_packets),
            ),
            (
                lane.rates.tx_pps,
                per_second(lane.tx_packets, then.tx_packets),
            ),
            (
                lane.rates.rx_bps,
                8.0 * per_second(lane.rx_bytes, then.rx_bytes),
            ),
            (
                lane.rates.tx_bps,
                8.0 * per_second(lane.tx_bytes, then.tx_bytes),
            ),
        ] {
            assert!(
                (rate - counted).abs() <= counted * 0.02 + 1.0,
                "{rate} a second where {counted} were counted: {lane:?}"
            );
        }
        assert_eq!(now.way("r1", "r0").rates.rx_pps, 0.0);
        before = now;
    }
    assert!(before.way("r0", "r1").rx_packets > 1000, "{before:?}");
    drop(load);
    relay.stop(Signal::Term);
}

/// A reader that goes away must not take the relay with it.
#[test]
fn a_closed_output_does_not_stop_forwarding() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    // `true` reads nothing and is gone at once.
    let line = format!(
        "({} run --pair r0,r1 --stats-interval 0.1 & echo $! >&2; wait) | true",
        program()
    );
    let mut shell = net
        .command("relay", "sh")
        .args(["-c", &line])
        .stderr(Stdio::piped())
        .spawn()
        .expect("sh runs");
    std::thread::sleep(Duration::from_millis(800));
    let alive = net.try_sh("client", &format!("ping -n -c 1 -W 3 {}", Chain::SERVER));
    let _ = shell.kill();
    let _ = shell.wait();
    assert!(
        alive.status.success(),
        "{}",
        String::from_utf8_lossy(&alive.stdout)
    );
}

/// Pinned workers are where they were asked to be.
#[test]
fn workers_run_on_their_cores() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let core = *cpus().last().expect("there is a CPU");
    let relay = Relay::start(
        &chain.net,
        "relay",
        &[RUN, &["--cores", &core.to_string()]].concat(),
    );
    let threads = relay.thread_cpus();
    assert!(
        threads.iter().any(|allowed| *allowed == core.to_string()),
        "{threads:?}"
    );
    relay.stop(Signal::Term);
}

/// Whoever reads the statistics may stall: the relay goes on, and still ends when it is told to.
#[test]
fn a_reader_that_stalls_holds_nothing_up() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let options = [
        "run",
        "--pair",
        "r0,r1",
        "--json",
        "--queues",
        "4",
        "--stats-interval",
        "0.1",
    ];
    let mut relay = net
        .command("relay", program())
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the relay starts");
    // Nobody reads the pipe. When it is full (64 KiB), a write to it blocks.
    let full = eventually(PATIENCE, || {
        std::fs::read_dir(format!("/proc/{}/task", relay.id()))
            .into_iter()
            .flatten()
            .flatten()
            .any(|task| {
                std::fs::read_to_string(task.path().join("wchan"))
                    .is_ok_and(|wait| wait.contains("pipe_write"))
            })
    });
    assert!(full, "the pipe never filled");
    assert_eq!(
        chain.ping(1, "-W 5", Chain::SERVER).len(),
        1,
        "it still relays"
    );
    let signal = std::process::Command::new("kill")
        .args(["-TERM", &relay.id().to_string()])
        .status();
    assert!(signal.is_ok_and(|status| status.success()));
    let ended = eventually(Duration::from_secs(8), || {
        relay.try_wait().expect("it is our child").is_some()
    });
    if !ended {
        relay.kill().expect("it is our child");
    }
    assert!(ended, "SIGTERM is not heeded while the reader stalls");
    assert_eq!(net.link("relay", "r0")["promiscuity"], 0);
}

/// The kernel takes its time for every packet socket; with 256 of them a stop would take ten seconds one by one.
#[test]
fn many_lanes_stop_as_fast_as_few() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let relay = Relay::start(&chain.net, "relay", &[RUN, &["--queues", "64"]].concat());
    chain.ping(1, "", Chain::SERVER);
    let begun = std::time::Instant::now();
    let last = relay.stop(Signal::Term);
    assert_eq!(last.lanes.len(), 128);
    // Within one second on a machine that does nothing else.
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(promiscuity(&chain.net), [0, 0]);
}

/// An interface may come after the relay: it waits, says so, and forwards when it is there.
#[test]
fn ports_that_come_later_are_waited_for() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    let args = [RUN, &["--wait-ports", "20"]].concat();
    let mut relay = Relay::launch(&net, "relay", &[], &args);
    assert!(
        relay.says("waiting for r1 (at most 20 s)"),
        "{}",
        relay.said()
    );
    net.veth(("server", "s0"), ("relay", "r1"));
    relay.wait_ready();
    let frame = plain(100, 1);
    let capture = Capture::start(&net, "server", "s0", "");
    send_raw(&net, "client", "c0", std::slice::from_ref(&frame));
    assert_eq!(capture.frames(1), [frame]);
    relay.stop(Signal::Term);
}

/// While it waits it ends like one that forwards, with the last statistics, also where the namespace is not there yet.
#[test]
fn a_relay_that_waits_can_be_stopped() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    let pair = format!("r0,{}:r1", net.ns("later"));
    let args = ["--pair", &pair, "--wait-ports", "60"];
    for signal in [Signal::Term, Signal::Int] {
        let relay = Relay::launch(&net, "relay", &[], &args);
        assert!(relay.says("waiting for r0, "), "{}", relay.said());
        let begun = std::time::Instant::now();
        let last = relay.stop(signal);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(last.ports.len(), 2);
        assert!(
            last.ports.iter().all(|port| port.state == "gone"),
            "{last:?}"
        );
    }
}

/// Whoever has waited in vain is told for what. Other mistakes are told at once, not after the wait.
#[test]
fn waiting_has_an_end() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    let run = |args: &[&str]| {
        let output = attempt(&net, "relay", &[], args);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run(&["run", "--pair", "r0,r1", "--wait-ports", "0.3"]);
    for port in ["r0", "r1"] {
        let line = format!("{port}: no such interface after 0.3 s");
        assert!(said.contains(&line), "{said}");
    }
    let said = run(&[
        "run",
        "--pair",
        "r0,lo",
        "--wait-ports",
        "60",
        "--ring",
        "1",
    ]);
    assert!(
        said.contains("lo is a loopback") && said.contains("--ring 1"),
        "{said}"
    );
    assert!(!said.contains("waiting"), "{said}");
    let said = run(&["run", "--pair", "r0,r1", "--wait-ports", "soon"]);
    assert!(said.contains("--wait-ports \"soon\""), "{said}");
}
