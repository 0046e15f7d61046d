//! A captured frame as a line.

use std::fmt::Write;

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use pcap_file::pcapng::blocks::{
    enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
    interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
};

use crate::wire::ethernet::MacAddress;

/// `12:34:56.123456789 r0 in  02:…:01 > 02:…:02 10.0.0.1:5000 > 10.0.0.2:80 tcp, 1514 bytes`, with its end.
pub(super) fn line(
    port: Option<&InterfaceDescriptionBlock>,
    frame: &EnhancedPacketBlock,
) -> String {
    let (mut direction, mut notes) = ("", String::new());
    for option in &frame.options {
        match option {
            EnhancedPacketOption::Flags(flags) => {
                direction = match flags & 0b11 {
                    1 => "in ",
                    2 => "out",
                    _ => "",
                };
                if flags & 1 << 9 != 0 {
                    notes.push_str(", checksum partial");
                }
            }
            EnhancedPacketOption::Comment(text) => {
                notes.push_str(", ");
                notes.push_str(text);
            }
            _ => {}
        }
    }
    let of_day = frame.timestamp.as_secs() % 86_400;
    let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut line = format!(
        "{hours:02}:{minutes:02}:{seconds:02}.{:09} {} {direction} ",
        frame.timestamp.subsec_nanos(),
        name(port)
    );
    describe(&mut line, &frame.data);
    // Writing to a string does not fail.
    let _ = writeln!(line, ", {} bytes{notes}", frame.original_len);
    line
}

/// What a port is called.
pub(super) fn name<'a>(port: Option<&'a InterfaceDescriptionBlock>) -> &'a str {
    let mut options = port.iter().flat_map(|port| &port.options);
    let name = options.find_map(|option| match option {
        InterfaceDescriptionOption::IfName(name) => Some(name.as_ref()),
        _ => None,
    });
    name.unwrap_or("?")
}

/// Addresses and protocols, as far as they were copied.
fn describe(line: &mut String, bytes: &[u8]) {
    let Some((addresses, _)) = bytes.split_first_chunk::<12>() else {
        return line.push_str("too short for Ethernet");
    };
    let mac = |at: usize| {
        let mut bytes = [0; 6];
        bytes.copy_from_slice(&addresses[at..at + 6]);
        MacAddress(bytes)
    };
    let _ = write!(line, "{} > {}", mac(6), mac(0));
    let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else {
        return;
    };
    for id in packet.vlan_ids() {
        let _ = write!(line, " vlan {}", id.value());
    }
    let ends = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            Some((
                header.source_addr().to_string(),
                header.destination_addr().to_string(),
                header.protocol(),
            ))
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            Some((
                format!("[{}]", header.source_addr()),
                format!("[{}]", header.destination_addr()),
                ip.payload().ip_number,
            ))
        }
        Some(LaxNetSlice::Arp(_)) => {
            line.push_str(" arp");
            None
        }
        None => {
            let payload = packet.ether_payload();
            let kind = payload.map_or(EtherType(0), |payload| payload.ether_type);
            let _ = write!(line, " type 0x{:04x}", kind.0);
            None
        }
    };
    let Some((from, to, protocol)) = ends else {
        return;
    };
    let ports = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port(), "tcp")),
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port(), "udp")),
        _ => None,
    };
    let _ = match ports {
        Some((source, destination, name)) => {
            write!(line, " {from}:{source} > {to}:{destination} {name}")
        }
        None => match protocol.keyword_str() {
            Some(name) => write!(line, " {from} > {to} {}", name.to_lowercase()),
            None => write!(line, " {from} > {to} protocol {}", protocol.0),
        },
    };
}
