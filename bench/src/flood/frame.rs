//! The template frame of a flood: what the BPF program copies, and the part of the checksum that does not vary.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, bail};
use etherparse::PacketBuilder;

/// A MAC address.
pub(crate) type Mac = [u8; 6];

/// First bytes of every flood payload.
pub(crate) const MAGIC: [u8; 4] = *b"l2rb";
/// Magic number, flow and sequence number: the least payload of a frame.
pub(crate) const MARK_LEN: usize = 16;
/// How many first bytes of the template the BPF program has room for.
pub(crate) const HEAD_LEN: usize = 80;
/// Length of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// Length of a UDP header.
const UDP_LEN: usize = 8;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Source and destination MAC.
    pub(crate) macs: (Mac, Mac),
    /// Source and destination address, both of one family.
    pub(crate) addresses: (IpAddr, IpAddr),
    /// Source port of the first flow; the others follow.
    pub(crate) first_port: u16,
    /// Destination port of all flows.
    pub(crate) port: u16,
}

impl Ends {
    /// Ports and addresses as the bench uses them, from and to the given MACs.
    pub(crate) fn between(from: Mac, to: Mac) -> Ends {
        Ends {
            macs: (from, to),
            addresses: (
                IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
                IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
            ),
            first_port: 20000,
            port: 9000,
        }
    }
}

/// A template and what the BPF program needs to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The frame, from the Ethernet header to the end of the payload, without the check sequence.
    pub(crate) bytes: Vec<u8>,
    /// Sum in one's complement, of words in network byte order as this machine reads them, of all that the UDP checksum covers; source
    /// port, flow and sequence number count as zero.
    pub(crate) sum: u16,
    /// Whether it is IPv6.
    pub(crate) ipv6: bool,
}

impl Template {
    /// A UDP datagram that makes a frame of `size` bytes, with valid checksums, flow 0 and sequence number 0.
    pub(crate) fn new(ends: &Ends, size: usize) -> Result<Template> {
        let ethernet = PacketBuilder::ethernet2(ends.macs.0, ends.macs.1);
        let (builder, ipv6) = match ends.addresses {
            // The identification stays 0 with "don't fragment" set, as in what a socket sends; so the IP checksum is constant.
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (ethernet.ipv4(from.octets(), to.octets(), 64), false)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                (ethernet.ipv6(from.octets(), to.octets(), 64), true)
            }
            _ => bail!("a flood is from and to addresses of one family"),
        };
        let builder = builder.udp(ends.first_port, ends.port);
        let least = builder.size(MARK_LEN);
        if size < least || size > 1514 {
            bail!("frame size {size}: from {least} to 1514 bytes are possible");
        }
        let mut payload: Vec<u8> = (0..size - builder.size(0)).map(|n| n as u8).collect();
        payload[..MARK_LEN].fill(0);
        payload[..MAGIC.len()].copy_from_slice(&MAGIC);
        let mut bytes = Vec::with_capacity(size.max(HEAD_LEN));
        builder.write(&mut bytes, &payload)?;

        let udp_at = ETHERNET_LEN + if ipv6 { 40 } else { 20 };
        let check = u16::from_ne_bytes([bytes[udp_at + 6], bytes[udp_at + 7]]);
        let sum = subtract(!check, ends.first_port.to_be());
        debug_assert_eq!(bytes.len() - udp_at - UDP_LEN, payload.len());
        Ok(Template { bytes, sum, ipv6 })
    }

    /// Frame `number` of a flow, as bpf/flood.bpf.c makes it.
    pub(crate) fn frame(&self, first_port: u16, flow: u32, number: u64) -> Vec<u8> {
        let udp_at = self.udp_at();
        let mut bytes = self.bytes.clone();
        let port = first_port + flow as u16;
        bytes[udp_at..udp_at + 2].copy_from_slice(&port.to_be_bytes());
        bytes[udp_at + 12..udp_at + 16].copy_from_slice(&flow.to_be_bytes());
        bytes[udp_at + 16..udp_at + 24].copy_from_slice(&number.to_be_bytes());
        let mut sum = u32::from(self.sum) + u32::from(port.to_be());
        for pair in bytes[udp_at + 12..udp_at + 24].chunks(2) {
            sum += u32::from(u16::from_ne_bytes([pair[0], pair[1]]));
        }
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        let check = match !(sum as u16) {
            0 => 0xffff,
            check => check,
        };
        bytes[udp_at + 6..udp_at + 8].copy_from_slice(&check.to_ne_bytes());
        bytes
    }

    /// The number of a payload of this flow; nothing if it is not what was sent. What follows the mark is compared if it is to be `whole`.
    pub(crate) fn number(&self, payload: &[u8], flow: u32, whole: bool) -> Option<u64> {
        let sent = &self.bytes[self.udp_at() + UDP_LEN..];
        let (mark, rest) = payload.split_at_checked(MARK_LEN)?;
        let known = payload.len() == sent.len()
            && mark[..4] == MAGIC
            && mark[4..8] == flow.to_be_bytes()
            && (!whole || rest == &sent[MARK_LEN..]);
        known.then(|| u64::from_be_bytes(std::array::from_fn(|at| mark[8 + at])))
    }

    /// Bytes of the payload.
    pub(crate) fn payload_len(&self) -> usize {
        self.bytes.len() - self.udp_at() - UDP_LEN
    }

    fn udp_at(&self) -> usize {
        ETHERNET_LEN + if self.ipv6 { 40 } else { 20 }
    }

    /// The first bytes, padded where the frame is shorter.
    pub(crate) fn head(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let len = self.bytes.len().min(HEAD_LEN);
        head[..len].copy_from_slice(&self.bytes[..len]);
        head
    }
}

/// Takes a word out of a sum in one's complement.
fn subtract(sum: u16, word: u16) -> u16 {
    let (difference, borrow) = sum.overflowing_sub(word);
    difference.wrapping_sub(borrow.into())
}

/// Parses `aa:bb:cc:dd:ee:ff`.
pub(crate) fn parse_mac(text: &str) -> Result<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = match parts.next() {
            Some(part) if part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()) => {
                u8::from_str_radix(part, 16).ok()
            }
            _ => None,
        }
        .ok_or_else(|| {
            anyhow::anyhow!(
                "MAC address {text:?}: six hexadecimal bytes like 02:00:00:00:00:01 are expected"
            )
        })?;
    }
    if parts.next().is_some() {
        bail!("MAC address {text:?}: more than six bytes");
    }
    Ok(mac)
}

/// The reverse of [`parse_mac`].
pub(crate) fn show_mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    const FROM: Mac = [2, 0, 0, 0, 0, 1];
    const TO: Mac = [2, 0, 0, 0, 0, 2];

    fn assert_valid(bytes: &[u8]) {
        let packet = SlicedPacket::from_ethernet(bytes).unwrap();
        let Some(TransportSlice::Udp(udp)) = packet.transport else {
            panic!("no UDP");
        };
        let header = udp.to_header();
        let expected = match packet.net.unwrap() {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                header.calc_checksum_ipv4(&ip, udp.payload())
            }
            NetSlice::Ipv6(ip) => {
                header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
            }
            NetSlice::Arp(_) => panic!("ARP"),
        }
        .unwrap();
        assert_eq!(header.checksum, expected);
    }

    #[test]
    fn frames_have_the_size_asked_for_and_valid_checksums() {
        let v4 = Ends::between(FROM, TO);
        let v6 = Ends {
            addresses: ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
            ..v4
        };
        for (ends, sizes) in [
            (v4, vec![60, 64, 65, 512, 1500, 1514]),
            (v6, vec![78, 512, 1500]),
        ] {
            for size in sizes {
                let template = Template::new(&ends, size).unwrap();
                assert_eq!(template.bytes.len(), size);
                assert_valid(&template.bytes);
                for (flow, sequence) in [
                    (0, 0),
                    (1, 1),
                    (63, u64::MAX),
                    (1023, 0x0123_4567_89ab_cdef),
                ] {
                    assert_valid(&template.frame(ends.first_port, flow, sequence));
                }
            }
        }
    }

    #[test]
    fn a_checksum_by_hand() {
        // Pseudo-header 10.9.0.1 10.9.0.2 17 38, header 20000 9000 38, payload "l2rb", zeros, 10 11 … 1d.
        let template = Template::new(&Ends::between(FROM, TO), 72).unwrap();
        let words = [
            0x0a09u32, 0x0001, 0x0a09, 0x0002, 0x0011, 0x0026, 0x4e20, 0x2328, 0x0026, 0x6c32,
            0x7262, 0x1011, 0x1213, 0x1415, 0x1617, 0x1819, 0x1a1b, 0x1c1d,
        ];
        let sum: u32 = words.iter().sum();
        let check = !(((sum & 0xffff) + (sum >> 16)) as u16);
        assert_eq!(template.bytes[40..42], check.to_be_bytes());
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_ffff() {
        let template = Template::new(&Ends::between(FROM, TO), 64).unwrap();
        let zero = (0..=0xffff)
            .map(|sequence| template.frame(20000, 0, sequence))
            .find(|bytes| bytes[40..42] == [0xff, 0xff]);
        assert_valid(&zero.expect("one sequence number in 65536 gives zero"));
    }

    #[test]
    fn a_payload_is_known_again() {
        let template = Template::new(&Ends::between(FROM, TO), 200).unwrap();
        let mut payload = template.frame(20000, 3, 77)[42..].to_vec();
        assert_eq!(template.number(&payload, 3, true), Some(77));
        assert_eq!(template.number(&payload, 4, true), None);
        assert_eq!(template.number(&payload[..157], 3, true), None);
        payload[100] ^= 1;
        assert_eq!(template.number(&payload, 3, true), None);
        assert_eq!(template.number(&payload, 3, false), Some(77));
        assert_eq!(template.number(b"short", 3, true), None);
    }

    #[test]
    fn impossible_frames_are_refused() {
        let ends = Ends::between(FROM, TO);
        assert!(Template::new(&ends, 57).is_err());
        assert!(Template::new(&ends, 1515).is_err());
        let mixed = Ends {
            addresses: ("10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap()),
            ..ends
        };
        assert!(Template::new(&mixed, 512).is_err());
    }

    #[test]
    fn subtracting_undoes_adding() {
        let add = |a: u16, b: u16| {
            let (sum, carry) = a.overflowing_add(b);
            sum + u16::from(carry)
        };
        for (a, b) in [(1, 2), (0xfffe, 0x4e20), (0x1234, 0xffff)] {
            assert_eq!(subtract(add(a, b), b) % 0xffff, a % 0xffff);
        }
    }

    #[test]
    fn macs() {
        assert_eq!(parse_mac("02:00:00:00:00:01").unwrap(), FROM);
        assert_eq!(show_mac(FROM), "02:00:00:00:00:01");
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:0g",
            "2:0:0:0:0:1",
            "02:00:00:00:00:+1",
        ] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }
}
