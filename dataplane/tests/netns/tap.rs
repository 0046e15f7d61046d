//! TAP interfaces as ports: what a virtual machine sends and receives.

use crate::common::{Capture, Net, Relay, Signal, Tag, Tap, checksums_hold, noise, offloaded, plain, send_vnet, tagged, tcp_frame, udp_frame};

/// A TAP `t0` and a chain's server side `r1`–`s0`.
fn tap_and_server() -> Option<(Net, Tap)> {
    let net = Net::open(&["relay", "server"])?;
    net.veth(("server", "s0"), ("relay", "r1"));
    let tap = Tap::open(&net, "relay", "t0");
    Some((net, tap))
}

#[test]
fn what_a_machine_sends_arrives() {
    let Some((net, mut tap)) = tap_and_server() else { return };
    net.sh("relay", "ethtool -K r1 tx off");
    let relay = Relay::start(&net, "relay", &["--pair", "t0,r1"]);
    let capture = Capture::start(&net, "server", "s0", "");
    let payload: Vec<u8> = noise(2).take(20_000).collect();
    let whole = udp_frame(900, 1);
    let stack = [Tag { tpid: 0x8100, tci: 12 }];
    tap.send(&[
        (vec![0; 10], plain(60, 1)),
        offloaded(&whole, 14, None),
        offloaded(&tagged(&whole, &stack), 18, None),
        offloaded(&tcp_frame(&payload, 1), 14, Some(1000)),
    ]);
    let arrived = capture.frames(23);
    relay.stop(Signal::Term);
    assert_eq!(arrived.len(), 23);
    assert_eq!(arrived[..3], [plain(60, 1), whole.clone(), tagged(&whole, &stack)]);
    for frame in &arrived[3..] {
        checksums_hold(frame).expect("every segment has its checksums");
    }
    assert!(arrived[3..].iter().flat_map(|frame| &frame[54..]).eq(&payload));
}

/// A machine that has not said it takes partial checksums and super-frames gets neither.
#[test]
fn what_a_machine_receives_is_whole() {
    let Some((net, tap)) = tap_and_server() else { return };
    let relay = Relay::start(&net, "relay", &["--pair", "t0,r1"]);
    let payload: Vec<u8> = noise(2).take(20_000).collect();
    let whole = udp_frame(900, 1);
    let sent = [
        (vec![0; 10], plain(60, 1)),
        offloaded(&whole, 14, None),
        offloaded(&tcp_frame(&payload, 1), 14, Some(1000)),
        (vec![0; 10], plain(1514, 2)),
    ];
    send_vnet(&net, "server", "s0", &sent);
    let received = tap.close();
    let last = relay.stop(Signal::Term);
    let frames: Vec<Vec<u8>> = received.into_iter().map(|frame| frame.bytes).collect();
    assert_eq!(frames.len(), 23, "{last:?}");
    assert_eq!((&frames[0], &frames[1], &frames[22]), (&plain(60, 1), &whole, &plain(1514, 2)));
    for frame in &frames[2..22] {
        checksums_hold(frame).expect("every segment has its checksums");
    }
    assert!(frames[2..22].iter().flat_map(|frame| &frame[54..]).eq(&payload));
}
