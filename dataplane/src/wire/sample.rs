//! Frames for tests: built from a description, by plain code that shares nothing with the code under test.
//!
//! [`build`] gives a super-frame as the kernel would hand it over: every length is that of the whole, IPv4 and GRE
//! checksums are whatever they are, the innermost checksum is partial, and an outer UDP one is as described.

use super::layers::Kind;
use proptest::prelude::*;

/// What an outer UDP header's checksum field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Zero,
    Partial,
    Full,
}

/// One header, as described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Ethernet,
    Vlan {
        tpid: u16,
        tci: u16,
    },
    Ipv4 {
        options: usize,
        id: u16,
        df: bool,
    },
    Ipv6 {
        extensions: Vec<(u8, usize)>,
    },
    Gre {
        check: bool,
        key: bool,
        sequence: bool,
    },
    Vxlan,
    Geneve {
        options: usize,
    },
    Udp {
        port: u16,
        check: Check,
    },
    Tcp {
        options: usize,
        flags: u8,
        sequence: u32,
    },
}

use Part::*;

impl Part {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Ethernet => Kind::Ethernet,
            Vlan { .. } => Kind::Vlan,
            Ipv4 { .. } => Kind::Ipv4,
            Ipv6 { .. } => Kind::Ipv6,
            Gre { .. } => Kind::Gre,
            Vxlan => Kind::Vxlan,
            Geneve { .. } => Kind::Geneve,
            Udp { .. } => Kind::Udp,
            Tcp { .. } => Kind::Tcp,
        }
    }

    fn ethertype(&self) -> u16 {
        match self {
            Ethernet => 0x6558,
            Vlan { tpid, .. } => *tpid,
            Ipv4 { .. } => 0x0800,
            Ipv6 { .. } => 0x86dd,
            _ => 0x88b5,
        }
    }

    fn protocol(&self) -> u8 {
        match self {
            Ipv4 { .. } => 4,
            Ipv6 { .. } => 41,
            Gre { .. } => 47,
            Udp { .. } => 17,
            Tcp { .. } => 6,
            _ => 253,
        }
    }

    /// The header before lengths and checksums, of which `next` follows. `n` makes addresses differ.
    fn header(&self, next: Option<&Part>, n: u8) -> Vec<u8> {
        let ethertype = next.map_or(0x88b5, Part::ethertype).to_be_bytes();
        let protocol = next.map_or(253, Part::protocol);
        match self {
            Ethernet => [&[2, 0, 0, 0, n, 1, 2, 0, 0, 0, n, 2], &ethertype[..]].concat(),
            Vlan { tci, .. } => [tci.to_be_bytes(), ethertype].concat(),
            Ipv4 { options, id, df } => {
                let mut b = vec![0x45 + *options as u8, n << 2, 0, 0];
                b.extend(id.to_be_bytes());
                b.extend([if *df { 0x40 } else { 0 }, 0, 64, protocol, 0, 0]);
                b.extend([10, 0, n, 1, 10, 255, n, 2]);
                b.resize(20 + 4 * options, 1);
                b
            }
            Ipv6 { extensions } => {
                let mut b = vec![0x60, n, 0xbe, 0xef, 0, 0];
                b.push(extensions.first().map_or(protocol, |e| e.0));
                b.push(64);
                b.extend([0xfd, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                b.extend([0xfd, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 2]);
                for (i, (number, units)) in extensions.iter().enumerate() {
                    b.push(extensions.get(i + 1).map_or(protocol, |e| e.0));
                    b.push(*units as u8);
                    let body = 6 + 8 * units;
                    if *number == 43 {
                        b.extend([4, 0, 0, 0]);
                        b.extend(vec![0x55; body - 4]);
                    } else {
                        b.extend([1, body as u8 - 2]);
                        b.extend(vec![0; body - 2]);
                    }
                }
                b
            }
            Gre {
                check,
                key,
                sequence,
            } => {
                let flags = u8::from(*check) << 7 | u8::from(*key) << 5 | u8::from(*sequence) << 4;
                let mut b = vec![flags, 0];
                b.extend(ethertype);
                if *check {
                    b.extend([0; 4]);
                }
                if *key {
                    b.extend([0xaa, n, 0xbb, 0xcc]);
                }
                if *sequence {
                    b.extend([0, 0, n, 9]);
                }
                b
            }
            Vxlan => vec![8, 0, 0, 0, 1, 2, n, 0],
            Geneve { options } => {
                let mut b = vec![*options as u8, 0, ethertype[0], ethertype[1], 3, 4, n, 0];
                b.resize(8 + 4 * options, 0x77);
                b
            }
            Udp { port, .. } => {
                let mut b = vec![0xc0, n];
                b.extend(port.to_be_bytes());
                b.extend([0; 4]);
                b
            }
            Tcp {
                options,
                flags,
                sequence,
            } => {
                let mut b = vec![0xd0, n, 0, 80];
                b.extend(sequence.to_be_bytes());
                b.extend([
                    7,
                    7,
                    7,
                    7,
                    (5 + *options as u8) << 4,
                    *flags,
                    1,
                    2,
                    0,
                    0,
                    0,
                    0,
                ]);
                b.resize(20 + 4 * options, 1);
                b
            }
        }
    }
}

/// A built frame.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) bytes: Vec<u8>,
    /// Its headers and where they start.
    pub(super) parts: Vec<(Part, usize)>,
    /// Where the payload starts.
    pub(super) header_len: usize,
}

impl Sample {
    /// Where the innermost transport header starts.
    pub(super) fn transport(&self) -> usize {
        self.parts.last().map_or(0, |p| p.1)
    }

    /// Whether tunnels run on their usual ports only.
    pub(super) fn usual_ports(&self) -> bool {
        !self
            .parts
            .iter()
            .any(|(p, _)| matches!(p, Udp { port: 7777, .. }))
    }
}

/// The sum of 16-bit words, one at a time.
pub(super) fn naive_sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| (u64::from(pair[0]) << 8) + u64::from(*pair.get(1).unwrap_or(&0)))
        .sum()
}

/// Folded to 16 bits.
pub(super) fn naive_fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo-header for the transport header at `at`, under the IP header at `ip`.
pub(super) fn naive_pseudo(bytes: &[u8], ip: usize, at: usize, protocol: u8) -> u64 {
    let addresses = if bytes[ip] >> 4 == 4 {
        &bytes[ip + 12..ip + 20]
    } else {
        &bytes[ip + 8..ip + 40]
    };
    naive_sum(addresses) + u64::from(protocol) + (bytes.len() - at) as u64
}

/// Builds the frame.
pub(super) fn build(parts: &[Part], payload: &[u8]) -> Sample {
    let mut bytes = Vec::new();
    let mut placed = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        placed.push((part.clone(), bytes.len()));
        bytes.extend(part.header(parts.get(i + 1), i as u8));
    }
    let header_len = bytes.len();
    bytes.extend(payload);
    let put = |bytes: &mut Vec<u8>, at: usize, value: u16| {
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes())
    };
    for i in (0..placed.len()).rev() {
        let (part, at) = &placed[i];
        // As in the kernel, a length that does not fit is cut to 16 bits.
        let len = bytes.len() - at;
        let innermost = i + 1 == placed.len();
        match part {
            Ipv4 { .. } => put(&mut bytes, at + 2, len as u16),
            Ipv6 { .. } => put(&mut bytes, at + 4, (len - 40) as u16),
            Tcp { .. } => {
                let pseudo = naive_fold(naive_pseudo(&bytes, placed[i - 1].1, *at, 6));
                put(&mut bytes, at + 16, pseudo);
            }
            Udp { check, .. } => {
                put(&mut bytes, at + 4, len as u16);
                let pseudo = naive_pseudo(&bytes, placed[i - 1].1, *at, 17);
                let check = match check {
                    _ if innermost => naive_fold(pseudo),
                    Check::Zero => 0,
                    Check::Partial => naive_fold(pseudo),
                    Check::Full => !naive_fold(pseudo + naive_sum(&bytes[*at..])),
                };
                put(&mut bytes, at + 6, check);
            }
            _ => {}
        }
    }
    Sample {
        bytes,
        parts: placed,
        header_len,
    }
}

fn ethernet() -> impl Strategy<Value = Vec<Part>> {
    let tag = (
        prop::sample::select(vec![0x8100, 0x88a8, 0x9100]),
        any::<u16>(),
    );
    prop::collection::vec(tag, 0..3).prop_map(|tags| {
        let tags = tags.into_iter().map(|(tpid, tci)| Vlan { tpid, tci });
        std::iter::once(Ethernet).chain(tags).collect()
    })
}

fn ip() -> impl Strategy<Value = Part> {
    let extension = (prop::sample::select(vec![0u8, 43, 60]), 0usize..4);
    prop_oneof![
        (0usize..4, any::<u16>(), any::<bool>()).prop_map(|(options, id, df)| Ipv4 {
            options,
            id,
            df
        }),
        prop::collection::vec(extension, 0..4).prop_map(|extensions| Ipv6 { extensions }),
    ]
}

fn tunnel() -> impl Strategy<Value = Vec<Part>> {
    let check = prop::sample::select(vec![Check::Zero, Check::Partial, Check::Full]);
    let gre = any::<[bool; 3]>().prop_map(|[check, key, sequence]| Gre {
        check,
        key,
        sequence,
    });
    let vxlan = (prop::sample::select(vec![4789, 8472, 7777]), check.clone());
    let geneve = (prop::sample::select(vec![6081, 7777]), check, 0usize..5);
    // Geneve and GRE carry IP or Ethernet.
    let inner = prop_oneof![Just(Vec::new()), ethernet()];
    prop_oneof![
        Just(Vec::new()),
        (gre, inner.clone()).prop_map(|(gre, inner)| [vec![gre], inner].concat()),
        (vxlan, ethernet()).prop_map(|((port, check), inner)| [
            vec![Udp { port, check }, Vxlan],
            inner
        ]
        .concat()),
        (geneve, inner).prop_map(|((port, check, options), inner)| {
            [vec![Udp { port, check }, Geneve { options }], inner].concat()
        }),
    ]
}

fn transport() -> impl Strategy<Value = Part> {
    prop_oneof![
        (0usize..11, any::<u8>(), any::<u32>()).prop_map(|(options, flags, sequence)| Tcp {
            options,
            flags,
            sequence
        }),
        Just(Udp {
            port: 53,
            check: Check::Partial
        }),
    ]
}

/// Frames with up to two tunnels around TCP or UDP, carrying `payload`.
pub(crate) fn frames(payload: std::ops::Range<usize>) -> impl Strategy<Value = Sample> {
    let levels = prop::collection::vec((tunnel(), ip()), 0..3);
    let payload = prop::collection::vec(any::<u8>(), payload);
    (ethernet(), ip(), levels, transport(), payload).prop_map(
        |(mut parts, ip, levels, transport, payload)| {
            parts.push(ip);
            for (tunnel, ip) in levels {
                parts.extend(tunnel);
                parts.push(ip);
            }
            parts.push(transport);
            build(&parts, &payload)
        },
    )
}
