//! Interfaces that are renamed, moved, removed with their namespace, looped, or held down together.

use std::process::Command;

use crate::common::{Chain, Net, PATIENCE, Relay, Signal, eventually, multicast, send_raw};
use crate::control::{ask, assert_crosses, tell};

fn relay(net: &Net, options: &[&str]) -> (Relay, String) {
    let name = net.ns("relay");
    let args = [&["--pair", "r0,r1", "--name", &name], options].concat();
    (Relay::start(net, "relay", &args), name)
}

#[test]
fn a_renamed_interface_keeps_its_port() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (mut relay, _) = relay(net, &[]);
    assert_crosses(net, 60..65);
    // Since Linux 6.2 an interface that is up can be renamed; before, it goes down for it.
    net.sh(
        "relay",
        "ip link set r1 name wan || { ip link set r1 down; ip link set r1 name wan; ip link set wan up; }",
    );
    let snapshot = relay.snapshot_when("seen the new name", |snapshot| {
        snapshot
            .ports
            .iter()
            .any(|port| port.name == "wan" && port.state == "up")
    });
    assert_eq!(snapshot.way("r0", "wan").rx_packets, 5);
    assert_crosses(net, 70..75);
    // It is waited for by the name it had last.
    net.sh("relay", "ip link delete wan");
    relay.snapshot_when("seen it gone", |snapshot| {
        snapshot.port("wan").state == "gone"
    });
    net.veth(("server", "s0"), ("relay", "wan"));
    relay.snapshot_when("seen it back", |snapshot| {
        snapshot.port("wan").state == "up"
    });
    assert_crosses(net, 80..85);
    assert_eq!(relay.stop(Signal::Term).way("r0", "wan").rx_packets, 15);
}

#[test]
fn a_port_known_by_its_address_is_found_under_another_name() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (mut relay, _) = relay(net, &["--port-by", "mac"]);
    net.sh("relay", "ip link delete r1");
    relay.snapshot_when("seen it gone", |snapshot| {
        snapshot.port("r1").state == "gone"
    });
    let peer = format!("peer name s0 netns {}", net.ns("server"));
    // One of the name but another address, then one of the address but another name.
    net.sh(
        "relay",
        "ip link add r1 type veth peer name r1x; ip link set r1 up",
    );
    let address = crate::common::mac_text("r1");
    net.sh(
        "relay",
        &format!("ip link add other address {address} type veth {peer}"),
    );
    net.sh("relay", "ip link set other up");
    net.sh("server", "ip link set s0 up");
    relay.snapshot_when("found it", |snapshot| {
        snapshot
            .ports
            .iter()
            .any(|port| port.name == "other" && port.state == "up")
    });
    assert_crosses(net, 60..65);
    relay.stop(Signal::Term);
}

#[test]
fn a_lost_link_is_passed_on_and_given_back() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (relay, _) = relay(net, &["--propagate-link"]);
    let up = |space: &str, interface: &str| {
        let flags = net.link(space, interface)["flags"].clone();
        flags
            .as_array()
            .expect("a list")
            .iter()
            .any(|flag| flag == "LOWER_UP")
    };
    for _ in 0..3 {
        net.sh("server", "ip link set s0 down");
        assert!(eventually(PATIENCE, || !up("client", "c0")), "c0 sees it");
        // Its own end goes and returns meanwhile: nothing gets stuck.
        net.sh("client", "ip link set c0 down");
        net.sh("server", "ip link set s0 up");
        net.sh("client", "ip link set c0 up");
        assert!(
            eventually(PATIENCE, || up("client", "c0") && up("server", "s0")),
            "both are back:\n{}",
            relay.said()
        );
        assert_crosses(net, 60..63);
    }
    net.sh("server", "ip link set s0 down");
    assert!(eventually(PATIENCE, || !up("client", "c0")));
    relay.stop(Signal::Term);
    assert!(
        eventually(PATIENCE, || up("client", "c0")),
        "the relay gives it back"
    );
}

/// A namespace is deleted: the kernel can remove what was in it. Made anew, its port is found again.
#[test]
fn a_namespace_that_is_made_anew_is_seen() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    // The relay's other port lies at the client's server, in a namespace of its own.
    let other = format!("{}x", net.ns("server"));
    let make = || {
        let ip = |line: &str| {
            let done = Command::new("ip").args(line.split_whitespace()).status();
            assert!(done.expect("ip runs").success(), "ip {line}");
        };
        ip(&format!("netns add {other}"));
        let quiet = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
        ip(&format!("netns exec {other} sysctl -qw {quiet}"));
        ip(&format!(
            "link add r1 netns {other} address 02:00:00:00:00:01 type veth peer name s0 netns {}",
            net.ns("server")
        ));
        ip(&format!("-n {other} link set r1 up"));
        ip(&format!("-n {} link set s0 up", net.ns("server")));
    };
    let remove = || {
        Command::new("ip")
            .args(["netns", "delete", &other])
            .status()
    };
    make();
    let pair = format!("r0,{other}:r1");
    let mut relay = Relay::start(&net, "relay", &["--pair", &pair]);
    let port = format!("{other}:r1");
    assert_crosses(&net, 60..63);
    for round in 0..2 {
        remove().expect("ip runs");
        relay.snapshot_when("seen it gone", |snapshot| {
            snapshot.port(&port).state == "gone"
        });
        let gone = eventually(PATIENCE, || {
            let links = net.sh("server", "ip -o link");
            !links.contains("s0")
        });
        assert!(gone, "the namespace lives on because the relay holds it");
        make();
        relay.snapshot_when("seen it back", |snapshot| {
            snapshot.port(&port).state == "up"
        });
        assert_crosses(&net, 70 + round..75 + round);
    }
    relay.stop(Signal::Term);
    remove().expect("ip runs");
}

/// A namespace whose ports are removed by order is let go of, though its counters have been read: the kernel can remove it.
#[test]
fn a_namespace_without_ports_is_let_go_of() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (mut relay, name) = relay(net, &[]);
    let other = format!("{}x", net.ns("server"));
    let ip = |line: &str| {
        let done = Command::new("ip").args(line.split_whitespace()).status();
        assert!(done.expect("ip runs").success(), "ip {line}");
    };
    ip(&format!("netns add {other}"));
    for port in ["x0", "x1"] {
        let peer = format!("{port}p netns {}", net.ns("server"));
        ip(&format!(
            "link add {port} netns {other} type veth peer name {peer}"
        ));
    }
    let pair = format!("{other}:x0,{other}:x1");
    let (status, said, error) = tell(net, &name, &["set", "--add", &pair]);
    assert!(status == 0, "{said}{error}");
    assert_eq!(relay.snapshot().ports.len(), 4);
    let (status, said, error) = tell(net, &name, &["set", "--remove", &pair]);
    assert!(status == 0, "{said}{error}");
    ip(&format!("netns delete {other}"));
    let gone = eventually(PATIENCE, || !net.sh("server", "ip -o link").contains("x0p"));
    assert!(gone, "the namespace lives on because the relay holds it");
    relay.stop(Signal::Term);
}

/// A pair that can't be opened again for want of descriptors is tried until it can.
#[test]
fn a_pair_that_cannot_be_opened_is_tried_again() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (relay, name) = relay(net, &[]);
    let limit = |count: &str| {
        let pid = relay.pid().to_string();
        let set = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={count}:1024")])
            .status();
        assert!(set.expect("prlimit runs").success());
    };
    assert_eq!(tell(net, &name, &["set", "--down", "r0,r1"]).0, 0);
    // Enough to be asked, not enough to open two ports.
    limit(&(relay.descriptors_and_threads().0 + 2).to_string());
    let (status, _, said) = tell(net, &name, &["set", "--up", "r0,r1"]);
    assert!(
        status == 2 && said.contains("Too many open files") && said.contains("tried again"),
        "{said}"
    );
    limit("1024");
    let healthy = || ask(&name, r#"{"v":1,"cmd":"health"}"#)["health"]["ready"] == true;
    assert!(eventually(PATIENCE, healthy), "{}", relay.said());
    assert_crosses(net, 60..65);
    relay.stop(Signal::Term);
}

#[test]
fn a_storm_is_cut_and_counted() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let (relay, _) = relay(net, &["--storm-guard", "50"]);
    let storm: Vec<Vec<u8>> = (0..400).map(|n| multicast([0xff; 6], 100, n)).collect();
    send_raw(net, "client", "c0", &storm);
    assert_crosses(net, 60..90);
    let way = relay.stop(Signal::Term).way("r0", "r1");
    let cut = way.dropped.get("storm").copied().unwrap_or_default();
    assert_eq!(way.rx_packets, 430);
    assert!((100..400).contains(&cut), "{way:?}");
    assert_eq!(way.tx_packets + cut, 430);
}
