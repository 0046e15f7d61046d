//! One pass over the headers of a frame, from the outermost to the innermost.
//!
//! Called where headers matter: cutting super-frames, coalescing, filters. It goes through VLAN tags, IPv4 options,
//! IPv6 extension headers, and through IP-in-IP, GRE, VXLAN and Geneve, until TCP, UDP or something it does not know.
//! It promises to end, whatever the bytes are; what is cut, nonsense, unknown or a fragment just yields fewer layers.
//! A layer is listed only if its header is in the frame in full. Lengths and checksums are not looked at.

use super::be16;
use super::ethernet::{self, IPV4, IPV6, TEB};

/// Most layers of one frame. Two levels of VXLAN with a tag at each Ethernet header need 17.
pub const CAPACITY: usize = 24;
/// Most IPv6 extension headers of one IPv6 header.
const MAX_EXTENSIONS: usize = 8;

/// IP protocol numbers that matter here.
pub(super) mod protocol {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const IPIP: u8 = 4;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const IPV6: u8 = 41;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const GRE: u8 = 47;
    pub(crate) const NO_NEXT: u8 = 59;
    pub(crate) const DESTINATION: u8 = 60;
}

/// What a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ethernet: two addresses and an ethertype.
    Ethernet,
    /// A VLAN tag, starting at its TCI. The TPID before it belongs to the Ethernet header or the tag before.
    Vlan,
    /// IPv4 with its options.
    Ipv4,
    /// IPv6 with its extension headers.
    Ipv6,
    /// GRE, NVGRE included.
    Gre,
    /// VXLAN.
    Vxlan,
    /// Geneve with its options.
    Geneve,
    /// TCP with its options.
    Tcp,
    /// UDP.
    Udp,
    /// Another IP protocol, by its number; only that it starts here is known.
    Other(u8),
}

impl Kind {
    /// Whether this is IPv4 or IPv6.
    #[inline]
    pub fn is_network(self) -> bool {
        matches!(self, Kind::Ipv4 | Kind::Ipv6)
    }

    /// Whether this is TCP, UDP or another protocol that ends the headers of an IP packet.
    #[inline]
    pub fn is_transport(self) -> bool {
        matches!(self, Kind::Tcp | Kind::Udp | Kind::Other(_))
    }
}

/// One header: what it is and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What it is.
    pub kind: Kind,
    offset: u16,
}

impl Layer {
    /// Where it starts, in bytes from the start of the frame.
    #[inline]
    pub fn offset(self) -> usize {
        usize::from(self.offset)
    }
}

/// The headers of one frame.
#[derive(Clone, Debug)]
pub struct Layers {
    layers: [Layer; CAPACITY],
    count: usize,
    end: usize,
    fragment: bool,
}

/// What follows a header.
enum Next {
    Ethernet,
    Type(u16),
    Protocol(u8),
    Vxlan,
    Geneve,
    Fragment,
    Unknown,
}

impl Layers {
    /// Reads the headers of a frame.
    pub fn parse(frame: &[u8]) -> Self {
        Self::parse_to(frame, 0)
    }

    /// The same for a frame of which it is known that a transport header starts at `transport`, as `csum_start` of a
    /// virtio header says. It serves to find VXLAN and Geneve on ports of the user's choice: before that offset, a UDP
    /// payload that looks like one is taken for one. Whether the pass has ended at `transport` is for the caller to
    /// check.
    pub fn parse_to(frame: &[u8], transport: usize) -> Self {
        let nothing = Layer {
            kind: Kind::Ethernet,
            offset: 0,
        };
        let mut layers = Layers {
            layers: [nothing; CAPACITY],
            count: 0,
            end: 0,
            fragment: false,
        };
        let mut next = Next::Ethernet;
        // Every round adds a layer or ends, so CAPACITY bounds it.
        while let Some(following) = layers.step(frame, next, transport) {
            next = following;
        }
        layers
    }

    /// All layers, outermost first.
    #[inline]
    pub fn as_slice(&self) -> &[Layer] {
        &self.layers[..self.count]
    }

    /// The outermost IP header.
    #[inline]
    pub fn network(&self) -> Option<Layer> {
        self.as_slice()
            .iter()
            .copied()
            .find(|l| l.kind.is_network())
    }

    /// The transport header that directly follows the outermost IP header. `None` behind IP-in-IP and GRE, and in
    /// fragments.
    #[inline]
    pub fn transport(&self) -> Option<Layer> {
        let mut layers = self.as_slice().iter().copied();
        layers.find(|l| l.kind.is_network())?;
        layers.next().filter(|l| l.kind.is_transport())
    }

    /// The innermost IP header.
    #[inline]
    pub fn innermost_network(&self) -> Option<Layer> {
        let mut layers = self.as_slice().iter().rev().copied();
        layers.find(|l| l.kind.is_network())
    }

    /// The innermost transport header. Where a tunnel's payload cannot be read, it is the tunnel's own.
    #[inline]
    pub fn innermost_transport(&self) -> Option<Layer> {
        let mut layers = self.as_slice().iter().rev().copied();
        layers.find(|l| l.kind.is_transport())
    }

    /// Whether another frame or packet is carried inside.
    #[inline]
    pub fn is_tunnel(&self) -> bool {
        let mut networks = 0;
        self.as_slice().iter().any(|l| {
            networks += usize::from(l.kind.is_network());
            networks > 1 || matches!(l.kind, Kind::Gre | Kind::Vxlan | Kind::Geneve)
        })
    }

    /// Whether the pass ended at a fragment (an IPv4 one, or an IPv6 fragment header).
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment
    }

    /// The length of all headers, up to and with the innermost: where the payload begins.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.end
    }

    /// Adds the layer that starts where the last one ended, and ends itself `len` bytes on.
    #[inline]
    fn push(&mut self, kind: Kind, len: usize) -> Option<()> {
        let offset = u16::try_from(self.end).ok()?;
        *self.layers.get_mut(self.count)? = Layer { kind, offset };
        self.count += 1;
        self.end += len;
        Some(())
    }

    /// Reads one header. `None` where the pass ends.
    #[inline]
    fn step(&mut self, frame: &[u8], next: Next, transport: usize) -> Option<Next> {
        let bytes = frame.get(self.end..)?;
        match next {
            Next::Ethernet => self.ethernet(bytes),
            Next::Type(IPV4) | Next::Protocol(protocol::IPIP) => self.ipv4(bytes),
            Next::Type(IPV6) | Next::Protocol(protocol::IPV6) => self.ipv6(bytes),
            Next::Protocol(protocol::TCP) => self.tcp(bytes),
            Next::Protocol(protocol::UDP) => self.udp(bytes, transport),
            Next::Protocol(protocol::GRE) => self.gre(bytes),
            Next::Protocol(other) if other != protocol::NO_NEXT && !bytes.is_empty() => {
                self.push(Kind::Other(other), 0)?;
                None
            }
            Next::Vxlan => self.vxlan(bytes),
            Next::Geneve => self.geneve(bytes),
            Next::Fragment => {
                self.fragment = true;
                None
            }
            Next::Type(_) | Next::Protocol(_) | Next::Unknown => None,
        }
    }

    fn ethernet(&mut self, bytes: &[u8]) -> Option<Next> {
        let walk = ethernet::walk(bytes)?;
        self.push(Kind::Ethernet, ethernet::HEADER_LEN)?;
        for _ in 0..walk.tags {
            self.push(Kind::Vlan, ethernet::TAG_LEN)?;
        }
        Some(Next::Type(walk.ethertype))
    }

    fn ipv4(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<20>()?;
        let len = 4 * usize::from(header[0] & 15);
        if header[0] >> 4 != 4 || len < 20 || len > bytes.len() {
            return None;
        }
        self.push(Kind::Ipv4, len)?;
        // More fragments, or an offset.
        if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
            return Some(Next::Fragment);
        }
        Some(Next::Protocol(header[9]))
    }

    fn ipv6(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<40>()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let mut len = header.len();
        let mut next = header[6];
        for _ in 0..=MAX_EXTENSIONS {
            match next {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                    let Some(extension) = bytes.get(len..).and_then(|b| b.first_chunk::<8>())
                    else {
                        break;
                    };
                    let end = len + 8 * (1 + usize::from(extension[1]));
                    if end > bytes.len() {
                        break;
                    }
                    (next, len) = (extension[0], end);
                }
                protocol::FRAGMENT => {
                    self.push(Kind::Ipv6, len)?;
                    return Some(Next::Fragment);
                }
                _ => {
                    self.push(Kind::Ipv6, len)?;
                    return Some(Next::Protocol(next));
                }
            }
        }
        // Cut among the extension headers, or too many of them.
        self.push(Kind::Ipv6, len)?;
        None
    }

    fn tcp(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<20>()?;
        let len = 4 * usize::from(header[12] >> 4);
        if len < 20 || len > bytes.len() {
            return None;
        }
        self.push(Kind::Tcp, len)?;
        None
    }

    fn udp(&mut self, bytes: &[u8], transport: usize) -> Option<Next> {
        let header = bytes.first_chunk::<8>()?;
        self.push(Kind::Udp, header.len())?;
        match u16::from_be_bytes([header[2], header[3]]) {
            // IANA's port, and the one Linux has used since before there was one (`drivers/net/vxlan`).
            4789 | 8472 => Some(Next::Vxlan),
            6081 => Some(Next::Geneve),
            _ if self.end < transport => Some(guess(&bytes[header.len()..])),
            _ => None,
        }
    }

    fn vxlan(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<8>()?;
        // There must be a network identifier, and neither a protocol field (VXLAN-GPE) nor a remote checksum offload,
        // which moves the inner checksum.
        if header[0] & 0x0c != 0x08 || header[1] & 0x20 != 0 {
            return None;
        }
        self.push(Kind::Vxlan, header.len())?;
        Some(Next::Ethernet)
    }

    fn geneve(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<8>()?;
        let len = header.len() + 4 * usize::from(header[0] & 0x3f);
        if header[0] >> 6 != 0 || len > bytes.len() {
            return None;
        }
        self.push(Kind::Geneve, len)?;
        Some(carried(be16(header, 2)?))
    }

    fn gre(&mut self, bytes: &[u8]) -> Option<Next> {
        let header = bytes.first_chunk::<4>()?;
        // Only version 0 with checksum, key and sequence number; the rest is RFC 1701's routing and PPTP's version 1.
        if header[0] & 0x4f != 0 || header[1] != 0 {
            self.push(Kind::Gre, header.len())?;
            return None;
        }
        let words = (header[0] & 0xb0).count_ones() as usize;
        let len = header.len() + 4 * words;
        if len > bytes.len() {
            return None;
        }
        self.push(Kind::Gre, len)?;
        Some(carried(be16(header, 2)?))
    }
}

/// What GRE and Geneve carry, by its ethertype.
#[inline]
fn carried(ethertype: u16) -> Next {
    match ethertype {
        TEB => Next::Ethernet,
        IPV4 | IPV6 => Next::Type(ethertype),
        _ => Next::Unknown,
    }
}

/// Which tunnel a UDP payload looks like.
#[inline]
fn guess(payload: &[u8]) -> Next {
    match payload.first_chunk::<8>() {
        Some([0x08, 0, 0, 0, _, _, _, 0]) => Next::Vxlan,
        Some([first, second, ..]) if first >> 6 == 0 && second & 0x3f == 0 => Next::Geneve,
        _ => Next::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Check, Part, Sample, build, frames};
    use super::*;
    use proptest::prelude::*;

    fn kinds(layers: &Layers) -> Vec<Kind> {
        layers.as_slice().iter().map(|l| l.kind).collect()
    }

    fn ipv4() -> Part {
        Part::Ipv4 {
            options: 0,
            id: 1,
            df: true,
        }
    }

    fn tcp() -> Part {
        Part::Tcp {
            options: 3,
            flags: 0x10,
            sequence: 1,
        }
    }

    #[test]
    fn plain_tcp() {
        let frame = build(&[Part::Ethernet, ipv4(), tcp()], b"payload");
        let layers = Layers::parse(&frame.bytes);
        assert_eq!(kinds(&layers), [Kind::Ethernet, Kind::Ipv4, Kind::Tcp]);
        assert_eq!(layers.network().map(Layer::offset), Some(14));
        assert_eq!(layers.innermost_network(), layers.network());
        assert_eq!(layers.transport().map(Layer::offset), Some(34));
        assert_eq!(layers.innermost_transport(), layers.transport());
        assert_eq!(layers.header_len(), 14 + 20 + 32);
        assert!(!layers.is_tunnel() && !layers.is_fragment());
    }

    #[test]
    fn qinq_vxlan_vlan() {
        let tag = |tpid| Part::Vlan { tpid, tci: 5 };
        let udp = Part::Udp {
            port: 4789,
            check: Check::Zero,
        };
        let parts = [
            Part::Ethernet,
            tag(0x88a8),
            tag(0x8100),
            Part::Ipv6 {
                extensions: vec![(0, 0), (60, 1)],
            },
            udp,
            Part::Vxlan,
            Part::Ethernet,
            tag(0x8100),
            ipv4(),
            tcp(),
        ];
        let frame = build(&parts, &[0; 90]);
        let layers = Layers::parse(&frame.bytes);
        assert_eq!(kinds(&layers), parts.each_ref().map(Part::kind));
        assert!(layers.is_tunnel());
        assert_eq!(layers.network().map(|l| l.kind), Some(Kind::Ipv6));
        assert_eq!(layers.transport().map(|l| l.kind), Some(Kind::Udp));
        assert_eq!(layers.innermost_network().map(|l| l.kind), Some(Kind::Ipv4));
        assert_eq!(
            layers.innermost_transport().map(|l| l.kind),
            Some(Kind::Tcp)
        );
    }

    #[test]
    fn no_transport_directly_behind_ip_in_ip_and_gre() {
        let gre = Part::Gre {
            check: true,
            key: true,
            sequence: true,
        };
        for parts in [
            vec![Part::Ethernet, ipv4(), ipv4(), tcp()],
            vec![Part::Ethernet, ipv4(), gre, ipv4(), tcp()],
        ] {
            let layers = Layers::parse(&build(&parts, &[]).bytes);
            assert_eq!(layers.transport(), None);
            assert!(layers.is_tunnel());
            assert_eq!(
                layers.innermost_transport().map(|l| l.kind),
                Some(Kind::Tcp)
            );
        }
    }

    #[test]
    fn fragments_end_the_pass() {
        for (at, value) in [(20, 0x20), (21, 0x01), (20, 0x1f)] {
            let mut frame = build(&[Part::Ethernet, ipv4(), tcp()], &[]).bytes;
            frame[at] = value;
            let layers = Layers::parse(&frame);
            assert_eq!(kinds(&layers), [Kind::Ethernet, Kind::Ipv4]);
            assert!(layers.is_fragment());
            assert_eq!(layers.transport(), None);
        }
        let mut frame = build(
            &[
                Part::Ethernet,
                Part::Ipv6 {
                    extensions: vec![(60, 0)],
                },
                tcp(),
            ],
            &[],
        )
        .bytes;
        frame[54] = 44;
        let layers = Layers::parse(&frame);
        assert_eq!(kinds(&layers), [Kind::Ethernet, Kind::Ipv6]);
        assert!(layers.is_fragment());
    }

    #[test]
    fn other_protocols_are_named_but_not_entered() {
        let mut frame = build(&[Part::Ethernet, ipv4(), tcp()], &[]).bytes;
        frame[23] = 1;
        let layers = Layers::parse(&frame);
        assert_eq!(
            layers.transport().map(|l| (l.kind, l.offset())),
            Some((Kind::Other(1), 34))
        );
        // PPTP's version of GRE, and an ARP frame.
        let gre = Part::Gre {
            check: false,
            key: true,
            sequence: false,
        };
        let mut frame = build(&[Part::Ethernet, ipv4(), gre, ipv4(), tcp()], &[]).bytes;
        frame[35] = 1;
        assert_eq!(
            kinds(&Layers::parse(&frame)),
            [Kind::Ethernet, Kind::Ipv4, Kind::Gre]
        );
        frame[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(kinds(&Layers::parse(&frame)), [Kind::Ethernet]);
        let udp = Part::Udp {
            port: 4789,
            check: Check::Zero,
        };
        let mut frame = build(
            &[
                Part::Ethernet,
                ipv4(),
                udp,
                Part::Vxlan,
                Part::Ethernet,
                ipv4(),
                tcp(),
            ],
            &[],
        )
        .bytes;
        // Neither VXLAN-GPE, nor remote checksum offload, nor no network identifier.
        for (at, flip) in [(42, 0x04), (43, 0x20), (42, 0x08)] {
            frame[at] ^= flip;
            assert_eq!(
                kinds(&Layers::parse(&frame)),
                [Kind::Ethernet, Kind::Ipv4, Kind::Udp]
            );
            frame[at] ^= flip;
        }
        assert_eq!(Layers::parse(&frame).as_slice().len(), 7);
    }

    #[test]
    fn endless_nesting_ends() {
        // IP in IP in IP …, and a frame of nothing but tags.
        let frame = build(
            &[&[Part::Ethernet][..], &vec![ipv4(); 100], &[tcp()]].concat(),
            &[],
        )
        .bytes;
        assert_eq!(Layers::parse(&frame).as_slice().len(), CAPACITY);
        let tags = [0x81, 0x00].repeat(30_000);
        assert!(Layers::parse(&tags).as_slice().is_empty());
        // Extension headers up to the bound, and one more.
        for (count, known) in [(MAX_EXTENSIONS, true), (MAX_EXTENSIONS + 1, false)] {
            let extensions = vec![(60, 255); count];
            let frame = build(&[Part::Ethernet, Part::Ipv6 { extensions }, tcp()], &[]).bytes;
            assert_eq!(Layers::parse(&frame).transport().is_some(), known);
        }
    }

    proptest! {
        #[test]
        fn finds_what_was_built(frame in frames(0..100)) {
            let wanted: Vec<_> = frame.parts.iter().map(|(part, at)| (part.kind(), *at)).collect();
            let found = |layers: &Layers| -> Vec<_> {
                layers.as_slice().iter().map(|l| (l.kind, l.offset())).collect()
            };
            let layers = Layers::parse_to(&frame.bytes, frame.transport());
            prop_assert_eq!(found(&layers), wanted.clone());
            prop_assert_eq!(layers.header_len(), frame.header_len);
            let networks = wanted.iter().filter(|(kind, _)| kind.is_network()).count();
            let gre = wanted.iter().any(|(kind, _)| *kind == Kind::Gre);
            prop_assert_eq!(layers.is_tunnel(), networks > 1 || gre);
            if frame.usual_ports() {
                prop_assert_eq!(found(&Layers::parse(&frame.bytes)), wanted);
            }
        }

        #[test]
        fn a_cut_frame_yields_the_layers_that_are_whole(frame in frames(0..10), keep in 0.0f64..1.0) {
            let Sample { bytes, header_len, .. } = frame.clone();
            let keep = (keep * bytes.len() as f64) as usize;
            let layers = Layers::parse_to(&bytes[..keep], frame.transport());
            prop_assert!(layers.header_len() <= keep);
            let whole = Layers::parse_to(&bytes, frame.transport());
            prop_assert!(whole.as_slice().starts_with(layers.as_slice()));
            if keep < header_len {
                prop_assert!(layers.as_slice().len() < whole.as_slice().len());
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..400), transport in 0usize..500) {
            let layers = Layers::parse_to(&bytes, transport);
            prop_assert!(layers.header_len() <= bytes.len());
            prop_assert!(layers.as_slice().is_sorted_by_key(|l| l.offset()));
        }

        #[test]
        fn spoilt_frames_end(
            frame in frames(0..60),
            spoils in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = frame.bytes.clone();
            for (index, value) in spoils {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            let layers = Layers::parse_to(&bytes, frame.transport());
            prop_assert!(layers.header_len() <= bytes.len());
        }
    }
}
