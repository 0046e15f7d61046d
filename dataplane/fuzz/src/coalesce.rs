//! What must hold of coalescing whatever the frames are. Called by the fuzz target, and by `tests/coalesce.rs`.
//!
//! A burst is merged, and what comes out is cut again by [`Segmenter`]. Then each flow's frames must be those that went in, in the
//! same order: byte for byte if they left alone; else with their checksums, and with another IPv4 identification only if
//! DF is set. So no frame with a wrong checksum gets a right one. Flows are told apart by [`Layers`], which coalescing doesn't use.

use std::{collections::HashMap, sync::Arc};

use l2relay::{
    burst::Burst,
    coalesce::{Coalescer, Kinds, MAX_DATAGRAMS},
    lane::Turn,
    memory::{FramePool, Offload, PoolSize},
    port::Link,
    stats::Tally,
    wire::{
        checksum,
        layers::{Kind, Layers},
        segment::{GsoKind, Segmenter},
    },
};

/// A frame and its state.
pub(crate) type Packet = (Vec<u8>, Offload);

/// What came of a burst.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Frames that left, super-frames counted once.
    pub(crate) left: usize,
    /// Super-frames among them.
    pub(crate) super_frames: usize,
    /// Frames that went into those.
    pub(crate) merged: usize,
}

/// Merges bursts in turn, and checks what comes out of each: by one coalescer, which may rest where it does not pay, or by a `fresh`
/// one for each.
///
/// # Panics
/// If anything does not hold.
pub(crate) fn check(bursts: &[Vec<Packet>], fresh: bool) -> Vec<Outcome> {
    let most = bursts.iter().map(Vec::len).max().unwrap_or(0);
    let size = PoolSize {
        small: most,
        large: 0,
    };
    let mut pool = FramePool::ordinary(size).expect("memory");
    let new = || Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500)));
    let mut coalescer = new();
    let one = |burst: &Vec<Packet>| {
        let outcome = check_burst(burst, &mut coalescer, &mut pool);
        if fresh {
            coalescer = new();
        } else {
            // As a lane does whose backlog is used up.
            coalescer.depth(Burst::MAX, Burst::MAX, burst.len());
        }
        outcome
    };
    bursts.iter().map(one).collect()
}

fn check_burst(packets: &[Packet], coalescer: &mut Coalescer, pool: &mut FramePool) -> Outcome {
    let (mut burst, mut tally) = (Burst::new(), Tally::default());
    for (bytes, offload) in packets {
        let frame = pool.alloc_copy(bytes).expect("a buffer for each");
        pool.meta_mut(&frame).offload = *offload;
        burst.push(frame);
    }
    let mut turn = Turn {
        pool,
        tally: &mut tally,
        now_ns: 0,
        room: 0,
    };
    coalescer.merge(&mut burst, &mut turn);

    let mut outcome = Outcome {
        left: burst.len(),
        super_frames: 0,
        merged: 0,
    };
    let mut left: Vec<(Packet, bool)> = Vec::new();
    for frame in burst.drain() {
        let meta = *turn.pool.meta(&frame);
        let bytes = turn.pool.parts(&frame).collect::<Vec<_>>().concat();
        assert_eq!(bytes.len(), turn.pool.len(&frame));
        turn.pool.free(frame);
        if meta.segments == 1 {
            left.push(((bytes, meta.offload), false));
            continue;
        }
        outcome.super_frames += 1;
        let gso = meta.offload.gso().expect("a super-frame");
        assert!(gso.kind != GsoKind::Udp || meta.segments <= MAX_DATAGRAMS);
        let segmenter = Segmenter::new(&bytes, gso).expect("one that can be cut");
        assert_eq!(segmenter.count(), meta.segments as usize);
        for index in 0..segmenter.count() {
            let mut segment = vec![0; segmenter.largest()];
            let len = segmenter.write(index, &mut segment).expect("a segment");
            segment.truncate(len);
            left.push(((segment, Offload::default()), true));
        }
    }
    assert_eq!(turn.pool.outstanding(), 0, "a buffer was lost");
    assert_eq!(tally.super_frames, outcome.super_frames as u64);
    let merged = left.iter().filter(|(_, merged)| *merged).count();
    assert_eq!(tally.merged_packets, merged as u64);
    outcome.merged = merged;
    assert_eq!(left.len(), packets.len(), "as many packets as came");
    compare(packets, &left);
    outcome
}

/// Each flow's packets, in order.
fn compare(came: &[Packet], left: &[(Packet, bool)]) {
    let mut places = HashMap::<Vec<u8>, Vec<usize>>::new();
    for (at, (bytes, _)) in came.iter().enumerate() {
        places.entry(flow(bytes)).or_default().push(at);
    }
    // Where in what came each that left was.
    let mut taken = HashMap::<Vec<u8>, usize>::new();
    let mut from = Vec::new();
    for ((bytes, offload), merged) in left {
        let flow = flow(bytes);
        let next = taken.entry(flow.clone()).or_default();
        let at = places
            .get(&flow)
            .and_then(|places| places.get(*next))
            .copied();
        let at = at.unwrap_or_else(|| panic!("a frame that did not come: {bytes:02x?}"));
        *next += 1;
        from.push(at);
        let (original, state) = &came[at];
        if *merged {
            let mut whole = original.clone();
            if state.needs_csum() {
                let (start, offset) = (state.csum_start.into(), state.csum_offset.into());
                assert!(checksum::complete(&mut whole, start, offset));
                // It may be UDP to that, whose zero is 0xffff.
                let field = start + offset..start + offset + 2;
                if offset == 16 && whole[field.clone()] == [0xff; 2] {
                    whole[field].fill(0);
                }
            }
            assert_eq!(masked(bytes), masked(&whole), "frame {at}");
        } else {
            assert_eq!((bytes, offload), (original, state), "frame {at}");
        }
    }
    // A fragment belongs to a flow that it does not name: nothing with its addresses may pass it.
    for (place, &at) in from.iter().enumerate() {
        if !Layers::parse(&came[at].0).is_fragment() {
            continue;
        }
        let addresses = network(&came[at].0);
        for (other_place, &other) in from.iter().enumerate() {
            if network(&came[other].0) == addresses {
                assert_eq!(
                    place.cmp(&other_place),
                    at.cmp(&other),
                    "frames {at} and {other}"
                );
            }
        }
    }
}

/// Addresses of the outermost IP header.
fn network(frame: &[u8]) -> Vec<u8> {
    match Layers::parse(frame).network() {
        Some(ip) if ip.kind == Kind::Ipv4 => frame[ip.offset() + 12..ip.offset() + 20].to_vec(),
        Some(ip) => frame[ip.offset() + 8..ip.offset() + 40].to_vec(),
        None => Vec::new(),
    }
}

/// Names the flow of a frame: addresses, protocol and ports, as far as there are any.
fn flow(frame: &[u8]) -> Vec<u8> {
    let layers = Layers::parse(frame);
    let mut name = network(frame);
    if let Some(transport) = layers.transport() {
        let at = transport.offset();
        name.extend(format!("{:?}", transport.kind).bytes());
        if matches!(transport.kind, Kind::Tcp | Kind::Udp) {
            name.extend(&frame[at..at + 4]);
        }
    } else {
        name.extend(layers.as_slice().iter().map(|layer| layer.offset() as u8));
    }
    name
}

/// Without what may change: the identification of IPv4 with DF, and the header checksum with it, which must be right.
fn masked(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let Some(ip) = Layers::parse(frame)
        .network()
        .filter(|ip| ip.kind == Kind::Ipv4)
    else {
        return bytes;
    };
    let at = ip.offset();
    assert_eq!(checksum::fold(checksum::sum(&bytes[at..at + 20])), 0xffff);
    if bytes[at + 6] & 0x40 != 0 {
        bytes[at + 4..at + 6].fill(0);
        bytes[at + 10..at + 12].fill(0);
    }
    bytes
}

/// Ends a burst, where the first byte of a frame could be.
pub(crate) const END: u8 = 0xe7;

/// Makes bursts of any bytes, and checks them. Most are of a few flows that could merge, and some of them spoilt.
pub(crate) fn fuzz(data: &[u8]) -> Vec<Outcome> {
    let mut bytes = data.iter().copied();
    let fresh = bytes.next().unwrap_or(0) & 1 == 1;
    let (mut bursts, mut sender) = (vec![Vec::new()], Sender::default());
    while let Some(how) = bytes.next() {
        if bursts.last().map_or(0, Vec::len) >= 300 || how == END {
            bursts.push(Vec::new());
            continue;
        }
        let packet = sender.packet(how, &mut bytes);
        bursts.last_mut().expect("one at least").push(packet);
    }
    check(&bursts, fresh)
}

/// Who counts sequence numbers and identifications, flow by flow.
#[derive(Default)]
struct Sender {
    next: HashMap<u8, (u32, u16)>,
}

/// What is different in one frame of a flow. Its checksums are right all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Ttl,
    Tos,
    /// The VLAN tag's priority.
    Priority,
    /// The flow label of IPv6.
    Label,
    Window,
    Acknowledgement,
    Option,
    /// These flags of TCP are the other way round.
    Flags(u8),
}

impl Change {
    fn of(byte: u8) -> Self {
        match byte {
            0xe0..=0xe3 => Self::Ttl,
            0xe4..=0xe6 => Self::Tos,
            0xe7..=0xe9 => Self::Priority,
            0xea..=0xeb => Self::Label,
            0xec..=0xed => Self::Window,
            0xee..=0xef => Self::Acknowledgement,
            0xf0..=0xf2 => Self::Option,
            // FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.
            0xf3..=0xfa => Self::Flags(1 << (byte - 0xf3)),
            0xfb => Self::Flags(8),
            _ => Self::None,
        }
    }
}

impl Sender {
    /// One frame: a plain one of the flow that `how` names, changed or spoilt perhaps. `how`, from its lowest bit: two of the flow; a
    /// tag; IPv6; TCP; DF; a partial checksum; and richer headers: a second tag, options of TCP, a class of traffic, ECE.
    fn packet(&mut self, how: u8, bytes: &mut impl Iterator<Item = u8>) -> Packet {
        let mut next = || bytes.next().unwrap_or(0);
        let (flow, length, spoil) = (how & 3, next(), next());
        let (change, order, text) = (Change::of(next()), next(), next());
        let (v6, tcp, rich) = (how & 8 != 0, how & 16 != 0, how & 128 != 0);
        let payload_len = match (length >> 4 & 3, usize::from(length & 15)) {
            (0, more) => 8 + more / 4 * 4,
            (1, _) => 20,
            // Too long to be copied.
            (2, more) => 240 + 8 * more,
            // Some are longer than the port sends.
            (_, more) => 1400 + 8 * more,
        };
        let mut payload = vec![text; payload_len];
        payload[..8].fill_with(&mut next);
        // As a rule they count on; else as before, or with a gap.
        let (sequence, id) = self.next.entry(how & 0x1b).or_default();
        match order {
            0..=12 => *sequence = sequence.wrapping_sub(payload_len as u32),
            13..=25 => *sequence = sequence.wrapping_add(0x7fff_fff0),
            26..=35 => *id = id.wrapping_sub(1),
            36..=45 => *id = id.wrapping_add(0x7ff0),
            _ => {}
        }
        let (this_sequence, this_id) = (*sequence, *id);
        *sequence = sequence.wrapping_add(payload_len as u32);
        *id = id.wrapping_add(1);

        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if how & 4 != 0 {
            if rich {
                frame.extend([0x88, 0xa8, 0, 9]);
            }
            let priority = u8::from(change == Change::Priority) << 5;
            frame.extend([0x81, 0, priority, 7]);
        }
        let options: &[u8] = match (tcp && rich, change) {
            (false, _) => &[],
            (true, Change::Option) => &[1, 1, 8, 10, 0, 0, 0, 8, 0, 0, 0, 1],
            (true, _) => &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 1],
        };
        let (protocol, header) = if tcp {
            (6, 20 + options.len())
        } else {
            (17, 8)
        };
        let len = header + payload.len();
        let ip = frame.len() + 2;
        let ttl = 64 - u8::from(change == Change::Ttl);
        let tos = if rich { 0x28 } else { 0 } ^ if change == Change::Tos { 0x81 } else { 0 };
        if v6 {
            frame.extend([0x86, 0xdd, 0x60 | tos >> 4, tos << 4]);
            frame.extend([0, u8::from(change == Change::Label)]);
            frame.extend((len as u16).to_be_bytes());
            frame.extend([protocol, ttl]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            frame.extend([8, 0, 0x45, tos]);
            frame.extend((20 + len as u16).to_be_bytes());
            frame.extend(this_id.to_be_bytes());
            frame.extend([if how & 32 != 0 { 0x40 } else { 0 }, 0, ttl, protocol, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            let check = !checksum::fold(checksum::sum(&frame[ip..ip + 20]));
            frame[ip + 10..ip + 12].copy_from_slice(&check.to_be_bytes());
        }
        let at = frame.len();
        frame.extend([0x10, flow, 0, 80]);
        if tcp {
            let flags = 0x10 | if rich { 0x40 } else { 0 };
            let flags = match change {
                Change::Flags(others) => flags ^ others,
                _ => flags,
            };
            frame.extend(this_sequence.to_be_bytes());
            frame.extend([0, 0, 0, 9 + u8::from(change == Change::Acknowledgement)]);
            frame.extend([(header as u8 / 4) << 4, flags, 1]);
            frame.extend([u8::from(change == Change::Window), 0, 0, 0, flags & 0x20]);
            frame.extend(options);
        } else {
            frame.extend((len as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend(payload);
        let field = at + if tcp { 16 } else { 6 };
        let addresses = if v6 {
            ip + 8..ip + 40
        } else {
            ip + 12..ip + 20
        };
        let pseudo = checksum::sum(&frame[addresses]) + u32::from(protocol) + len as u32;
        let mut offload = Offload::default();
        if how & 64 != 0 {
            offload.flags = Offload::NEEDS_CSUM;
            (offload.csum_start, offload.csum_offset) = (at as u16, (field - at) as u16);
            frame[field..field + 2].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
        } else {
            let check = !checksum::fold(checksum::sum(&frame[at..]) + pseudo);
            let check = if check == 0 { 0xffff } else { check };
            frame[field..field + 2].copy_from_slice(&check.to_be_bytes());
        }
        match spoil {
            // Some byte is another: of the headers, as a rule.
            1..=40 => {
                let place = usize::from(next()) % frame.len();
                frame[place] ^= next() | 1;
            }
            // Cut, or padded.
            41..=50 => frame.truncate(usize::from(next())),
            51..=60 => frame.resize(frame.len() + usize::from(next()), 0),
            _ => {}
        }
        (frame, offload)
    }
}
