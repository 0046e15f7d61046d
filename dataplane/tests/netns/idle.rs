//! What waiting costs, and that a frame ends it. (How well is the bench's business; these bounds are generous.)

use std::time::Duration;

use crate::common::{Capture, Chain, Peer, Relay, Signal, plain, send_raw};
use crate::control::{assert_crosses, tell};

/// Clock ticks of CPU time, all threads, user and kernel.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The program's name in parentheses comes first and may contain anything.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum()
}

/// How often its threads have slept.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let of_task = |task: std::fs::DirEntry| -> u64 {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse().expect("a number"))
    };
    tasks.flatten().map(of_task).sum()
}

/// CPU ticks of one idle second, of about 100.
fn idle_second(chain: &Chain, policy: &str) -> u64 {
    let relay = Relay::start(&chain.net, "relay", &["--pair", "r0,r1", "--idle", policy]);
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks(relay.pid());
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(relay.pid()) - before;
    // The first frame after the wait, and one more after another.
    let frames = [plain(100, 1), plain(100, 2)];
    let capture = Capture::start(&chain.net, "server", "s0", "");
    for frame in &frames {
        send_raw(&chain.net, "client", "c0", std::slice::from_ref(frame));
    }
    assert_eq!(capture.frames(2), frames, "{policy}");
    let _echo = Peer::listen(
        &chain.net,
        "server",
        &format!("echo --address {}", Chain::SERVER),
    );
    let line = format!(
        "ask --address {} --count 3 --pause 0.3 --idle 3",
        Chain::SERVER
    );
    let answers = Peer::start(&chain.net, "client", &line).result();
    let last = relay.stop(Signal::Term);
    assert_eq!(answers["received"], 3, "{policy}: {last:?}");
    used
}

#[test]
fn adaptive_costs_next_to_nothing_when_idle() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let used = idle_second(&chain, "adaptive");
    assert!(used <= 4, "{used} ticks of an idle second");
}

#[test]
fn sleep_costs_next_to_nothing_when_idle() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let used = idle_second(&chain, "sleep");
    assert!(used <= 4, "{used} ticks of an idle second");
}

/// A port that is down or gone, or a pair that is closed by order, is nothing to look for again and again.
#[test]
fn it_sleeps_also_when_a_pair_can_carry_nothing() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1", "--name", &name]);
    let assert_sleeps = |state: &str| {
        std::thread::sleep(Duration::from_millis(300));
        let before = (ticks(relay.pid()), sleeps(relay.pid()));
        std::thread::sleep(Duration::from_secs(1));
        let used = ticks(relay.pid()) - before.0;
        let slept = sleeps(relay.pid()) - before.1;
        assert!(
            used <= 4 && slept <= 50,
            "{state}: {used} ticks of an idle second, woken {slept} times"
        );
    };
    assert_eq!(tell(net, &name, &["set", "--down", "r0,r1"]).0, 0);
    assert_sleeps("closed by order");
    assert_eq!(tell(net, &name, &["set", "--up", "r0,r1"]).0, 0);
    assert_crosses(net, 60..63);
    net.sh("relay", "ip link set r1 down");
    assert_sleeps("r1 down");
    net.sh("relay", "ip link delete r1");
    assert_sleeps("r1 gone");
    net.veth(("server", "s0"), ("relay", "r1"));
    assert!(relay.says("is open again"));
    assert_crosses(net, 60..63);
    relay.stop(Signal::Term);
}

/// The control: the measurement does see a relay that spins.
#[test]
fn spinning_is_seen_by_the_same_measure() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let used = idle_second(&chain, "spin");
    assert!(used > 10, "spin: {used} ticks of an idle second");
}

/// What stays in memory with one pair, its rings and super-frame buffers used.
#[test]
fn one_pair_fits_into_64_megabytes() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let relay = Relay::start(&chain.net, "relay", &["--pair", "r0,r1"]);
    let serve = Peer::listen(
        &chain.net,
        "server",
        &format!(
            "tcp-serve --address {} --size 4000000 --seed 1",
            Chain::SERVER
        ),
    );
    let line = format!(
        "tcp-connect --address {} --size 4000000 --seed 2",
        Chain::SERVER
    );
    Peer::start(&chain.net, "client", &line).result();
    serve.result();
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid())).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("the kernel says so");
    let kilobytes: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    assert!((1000..65_536).contains(&kilobytes), "{kilobytes} kB");
    relay.stop(Signal::Term);
}
