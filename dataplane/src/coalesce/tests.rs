//! Which frames join, one rule at a time. That nothing is lost or spoilt whatever the frames are: `tests/coalesce.rs`.

use etherparse::{IpFragOffset, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader};

use super::*;
use crate::{
    memory::{PoolSize, SMALL_FRAME},
    stats::Tally,
};

/// Segments of each frame that leaves when these came.
fn merged(frames: &[Vec<u8>]) -> Vec<u32> {
    merged_with(frames, &Offload::default(), 1500)
}

fn merged_with(frames: &[Vec<u8>], offload: &Offload, mtu: u32) -> Vec<u32> {
    let mut coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, mtu)));
    merged_by(&mut coalescer, frames, offload)
}

fn merged_by(coalescer: &mut Coalescer, frames: &[Vec<u8>], offload: &Offload) -> Vec<u32> {
    let mut pool = FramePool::ordinary(PoolSize {
        small: frames.len(),
        large: frames
            .iter()
            .filter(|frame| frame.len() > SMALL_FRAME)
            .count(),
    })
    .unwrap();
    let (mut burst, mut tally) = (Burst::new(), Tally::default());
    for bytes in frames {
        let frame = pool.alloc_copy(bytes).unwrap();
        pool.meta_mut(&frame).offload = *offload;
        burst.push(frame);
    }
    let mut turn = Turn {
        pool: &mut pool,
        tally: &mut tally,
        now_ns: 0,
        room: 0,
    };
    coalescer.merge(&mut burst, &mut turn);
    burst
        .iter()
        .map(|frame| pool.meta(frame).segments)
        .collect()
}

/// A datagram from a port, otherwise as `change` makes it.
fn udp(port: u16, payload: usize, change: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
    let mut ip = Ipv4Header::new(
        0,
        64,
        etherparse::IpNumber::UDP,
        [10, 0, 0, 1],
        [10, 0, 0, 2],
    )
    .unwrap();
    ip.dont_fragment = true;
    change(&mut ip);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .udp(port, 9)
        .write(&mut bytes, &vec![port as u8; payload])
        .unwrap();
    bytes
}

fn plain(port: u16, payload: usize) -> Vec<u8> {
    udp(port, payload, |_| {})
}

fn udp6(change: impl FnOnce(&mut Ipv6Header)) -> Vec<u8> {
    let mut ip = Ipv6Header {
        hop_limit: 64,
        source: [0xfd; 16],
        destination: [0xfe; 16],
        ..Ipv6Header::default()
    };
    change(&mut ip);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
        .udp(7, 9)
        .write(&mut bytes, &[7; 20])
        .unwrap();
    bytes
}

fn tcp(sequence: u32, payload: usize, change: impl FnOnce(&mut TcpHeader)) -> Vec<u8> {
    let mut header = TcpHeader::new(7, 9, sequence, 1000);
    header.ack = true;
    header.acknowledgment_number = 5;
    change(&mut header);
    let ip = Ipv4Header::new(
        0,
        64,
        etherparse::IpNumber::TCP,
        [10, 0, 0, 1],
        [10, 0, 0, 2],
    );
    let mut bytes = Vec::new();
    let mut ip = ip.unwrap();
    ip.dont_fragment = true;
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .tcp_header(header)
        .write(&mut bytes, &vec![3; payload])
        .unwrap();
    bytes
}

#[test]
fn datagrams_of_one_length_join_and_a_shorter_one_is_the_last() {
    assert_eq!(merged(&[plain(1, 20), plain(1, 20), plain(1, 20)]), [3]);
    assert_eq!(merged(&[plain(1, 20), plain(1, 9), plain(1, 9)]), [2, 1]);
    assert_eq!(merged(&[plain(1, 20), plain(1, 21)]), [1, 1]);
    assert_eq!(merged(&[plain(1, 0), plain(1, 0)]), [1, 1]);
    let long: Vec<_> = (0..45).map(|_| plain(1, 1472)).collect();
    assert_eq!(
        merged(&long),
        [44, 1],
        "no packet is longer than 65535 bytes"
    );
}

#[test]
fn flows_do_not_mix_and_keep_their_places() {
    let frames = [
        plain(1, 20),
        plain(2, 20),
        plain(1, 20),
        plain(2, 20),
        plain(3, 20),
    ];
    assert_eq!(merged(&frames), [2, 2, 1]);
}

#[test]
fn what_all_must_have_in_common() {
    let changes: [fn(&mut Ipv4Header); 4] = [
        |ip| ip.time_to_live = 63,
        |ip| ip.dscp = 8.try_into().unwrap(),
        |ip| ip.ecn = 1.try_into().unwrap(),
        |ip| ip.dont_fragment = false,
    ];
    for change in changes {
        let frames = [plain(1, 20), udp(1, 20, change), plain(1, 20)];
        assert_eq!(merged(&frames), [1, 1, 1]);
    }
    let changes: [fn(&mut Ipv6Header); 3] = [
        |ip| ip.hop_limit = 63,
        |ip| ip.traffic_class = 1,
        |ip| ip.flow_label = 1.try_into().unwrap(),
    ];
    assert_eq!(merged(&[udp6(|_| {}), udp6(|_| {})]), [2]);
    for change in changes {
        assert_eq!(merged(&[udp6(|_| {}), udp6(change)]), [1, 1]);
    }
    let mut other_mac = plain(1, 20);
    other_mac[11] = 5;
    assert_eq!(merged(&[plain(1, 20), other_mac]), [1, 1]);
}

#[test]
fn tags_are_equal_or_frames_stay_apart() {
    let tagged = |tags: &[[u8; 4]]| {
        let mut bytes = plain(1, 20);
        bytes.splice(12..12, tags.concat());
        bytes
    };
    let (five, six, outer) = ([0x81, 0, 0, 5], [0x81, 0, 0, 6], [0x88, 0xa8, 0, 1]);
    for tags in [&[five][..], &[outer, five]] {
        assert_eq!(merged(&[tagged(tags), tagged(tags)]), [2]);
    }
    assert_eq!(merged(&[tagged(&[five]), tagged(&[six])]), [1, 1]);
    assert_eq!(merged(&[tagged(&[five]), tagged(&[])]), [1, 1]);
    // The kernel can't cut behind these.
    assert_eq!(
        merged(&[tagged(&[outer, five, five]), tagged(&[outer, five, five])]),
        [1, 1]
    );
    let old = [0x91, 0, 0, 5];
    assert_eq!(merged(&[tagged(&[old]), tagged(&[old])]), [1, 1]);
}

#[test]
fn without_df_only_identifications_that_count_on_join() {
    let numbered = |id: u16| {
        udp(1, 20, |ip| {
            ip.dont_fragment = false;
            ip.identification = id;
        })
    };
    assert_eq!(merged(&[numbered(0xffff), numbered(0), numbered(1)]), [3]);
    assert_eq!(merged(&[numbered(7), numbered(7)]), [1, 1]);
    assert_eq!(merged(&[numbered(7), numbered(9)]), [1, 1]);
    let fixed = |id: u16| udp(1, 20, |ip| ip.identification = id);
    assert_eq!(merged(&[fixed(7), fixed(7), fixed(100)]), [3]);
}

#[test]
fn fragments_options_and_wrong_checksums_stay_alone_and_part_the_others() {
    let fragment = udp(1, 24, |ip| {
        ip.fragment_offset = IpFragOffset::try_new(3).unwrap()
    });
    let options = udp(1, 20, |ip| {
        ip.options = [1, 1, 1, 0][..].try_into().unwrap()
    });
    let zero = {
        let mut bytes = plain(1, 20);
        bytes[40..42].fill(0);
        bytes
    };
    let spoilt = |at: usize| {
        let mut bytes = plain(1, 20);
        bytes[at] ^= 0x10;
        bytes
    };
    let padded = [plain(1, 10), vec![0; 8]].concat();
    for odd in [fragment, options, zero, spoilt(50), spoilt(24), padded] {
        let frames = [
            plain(1, 20),
            plain(1, 20),
            odd.clone(),
            plain(1, 20),
            plain(1, 20),
        ];
        assert_eq!(merged(&frames), [2, 1, 2], "{odd:02x?}");
        assert_eq!(merged(&[odd.clone(), odd.clone(), odd]), [1, 1, 1]);
    }
}

/// Zero can be written as 0 and as 0xffff; a frame that was cut from a super-frame has just one of them.
#[test]
fn an_unusual_zero_as_checksum_stays_as_it_is() {
    use crate::wire::checksum::{fold, sum};
    // What the field must hold for the bytes to be right, added to two bytes that were zero, makes it zero.
    let mut segment = tcp(100, 20, |_| {});
    segment[72..74].fill(0);
    segment[50..52].fill(0);
    let pseudo = sum(&segment[26..34]) + 6 + 40;
    let rest = !fold(sum(&segment[34..]) + pseudo);
    segment[72..74].copy_from_slice(&rest.to_be_bytes());
    assert_eq!(merged(&[segment.clone(), tcp(120, 20, |_| {})]), [2]);
    segment[50..52].fill(0xff);
    assert_eq!(merged(&[segment, tcp(120, 20, |_| {})]), [1, 1]);

    let datagram = |id: u16| udp(1, 20, |ip| ip.identification = id);
    let rest = u16::from_be_bytes(*datagram(0)[24..].first_chunk().unwrap());
    let mut datagram = datagram(rest);
    assert_eq!(datagram[24..26], [0, 0]);
    assert_eq!(merged(&[datagram.clone(), datagram.clone()]), [2]);
    datagram[24..26].fill(0xff);
    assert_eq!(merged(&[datagram.clone(), datagram]), [1, 1]);
}

#[test]
fn partial_checksums_join_if_they_are_prepared() {
    let mut frame = plain(1, 20);
    let pseudo = checksum_of_pseudo_header(&frame);
    frame[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let partial = Offload {
        flags: Offload::NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        ..Offload::default()
    };
    let frames = [frame.clone(), frame.clone()];
    assert_eq!(merged_with(&frames, &partial, 1500), [2]);
    let inner = Offload {
        csum_start: 84,
        ..partial
    };
    assert_eq!(merged_with(&frames, &inner, 1500), [1, 1]);
    let whole = [plain(1, 20), plain(1, 20)];
    assert_eq!(merged_with(&whole, &partial, 1500), [1, 1]);
    // Super-frames that have come as such.
    let gso = Offload {
        gso_type: 5,
        gso_size: 10,
        ..partial
    };
    assert_eq!(merged_with(&frames, &gso, 1500), [1, 1]);
}

fn checksum_of_pseudo_header(frame: &[u8]) -> u16 {
    use crate::wire::checksum::{fold, pseudo_v4};
    let address = |at: usize| *frame[at..].first_chunk().unwrap();
    fold(pseudo_v4(address(26), address(30), 17, frame.len() - 34))
}

#[test]
fn what_the_port_can_not_send_alone_is_not_merged() {
    let frames = [plain(1, 1000), plain(1, 1000)];
    assert_eq!(merged_with(&frames, &Offload::default(), 1028), [2]);
    assert_eq!(merged_with(&frames, &Offload::default(), 1027), [1, 1]);
}

#[test]
fn tcp_segments_join_where_the_one_before_ended() {
    assert_eq!(
        merged(&[
            tcp(u32::MAX - 9, 10, |_| {}),
            tcp(0, 10, |_| {}),
            tcp(10, 4, |_| {})
        ]),
        [3]
    );
    assert_eq!(merged(&[tcp(0, 10, |_| {}), tcp(11, 10, |_| {})]), [1, 1]);
    assert_eq!(merged(&[tcp(0, 10, |_| {}), tcp(0, 10, |_| {})]), [1, 1]);
    // Acknowledgements alone.
    assert_eq!(merged(&[tcp(0, 0, |_| {}), tcp(0, 0, |_| {})]), [1, 1]);
}

#[test]
fn tcp_flags_end_a_super_frame_or_forbid_it() {
    let ends: [fn(&mut TcpHeader); 2] = [|t| t.psh = true, |t| t.fin = true];
    for end in ends {
        let frames = [
            tcp(0, 9, |_| {}),
            tcp(9, 9, end),
            tcp(18, 9, |_| {}),
            tcp(27, 9, |_| {}),
        ];
        assert_eq!(merged(&frames), [2, 2]);
        assert_eq!(merged(&[tcp(0, 9, end), tcp(9, 9, |_| {})]), [1, 1]);
    }
    let never: [fn(&mut TcpHeader); 4] = [
        |t| t.syn = true,
        |t| t.rst = true,
        |t| t.urg = true,
        |t| t.cwr = true,
    ];
    for flag in never {
        let frames = [tcp(0, 9, |_| {}), tcp(9, 9, flag), tcp(18, 9, |_| {})];
        assert_eq!(merged(&frames), [1, 1, 1]);
        assert_eq!(merged(&[tcp(0, 9, flag), tcp(9, 9, flag)]), [1, 1]);
    }
    // The same in all, so of the super-frame.
    let ece: fn(&mut TcpHeader) = |t| t.ece = true;
    assert_eq!(merged(&[tcp(0, 9, ece), tcp(9, 9, ece)]), [2]);
    assert_eq!(merged(&[tcp(0, 9, ece), tcp(9, 9, |_| {})]), [1, 1]);
}

#[test]
fn tcp_acknowledgement_window_and_options_are_equal() {
    let stamped = |sequence, value: u32| {
        tcp(sequence, 9, |t| {
            t.set_options(&[etherparse::TcpOptionElement::Timestamp(value, 1)])
                .unwrap();
        })
    };
    assert_eq!(merged(&[stamped(0, 4), stamped(9, 4)]), [2]);
    assert_eq!(merged(&[stamped(0, 4), stamped(9, 5)]), [1, 1]);
    assert_eq!(merged(&[stamped(0, 4), tcp(9, 9, |_| {})]), [1, 1]);
    assert_eq!(
        merged(&[tcp(0, 9, |_| {}), tcp(9, 9, |t| t.window_size = 999)]),
        [1, 1]
    );
    assert_eq!(
        merged(&[
            tcp(0, 9, |_| {}),
            tcp(9, 9, |t| t.acknowledgment_number = 6)
        ]),
        [1, 1]
    );
}

#[test]
fn depth_follows_the_backlog() {
    let mut coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500)));
    let (mut depth, mut depths) = (Burst::MIN, Vec::new());
    for received in [3, 64, 128, 100, 63, 4096, 2048, 4096, 0, 0, 0, 0, 0, 0, 0] {
        depth = coalescer.depth(depth, depth, received.min(depth));
        depths.push(depth);
    }
    assert_eq!(depths[..4], [64, 128, 256, 256]);
    assert_eq!(depths.last(), Some(&Burst::MIN));
    assert_eq!(
        coalescer.depth(Burst::MAX, Burst::MAX, Burst::MAX),
        Burst::MAX
    );
    // The transmit side was full.
    assert_eq!(coalescer.depth(256, 0, 0), 256);
    assert_eq!(coalescer.depth(256, 10, 10), 256);
}

#[test]
fn bursts_of_long_frames_are_shorter() {
    let mut coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500)));
    for (payload, frames) in [(1458, 1024), (8000, 195), (22, Burst::MAX)] {
        merged_by(
            &mut coalescer,
            &vec![plain(7, payload); 100],
            &Offload::default(),
        );
        assert_eq!(coalescer.depth(Burst::MAX, Burst::MAX, Burst::MAX), frames);
    }
}

/// Pairs of frames are worth merging where all leave the same way, and not where single ones leave by a cheaper one.
#[test]
fn merging_rests_where_it_does_not_pay() {
    const COUNT: usize = 256;
    let pairs: Vec<_> = (0..COUNT as u16).map(|at| plain(at / 2, 22)).collect();
    for plain_way in [false, true] {
        let coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500)));
        let mut coalescer = coalescer.beside(plain_way);
        let left = |coalescer: &mut Coalescer| {
            let left = merged_by(coalescer, &pairs, &Offload::default()).len();
            // All that was waiting.
            (left, coalescer.depth(2 * COUNT, 2 * COUNT, COUNT))
        };
        let first = left(&mut coalescer);
        let others: Vec<_> = (0..Burst::MAX / COUNT)
            .map(|_| left(&mut coalescer))
            .collect();
        let trial = left(&mut coalescer);
        assert_eq!((first.0, trial.0), (COUNT / 2, COUNT / 2));
        let (last, others) = others.split_last().unwrap();
        if plain_way {
            assert!(others.iter().all(|&other| other == (COUNT, Burst::MIN)));
            assert_eq!(*last, (COUNT, Burst::MAX), "then a trial is due");
        } else {
            assert!(others.iter().all(|&(left, _)| left == COUNT / 2));
        }
    }
}

/// Bursts of a flood of so many flows, one frame of each after the other, for so many frames: how many were in bursts that left as they
/// came, and how deep the last was.
fn flood(coalescer: &mut Coalescer, flows: usize, frames: usize) -> (usize, usize) {
    let (mut depth, mut came, mut alone) = (Burst::MIN, 0, 0);
    while came < frames {
        let burst: Vec<_> = (came..came + depth)
            .map(|at| plain((at % flows) as u16, 22))
            .collect();
        let left = merged_by(coalescer, &burst, &Offload::default()).len();
        alone += if left == depth { depth } else { 0 };
        came += depth;
        depth = coalescer.depth(depth, depth, burst.len());
    }
    (alone, depth)
}

#[test]
fn shallow_bursts_are_no_trial() {
    let coalescer = || Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500))).beside(true);
    // At first each frame is of another flow, or of four; then bursts have grown, and there are many of each.
    let mut few = coalescer();
    assert_eq!(flood(&mut few, 64, 6 * Burst::MAX), (64, Burst::MAX));
    // In the middle of it a lull: a burst with one of each.
    let one_of_each: Vec<_> = (0..64).map(|port| plain(port, 22)).collect();
    merged_by(&mut few, &one_of_each, &Offload::default());
    assert_eq!(few.depth(Burst::MAX, Burst::MAX, 64), Burst::MAX / 2);
    assert_eq!(flood(&mut few, 64, 6 * Burst::MAX), (64, Burst::MAX));
    // With two of each at most it rests nearly always.
    let frames = 50 * Burst::MAX;
    let (alone, _) = flood(&mut coalescer(), 1024, frames);
    assert!(alone > frames * 7 / 10, "{alone} of {frames}");
}

/// Where the most bytes are fewer frames than a trial otherwise takes.
#[test]
fn a_deep_burst_of_long_frames_is_a_trial() {
    let mut coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 9000))).beside(true);
    let frames: Vec<_> = (0..200).map(|port| plain(port, 8000)).collect();
    merged_by(&mut coalescer, &frames, &Offload::default());
    assert_eq!(coalescer.depth(512, 512, 200), Burst::MIN, "it rests");
}
