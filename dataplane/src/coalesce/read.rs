//! What coalescing needs to know of a frame: its flow, and what decides whether it joins others.
//!
//! Called once a frame, so it reads the plain shapes only: Ethernet, up to two VLAN tags, IPv4 without options or IPv6 without
//! extension headers, TCP or UDP. It promises that a frame of a flow is never taken for a frame of none.

use crate::memory::Offload;
use crate::wire::{
    checksum::{fold, pseudo_v4, pseudo_v6, sum},
    ethernet::{IPV4, IPV6},
    segment::{Gso, GsoKind},
};

/// What a frame is to coalescing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing that is ever merged: ARP, ICMP, tunnels by protocol number.
    Other,
    /// Perhaps of a flow, but of which can't be seen here: fragments, options, extension headers, strange tags.
    Unclear,
    /// Of a flow. Without a [`Segment`] it never joins others.
    Flow(Flow, Option<Segment>),
}

/// Which flow, and what else all frames of a super-frame have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    /// Addresses, ports, protocols: frames that agree in these keep their order.
    pub(super) identity: [u64; 5],
    /// MAC addresses, tags, TOS or traffic class and flow label, TTL, DF; TCP: acknowledgement, flags but PSH and FIN, window.
    pub(super) manner: [u64; 5],
}

/// A frame that may join others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// Where the IP header starts.
    pub(super) network: u16,
    /// Where the transport header starts.
    pub(super) transport: u16,
    /// Where the payload starts.
    pub(super) header_len: u16,
    /// Bytes of payload; not 0.
    pub(super) payload: u16,
    pub(super) tcp: bool,
    /// IPv4 without DF: the identification, which must count on.
    pub(super) id: Option<u16>,
    pub(super) sequence: u32,
    /// TCP flags that end a super-frame: PSH, FIN.
    pub(super) ends: u8,
}

/// TCP flags.
pub(super) const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;

impl Flow {
    /// A number that differs for most flows.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [a, b, c, d, e] = self.identity;
        let mixed = (a ^ e.wrapping_mul(SPREAD))
            .wrapping_add((b ^ c.rotate_left(21) ^ d.rotate_left(43)).wrapping_mul(SPREAD));
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(SPREAD);
        mixed ^ mixed >> 32
    }
}

impl Segment {
    /// Where the checksum is, in bytes from the transport header.
    #[inline]
    pub(super) fn csum_offset(&self) -> u16 {
        if self.tcp { 16 } else { 6 }
    }

    /// Whether the IP version is 6.
    #[inline]
    pub(super) fn is_v6(&self) -> bool {
        self.transport - self.network == 40
    }

    /// The sum of the pseudo-header for `len` bytes of transport header and payload.
    #[inline]
    pub(super) fn pseudo(&self, frame: &[u8], len: usize) -> Option<u32> {
        let ip = frame.get(self.network.into()..)?;
        let protocol = if self.tcp { TCP } else { UDP };
        Some(if self.is_v6() {
            let ip: &[u8; 40] = ip.first_chunk()?;
            let (src, dst) = (ip[8..24].first_chunk()?, ip[24..].first_chunk()?);
            pseudo_v6(src, dst, protocol, len)
        } else {
            let ip: &[u8; 20] = ip.first_chunk()?;
            let (src, dst) = (ip[12..16].first_chunk()?, ip[16..].first_chunk()?);
            pseudo_v4(*src, *dst, protocol, len)
        })
    }

    /// Whether what is left to do for the frame's checksum, if anything, is what would be left to do for a super-frame's.
    #[inline]
    pub(super) fn may_be_left(&self, offload: Offload) -> bool {
        !offload.needs_csum()
            || (offload.csum_start, offload.csum_offset) == (self.transport, self.csum_offset())
    }

    /// Makes these headers, at the start of `frame`, those of a super-frame with so much payload. TCP gets the flags `ends`.
    #[inline]
    pub(super) fn write(&self, frame: &mut [u8], payload: usize, ends: u8) -> Gso {
        let (network, transport) = (usize::from(self.network), usize::from(self.transport));
        let len = usize::from(self.header_len) - transport + payload;
        let pseudo = self.pseudo(frame, len).unwrap_or_default();
        let mut put = |at: usize, value: u16| {
            if let Some(two) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                *two = value.to_be_bytes();
            }
        };
        put(transport + usize::from(self.csum_offset()), fold(pseudo));
        if self.is_v6() {
            put(network + 4, len as u16);
        } else {
            put(network + 2, (20 + len) as u16);
            put(network + 10, 0);
        }
        if !self.tcp {
            put(transport + 4, len as u16);
        } else if let Some(flags) = frame.get_mut(transport + 13) {
            *flags |= ends;
        }
        if !self.is_v6()
            && let Some(ip) = frame.get_mut(network..transport)
        {
            let check = !fold(sum(ip));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
        }
        Gso {
            kind: match (self.tcp, self.is_v6()) {
                (true, false) => GsoKind::Tcp4,
                (true, true) => GsoKind::Tcp6,
                (false, _) => GsoKind::Udp,
            },
            size: self.payload,
            csum_start: self.transport,
            csum_offset: self.csum_offset(),
        }
    }

    /// Whether every checksum of the frame is right, or `partial`: left to be completed, and prepared for it. Of the two ways
    /// to write zero, it must be the one that whoever cuts a super-frame writes: `0xffff` for UDP, else `0`.
    #[inline]
    pub(super) fn is_sound(&self, frame: &[u8], partial: bool) -> bool {
        let (network, transport) = (usize::from(self.network), usize::from(self.transport));
        let Some(ip) = frame.get(network..transport) else {
            return false;
        };
        if !self.is_v6() && (fold(sum(ip)) != 0xffff || ip.get(10..12) == Some(&[0xff; 2])) {
            return false;
        }
        let rest = &frame[transport..];
        let Some(pseudo) = self.pseudo(frame, rest.len()) else {
            return false;
        };
        let field = rest
            .get(self.csum_offset().into()..)
            .and_then(|rest| rest.first_chunk());
        let Some(field) = field.map(|field| u16::from_be_bytes(*field)) else {
            return false;
        };
        if partial {
            field == fold(pseudo)
        } else {
            fold(sum(rest) + pseudo) == 0xffff && !(self.tcp && field == 0xffff)
        }
    }
}

/// Reads a frame.
#[inline]
pub(super) fn read(frame: &[u8]) -> Seen {
    let Some(ethernet) = frame.first_chunk::<14>() else {
        return Seen::Other;
    };
    let mut flow = Flow::default();
    flow.manner[0] = word(ethernet, 0);
    flow.manner[1] = word(ethernet, 6);
    let (mut ethertype, mut network) = (u16::from_be_bytes([ethernet[12], ethernet[13]]), 14);
    let mut tags = 0;
    // The two that the kernel steps over when it cuts super-frames (`eth_type_vlan`).
    while matches!(ethertype, 0x8100 | 0x88a8) {
        let Some(tag) = frame
            .get(network..)
            .and_then(|rest| rest.first_chunk::<4>())
        else {
            return Seen::Other;
        };
        if tags == 2 {
            return Seen::Unclear;
        }
        flow.manner[2] = flow.manner[2] << 32 | u64::from(u32::from_be_bytes(*tag));
        (ethertype, network, tags) = (u16::from_be_bytes([tag[2], tag[3]]), network + 4, tags + 1);
    }
    match ethertype {
        IPV4 => ipv4(frame, network, flow),
        IPV6 => ipv6(frame, network, flow),
        0x9100 => Seen::Unclear,
        _ => Seen::Other,
    }
}

#[inline]
fn ipv4(frame: &[u8], network: usize, mut flow: Flow) -> Seen {
    let Some(ip) = frame
        .get(network..)
        .and_then(|rest| rest.first_chunk::<20>())
    else {
        return Seen::Other;
    };
    let fragment = u16::from_be_bytes([ip[6], ip[7]]);
    // Options, or another version than the ethertype says; more fragments, or an offset.
    if ip[0] != 0x45 || fragment & 0x3fff != 0 {
        return Seen::Unclear;
    }
    let protocol = ip[9];
    flow.identity[0] = word(ip, 12);
    flow.manner[3] = u64::from(u32::from_be_bytes([ip[1], ip[6], ip[7], ip[8]]));
    let df = fragment & 0x4000 != 0;
    let id = (!df).then_some(u16::from_be_bytes([ip[4], ip[5]]));
    let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    transport(
        frame,
        network,
        network + 20,
        protocol,
        network + len,
        id,
        flow,
    )
}

#[inline]
fn ipv6(frame: &[u8], network: usize, mut flow: Flow) -> Seen {
    let Some(ip) = frame
        .get(network..)
        .and_then(|rest| rest.first_chunk::<40>())
    else {
        return Seen::Other;
    };
    let protocol = ip[6];
    // Extension headers, of which ports may lie behind: hop-by-hop, routing, fragment, authentication, destination, mobility,
    // HIP, shim.
    if ip[0] >> 4 != 6 || matches!(protocol, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140) {
        return Seen::Unclear;
    }
    flow.identity[0] = word(ip, 8);
    flow.identity[1] = word(ip, 16);
    flow.identity[2] = word(ip, 24);
    flow.identity[3] = word(ip, 32);
    let first = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]);
    flow.manner[3] = u64::from(first) << 8 | u64::from(ip[7]);
    let len = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    transport(
        frame,
        network,
        network + 40,
        protocol,
        network + len,
        None,
        flow,
    )
}

/// The part that both versions have in common. `end` is where the packet ends by its own account.
#[inline]
fn transport(
    frame: &[u8],
    network: usize,
    at: usize,
    protocol: u8,
    end: usize,
    id: Option<u16>,
    mut flow: Flow,
) -> Seen {
    let tcp = match protocol {
        TCP => true,
        UDP => false,
        _ => return Seen::Other,
    };
    let Some(start) = frame.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
        return Seen::Unclear;
    };
    let ports = u32::from_be_bytes([start[0], start[1], start[2], start[3]]);
    let v6 = u64::from(at - network == 40);
    flow.identity[4] = u64::from(ports) << 16 | v6 << 8 | u64::from(protocol);
    let mut segment = Segment {
        network: network as u16,
        transport: at as u16,
        header_len: at as u16 + 8,
        payload: 0,
        tcp,
        id,
        sequence: 0,
        ends: 0,
    };
    if tcp {
        let Some(header) = frame[at..].first_chunk::<20>() else {
            return Seen::Flow(flow, None);
        };
        let (len, flags) = (4 * usize::from(header[12] >> 4), header[13]);
        flow.manner[4] = word(header, 8) & !(u64::from(FIN | PSH) << 16);
        segment.sequence = u32::from_be_bytes([start[4], start[5], start[6], start[7]]);
        segment.ends = flags & (FIN | PSH);
        segment.header_len = (at + len) as u16;
        // An urgent pointer means nothing without URG, but a super-frame has one for all its segments.
        let urgent = header[18..] != [0, 0];
        if len < 20 || urgent || flags & (SYN | RST | URG | CWR) != 0 {
            return Seen::Flow(flow, None);
        }
    } else {
        let len = usize::from(u16::from_be_bytes([start[4], start[5]]));
        // Zero: no checksum. The kernel makes no super-frames of such datagrams either (`udp_gro_receive_segment`).
        if at + len != end || start[6..] == [0, 0] {
            return Seen::Flow(flow, None);
        }
    }
    // Neither cut nor padded nor empty.
    let header_len = usize::from(segment.header_len);
    if end != frame.len() || end <= header_len || end - network > 0xffff {
        return Seen::Flow(flow, None);
    }
    segment.payload = (end - header_len) as u16;
    Seen::Flow(flow, Some(segment))
}

/// Eight bytes from `at` on, as a number.
#[inline]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |eight| u64::from_be_bytes(*eight))
}
