//! TAP interfaces as ports: what a virtual machine sends and receives.

use crate::common::{
    Capture, Relay, Signal, Tag, checksums_hold, noise, offloaded, plain, send_vnet, tagged,
    tap_and_server, tcp_frame, udp_frame, vnet,
};

#[test]
fn what_a_machine_sends_arrives() {
    let Some((net, mut tap)) = tap_and_server() else {
        return;
    };
    net.sh("relay", "ethtool -K r1 tx off");
    let relay = Relay::start(&net, "relay", &["--pair", "t0,r1"]);
    let capture = Capture::start(&net, "server", "s0", "");
    let payload: Vec<u8> = noise(2).take(20_000).collect();
    let whole = udp_frame(900, 1);
    let stack = [Tag {
        tpid: 0x8100,
        tci: 12,
    }];
    tap.send(&[
        (vec![0; 10], plain(60, 1)),
        offloaded(&whole, 14, None),
        offloaded(&tagged(&whole, &stack), 18, None),
        offloaded(&tcp_frame(&payload, 1), 14, Some(1000)),
    ]);
    let arrived = capture.frames(23);
    relay.stop(Signal::Term);
    assert_eq!(arrived.len(), 23);
    assert_eq!(
        arrived[..3],
        [plain(60, 1), whole.clone(), tagged(&whole, &stack)]
    );
    for frame in &arrived[3..] {
        checksums_hold(frame).expect("every segment has its checksums");
    }
    assert!(
        arrived[3..]
            .iter()
            .flat_map(|frame| &frame[54..])
            .eq(&payload)
    );
}

/// A machine that has not said it takes partial checksums and super-frames gets neither.
#[test]
fn what_a_machine_receives_is_whole() {
    let Some((net, tap)) = tap_and_server() else {
        return;
    };
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
    assert_eq!(
        (&frames[0], &frames[1], &frames[22]),
        (&plain(60, 1), &whole, &plain(1514, 2))
    );
    for frame in &frames[2..22] {
        checksums_hold(frame).expect("every segment has its checksums");
    }
    assert!(
        frames[2..22]
            .iter()
            .flat_map(|frame| &frame[54..])
            .eq(&payload)
    );
}

/// Frames of random lengths and contents under random virtio headers, as far as the kernel lets them in: whatever becomes
/// of each, the relay goes on, and its account is exact.
#[test]
fn nonsense_is_survived_and_accounted_for() {
    let Some((net, mut tap)) = tap_and_server() else {
        return;
    };
    let relay = Relay::start(&net, "relay", &["--pair", "t0,r1"]);
    let mut random = noise(77);
    let mut number = |below: usize| {
        random
            .by_ref()
            .take(3)
            .fold(0, |sum, byte| sum << 8 | usize::from(byte))
            % below
    };
    let mut frames = Vec::new();
    for n in 0..3000 {
        // Half of them real packets whose headers lie; the rest noise. A few as long as an IP packet can be.
        let size = [
            14 + number(50),
            60 + number(1455),
            1500 + number(8000),
            60_000 + number(5000),
        ][[0, 1, 1, 1, 1, 2, 2, 3][number(8)]];
        let mut frame = if n % 2 == 0 && size > 60 {
            tcp_frame(&vec![n as u8; size - 54], 1)
        } else {
            plain(size, n)
        };
        if n % 3 == 0 {
            frame[12..14]
                .copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]][number(4)]);
        }
        if n % 5 == 0 {
            let at = number(frame.len().min(80));
            frame[at] ^= 1 << number(8);
        }
        let kind = [0, 0, 1, 4, 5, 0x81][number(6)];
        let (header, start, offset) = (number(120), number(100), [6, 16, number(20)][number(3)]);
        let mut vnet = vnet(kind, header, number(2000) as u16, start, offset);
        vnet[0] = number(2) as u8;
        frames.push((vnet, frame));
    }
    // In portions: nothing is to be lost for want of room.
    for portion in frames.chunks(100) {
        tap.send(portion);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let capture = Capture::start(&net, "server", "s0", "ether[12:2] = 0x88b6");
    let mut farewell = plain(64, 1);
    farewell[13] = 0xb6;
    tap.send(&[(vec![0; 10], farewell.clone())]);
    assert_eq!(capture.frames(1), [farewell], "it still forwards");
    drop(tap);
    let last = relay.stop(Signal::Term);
    assert!(
        last.way("t0", "r1").rx_packets > 1000,
        "the kernel let too few in: {last:?}"
    );
}
