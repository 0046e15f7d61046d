//! Beyond one machine: two "hosts", each a namespace with a relay between its end and a VXLAN interface to the other.

use crate::common::{Capture, Net, Relay, Signal, plain, send_raw, tcp_both_ways};

/// Payload of a frame that, in a VXLAN packet, still fits the cable between the hosts: 1500 less 50.
const MTU: &str = "1450";

#[test]
fn relays_join_hosts_over_vxlan() {
    let Some(net) = Net::open(&["client", "left", "right", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("left", "near"));
    net.veth(("left", "u0"), ("right", "u1"));
    net.veth(("right", "near"), ("server", "s0"));
    for (host, cable, own, other) in [
        ("left", "u0", "192.0.2.1", "192.0.2.2"),
        ("right", "u1", "192.0.2.2", "192.0.2.1"),
    ] {
        net.sh(
            host,
            &format!(
                "ip address add {own}/24 dev {cable} && \
                 ip link add far type vxlan id 42 local {own} remote {other} dstport 4789 dev {cable} && \
                 ip link set far mtu {MTU} up"
            ),
        );
    }
    for (end, interface, address) in [("client", "c0", "10.9.0.1"), ("server", "s0", "10.9.0.2")] {
        net.sh(
            end,
            &format!(
                "ip address add {address}/24 dev {interface} && ip link set {interface} mtu {MTU}"
            ),
        );
    }
    let relays = ["left", "right"].map(|host| Relay::start(&net, host, &["--pair", "near,far"]));
    net.sh("client", "ping -n -c 3 -i 0.2 -W 5 10.9.0.2");
    // The longest frame that fits, as it was.
    let longest = plain(1450 + 14, 7);
    let capture = Capture::start(&net, "server", "s0", "ether proto 0x88b5");
    send_raw(&net, "client", "c0", std::slice::from_ref(&longest));
    assert_eq!(capture.frames(1), [longest]);
    // Super-frames: the relay hands them to the VXLAN interface whole, and the kernel cuts them.
    tcp_both_ways(&net, "10.9.0.2", 4 << 20);
    for relay in relays {
        let last = relay.stop(Signal::Term);
        for way in [last.way("near", "far"), last.way("far", "near")] {
            assert!(way.tx_packets > 3 && way.lost() == 0, "{last:?}");
        }
    }
}
