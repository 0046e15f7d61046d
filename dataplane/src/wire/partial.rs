//! Finding checksums that a sender has left to its device, where no header says so.
//!
//! Called by the AF_XDP back end for each frame it receives: the kernel gives it the bytes and nothing else. A partial
//! checksum shows by its value, the folded sum of the pseudo-header without complement. By chance a whole one has that
//! value too (1 in 65 536); completing it then gives the same value again, so nothing is lost but the proof that the
//! frame was not damaged before.

use super::{
    be16,
    checksum::{complete, fold, pseudo_v4, pseudo_v6, sum},
    layers::{Kind, Layer, Layers, protocol},
};

/// A checksum to be completed, as [`complete`] wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Where the sum begins, in bytes from the start of the frame.
    pub start: u16,
    /// Where the checksum is, in bytes from `start`.
    pub offset: u16,
}

/// The partial checksum of TCP or UDP in a frame, if there is one.
///
/// In a tunnel it is the innermost, as the kernel leaves one to do and makes those around it fit what it will be (local checksum offload). So if
/// the sum of an outer UDP header holds already, what it carries is payload, and its checksum whatever its sender left there. And if that sum is
/// partial itself, a program has sent the rest as payload by a UDP socket: then it is the one to do.
///
/// It looks through tags, options, extension headers and tunnels, also VXLAN and Geneve on ports of the user's choice:
/// a payload that looks like one and then has a partial checksum at the right place is one.
#[inline]
pub fn find(frame: &[u8]) -> Option<Partial> {
    let layers = Layers::parse_to(frame, usize::MAX);
    let pairs = layers.as_slice().windows(2);
    let covered = |pair: &[Layer]| Covered::of(frame, pair[0], pair[1]);
    let (at, inner) = pairs.clone().enumerate().rev().find_map(|(at, pair)| {
        let covered = covered(pair)?;
        covered.is_partial(frame).then_some((at, covered))
    })?;
    let mut found = inner;
    for outer in pairs.take(at).filter_map(covered) {
        if outer.is_partial(frame) {
            // By chance (1 in 65 536) the right one looks like that, too.
            if !outer.holds_with(inner, frame) {
                found = outer;
                break;
            }
        } else if outer.holds(frame) {
            return None;
        }
    }
    Some(Partial {
        start: found.start as u16,
        offset: found.offset,
    })
}

/// What the checksum of a TCP or UDP header covers.
#[derive(Clone, Copy)]
struct Covered {
    /// Where the header starts, in bytes from the start of the frame.
    start: usize,
    /// Where the checksum is, in bytes from `start`.
    offset: u16,
    /// Bytes of the header and what follows it.
    len: usize,
    /// The sum of the pseudo-header.
    pseudo: u32,
}

impl Covered {
    /// Of `transport`, directly behind `network`.
    #[inline]
    fn of(frame: &[u8], network: Layer, transport: Layer) -> Option<Self> {
        let (number, offset) = match transport.kind {
            Kind::Tcp => (protocol::TCP, 16),
            Kind::Udp => (protocol::UDP, 6),
            _ => return None,
        };
        let (ip, start) = (network.offset(), transport.offset());
        let header = frame.get(ip..start)?;
        let (len, pseudo) = match network.kind {
            Kind::Ipv4 => {
                let len = usize::from(be16(header, 2)?).checked_sub(header.len())?;
                let src = *header.get(12..)?.first_chunk()?;
                let dst = *header.get(16..)?.first_chunk()?;
                (len, pseudo_v4(src, dst, number, len))
            }
            Kind::Ipv6 => {
                let len = (40 + usize::from(be16(header, 4)?)).checked_sub(header.len())?;
                let src = header.get(8..)?.first_chunk()?;
                (len, pseudo_v6(src, final_dst(header)?, number, len))
            }
            _ => return None,
        };
        Some(Self {
            start,
            offset,
            len,
            pseudo,
        })
    }

    /// What is where the checksum belongs.
    #[inline]
    fn field(self, frame: &[u8]) -> Option<u16> {
        be16(frame, self.start + usize::from(self.offset))
    }

    /// Whether it is the sum of the pseudo-header alone.
    #[inline]
    fn is_partial(self, frame: &[u8]) -> bool {
        self.field(frame) == Some(fold(self.pseudo))
    }

    /// Whether there is a checksum, and it is right.
    #[cold]
    fn holds(self, frame: &[u8]) -> bool {
        let covered = frame.get(self.start..self.start + self.len);
        self.field(frame) != Some(0)
            && covered.is_some_and(|covered| fold(self.pseudo + sum(covered)) == 0xffff)
    }

    /// Whether it is right as soon as the checksum of `inner` is completed.
    #[cold]
    fn holds_with(self, inner: Self, frame: &[u8]) -> bool {
        let mut whole = frame.to_vec();
        complete(&mut whole, inner.start, inner.offset.into()) && self.holds(&whole)
    }
}

/// Where an IPv6 packet ends up: a routing header that is not used up says so (RFC 8200, 8.1).
#[inline]
fn final_dst(header: &[u8]) -> Option<&[u8; 16]> {
    let (mut next, mut at) = (header[6], 40);
    while let Some(extension) = header.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let end = at + 8 * (1 + usize::from(extension[1]));
        if next == protocol::ROUTING && extension[3] != 0 {
            // Segment routing (RFC 8754) lists its segments from the last to the first, the types before the other way.
            let last = if extension[2] == 4 {
                at + 8
            } else {
                end.checked_sub(16)?
            };
            return header.get(last..)?.first_chunk();
        }
        (next, at) = (extension[0], end);
    }
    header.get(24..)?.first_chunk()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Check, Part, build, frames, naive_pseudo};
    use super::*;
    use proptest::prelude::*;

    fn ipv4() -> Part {
        Part::Ipv4 {
            options: 2,
            id: 7,
            df: true,
        }
    }

    fn udp(port: u16, check: Check) -> Part {
        Part::Udp { port, check }
    }

    fn found(frame: &[u8]) -> Option<(usize, usize)> {
        find(frame).map(|partial| (partial.start.into(), partial.offset.into()))
    }

    /// A datagram in VXLAN; its own checksum is partial.
    fn in_vxlan(outer: Check) -> super::super::sample::Sample {
        let parts = [
            Part::Ethernet,
            ipv4(),
            udp(4789, outer),
            Part::Vxlan,
            Part::Ethernet,
            ipv4(),
            udp(53, Check::Partial),
        ];
        build(&parts, b"payload")
    }

    const OUTER: usize = 14 + 28;

    /// What user-space VXLAN took from a packet socket is its payload: not a bit of it may change, or the sum around it is wrong.
    #[test]
    fn a_checksum_in_a_payload_is_left_alone() {
        // The program's own sum is left to the device, or there already.
        let mut frame = in_vxlan(Check::Partial);
        assert_eq!(found(&frame.bytes), Some((OUTER, 6)));
        assert!(complete(&mut frame.bytes, OUTER, 6));
        assert_eq!(found(&frame.bytes), None);
        // The kernel's, which fits what will be; and none at all.
        let mut later = in_vxlan(Check::Zero);
        let inner = later.transport();
        assert_eq!(found(&later.bytes), Some((inner, 6)));
        assert!(complete(&mut later.bytes, inner, 6));
        let whole = later.bytes.clone();
        let mut frame = in_vxlan(Check::Partial);
        let partial = frame.bytes[inner + 6..inner + 8].to_vec();
        frame.bytes[inner + 6..inner + 8].copy_from_slice(&whole[inner + 6..inner + 8]);
        assert!(complete(&mut frame.bytes, OUTER, 6));
        frame.bytes[inner + 6..inner + 8].copy_from_slice(&partial);
        assert_eq!(found(&frame.bytes), Some((inner, 6)));
        // Cut, a sum that covers more than there is does not hold.
        let mut cut = in_vxlan(Check::Partial).bytes;
        assert!(complete(&mut cut, OUTER, 6));
        cut.truncate(cut.len() - 1);
        assert_eq!(found(&cut), Some((inner, 6)));
    }

    /// Local checksum offload leaves a right outer sum, which may be any number, also that of the pseudo-header.
    #[test]
    fn an_outer_checksum_that_is_right_by_chance_hides_nothing() {
        let mut frame = in_vxlan(Check::Partial).bytes;
        let inner = in_vxlan(Check::Partial).transport();
        let partial = frame[inner + 6..inner + 8].to_vec();
        assert!(complete(&mut frame, inner, 6));
        let pseudo = frame[OUTER + 6..OUTER + 8].to_vec();
        // One of the source ports makes it so.
        let by_chance = (0..=u16::MAX).find_map(|port| {
            frame[OUTER..OUTER + 2].copy_from_slice(&port.to_be_bytes());
            let mut whole = frame.clone();
            (complete(&mut whole, OUTER, 6) && whole[OUTER + 6..OUTER + 8] == pseudo)
                .then_some(whole)
        });
        let mut frame = by_chance.unwrap();
        let whole = frame.clone();
        frame[inner + 6..inner + 8].copy_from_slice(&partial);
        assert_eq!(found(&frame), Some((inner, 6)));
        assert!(complete(&mut frame, inner, 6));
        assert_eq!(frame, whole);
    }

    #[test]
    fn a_datagram_without_checksum_has_none_to_complete() {
        let mut frame = build(&[Part::Ethernet, ipv4(), udp(53, Check::Partial)], b"abc");
        let at = frame.transport() + 6;
        frame.bytes[at..at + 2].fill(0);
        assert_eq!(found(&frame.bytes), None);
    }

    #[test]
    fn a_fragment_is_left_alone() {
        let mut frame = build(&[Part::Ethernet, ipv4(), udp(53, Check::Partial)], b"abc");
        assert!(found(&frame.bytes).is_some());
        frame.bytes[14 + 6] |= 0x20;
        assert_eq!(found(&frame.bytes), None);
    }

    #[test]
    fn a_routing_header_names_the_destination() {
        for (kind, last) in [(0u8, 1usize), (4, 0)] {
            let mut frame = build(
                &[
                    Part::Ethernet,
                    Part::Ipv6 {
                        extensions: vec![(60, 0), (43, 4)],
                    },
                    udp(53, Check::Partial),
                ],
                b"abc",
            );
            // Two addresses behind the eight bytes that the routing header begins with.
            let routing = 14 + 40 + 8;
            let addresses: [[u8; 16]; 2] = [[0x21; 16], [0x43; 16]];
            frame.bytes[routing + 2..routing + 4].copy_from_slice(&[kind, 1]);
            frame.bytes[routing + 8..routing + 40].copy_from_slice(&addresses.concat());
            let (at, src) = (
                frame.transport(),
                *frame.bytes[22..].first_chunk::<16>().unwrap(),
            );
            let pseudo = pseudo_v6(&src, &addresses[last], 17, frame.bytes.len() - at);
            frame.bytes[at + 6..at + 8].copy_from_slice(&fold(pseudo).to_be_bytes());
            assert_eq!(found(&frame.bytes), Some((at, 6)), "type {kind}");
        }
    }

    proptest! {
        #[test]
        fn every_partial_checksum_is_found_and_no_whole_one(frame in frames(0..300)) {
            let mut bytes = frame.bytes.clone();
            // A length beyond 16 bits is none.
            prop_assume!(bytes.len() < 60_000);
            // Outer checksums are as local checksum offload makes them: right when the inner one is.
            let transport = frame.transport();
            let offset = if frame.parts.last().is_some_and(|p| p.0.kind() == Kind::Tcp) { 16 } else { 6 };
            let outer: Vec<usize> = frame.parts.iter().rev().skip(1)
                .filter(|part| part.0.kind() == Kind::Udp).map(|part| part.1).collect();
            let partial = bytes.clone();
            prop_assert!(complete(&mut bytes, transport, offset));
            // From the innermost, each with the sum of what is in it.
            for at in outer {
                if bytes[at + 6..at + 8] != [0, 0] {
                    let ip = frame.parts.iter().rev().find(|part| part.1 < at).map_or(0, |part| part.1);
                    let pseudo = fold(naive_pseudo(&bytes, ip, at, 17) as u32);
                    bytes[at + 6..at + 8].copy_from_slice(&pseudo.to_be_bytes());
                    prop_assert!(complete(&mut bytes, at, 6));
                }
            }
            let whole = bytes.clone();
            let field = transport + offset..transport + offset + 2;
            bytes[field.clone()].copy_from_slice(&partial[field]);
            // By chance what is whole looks like partial; then completing it changes nothing.
            if bytes != whole {
                prop_assert_eq!(found(&bytes), Some((transport, offset)));
                prop_assert!(complete(&mut bytes, transport, offset));
                prop_assert_eq!(&bytes, &whole);
            }
            if let Some((start, offset)) = found(&bytes) {
                prop_assert!(complete(&mut bytes, start, offset));
                prop_assert_eq!(&bytes, &whole);
            }
        }

        #[test]
        fn any_bytes_do(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = find(&bytes);
        }

        #[test]
        fn any_cut_frame_does(frame in frames(0..50), at in 0usize..400) {
            let _ = find(&frame.bytes[..at.min(frame.bytes.len())]);
        }
    }
}
