//! Software segmentation: the frames a super-frame stands for, as the kernel's GSO would have made them.
//!
//! Called where a super-frame must leave by a path that cannot carry it: the virtio header has no words for a tunnel
//! (ask [`needs_software_gso`]), and neither AF_XDP nor a link stage that counts packets takes super-frames.
//! Each segment is written whole into the caller's buffer, with every length, checksum and counter in its headers
//! right, through all tunnels; no checksum is left partial. What cannot be cut honestly is refused, with the reason.
//!
//! The rules are those of Linux: `tcp_gso_segment` (`net/ipv4/tcp_offload.c`), `__udp_gso_segment` and
//! `__skb_udp_tunnel_segment` (`net/ipv4/udp_offload.c`), `inet_gso_segment` (`net/ipv4/af_inet.c`),
//! `ipv6_gso_segment` (`net/ipv6/ip6_offload.c`) and `gre_gso_segment` (`net/ipv4/gre_offload.c`). Against Linux 6.18,
//! 284 segments of 95 plain and VXLAN super-frames that its packet sockets handed over were the same to the byte.

use super::layers::{Kind, Layer, Layers, protocol};
use super::{be16, checksum, put_be16};
use std::error::Error;
use std::fmt;

/// What is to be cut, in the words of the virtio header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either, datagram by datagram (`UDP_L4`, not the older UFO, which makes fragments).
    Udp,
}

impl GsoKind {
    /// Whether a transport header and the IP header before it are of this kind.
    #[inline]
    fn is(self, network: Kind, transport: Kind) -> bool {
        match self {
            GsoKind::Tcp4 => (network, transport) == (Kind::Ipv4, Kind::Tcp),
            GsoKind::Tcp6 => (network, transport) == (Kind::Ipv6, Kind::Tcp),
            GsoKind::Udp => transport == Kind::Udp,
        }
    }
}

/// The segmentation state of a super-frame, as the virtio header gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The transport protocol.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last (`gso_size`).
    pub size: u16,
    /// Where the transport header starts: the innermost one, if there is a tunnel.
    pub csum_start: u16,
    /// The checksum field, counted from there.
    pub csum_offset: u16,
}

/// Why a super-frame cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The segment size is zero.
    ZeroSize,
    /// It is a fragment, or carried in one.
    Fragment,
    /// The transport header is cut or malformed.
    Header,
    /// No transport header that can be reached starts at `csum_start`.
    Start,
    /// The header at `csum_start` is not of the announced protocol, or under another version of IP.
    Kind,
    /// `csum_offset` is not where this protocol has its checksum.
    Offset,
    /// A length in a header contradicts the length of the frame.
    Length,
    /// An IPv6 extension header that a segment cannot simply repeat: a jumbo payload, or a route not yet travelled,
    /// which hides the address that the checksum covers.
    Extension,
    /// A segment would be longer than IP allows.
    TooLong,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::ZeroSize => "the segment size is zero",
            Refusal::Fragment => "a fragment cannot be segmented",
            Refusal::Header => "the transport header is cut or malformed",
            Refusal::Start => "no known transport header starts at csum_start",
            Refusal::Kind => "the transport header is not of the announced protocol",
            Refusal::Offset => "csum_offset is not the checksum field of the protocol",
            Refusal::Length => "a length in a header contradicts the length of the frame",
            Refusal::Extension => "an IPv6 extension header cannot be repeated in segments",
            Refusal::TooLong => "a segment would be longer than IP allows",
        })
    }
}

impl Error for Refusal {}

/// Length of the headers that every segment repeats, by a glance at the transport header only.
///
/// The virtio header's own `hdr_len` says how long the linear part of the sender's buffer was, which is something else.
#[inline]
pub fn header_len(frame: &[u8], gso: Gso) -> usize {
    let start = usize::from(gso.csum_start);
    start
        + match gso.kind {
            GsoKind::Tcp4 | GsoKind::Tcp6 => frame
                .get(start + 12)
                .map_or(20, |b| 4 * usize::from(b >> 4)),
            GsoKind::Udp => 8,
        }
}

/// How many packets a super-frame of `len` bytes stands for, by the same glance; at least one.
///
/// `frame` may be its beginning. The kernel counts in the same way (`qdisc_pkt_len_init`, `net/core/dev.c`). For frames
/// that [`Segmenter`] accepts the two agree.
#[inline]
pub fn count(frame: &[u8], len: usize, gso: Gso) -> usize {
    let payload = len.saturating_sub(header_len(frame, gso));
    payload.div_ceil(usize::from(gso.size).max(1)).max(1)
}

/// Whether the kernel could not cut this super-frame, given to it with the same virtio header: there is more around
/// the transport header at `csum_start` than VLAN tags and one IP header, or it is not the announced one. The kernel
/// would drop such a frame, or worse, cut at the wrong header.
#[inline]
pub fn needs_software_gso(frame: &[u8], gso: Gso) -> bool {
    let layers = Layers::parse(frame);
    match (layers.network(), layers.transport()) {
        (Some(network), Some(transport)) => {
            transport.offset() != usize::from(gso.csum_start)
                || !gso.kind.is(network.kind, transport.kind)
        }
        _ => true,
    }
}

/// A super-frame that has been found fit to be cut.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    layers: Layers,
    /// The layers that are headers of the segments; what looks like more behind them is payload.
    depth: usize,
    header_len: usize,
    size: usize,
}

impl<'a> Segmenter<'a> {
    /// Examines a super-frame.
    ///
    /// # Errors
    ///
    /// Says why it cannot be cut.
    pub fn new(frame: &'a [u8], gso: Gso) -> Result<Self, Refusal> {
        if gso.size == 0 {
            return Err(Refusal::ZeroSize);
        }
        let start = usize::from(gso.csum_start);
        let layers = Layers::parse_to(frame, start);
        let all = layers.as_slice();
        let here = |l: &Layer| l.offset() == start && l.kind.is_transport();
        let Some(last) = all.iter().position(here) else {
            return Err(if layers.is_fragment() {
                Refusal::Fragment
            } else if layers.header_len() == start || start >= frame.len() {
                Refusal::Header
            } else {
                Refusal::Start
            });
        };
        let transport = all[last].kind;
        let network = all[..last].last().map_or(Kind::Ethernet, |l| l.kind);
        if !gso.kind.is(network, transport) {
            return Err(Refusal::Kind);
        }
        let (field, transport_len) = match transport {
            Kind::Tcp => (16, 4 * usize::from(frame[start + 12] >> 4)),
            _ => (6, 8),
        };
        if usize::from(gso.csum_offset) != field {
            return Err(Refusal::Offset);
        }
        let depth = last + 1;
        for (i, layer) in all[..depth].iter().enumerate() {
            let next = all[..depth].get(i + 1).copied();
            examine(&frame[layer.offset()..], *layer, next)?;
        }
        let header_len = start + transport_len;
        let size = usize::from(gso.size);
        let largest = header_len + size.min(frame.len() - header_len);
        let limit = match layers.network() {
            Some(ip) if ip.kind == Kind::Ipv6 => ip.offset() + 40 + 0xffff,
            Some(ip) => ip.offset() + 0xffff,
            None => 0,
        };
        if largest > limit {
            return Err(Refusal::TooLong);
        }
        Ok(Segmenter {
            frame,
            layers,
            depth,
            header_len,
            size,
        })
    }

    /// How many segments there are; one, if the payload fits in one.
    #[inline]
    pub fn count(&self) -> usize {
        let payload = self.frame.len() - self.header_len;
        payload.div_ceil(self.size).max(1)
    }

    /// The length of the longest segment, headers included: what a buffer must hold.
    #[inline]
    pub fn largest(&self) -> usize {
        self.header_len + self.size.min(self.frame.len() - self.header_len)
    }

    /// Writes segment `index` to the start of `out` and returns its length. `None`, with nothing written, if there is
    /// no such segment or `out` is too short for it.
    pub fn write(&self, index: usize, out: &mut [u8]) -> Option<usize> {
        if index >= self.count() {
            return None;
        }
        let (headers, payload) = self.frame.split_at(self.header_len);
        let from = index * self.size;
        let payload = &payload[from..payload.len().min(from + self.size)];
        let segment = out.get_mut(..headers.len() + payload.len())?;
        let (head, tail) = segment.split_at_mut(headers.len());
        head.copy_from_slice(headers);
        tail.copy_from_slice(payload);
        // From the inside out, because the checksums of outer headers cover the inner ones.
        for i in (0..self.depth).rev() {
            self.rewrite(segment, i, index)?;
        }
        Some(segment.len())
    }

    /// Makes one header of a segment right.
    #[inline]
    fn rewrite(&self, segment: &mut [u8], i: usize, index: usize) -> Option<()> {
        let layers = self.layers.as_slice();
        let layer = layers.get(i)?;
        let (before, bytes) = segment.split_at_mut_checked(layer.offset())?;
        let len = bytes.len();
        match layer.kind {
            Kind::Ipv4 => {
                put_be16(bytes, 2, len as u16)?;
                // inet_gso_segment counts on at every level, DF or not. It keeps the number only where GRO has marked
                // it as fixed, and the virtio header does not pass that mark on.
                let id = be16(bytes, 4)?.wrapping_add(index as u16);
                put_be16(bytes, 4, id)?;
                let header_len = 4 * usize::from(bytes.first()? & 15);
                write_sum(bytes, 10, |b| b.get(..header_len).map(checksum::sum))
            }
            Kind::Ipv6 => put_be16(bytes, 4, len.checked_sub(40)? as u16),
            Kind::Tcp => {
                let sequence = bytes.get_mut(4..)?.first_chunk_mut::<4>()?;
                let bytes_before = (index * self.size) as u32;
                *sequence = u32::from_be_bytes(*sequence)
                    .wrapping_add(bytes_before)
                    .to_be_bytes();
                let flags = bytes.get_mut(13)?;
                if index + 1 < self.count() {
                    *flags &= !(FIN | PSH);
                }
                // RFC 3168: CWR is said once. A sender that speaks Accurate ECN (RFC 9768) wants it in all segments;
                // the kernel then sets SKB_GSO_TCP_ACCECN, which Gso has no word for.
                if index > 0 {
                    *flags &= !CWR;
                }
                let pseudo = pseudo(before, layers.get(i.checked_sub(1)?)?, protocol::TCP, len)?;
                write_sum(bytes, 16, |b| Some(checksum::sum(b) + pseudo))
            }
            Kind::Udp => {
                put_be16(bytes, 4, len as u16)?;
                // An outer UDP header may go without a checksum, and keeps to it. If there is something, partial or
                // full, the sender wants one (SKB_GSO_UDP_TUNNEL_CSUM).
                if i + 1 < self.depth && be16(bytes, 6)? == 0 {
                    return Some(());
                }
                let pseudo = pseudo(before, layers.get(i.checked_sub(1)?)?, protocol::UDP, len)?;
                write_sum(bytes, 6, |b| Some(checksum::sum(b) + pseudo))?;
                put_be16(bytes, 6, checksum::nonzero(be16(bytes, 6)?))
            }
            // A sequence number stays as it is, on all segments: gre_gso_segment does not know of it, and Linux makes
            // no super-frames on tunnels that have one.
            Kind::Gre if bytes.first()? & 0x80 != 0 => {
                write_sum(bytes, 4, |b| Some(checksum::sum(b)))
            }
            _ => Some(()),
        }
    }
}

/// TCP's flags that not every segment repeats.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Zeroes the checksum field at `at`, and writes the complement of the sum.
#[inline]
fn write_sum(bytes: &mut [u8], at: usize, sum: impl FnOnce(&[u8]) -> Option<u32>) -> Option<()> {
    put_be16(bytes, at, 0)?;
    let check = !checksum::fold(sum(bytes)?);
    put_be16(bytes, at, check)
}

/// The pseudo-header's sum, with the addresses of the IP header `network`.
#[inline]
fn pseudo(before: &[u8], network: &Layer, protocol: u8, len: usize) -> Option<u32> {
    let ip = before.get(network.offset()..)?;
    if network.kind == Kind::Ipv4 {
        let src = ip.get(12..)?.first_chunk()?;
        let dst = ip.get(16..)?.first_chunk()?;
        Some(checksum::pseudo_v4(*src, *dst, protocol, len))
    } else {
        let src = ip.get(8..)?.first_chunk()?;
        let dst = ip.get(24..)?.first_chunk()?;
        Some(checksum::pseudo_v6(src, dst, protocol, len))
    }
}

/// Whether one header, at the start of `bytes`, lets itself be repeated.
fn examine(bytes: &[u8], layer: Layer, next: Option<Layer>) -> Result<(), Refusal> {
    match layer.kind {
        Kind::Ipv4 => agree(bytes, 2, bytes.len()),
        Kind::Ipv6 => {
            let jumbo = be16(bytes, 4) == Some(0) && bytes.get(6) == Some(&protocol::HOP_BY_HOP);
            let hidden = next.is_some_and(|next| {
                next.kind.is_transport() && is_routed(bytes, next.offset() - layer.offset())
            });
            if jumbo || hidden {
                return Err(Refusal::Extension);
            }
            agree(bytes, 4, bytes.len() - 40)
        }
        Kind::Udp => agree(bytes, 4, bytes.len()),
        _ => Ok(()),
    }
}

/// Whether the length field at `at` agrees with `actual`. A super-frame may be longer than the field can say: the
/// kernel then writes zero (`iph_set_totlen`), or the low 16 bits (`udp_tunnel_xmit_skb`).
fn agree(bytes: &[u8], at: usize, actual: usize) -> Result<(), Refusal> {
    match be16(bytes, at) {
        Some(said) if said == 0 || said == actual as u16 => Ok(()),
        _ => Err(Refusal::Length),
    }
}

/// Whether an IPv6 header whose extensions end at `end` has a routing header with segments left.
fn is_routed(bytes: &[u8], end: usize) -> bool {
    let (mut next, mut at) = (bytes.get(6).copied(), 40);
    while at < end {
        let Some([following, units, _, left]) = bytes.get(at..).and_then(|b| b.first_chunk::<4>())
        else {
            return false;
        };
        if next == Some(protocol::ROUTING) && *left != 0 {
            return true;
        }
        (next, at) = (Some(*following), at + 8 * (1 + usize::from(*units)));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::sample::{
        Check, Part, Sample, build, frames, naive_fold, naive_pseudo, naive_sum,
    };
    use super::*;
    use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, TcpSlice, UdpHeader};
    use proptest::prelude::*;

    /// The virtio header that goes with a sample.
    fn gso(frame: &Sample, size: u16) -> Gso {
        let [.., (network, _), (transport, _)] = &frame.parts[..] else {
            panic!("no transport header");
        };
        let (kind, csum_offset) = match (network, transport) {
            (_, Part::Udp { .. }) => (GsoKind::Udp, 6),
            (Part::Ipv4 { .. }, _) => (GsoKind::Tcp4, 16),
            _ => (GsoKind::Tcp6, 16),
        };
        let csum_start = frame.transport() as u16;
        Gso {
            kind,
            size,
            csum_start,
            csum_offset,
        }
    }

    /// All segments.
    fn cut(frame: &[u8], gso: Gso) -> Result<Vec<Vec<u8>>, Refusal> {
        let segmenter = Segmenter::new(frame, gso)?;
        let mut buffer = vec![0xee; segmenter.largest()];
        let segments = (0..segmenter.count()).map(|index| {
            let len = segmenter
                .write(index, &mut buffer)
                .expect("the buffer is long enough");
            buffer[..len].to_vec()
        });
        Ok(segments.collect())
    }

    fn ipv4(id: u16) -> Part {
        Part::Ipv4 {
            options: 0,
            id,
            df: true,
        }
    }

    fn tcp() -> Part {
        Part::Tcp {
            options: 3,
            flags: 0x99,
            sequence: u32::MAX - 1,
        }
    }

    fn plain() -> Sample {
        build(&[Part::Ethernet, ipv4(u16::MAX), tcp()], &[b'x'; 300])
    }

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }

    /// Checks header `i` of a segment against its description, with etherparse and by naive sums, and returns the
    /// bytes of it that may differ from those of the super-frame.
    fn verify(
        frame: &Sample,
        segment: &[u8],
        i: usize,
        index: usize,
        size: usize,
        count: usize,
    ) -> Vec<usize> {
        let (part, at) = &frame.parts[i];
        let (at, bytes) = (*at, &segment[*at..]);
        let above = |protocol| {
            let ip = frame.parts[i - 1].1;
            assert_eq!(
                naive_fold(naive_pseudo(segment, ip, at, protocol) + naive_sum(bytes)),
                0xffff
            );
            &segment[ip..]
        };
        match part {
            Part::Ipv4 { id, .. } => {
                let ip = Ipv4HeaderSlice::from_slice(bytes).expect("an IPv4 header");
                assert_eq!(usize::from(ip.total_len()), bytes.len());
                assert_eq!(ip.identification(), id.wrapping_add(index as u16));
                assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
                vec![2, 3, 4, 5, 10, 11]
            }
            Part::Ipv6 { .. } => {
                let ip = Ipv6HeaderSlice::from_slice(bytes).expect("an IPv6 header");
                assert_eq!(usize::from(ip.payload_length()), bytes.len() - 40);
                vec![4, 5]
            }
            Part::Tcp {
                flags, sequence, ..
            } => {
                let ip = above(6);
                let tcp = TcpSlice::from_slice(bytes).expect("a TCP header");
                let wanted = match Ipv4HeaderSlice::from_slice(ip) {
                    Ok(ip) => tcp.calc_checksum_ipv4(ip.source(), ip.destination()),
                    Err(_) => {
                        let ip = Ipv6HeaderSlice::from_slice(ip).expect("an IPv6 header");
                        tcp.calc_checksum_ipv6(ip.source(), ip.destination())
                    }
                };
                assert_eq!(Ok(tcp.checksum()), wanted);
                assert_eq!(
                    tcp.sequence_number(),
                    sequence.wrapping_add((index * size) as u32)
                );
                let mut flags = *flags;
                if index > 0 {
                    flags &= 0x7f;
                }
                if index + 1 < count {
                    flags &= 0xf6;
                }
                assert_eq!(bytes[13], flags);
                vec![4, 5, 6, 7, 13, 16, 17]
            }
            Part::Udp { check, .. } => {
                let (udp, body) = UdpHeader::from_slice(bytes).expect("a UDP header");
                assert_eq!(usize::from(udp.length), bytes.len());
                if *check == Check::Zero {
                    assert_eq!(udp.checksum, 0);
                } else {
                    let ip = above(17);
                    let wanted = match Ipv4HeaderSlice::from_slice(ip) {
                        Ok(ip) => udp.calc_checksum_ipv4_raw(ip.source(), ip.destination(), body),
                        Err(_) => {
                            let ip = Ipv6HeaderSlice::from_slice(ip).expect("an IPv6 header");
                            udp.calc_checksum_ipv6_raw(ip.source(), ip.destination(), body)
                        }
                    };
                    assert_eq!(Ok(udp.checksum), wanted);
                    assert_ne!(udp.checksum, 0);
                }
                vec![4, 5, 6, 7]
            }
            Part::Gre { check: true, .. } => {
                assert_eq!(naive_fold(naive_sum(bytes)), 0xffff);
                vec![4, 5]
            }
            _ => vec![],
        }
    }

    /// Checks everything there is to say about the segments of a sample.
    fn verify_all(frame: &Sample, segments: &[Vec<u8>], size: usize) {
        let (headers, payload) = frame.bytes.split_at(frame.header_len);
        let mut joined: Vec<u8> = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let mut masked = segment[..frame.header_len].to_vec();
            for (i, (_, at)) in frame.parts.iter().enumerate() {
                for byte in verify(frame, segment, i, index, size, segments.len()) {
                    masked[at + byte] = headers[at + byte];
                }
            }
            assert_eq!(masked, headers);
            let piece = &segment[frame.header_len..];
            assert!(piece.len() == size || index + 1 == segments.len() && piece.len() < size);
            assert!(!piece.is_empty() || segments.len() == 1);
            joined.extend_from_slice(piece);
        }
        assert_eq!(joined, payload);
    }

    #[test]
    fn plain_tcp() {
        let frame = plain();
        let segments = cut(&frame.bytes, gso(&frame, 100)).expect("a frame that can be cut");
        assert_eq!(segments.len(), 3);
        verify_all(&frame, &segments, 100);
        // CWR on the first, FIN and PSH on the last, ACK on all; numbers wrap.
        assert_eq!(
            segments.iter().map(|s| s[47]).collect::<Vec<_>>(),
            [0x90, 0x10, 0x19]
        );
        assert_eq!(
            segments.iter().map(|s| u16_at(s, 18)).collect::<Vec<_>>(),
            [0xffff, 0, 1]
        );
        assert_eq!(segments[1][38..42], [0, 0, 0, 98]);
    }

    #[test]
    fn as_scapy_cuts() {
        let unhex = |text: &str| -> Vec<u8> {
            let pairs = text.as_bytes().chunks(2);
            pairs
                .map(|p| u8::from_str_radix(str::from_utf8(p).unwrap(), 16).unwrap())
                .collect()
        };
        let lines = include_str!("fixtures/segments.txt")
            .lines()
            .filter(|l| !l.starts_with('#'));
        let mut cases: Vec<(Vec<u8>, Gso, Vec<Vec<u8>>)> = Vec::new();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["super", kind, size, start, offset, bytes] => {
                    let kind = match kind {
                        "tcp4" => GsoKind::Tcp4,
                        "tcp6" => GsoKind::Tcp6,
                        "udp" => GsoKind::Udp,
                        other => panic!("{other}?"),
                    };
                    let number = |text: &str| text.parse().unwrap();
                    let [size, csum_start, csum_offset] = [size, start, offset].map(number);
                    cases.push((
                        unhex(bytes),
                        Gso {
                            kind,
                            size,
                            csum_start,
                            csum_offset,
                        },
                        Vec::new(),
                    ));
                }
                ["segment", bytes] => cases.last_mut().unwrap().2.push(unhex(bytes)),
                _ => panic!("{line}?"),
            }
        }
        assert_eq!(cases.len(), 7);
        for (frame, gso, segments) in cases {
            assert_eq!(cut(&frame, gso), Ok(segments));
            // Uncut, the same fields complete the checksum.
            let mut whole = frame.clone();
            assert!(checksum::complete(
                &mut whole,
                gso.csum_start.into(),
                gso.csum_offset.into()
            ));
            let uncut = cut(&frame, Gso { size: 1000, ..gso }).unwrap();
            assert_eq!(
                uncut[0][gso.csum_start.into()..],
                whole[gso.csum_start.into()..]
            );
        }
    }

    #[test]
    fn a_payload_that_fits_is_one_whole_segment() {
        for payload in [0, 1, 100] {
            let frame = build(&[Part::Ethernet, ipv4(7), tcp()], &vec![1; payload]);
            let segments = cut(&frame.bytes, gso(&frame, 100)).expect("a frame that can be cut");
            assert_eq!(segments.len(), 1);
            verify_all(&frame, &segments, 100);
            assert_eq!(segments[0][47], 0x99);
        }
    }

    #[test]
    fn a_large_frame_in_a_tunnel_is_longer_than_its_lengths_can_say() {
        let udp = Part::Udp {
            port: 4789,
            check: Check::Full,
        };
        let parts = [
            Part::Ethernet,
            ipv4(1),
            udp,
            Part::Vxlan,
            Part::Ethernet,
            ipv4(2),
            tcp(),
        ];
        let mut frame = build(&parts, &vec![3; 65_480]);
        assert_eq!(u16_at(&frame.bytes, 16), 46, "the outer length has wrapped");
        for outer_len in [46, 0] {
            frame.bytes[16..18].copy_from_slice(&u16::to_be_bytes(outer_len));
            let segments = cut(&frame.bytes, gso(&frame, 1398)).expect("a frame that can be cut");
            assert_eq!(segments.len(), 47);
            verify_all(&frame, &segments, 1398);
        }
    }

    #[test]
    fn the_innermost_udp_checksum_is_never_left_out() {
        // Zero in the field of the super-frame is a partial sum like any other, and a sum of zero is written as ones.
        let datagram = |payload: &[u8]| {
            let udp = Part::Udp {
                port: 53,
                check: Check::Partial,
            };
            let mut frame = build(&[Part::Ethernet, ipv4(1), udp], payload);
            frame.bytes[40..42].fill(0);
            let segments = cut(&frame.bytes, gso(&frame, 2)).expect("a frame that can be cut");
            verify_all(&frame, &segments, 2);
            u16_at(&segments[0], 40)
        };
        let check = datagram(&[0; 5]);
        let [a, b] = check.to_be_bytes();
        assert_eq!(datagram(&[a, b, 0]), 0xffff);
    }

    #[test]
    fn what_looks_like_a_tunnel_behind_csum_start_is_payload() {
        // A user-space VXLAN endpoint that sends with UDP_SEGMENT: the outer header is the one to cut at.
        let udp = Part::Udp {
            port: 4789,
            check: Check::Partial,
        };
        let outer = [Part::Ethernet, ipv4(1), udp];
        let tail = [Part::Vxlan, Part::Ethernet, ipv4(2), tcp()];
        let inside = build(&[&outer[..], &tail].concat(), &[5; 500])
            .bytes
            .split_off(42);
        let frame = build(&outer, &inside);
        let gso = gso(&frame, 200);
        assert!(!needs_software_gso(&frame.bytes, gso));
        verify_all(
            &frame,
            &cut(&frame.bytes, gso).expect("a frame that can be cut"),
            200,
        );
    }

    #[test]
    fn refusals_name_their_reason() {
        let frame = plain();
        let good = gso(&frame, 100);
        let refused = |gso| cut(&frame.bytes, gso).expect_err("a refusal");
        assert_eq!(refused(Gso { size: 0, ..good }), Refusal::ZeroSize);
        assert_eq!(
            refused(Gso {
                kind: GsoKind::Tcp6,
                ..good
            }),
            Refusal::Kind
        );
        assert_eq!(
            refused(Gso {
                kind: GsoKind::Udp,
                ..good
            }),
            Refusal::Kind
        );
        assert_eq!(
            refused(Gso {
                csum_start: 33,
                ..good
            }),
            Refusal::Start
        );
        assert_eq!(
            refused(Gso {
                csum_start: 14,
                ..good
            }),
            Refusal::Start
        );
        assert_eq!(
            refused(Gso {
                csum_start: u16::MAX,
                ..good
            }),
            Refusal::Header
        );
        assert_eq!(
            refused(Gso {
                csum_offset: 6,
                ..good
            }),
            Refusal::Offset
        );

        let spoilt = |at: usize, value: u8| {
            let mut bytes = frame.bytes.clone();
            bytes[at] = value;
            cut(&bytes, good)
        };
        assert_eq!(spoilt(20, 0x20), Err(Refusal::Fragment));
        assert_eq!(spoilt(46, 0x40), Err(Refusal::Header));
        assert_eq!(spoilt(17, frame.bytes[17] + 1), Err(Refusal::Length));
        assert_eq!(spoilt(23, 1), Err(Refusal::Kind));
        assert_eq!(cut(&frame.bytes[..50], good), Err(Refusal::Header));
        assert_eq!(cut(&[], good), Err(Refusal::Header));

        for reason in [Refusal::ZeroSize, Refusal::Extension, Refusal::TooLong] {
            assert!(!reason.to_string().is_empty());
        }
    }

    #[test]
    fn segments_longer_than_ip_allows_are_refused() {
        // The largest IPv4 packet there is, and one byte more.
        for (payload, refused) in [(65_535 - 52, false), (65_535 - 51, true)] {
            let frame = build(&[Part::Ethernet, ipv4(7), tcp()], &vec![1; payload]);
            let segments = cut(&frame.bytes, gso(&frame, u16::MAX));
            assert_eq!(segments.err(), refused.then_some(Refusal::TooLong));
        }
        // IPv6 does not count its own header.
        for (payload, refused) in [(65_535 - 32, false), (65_535 - 31, true)] {
            let frame = build(
                &[Part::Ethernet, Part::Ipv6 { extensions: vec![] }, tcp()],
                &vec![1; payload],
            );
            let segments = cut(&frame.bytes, gso(&frame, u16::MAX));
            assert_eq!(segments.err(), refused.then_some(Refusal::TooLong));
        }
    }

    #[test]
    fn extension_headers_that_cannot_be_repeated_are_refused() {
        let parts = |extension| {
            [
                Part::Ethernet,
                Part::Ipv6 {
                    extensions: vec![(extension, 2)],
                },
                tcp(),
            ]
        };
        let mut routed = build(&parts(43), &[1; 300]);
        assert!(cut(&routed.bytes, gso(&routed, 100)).is_ok());
        routed.bytes[57] = 1;
        assert_eq!(
            cut(&routed.bytes, gso(&routed, 100)),
            Err(Refusal::Extension)
        );

        let mut jumbo = build(&parts(0), &[1; 300]);
        jumbo.bytes[18..20].fill(0);
        assert_eq!(cut(&jumbo.bytes, gso(&jumbo, 100)), Err(Refusal::Extension));

        // A route not yet travelled hides nothing from the checksum of a packet inside.
        let outer = Part::Ipv6 {
            extensions: vec![(43, 2)],
        };
        let mut srv6 = build(&[Part::Ethernet, outer, ipv4(1), tcp()], &[1; 300]);
        srv6.bytes[57] = 1;
        verify_all(
            &srv6,
            &cut(&srv6.bytes, gso(&srv6, 100)).expect("a frame that can be cut"),
            100,
        );
    }

    #[test]
    fn a_short_buffer_and_a_segment_too_many_write_nothing() {
        let frame = plain();
        let segmenter =
            Segmenter::new(&frame.bytes, gso(&frame, 299)).expect("a frame that can be cut");
        let mut buffer = vec![0xee; segmenter.largest() + 5];
        let short = segmenter.largest() - 1;
        assert_eq!(segmenter.write(0, &mut buffer[..short]), None);
        for index in [2, 3, usize::MAX] {
            assert_eq!(segmenter.write(index, &mut buffer), None);
        }
        assert!(buffer.iter().all(|b| *b == 0xee));
        assert_eq!(segmenter.write(1, &mut buffer[..short]), Some(67));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        #[test]
        fn segments_are_whole_and_join_to_the_payload(frame in frames(0..1200), size in 1u16..700) {
            let gso = gso(&frame, size);
            let segments = cut(&frame.bytes, gso);
            prop_assert!(segments.is_ok(), "{:?}", segments);
            let segments = segments.unwrap_or_default();
            verify_all(&frame, &segments, size.into());
            prop_assert_eq!(count(&frame.bytes, frame.bytes.len(), gso), segments.len());
        }

        #[test]
        fn only_tunnels_need_software(frame in frames(0..50), size in 1u16..700) {
            let inside = |part: &Part| matches!(part, Part::Ipv4 { .. } | Part::Ipv6 { .. } | Part::Gre { .. });
            let tunnel = frame.parts.iter().filter(|(part, _)| inside(part)).count() > 1;
            let gso = gso(&frame, size);
            prop_assert_eq!(needs_software_gso(&frame.bytes, gso), tunnel);
            let other = if gso.kind == GsoKind::Tcp4 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            let mistaken = Gso { kind: other, ..gso };
            prop_assert!(needs_software_gso(&frame.bytes, mistaken));
        }

        #[test]
        fn spoilt_and_cut_frames_are_cut_or_refused(
            frame in frames(0..300),
            size in 0u16..400,
            keep in any::<prop::sample::Index>(),
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            shift in -2i32..3,
        ) {
            let mut bytes = frame.bytes.clone();
            bytes.truncate(bytes.len().max(1) - keep.index(bytes.len()) / 4);
            for (index, value) in spoils {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            let mut gso = gso(&frame, size);
            gso.csum_start = gso.csum_start.saturating_add_signed(shift as i16 / 2);
            needs_software_gso(&bytes, gso);
            if let Ok(segments) = cut(&bytes, gso) {
                prop_assert_eq!(segments.len(), count(&bytes, bytes.len(), gso));
            }
        }

        #[test]
        fn any_bytes_are_cut_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            len in prop::sample::select(vec![0usize, 14, 60, 200, 65_550]),
            size: u16, csum_start: u16, csum_offset: u16,
        ) {
            bytes.resize(len, 0x45);
            for kind in [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp] {
                let gso = Gso { kind, size, csum_start, csum_offset };
                prop_assert!(count(&bytes, bytes.len(), gso) >= 1);
                needs_software_gso(&bytes, gso);
                if let Ok(segmenter) = Segmenter::new(&bytes, gso) {
                    prop_assert!(segmenter.write(0, &mut vec![0; segmenter.largest()]).is_some());
                }
            }
        }
    }
}
