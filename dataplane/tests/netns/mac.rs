//! MAC modes, as the far end sees them.

use crate::common::{
    Capture, Chain, Relay, Signal, mac, mac_text, send_raw, tcp_both_ways, udp_frame,
};

/// What arrives at either end of a relay with these options, for a frame sent from the other: (at the server, at the client).
fn through(chain: &Chain, args: &[&str]) -> ([Vec<u8>; 2], [Vec<u8>; 2]) {
    let net = &chain.net;
    let relay = Relay::start(net, "relay", &[&["--pair", "r0,r1"], args].concat());
    let forth = udp_frame(200, 1);
    let back = [&mac("c0")[..], &mac("s0")[..], &udp_frame(300, 2)[12..]].concat();
    let at_server = Capture::start(net, "server", "s0", "udp");
    let at_client = Capture::start(net, "client", "c0", "udp");
    send_raw(net, "client", "c0", std::slice::from_ref(&forth));
    send_raw(net, "server", "s0", std::slice::from_ref(&back));
    let (mut forth_arrived, mut back_arrived) = (at_server.frames(1), at_client.frames(1));
    relay.stop(Signal::Term);
    assert_eq!(
        (forth_arrived.len(), back_arrived.len()),
        (1, 1),
        "one frame each way"
    );
    (
        [forth, forth_arrived.remove(0)],
        [back, back_arrived.remove(0)],
    )
}

/// Asserts new addresses and an untouched remainder.
fn assert_addresses([sent, arrived]: [Vec<u8>; 2], destination: [u8; 6], source: [u8; 6]) {
    assert_eq!(
        (&arrived[..6], &arrived[6..12]),
        (&destination[..], &source[..])
    );
    assert_eq!(
        arrived[12..],
        sent[12..],
        "nothing but the addresses changes"
    );
}

#[test]
fn keep_is_the_default_and_changes_nothing() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    for args in [&[][..], &["--mac", "keep"]] {
        let (forth, back) = through(&chain, args);
        assert_addresses(forth, mac("s0"), mac("c0"));
        assert_addresses(back, mac("c0"), mac("s0"));
    }
}

#[test]
fn swap_exchanges_the_addresses() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let (forth, back) = through(&chain, &["--mac", "swap"]);
    assert_addresses(forth, mac("c0"), mac("s0"));
    assert_addresses(back, mac("s0"), mac("c0"));
}

#[test]
fn update_is_the_rule_of_l2fwd() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    // The destination names the port a frame leaves by: r0 is port 0, r1 is port 1.
    let (forth, back) = through(&chain, &["--mac", "update"]);
    assert_addresses(forth, [2, 0, 0, 0, 0, 1], mac("r1"));
    assert_addresses(back, [2, 0, 0, 0, 0, 0], mac("r0"));
}

#[test]
fn a_given_destination_replaces_the_rule_on_its_port_only() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let given = format!("r1={}", mac_text("s0"));
    let (forth, back) = through(&chain, &["--mac", "update", "--dst-mac", &given]);
    assert_addresses(forth, mac("s0"), mac("r1"));
    assert_addresses(back, [2, 0, 0, 0, 0, 0], mac("r0"));
}

/// With both destinations given, two hosts that know nothing of it talk through a relay that rewrites every frame,
/// partial checksums and super-frames included.
#[test]
fn tcp_crosses_an_updating_relay() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let (client, server) = (
        format!("r0={}", mac_text("c0")),
        format!("r1={}", mac_text("s0")),
    );
    let args = [
        "--pair",
        "r0,r1",
        "--mac",
        "update",
        "--dst-mac",
        &client,
        "--dst-mac",
        &server,
    ];
    let relay = Relay::start(net, "relay", &args);
    tcp_both_ways(net, Chain::SERVER, 4194304);
    relay.stop(Signal::Term);
}
