//! Super-frames and checksums: a packet is a packet.

use etherparse::PacketBuilder;
use l2relay::memory::Offload;

use super::*;

const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 1], [10, 0, 0, 2]);

fn builder(v6: bool) -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    if v6 {
        ethernet.ipv6([0xfd; 16], [0xfe; 16], 64)
    } else {
        ethernet.ipv4(V4.0, V4.1, 64)
    }
}

/// A super-frame of TCP or UDP, with its checksum left undone as a sender leaves it.
fn super_frame(tcp: bool, v6: bool, payload: usize, size: u16) -> Packet {
    let payload: Vec<u8> = (0..payload).map(|n| n as u8).collect();
    let mut bytes = Vec::new();
    if tcp {
        builder(v6)
            .tcp(1, 2, 1000, 500)
            .write(&mut bytes, &payload)
            .unwrap();
    } else {
        builder(v6).udp(1, 2).write(&mut bytes, &payload).unwrap();
    }
    let start = if v6 { 54 } else { 34 };
    let offload = Offload {
        flags: Offload::NEEDS_CSUM,
        gso_type: match (tcp, v6) {
            (true, false) => 1,
            (true, true) => 4,
            (false, _) => 5,
        },
        hdr_len: start + if tcp { 20 } else { 8 },
        gso_size: size,
        csum_start: start,
        csum_offset: if tcp { 16 } else { 6 },
    };
    Packet { bytes, offload }
}

/// Whether the checksums of TCP, UDP and IPv4 are right, as etherparse works them out.
fn is_whole(bytes: &[u8]) -> bool {
    let Ok(parsed) = etherparse::PacketHeaders::from_ethernet_slice(bytes) else {
        return false;
    };
    let (Some(net), Some(transport)) = (&parsed.net, &parsed.transport) else {
        return false;
    };
    let payload = parsed.payload.slice();
    let network = match net {
        etherparse::NetHeaders::Ipv4(ip, _) => ip.header_checksum == ip.calc_header_checksum(),
        _ => true,
    };
    let right = match (net, transport) {
        (etherparse::NetHeaders::Ipv4(ip, _), etherparse::TransportHeader::Tcp(tcp)) => {
            tcp.checksum == tcp.calc_checksum_ipv4(ip, payload).unwrap()
        }
        (etherparse::NetHeaders::Ipv6(ip, _), etherparse::TransportHeader::Tcp(tcp)) => {
            tcp.checksum == tcp.calc_checksum_ipv6(ip, payload).unwrap()
        }
        (etherparse::NetHeaders::Ipv4(ip, _), etherparse::TransportHeader::Udp(udp)) => {
            udp.checksum == udp.calc_checksum_ipv4(ip, payload).unwrap()
        }
        (etherparse::NetHeaders::Ipv6(ip, _), etherparse::TransportHeader::Udp(udp)) => {
            udp.checksum == udp.calc_checksum_ipv6(ip, payload).unwrap()
        }
        _ => false,
    };
    network && right
}

#[test]
fn super_frames_are_cut_before_anything_happens_to_them() {
    for (tcp, v6) in [(true, false), (true, true), (false, false), (false, true)] {
        // Every third packet is lost, not every third super-frame; 44 packets of 1448 bytes at most in one.
        let mut bed = Bed::new("rate 100mbit limit 1000p delay 1ms loss pattern 001");
        bed.send(super_frame(tcp, v6, 60_000, 1448));
        assert_eq!(bed.tally().rx_packets, 42);
        bed.run_out();
        assert_eq!(bed.dropped(Reason::Lost), 14);
        assert_eq!(bed.out.len(), 28, "{tcp} {v6}");
        let headers = if v6 { 54 } else { 34 } + if tcp { 20 } else { 8 };
        for (_, packet) in &bed.out {
            assert_eq!(packet.offload, Offload::default());
            assert!(packet.bytes.len() <= headers + 1448);
            assert!(is_whole(&packet.bytes), "{tcp} {v6}");
        }
        // One after another, at the rate.
        let gap = (headers + 1448) as u64 * 8 * 10;
        assert!(
            bed.times()
                .windows(2)
                .all(|pair| pair[1] - pair[0] >= gap || pair[1] == bed.times()[27])
        );
        // A queue that holds ten packets holds ten of them.
        let mut bed = Bed::new("rate 1mbit limit 10p");
        bed.send(super_frame(tcp, v6, 60_000, 1448));
        assert_eq!(bed.dropped(Reason::QueueFull), 32);
    }
    // One that contradicts itself is dropped as a whole.
    let mut bed = Bed::new("delay 1ms");
    let mut bad = super_frame(true, false, 10_000, 1000);
    bad.offload.csum_start = 20;
    bed.send(bad);
    assert_eq!(bed.dropped(Reason::GsoUnsupported), bed.tally().rx_packets);
}

/// Also where the checksum was still to be made: the receiver's device must not make it right.
#[test]
fn corruption_shows_in_the_checksum() {
    let mut found = 0;
    for seed in 0..200 {
        let mut bed = Bed::new(&format!("corrupt 100% seed {seed}"));
        let mut frame = super_frame(seed % 2 == 0, false, 100, 0);
        frame.offload.gso_type = 0;
        let (start, offset) = (34usize, usize::from(frame.offload.csum_offset));
        // As a sender leaves it: the sum of the pseudo-header only. The rest is whole but for that.
        let whole = frame.bytes.clone();
        assert!(is_whole(&whole));
        let sum = pseudo(&whole);
        frame.bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        bed.send(frame);
        bed.run_out();
        let (_, packet) = &bed.out[0];
        assert_eq!(packet.offload, Offload::default(), "nobody repairs it");
        let bits: u32 = packet
            .bytes
            .iter()
            .zip(&whole)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(bits, 1);
        found += u32::from(!is_whole(&packet.bytes));
    }
    // The address fields, too, are guarded, so every bit is (a length that grows makes the frame too short).
    assert_eq!(found, 200);
}

/// The folded sum of the IPv4 pseudo-header.
fn pseudo(frame: &[u8]) -> u16 {
    let len = (frame.len() - 34) as u32;
    let words = frame[26..34]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum = words.sum::<u32>() + u32::from(frame[23]) + len;
    ((sum & 0xffff) + (sum >> 16)) as u16
}
