//! Finding checksums that a sender has left to its device, where no header says so.
//!
//! Called by the AF_XDP back end for each frame it receives: the kernel gives it the bytes and nothing else. A partial
//! checksum shows by its value, the folded sum of the pseudo-header without complement. By chance a whole one has that
//! value too (1 in 65 536); completing it then gives the same value again, so nothing is lost but the proof that the
//! frame was not damaged before.

use super::{
    be16,
    checksum::{fold, pseudo_v4, pseudo_v6},
    layers::{Kind, Layer, Layers, protocol},
};

/// A checksum to be completed, as [`complete`](super::checksum::complete) wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Where the sum begins, in bytes from the start of the frame.
    pub start: u16,
    /// Where the checksum is, in bytes from `start`.
    pub offset: u16,
}

/// The partial checksum of TCP or UDP in a frame: the innermost, as the kernel leaves one to do and makes those around
/// it fit (local checksum offload).
///
/// It looks through tags, options, extension headers and tunnels, also VXLAN and Geneve on ports of the user's choice:
/// a payload that looks like one and then has a partial checksum at the right place is one.
#[inline]
pub fn find(frame: &[u8]) -> Option<Partial> {
    let layers = Layers::parse_to(frame, usize::MAX);
    let pairs = layers.as_slice().windows(2).rev();
    pairs
        .filter_map(|pair| partial(frame, pair[0], pair[1]))
        .next()
}

/// Whether the checksum of `transport`, directly behind `network`, is partial.
#[inline]
fn partial(frame: &[u8], network: Layer, transport: Layer) -> Option<Partial> {
    let (number, offset) = match transport.kind {
        Kind::Tcp => (protocol::TCP, 16),
        Kind::Udp => (protocol::UDP, 6),
        _ => return None,
    };
    let (ip, start) = (network.offset(), transport.offset());
    let header = frame.get(ip..start)?;
    let pseudo = match network.kind {
        Kind::Ipv4 => {
            let len = usize::from(be16(header, 2)?).checked_sub(header.len())?;
            let src = *header.get(12..)?.first_chunk()?;
            let dst = *header.get(16..)?.first_chunk()?;
            pseudo_v4(src, dst, number, len)
        }
        Kind::Ipv6 => {
            let len = (40 + usize::from(be16(header, 4)?)).checked_sub(header.len())?;
            let src = header.get(8..)?.first_chunk()?;
            pseudo_v6(src, final_dst(header)?, number, len)
        }
        _ => return None,
    };
    (be16(frame, start + usize::from(offset))? == fold(pseudo)).then_some(Partial {
        start: start as u16,
        offset,
    })
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
    use super::super::{
        checksum::{complete, sum},
        sample::{Check, Part, build, frames},
    };
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

    #[test]
    fn an_outer_checksum_is_found_where_the_inner_is_whole() {
        let parts = [
            Part::Ethernet,
            ipv4(),
            udp(4789, Check::Partial),
            Part::Vxlan,
            Part::Ethernet,
            ipv4(),
            udp(53, Check::Partial),
        ];
        let mut frame = build(&parts, b"payload");
        let inner = frame.transport();
        assert_eq!(found(&frame.bytes), Some((inner, 6)));
        assert!(complete(&mut frame.bytes, inner, 6));
        assert_eq!(found(&frame.bytes), Some((14 + 28, 6)));
        assert!(complete(&mut frame.bytes, 14 + 28, 6));
        assert_eq!(found(&frame.bytes), None);
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
            prop_assert_eq!(found(&bytes), Some((transport, offset)));
            prop_assert!(complete(&mut bytes, transport, offset));
            let outer: Vec<usize> = frame.parts.iter().rev().skip(1)
                .filter(|part| part.0.kind() == Kind::Udp).map(|part| part.1).collect();
            for at in outer {
                bytes[at + 6..at + 8].fill(0);
            }
            // By chance the whole one looks like a partial one; then completing it changes nothing.
            if let Some((start, offset)) = found(&bytes) {
                let before = bytes.clone();
                prop_assert_eq!(start, transport);
                prop_assert!(complete(&mut bytes, start, offset));
                prop_assert_eq!(sum(&bytes), sum(&before));
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
