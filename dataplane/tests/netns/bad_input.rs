//! What cannot work is refused before anything is touched: status 2, each mistake named with its remedy, all in one run.

use std::process::Output;

use crate::common::{Chain, Net, attempt, cpus};

const PAIR: &[&str] = &["run", "--pair", "r0,r1"];

/// Runs it in the relay's namespace and demands the refusal: each text on standard error, and nothing changed.
fn refused(net: &Net, wrapper: &[&str], args: &[&str], texts: &[&str]) -> String {
    let state = || {
        net.sh(
            "relay",
            "ip -d address | grep -v valid_lft; ip route; tc qdisc; ls /proc/sys/net/ipv4/conf",
        )
    };
    let before = state();
    let Output {
        status,
        stdout,
        stderr,
    } = attempt(net, "relay", wrapper, args);
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{args:?}: {said}");
    assert!(
        stdout.is_empty(),
        "{args:?}: {}",
        String::from_utf8_lossy(&stdout)
    );
    for text in texts {
        assert!(said.contains(text), "{args:?}: no {text:?} in\n{said}");
    }
    assert!(
        !said.contains("panicked") && !said.lines().any(|line| line == "ready"),
        "{args:?}: {said}"
    );
    assert_eq!(state(), before, "{args:?} left something behind");
    said
}

#[test]
fn interfaces_that_cannot_be_ports() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let long = "r0,a-name-no-interface-can-have";
    let nowhere = "no-such-namespace:r0,r1";
    // A pipe that nobody writes to: whoever opens it waits.
    let pipe = net.file("pipe");
    net.sh("relay", &format!("mkfifo {}", pipe.display()));
    let pipe = format!("{}:x,r1", pipe.display());
    let cases: [(&[&str], &[&str]); 11] = [
        (
            &["run", "--pair", &pipe],
            &["pipe:x", "is no network namespace"],
        ),
        (&["run"], &["no ports", "--pair", "--hairpin"]),
        (
            &["run", "--pair", "r0,nope"],
            &["nope", "no such interface", "r1"],
        ),
        (&["run", "--pair", "lo,r1"], &["lo", "loopback"]),
        (&["run", "--pair", "r0,r0"], &["r0", "--hairpin r0"]),
        (
            &["run", "--pair", "r0,r1", "--pair", "r1,r0"],
            &["r0 is named", "r1 is named", "one pair only"],
        ),
        (
            &["run", "--pair", "r0,r1", "--hairpin", "r1"],
            &["r1 is named"],
        ),
        (
            &["run", "--pair", "r0,r1", "--hairpin", "r9"],
            &["r9", "no such interface"],
        ),
        (
            &["run", "--pair", long],
            &["a-name-no-interface-can-have", "1 to 15"],
        ),
        (
            &["run", "--pair", nowhere],
            &["no-such-namespace", "namespace"],
        ),
        (
            &["run", "--hairpin", "r0", "--hairpin", "r0"],
            &["r0 is named"],
        ),
    ];
    for (args, texts) in cases {
        refused(net, &[], args, texts);
    }
}

#[test]
fn values_that_mean_nothing() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let cases: [(&[&str], &[&str]); 34] = [
        (&["--pair", "r0"], &["\"r0\"", "A,B"]),
        (&["--pair", "r0,r1,r0"], &["r1,r0"]),
        (&["--pair", ","], &["port \"\""]),
        (&["--backend", "dpdk"], &["dpdk", "auto", "packet"]),
        (&["--mac", "rewrite"], &["rewrite", "keep, swap or update"]),
        (
            &["--mac", "update", "--dst-mac", "r0=zz"],
            &["zz", "MAC address"],
        ),
        (&["--mac", "update", "--dst-mac", "r0"], &["r0", "MAC"]),
        (
            &["--mac", "update", "--dst-mac", "r0=02:00:00:00:00:01:02"],
            &["02:00:00:00:00:01:02"],
        ),
        (
            &["--mac", "update", "--dst-mac", "r9=02:00:00:00:00:01"],
            &["r9", "no such port"],
        ),
        (
            &["--dst-mac", "r0=02:00:00:00:00:01"],
            &["--dst-mac", "--mac update"],
        ),
        (&["--cores", "3-1"], &["3-1", "1,3-5"]),
        (&["--cores", ""], &["--cores"]),
        (&["--cores", "one"], &["one"]),
        (&["--cores", "0,0"], &["core 0", "twice"]),
        (
            &["--cores", "99999999999999999999"],
            &["99999999999999999999"],
        ),
        (&["--idle", "lazy"], &["lazy", "spin, adaptive or sleep"]),
        (&["--queues", "0"], &["--queues 0", "1 to 64"]),
        (&["--queues", "-1"], &["-1"]),
        (&["--ring", "0"], &["--ring 0", "16 to 32768"]),
        (&["--ring", "99999999"], &["--ring 99999999"]),
        (&["--ring", "1e3"], &["1e3", "whole number"]),
        (
            &["--hugepages", "maybe"],
            &["maybe", "auto, require or off"],
        ),
        (&["--link", "r0-r1 delay 5ms"], &["r0-r1", "write 'A>B'"]),
        (&["--link", "r0>r9 delay 5ms"], &["r0>r9", "no pair"]),
        (&["--link", "r0>r1 delay 5"], &["delay: \"5\""]),
        (
            &["--link", "r0>r1 rate 0bit loss 5 limit 1"],
            &["100bit to 1tbit", "with its sign", "100p (packets)"],
        ),
        (&["--link", "r0>r1 limit 100p"], &["add rate or trace"]),
        (
            &["--link", "r0>r1 trace /dev/zero"],
            &["not an ordinary file"],
        ),
        (
            &["--link", "r0>r1 loss pattern file:/dev/zero"],
            &["not an ordinary file"],
        ),
        // Files by name, which wait for more.
        (
            &["--link", "r0>r1 trace /proc/kmsg"],
            &["not an ordinary file"],
        ),
        (&["-c", "/proc/kmsg"], &["not an ordinary file"]),
        (&["-c", "/dev/zero"], &["not an ordinary file"]),
        (&["--link", "r0>r1 rate 10gbit delay 1s"], &["rate × delay"]),
        (&["--stats-interval", "nan"], &["nan", "seconds"]),
    ];
    for (args, texts) in cases {
        let pair: &[&str] = if args[0] == "--pair" { &["run"] } else { PAIR };
        refused(net, &[], &[pair, args].concat(), texts);
    }
    // A pipe whose writer never comes.
    let pipe = net.file("pipe");
    net.sh("relay", &format!("mkfifo {}", pipe.display()));
    let link = format!("r0>r1 trace {}", pipe.display());
    let args = [PAIR, &["--link", &link]].concat();
    refused(net, &[], &args, &["not an ordinary file"]);
    std::fs::remove_file(pipe).expect("it is there");
    refused(
        net,
        &[],
        &["run", "--pair", "r0,r1", "--no-such-option"],
        &["--no-such-option"],
    );
    refused(net, &[], &["walk"], &["walk"]);
    refused(net, &[], &[], &["Usage"]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let cores = format!("0,{}", cpus().last().expect("there is a CPU") + 1);
    let args = [
        "run",
        "--pair",
        "r0,nope",
        "--pair",
        "lo,r1",
        "--pair",
        "r7",
        "--hairpin",
        "r1",
        "--cores",
        &cores,
        "--mac",
        "foo",
        "--dst-mac",
        "r0=zz",
        "--idle",
        "lazy",
        "--queues",
        "99",
        "--ring",
        "abc",
        "--hugepages",
        "maybe",
        "--backend",
        "dpdk",
        "--link",
        "r0>r1 delay soon",
        "--stats-interval",
        "0",
    ];
    let texts = [
        "nope: no such interface",
        "lo is a loopback",
        "\"r7\"",
        "r1 is named",
        "is not allowed here",
        "\"foo\"",
        "zz",
        "\"lazy\"",
        "--queues 99",
        "\"abc\"",
        "\"maybe\"",
        "\"dpdk\"",
        "soon",
        "--stats-interval",
    ];
    let said = refused(&chain.net, &[], &args, &texts);
    assert_eq!(said.lines().count(), texts.len(), "one line each:\n{said}");
}

#[test]
fn cores_outside_the_allowed_set() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let outside = (cpus().last().expect("there is a CPU") + 1).to_string();
    refused(
        net,
        &[],
        &[PAIR, &["--cores", &outside]].concat(),
        &[&format!("core {outside} is not allowed"), "use "],
    );
    refused(
        net,
        &[],
        &[PAIR, &["--cores", "1024,5000"]].concat(),
        &["1024", "5000"],
    );
    // A container's set: the machine has more than the relay may use.
    if let [first, .., last] = cpus()[..] {
        let (no, yes) = (
            format!("core {last} is not allowed"),
            format!("use {first}"),
        );
        let (first, last) = (first.to_string(), last.to_string());
        refused(
            net,
            &["taskset", "-c", &first],
            &[PAIR, &["--cores", &last]].concat(),
            &[&no, &yes],
        );
    }
}

#[test]
fn rights_and_pages_that_are_missing() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let without = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-all"];
    refused(net, &without, PAIR, &["r0", "CAP_NET_RAW", "setcap"]);
    // More than any machine that runs this has: 64 lanes each way with rings of 32768.
    let args = [
        PAIR,
        &["--hugepages", "require", "--ring", "4096", "--queues", "64"],
    ]
    .concat();
    refused(
        net,
        &[],
        &args,
        &["huge pages", "free", "nr_hugepages", "--hugepages off"],
    );
}

/// Another's namespace needs another right than a raw socket; the message must say which.
#[test]
fn a_foreign_namespace_without_the_right_to_enter() {
    let Some(net) = Net::open(&["relay", "other"]) else {
        return;
    };
    net.veth(("relay", "r0"), ("other", "r1"));
    let without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
    let pair = format!("r0,{}:r1", net.ns("other"));
    refused(
        &net,
        &without,
        &["run", "--pair", &pair],
        &["r1", "CAP_SYS_ADMIN"],
    );
}

/// One interface under two names is still one interface, and a setting given twice is no setting.
#[test]
fn the_same_thing_twice() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let space = net.ns("relay");
    let [by_name, by_path] = [format!("{space}:r0"), format!("/run/netns/{space}:r0")];
    let pair = format!("{by_name},{by_path}");
    refused(
        net,
        &[],
        &["run", "--pair", &pair],
        &["are one interface", &by_path],
    );
    net.sh("relay", "ip link property add dev r0 altname other-r0");
    refused(
        net,
        &[],
        &["run", "--pair", "r0,other-r0"],
        &["r0 and other-r0 are one interface"],
    );
    let twice = [
        PAIR,
        &["--link", "r0>r1 delay 1ms", "--link", "r0>r1 delay 2ms"],
        &[
            "--mac",
            "update",
            "--dst-mac",
            "r0=02:00:00:00:00:01",
            "--dst-mac",
            "r0=02:00:00:00:00:02",
        ],
        &["--queues", "64", "--ring", "32768"],
    ]
    .concat();
    let texts = [
        "'r0>r1': given twice",
        "--dst-mac r0: given twice",
        "more than 262144 slots",
    ];
    refused(net, &[], &twice, &texts);
}
