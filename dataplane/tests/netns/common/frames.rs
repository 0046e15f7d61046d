//! Frames made by hand, and their checksums verified by a parser that the relay does not use for it.

use etherparse::{IpNumber, NetSlice, PacketBuilder, SlicedPacket};

use super::net::mac;

/// A VLAN tag: protocol identifier and control information (priority, drop eligibility, VLAN).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub(crate) tpid: u16,
    pub(crate) tci: u16,
}

/// A frame from `c0` to `s0` of a local experimental type with a payload nobody can have invented.
pub(crate) fn plain(size: usize, seed: u32) -> Vec<u8> {
    let mut frame = [&mac("s0")[..], &mac("c0")[..], &[0x88, 0xb5][..]].concat();
    frame.extend(noise(seed).take(size - 14));
    frame
}

/// The same to a multicast group.
pub(crate) fn multicast(group: [u8; 6], size: usize, seed: u32) -> Vec<u8> {
    let mut frame = plain(size, seed);
    frame[..6].copy_from_slice(&group);
    frame
}

/// A correct UDP datagram from `c0` to `s0` in a frame of exactly this size.
pub(crate) fn udp_frame(size: usize, seed: u32) -> Vec<u8> {
    let payload: Vec<u8> = noise(seed).take(size - 42).collect();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac("c0"), mac("s0"))
        .ipv4([10, 9, 0, 1], [10, 9, 0, 2], 64)
        .udp(4000, 4001)
        .write(&mut frame, &payload)
        .expect("it fits");
    frame
}

/// A frame with tags put in, the first outermost.
pub(crate) fn tagged(frame: &[u8], tags: &[Tag]) -> Vec<u8> {
    let mut with = frame[..12].to_vec();
    for tag in tags {
        with.extend(tag.tpid.to_be_bytes());
        with.extend(tag.tci.to_be_bytes());
    }
    with.extend(&frame[12..]);
    with
}

/// Whether every checksum in a frame (IPv4 header, TCP or UDP, behind any tags) is right and the IP length is the frame's.
/// A frame without TCP or UDP has nothing to be right, and fails.
pub(crate) fn checksums_hold(frame: &[u8]) -> Result<(), String> {
    let packet = SlicedPacket::from_ethernet(frame).map_err(|error| error.to_string())?;
    let payload = packet
        .net
        .as_ref()
        .and_then(NetSlice::ip_payload_ref)
        .ok_or("no IP")?;
    let (ip_len, addresses) = match packet.net.as_ref() {
        Some(NetSlice::Ipv4(ip)) => {
            if sum(ip.header().slice()) != 0xffff {
                return Err("IPv4 header checksum".to_owned());
            }
            (
                usize::from(ip.header().total_len()),
                &ip.header().slice()[12..20],
            )
        }
        Some(NetSlice::Ipv6(ip)) => (
            usize::from(ip.header().payload_length()) + 40,
            &ip.header().slice()[8..40],
        ),
        other => return Err(format!("no IP: {other:?}")),
    };
    let header_len = payload.payload.as_ptr() as usize - frame.as_ptr() as usize;
    let link_len = 14 + 4 * packet.vlan_ids().len();
    // 60 is Ethernet's minimum: what is shorter may have been padded to it.
    if link_len + ip_len != frame.len() && frame.len() > 60 {
        return Err(format!(
            "IP length {ip_len} in a frame of {}, headers {header_len}",
            frame.len()
        ));
    }
    if !matches!(payload.ip_number, IpNumber::TCP | IpNumber::UDP) {
        return Err(format!("neither TCP nor UDP: {:?}", payload.ip_number));
    }
    let length = (payload.payload.len() as u32).to_be_bytes();
    let pseudo = [addresses, &length, &[0, 0, 0, payload.ip_number.0]].concat();
    let pseudo_and_all = [&pseudo, payload.payload].concat();
    if sum(&pseudo_and_all) == 0xffff {
        Ok(())
    } else {
        Err(format!("{:?} checksum", payload.ip_number))
    }
}

/// RFC 1071: the folded ones' complement sum, all ones over anything that carries its right checksum.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let total: u64 = bytes.chunks(2).map(|pair| u64::from(word(pair))).sum();
    let folded = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// A frame whose transport checksum is left to whoever is next, as a stack with offloads hands it over: the virtio
/// header and the frame. `link` is the length of what comes before the IPv4 header, `gso` the segment size if it is a
/// super-frame.
pub(crate) fn offloaded(frame: &[u8], link: usize, gso: Option<u16>) -> (Vec<u8>, Vec<u8>) {
    let mut frame = frame.to_vec();
    let transport = link + 20;
    let (tcp, length) = (frame[link + 9] == 6, (frame.len() - transport) as u32);
    let at = transport + if tcp { 16 } else { 6 };
    frame[at..at + 2].fill(0);
    let pseudo = [
        &frame[link + 12..link + 20],
        &length.to_be_bytes(),
        &[0, 0, 0, frame[link + 9]],
    ]
    .concat();
    frame[at..at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
    let header_len = transport
        + if tcp {
            usize::from(frame[transport + 12] >> 4) * 4
        } else {
            8
        };
    let kind = match (gso, tcp) {
        (None, _) => 0,
        (Some(_), true) => 1,
        (Some(_), false) => 5,
    };
    (
        vnet(
            kind,
            if kind == 0 { 0 } else { header_len },
            gso.unwrap_or(0),
            transport,
            at - transport,
        ),
        frame,
    )
}

/// A virtio header that asks for a checksum, and for segmentation if `kind` is not 0.
pub(crate) fn vnet(kind: u8, header_len: usize, gso: u16, start: usize, offset: usize) -> Vec<u8> {
    let words = [header_len as u16, gso, start as u16, offset as u16];
    [&[1, kind][..], &words.map(u16::to_le_bytes).concat()].concat()
}

/// A correct TCP segment from `c0` to `s0`, of any size that an IP header can state.
pub(crate) fn tcp_frame(payload: &[u8], seq: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac("c0"), mac("s0"))
        .ipv4([10, 9, 0, 1], [10, 9, 0, 2], 64)
        .tcp(4000, 4001, seq, 1000)
        .ack(77)
        .psh()
        .write(&mut frame, payload)
        .expect("it fits");
    frame
}

/// Reproducible bytes without a pattern (xorshift32).
pub(crate) fn noise(seed: u32) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as u8
    })
}
