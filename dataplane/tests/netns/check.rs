//! `l2relay check`: what it says of interfaces whose state the test has made, and its exit status.

use serde_json::Value;

use crate::common::{Chain, Net, Relay, Signal, attempt, mac_text};

/// Runs it with `--json`; the exit status and the report.
fn check(net: &Net, wrapper: &[&str], interfaces: &[&str]) -> (Option<i32>, Value) {
    let output = attempt(
        net,
        "relay",
        wrapper,
        &[&["check", "--json"], interfaces].concat(),
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().count(), 1, "one object: {text}");
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(report["version"], 1);
    assert_eq!(report["ready"], output.status.success(), "{report}");
    for finding in report["findings"].as_array().expect("a list") {
        // Whatever is not right comes with what to do about it.
        assert_eq!(
            finding["verdict"] == "ok",
            finding["remedy"].is_null(),
            "{finding}"
        );
    }
    (output.status.code(), report)
}

/// What it found: (verdict, text).
fn finding(report: &Value, subject: &str, item: &str) -> (String, String) {
    let list = report["findings"].as_array().expect("a list");
    let found = list
        .iter()
        .find(|finding| finding["subject"] == subject && finding["item"] == item);
    let found = found.unwrap_or_else(|| panic!("nothing on {item} of {subject}: {report}"));
    let text = |key: &str| found[key].as_str().expect("text").to_owned();
    (text("verdict"), text("text"))
}

#[test]
fn a_relay_can_run_on_the_chain() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    net.sh(
        "relay",
        "ip link set r1 mtu 9000; ip address add 10.55.0.1/24 dev r1; ip link set r0 down",
    );
    let before = net.sh("relay", "ip -d address");
    let (status, report) = check(net, &[], &["r0", "r1"]);
    assert_eq!(status, Some(0), "{report}");
    assert_eq!(finding(&report, "machine", "packet socket").0, "ok");
    for port in ["r0", "r1"] {
        let (verdict, text) = finding(&report, port, "interface");
        assert!(
            verdict == "ok" && text.contains("veth") && text.contains(&mac_text(port)),
            "{text}"
        );
        assert_eq!(finding(&report, port, "xdp").0, "ok");
    }
    let (verdict, text) = finding(&report, "r0", "link");
    assert!(
        verdict == "note" && text.contains("down"),
        "{verdict} {text}"
    );
    assert!(finding(&report, "r0", "mtu").1.contains("1500"));
    assert!(finding(&report, "r1", "mtu").1.contains("9000"));
    assert_eq!(finding(&report, "r0", "addresses").0, "ok");
    let (verdict, text) = finding(&report, "r1", "addresses");
    assert!(
        verdict == "note" && text.contains("10.55.0.1"),
        "the host would answer: {text}"
    );
    assert_eq!(
        net.sh("relay", "ip -d address"),
        before,
        "looking changes nothing"
    );
}

#[test]
fn what_prevents_a_relay_is_a_problem() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    for (interface, text) in [("nope", "no such interface"), ("lo", "loopback")] {
        let (status, report) = check(net, &[], &["r0", interface]);
        assert_eq!(status, Some(1), "{report}");
        let found = finding(&report, interface, "interface");
        assert!(found.0 == "problem" && found.1.contains(text), "{found:?}");
    }
    let without = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-all"];
    let (status, report) = check(net, &without, &["r0"]);
    assert_eq!(status, Some(1));
    let found = finding(&report, "machine", "packet socket");
    assert!(
        found.0 == "problem" && found.1.contains("CAP_NET_RAW"),
        "{found:?}"
    );
}

/// What each back end lacks is named, and nothing is where it has all.
#[test]
fn missing_rights_of_other_back_ends_are_noted() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    for (rights, item, missing) in [
        ("+net_raw", "for AF_XDP", &["CAP_BPF", "CAP_NET_ADMIN"][..]),
        ("+net_raw", "for kernel", &["CAP_BPF", "CAP_NET_ADMIN"]),
        ("+net_raw,+net_admin,+bpf,+ipc_lock", "for AF_XDP", &[]),
        ("+net_raw,+sys_admin,+ipc_lock", "for AF_XDP", &[]),
        ("+net_raw,+net_admin,+bpf,+perfmon", "for kernel", &[]),
        ("+net_raw,+sys_admin", "for kernel", &[]),
        ("+net_raw,+net_admin,+bpf", "for kernel", &["CAP_PERFMON"]),
    ] {
        let bounding = format!("--bounding-set=-all,{rights}");
        let few = ["setpriv", &bounding, "--inh-caps=-all"];
        let (status, report) = check(&chain.net, &few, &["r0"]);
        assert_eq!(status, Some(0), "packet can run: {report}");
        let (verdict, text) = finding(&report, "machine", item);
        let expected = if missing.is_empty() { "ok" } else { "note" };
        assert_eq!(verdict, expected, "{rights}: {item}: {text}");
        for name in missing {
            assert!(text.contains(name), "{rights}: {item}: {text}");
        }
    }
}

/// What the manual says is enough for ports in other namespaces is enough.
#[test]
fn two_rights_suffice_for_other_namespaces() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let there = net.ns("relay");
    let pair = format!("{there}:r0,{there}:r1");
    let few = [
        "setpriv",
        "--bounding-set=-all,+net_raw,+sys_admin",
        "--inh-caps=-all",
    ];
    let mut relay = Relay::launch(net, "server", &few, &["--pair", &pair]);
    relay.wait_ready();
    chain.ping(3, "", Chain::SERVER);
    relay.stop(Signal::Term);
}

#[test]
fn allowed_cpus_are_those_of_the_process() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let first = crate::common::cpus()[0].to_string();
    let (_, report) = check(&chain.net, &["taskset", "-c", &first], &[]);
    let text = finding(&report, "machine", "cpus").1;
    let numbers: Vec<&str> = text
        .split(|c: char| !c.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    assert_eq!(numbers, [first], "{text}");
}
