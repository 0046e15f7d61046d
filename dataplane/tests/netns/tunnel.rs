//! Tunnels. The virtio header cannot say that a super-frame lies inside VXLAN, GRE or Geneve; passed on as it is, the next
//! kernel would cut it at the wrong place. The relay cuts it: each segment must be a correct packet of its own.

use etherparse::{SlicedPacket, TransportSlice};

use crate::common::{Capture, Chain, Peer, Relay, Signal, checksums_hold, sum, tcp_both_ways};

const RUN: &[&str] = &["--pair", "r0,r1"];
/// Checksums are completed in software, so every frame can be verified at the far end.
#[cfg(feature = "xdp")]
const TX: &[&str] = &["--pair", "r0,r1", "--rx", "packet", "--tx", "xdp"];
const SIZE: u64 = 4 << 20;
/// What the relay keeps of root's rights: raw sockets, nothing else.
const NET_RAW_ALONE: &[&str] = &["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all"];

/// A VXLAN device at both ends of the chain, with TCP both ways inside.
/// With `whole`, checksums are completed on the relay's port, so that every frame can be verified at the far end.
fn tcp_in_vxlan(
    run: &[&str],
    chain: &Chain,
    outer: (&str, &str),
    inner: (&str, &str),
    options: &str,
    whole: bool,
) {
    let net = &chain.net;
    if whole && run == RUN {
        net.sh("relay", "ethtool -K r1 tx off");
    }
    let relay = Relay::start(net, "relay", run);
    for (space, interface, local, remote, address) in [
        ("client", "c0", outer.0, outer.1, inner.0),
        ("server", "s0", outer.1, outer.0, inner.1),
    ] {
        net.sh(space, &format!("ip link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote} dev {interface} {options}"));
        net.sh(space, "sysctl -qw net.ipv6.conf.vx0.disable_ipv6=0");
        net.sh(
            space,
            &format!("ip address add {address} dev vx0 nodad; ip link set vx0 up"),
        );
    }
    let capture = Capture::start(net, "server", "s0", "udp port 4789");
    let before = net.counters("client", "c0");
    let address = inner.1.split('/').next().expect("an address");
    let serve = Peer::listen(
        net,
        "server",
        &format!("tcp-serve --address {address} --size {SIZE} --seed 1"),
    );
    let line = format!("tcp-connect --address {address} --size {SIZE} --seed 2");
    let client = Peer::start(net, "client", &line).result();
    let server = serve.result();
    assert_eq!(
        (&client["received"], &client["received_sha"]),
        (&SIZE.into(), &server["sent_sha"])
    );
    assert_eq!(
        (&server["received"], &server["received_sha"]),
        (&SIZE.into(), &client["sent_sha"])
    );
    chain.settle();
    let sent = net.counters("client", "c0").tx_packets - before.tx_packets;
    let last = relay.stop(Signal::Term);

    let way = last.way("r0", "r1");
    assert_eq!(way.lost() + last.way("r1", "r0").lost(), 0, "{last:?}");
    assert!(
        sent < way.rx_packets / 2,
        "super-frames came in: {sent} buffers, {way:?}"
    );
    // The bulk of it, each on its own: no frame above the MTU, and correct from the outer header to the inner contents.
    let arrived = capture.frames(1);
    assert!(
        arrived.len() as u64 > SIZE / 1500,
        "{} frames for {SIZE} bytes",
        arrived.len()
    );
    for frame in &arrived {
        assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
        if whole {
            outer_holds(frame).expect("the outer headers are those of this segment");
            let inner = if frame[12..14] == [0x86, 0xdd] {
                70
            } else {
                50
            };
            // What is not TCP in there is ARP and neighbour discovery.
            if SlicedPacket::from_ethernet(&frame[inner..])
                .expect("Ethernet in VXLAN")
                .transport
                .is_some_and(is_tcp)
            {
                checksums_hold(&frame[inner..])
                    .expect("the inner headers are those of this segment");
            }
        }
    }
}

fn is_tcp(transport: TransportSlice) -> bool {
    matches!(transport, TransportSlice::Tcp(_))
}

/// The outer headers of a VXLAN frame; a UDP checksum of zero is none (RFC 7348).
fn outer_holds(frame: &[u8]) -> Result<(), String> {
    let mut frame = frame.to_vec();
    let at = if frame[12..14] == [0x86, 0xdd] {
        54
    } else {
        34
    };
    let length = usize::from(u16::from_be_bytes([frame[at + 4], frame[at + 5]]));
    if length != frame.len() - at {
        return Err(format!(
            "UDP length {length} in a frame that holds {}",
            frame.len() - at
        ));
    }
    if frame[at + 6..at + 8] == [0, 0] {
        // Give it the right one, so that all else can be verified.
        let addresses = if at == 34 { 26 } else { 22 };
        let pseudo = [
            &frame[addresses..at],
            &[0, 17],
            &frame[at + 4..at + 6],
            &frame[at..],
        ]
        .concat();
        let checksum = match !sum(&pseudo) {
            0 => 0xffff,
            other => other,
        };
        frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
    }
    checksums_hold(&frame)
}

#[test]
fn tcp_in_vxlan_with_default_offloads() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    tcp_in_vxlan(
        RUN,
        &chain,
        (Chain::CLIENT, Chain::SERVER),
        ("10.77.0.1/24", "10.77.0.2/24"),
        "",
        false,
    );
}

#[test]
fn tcp_in_vxlan_is_cut_into_correct_frames() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    tcp_in_vxlan(
        RUN,
        &chain,
        (Chain::CLIENT, Chain::SERVER),
        ("10.77.0.1/24", "10.77.0.2/24"),
        "",
        true,
    );
}

#[cfg(feature = "xdp")]
#[test]
fn tcp_in_vxlan_sent_by_xdp() {
    for (inner, options) in [
        (("10.77.0.1/24", "10.77.0.2/24"), ""),
        (("fd77::1/64", "fd77::2/64"), "noudpcsum"),
    ] {
        let Some(chain) = Chain::open(1500) else {
            return;
        };
        let outer = (Chain::CLIENT, Chain::SERVER);
        tcp_in_vxlan(TX, &chain, outer, inner, options, true);
    }
}

#[test]
fn tcp_over_ipv6_in_vxlan_without_outer_checksum() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    tcp_in_vxlan(
        RUN,
        &chain,
        (Chain::CLIENT, Chain::SERVER),
        ("fd77::1/64", "fd77::2/64"),
        "noudpcsum",
        true,
    );
}

#[test]
fn tcp_in_vxlan_over_ipv6() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    for (space, interface, address) in [("client", "c0", "fd09::1"), ("server", "s0", "fd09::2")] {
        chain.net.sh(
            space,
            &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0"),
        );
        chain.net.sh(
            space,
            &format!("ip address add {address}/64 dev {interface} nodad"),
        );
    }
    tcp_in_vxlan(
        RUN,
        &chain,
        ("fd09::1", "fd09::2"),
        ("10.77.0.1/24", "10.77.0.2/24"),
        "",
        true,
    );
}

/// Without NET_ADMIN the receive buffer is what an ordinary host allows; `L2RELAY_TEST_SYSCTL=1` makes sure of the
/// ordinary 212992 for the moment of the start, on machines that allow more (it is the whole machine's setting).
#[test]
fn net_raw_alone_and_an_ordinary_receive_buffer_suffice() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let mut relay = with_ordinary_rmem(|| {
        let mut relay = Relay::launch(&chain.net, "relay", NET_RAW_ALONE, RUN);
        relay.wait_ready();
        relay
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid())).expect("it runs");
    assert!(
        status.contains("CapEff:\t0000000000002000"),
        "NET_RAW alone: {status}"
    );
    // Plain TCP first: its super-frames need the large slots.
    let serve = Peer::listen(
        &chain.net,
        "server",
        &format!(
            "tcp-serve --address {} --size {SIZE} --seed 3",
            Chain::SERVER
        ),
    );
    let line = format!(
        "tcp-connect --address {} --size {SIZE} --seed 4",
        Chain::SERVER
    );
    let client = Peer::start(&chain.net, "client", &line).result();
    assert_eq!(serve.result()["received_sha"], client["sent_sha"]);
    chain.settle();
    relay.snapshot();
    let net = &chain.net;
    for (space, local, remote, address) in [
        ("client", Chain::CLIENT, Chain::SERVER, "10.77.0.1"),
        ("server", Chain::SERVER, Chain::CLIENT, "10.77.0.2"),
    ] {
        net.sh(
            space,
            &format!("ip link add vx0 type vxlan id 7 dstport 4789 local {local} remote {remote}"),
        );
        net.sh(
            space,
            &format!("ip address add {address}/24 dev vx0; ip link set vx0 mtu 1450 up"),
        );
    }
    tcp_both_ways(net, "10.77.0.2", SIZE);
    relay.stop(Signal::Term);
}

fn with_ordinary_rmem<T>(start: impl FnOnce() -> T) -> T {
    const PATH: &str = "/proc/sys/net/core/rmem_max";
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = std::fs::write(PATH, &self.0);
        }
    }
    let _restore = (std::env::var("L2RELAY_TEST_SYSCTL").as_deref() == Ok("1")).then(|| {
        let before = std::fs::read_to_string(PATH).expect("it can be read");
        std::fs::write(PATH, "212992").expect("root may");
        Restore(before)
    });
    start()
}
