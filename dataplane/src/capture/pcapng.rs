//! Writes pcapng: sections that Wireshark, tshark and `tcpdump -r` open. Called by a capture's [`Stream`](super::stream::Stream).
//!
//! The format: draft-ietf-opsawg-pcapng. In network byte order, since pcap-file 2.0 writes the times of statistics right only so.

use std::borrow::Cow;

use pcap_file::{
    DataLink, Endianness,
    pcapng::{
        PcapNgBlock, PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};

use crate::{
    memory::Offload,
    stage::tap::{Copied, TapCounts},
    wire::ethernet::MacAddress,
};

/// Blocks that have not been sent yet.
pub(super) struct Writer {
    /// `None`: it could not be begun, which a vector of bytes never lets happen.
    blocks: Option<PcapNgWriter<Vec<u8>>>,
}

/// The times of a capture, in ns since the Unix epoch.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// Bits of `epb_flags`.
mod flag {
    pub(super) const INBOUND: u32 = 0b01;
    pub(super) const OUTBOUND: u32 = 0b10;
    pub(super) const CHECKSUM_NOT_READY: u32 = 1 << 9;
    pub(super) const CHECKSUM_VALID: u32 = 1 << 10;
    pub(super) const SEGMENTATION_OFFLOADED: u32 = 1 << 11;
}

/// A time stamp counts units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// In front of the text of a filter: it is an expression (`if_filter`).
const EXPRESSION: u8 = 0;

impl Writer {
    /// Begins a section.
    pub(super) fn new() -> Self {
        let section = SectionHeaderBlock {
            endianness: Endianness::Big,
            options: vec![
                SectionHeaderOption::OS(Cow::Borrowed("Linux")),
                SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                    "l2relay ",
                    env!("CARGO_PKG_VERSION")
                ))),
            ],
            ..SectionHeaderBlock::default()
        };
        Self {
            blocks: PcapNgWriter::with_section_header(Vec::new(), section).ok(),
        }
    }

    /// Describes the next port. `snaplen` is in bytes; `filter` is an expression, perhaps an empty one.
    pub(super) fn port(&mut self, name: &str, mac: MacAddress, snaplen: u32, filter: &str) {
        let mut options = vec![
            InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
            InterfaceDescriptionOption::IfMacAddr(Cow::Owned(mac.0.to_vec())),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        if !filter.is_empty() {
            let text = [&[EXPRESSION], filter.as_bytes()].concat();
            options.push(InterfaceDescriptionOption::IfFilter(Cow::Owned(text)));
        }
        self.write(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen,
            options,
        });
    }

    /// Adds a frame that was received from a port, or handed over to be sent by it, at that time in ns since the Unix epoch.
    pub(super) fn frame(&mut self, port: u32, inbound: bool, time_ns: u64, frame: &Copied) {
        let mut options = vec![EnhancedPacketOption::Flags(flags(inbound, &frame.offload))];
        if frame.offload.is_gso() {
            let text = format!(
                "super-frame: {} segments of {} bytes",
                frame.segments, frame.offload.gso_size
            );
            options.push(EnhancedPacketOption::Comment(Cow::Owned(text)));
        }
        self.write(EnhancedPacketBlock {
            interface_id: port,
            timestamp: std::time::Duration::from_nanos(time_ns),
            original_len: frame.len,
            data: Cow::Borrowed(&frame.bytes),
            options,
        });
    }

    /// Adds what was counted at a port: `delivered` are the frames in the file, and `why` says in words how the capture ended.
    pub(super) fn statistics(
        &mut self,
        port: u32,
        span: Span,
        counts: TapCounts,
        delivered: u64,
        why: &str,
    ) {
        self.write(InterfaceStatisticsBlock {
            interface_id: port,
            timestamp: span.end_ns,
            options: vec![
                InterfaceStatisticsOption::Comment(Cow::Owned(why.to_owned())),
                InterfaceStatisticsOption::IsbStartTime(span.start_ns),
                InterfaceStatisticsOption::IsbEndTime(span.end_ns),
                InterfaceStatisticsOption::IsbIfRecv(counts.seen),
                InterfaceStatisticsOption::IsbIfDrop(counts.lost),
                InterfaceStatisticsOption::IsbFilterAccept(counts.matched),
                InterfaceStatisticsOption::IsbUsrDeliv(delivered),
            ],
        });
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.blocks
            .as_ref()
            .map_or(0, |blocks| blocks.get_ref().len())
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let blocks = self.blocks.as_mut();
        blocks.map_or_else(Vec::new, |blocks| std::mem::take(blocks.get_mut()))
    }

    fn write<'a>(&mut self, block: impl PcapNgBlock<'a>) {
        if let Some(blocks) = &mut self.blocks {
            // It can fail only for a port that was not described, and all are, first.
            let written = blocks.write_pcapng_block(block);
            debug_assert!(written.is_ok(), "{written:?}");
        }
    }
}

fn flags(inbound: bool, offload: &Offload) -> u32 {
    let mut flags = if inbound {
        flag::INBOUND
    } else {
        flag::OUTBOUND
    };
    if offload.needs_csum() {
        flags |= flag::CHECKSUM_NOT_READY;
    }
    if offload.flags & Offload::DATA_VALID != 0 {
        flags |= flag::CHECKSUM_VALID;
    }
    if offload.is_gso() {
        flags |= flag::SEGMENTATION_OFFLOADED;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new();
        writer.port("r0", MacAddress([2, 0, 0, 0, 0, 1]), 96, "tcp port 80");
        writer.port("ns1:r1", MacAddress([2, 0, 0, 0, 0, 2]), 0, "");
        let mut frame = Copied {
            time_ns: 0,
            bytes: vec![7; 61],
            len: 1500,
            segments: 1,
            offload: Offload::default(),
        };
        let time_ns = 1_764_511_081_123_456_789;
        writer.frame(1, true, time_ns, &frame);
        frame.offload.flags = Offload::NEEDS_CSUM;
        (
            frame.offload.gso_type,
            frame.offload.gso_size,
            frame.segments,
        ) = (1, 1448, 45);
        writer.frame(0, false, time_ns, &frame);
        let counts = TapCounts {
            seen: 9,
            matched: 5,
            lost: 3,
        };
        let span = Span {
            start_ns: 1,
            end_ns: time_ns,
        };
        writer.statistics(0, span, counts, 2, "enough");

        let bytes = writer.take();
        assert_eq!(writer.len(), 0);
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.unwrap().into_owned());
        }
        let [
            Block::InterfaceDescription(r0),
            Block::InterfaceDescription(r1),
            Block::EnhancedPacket(plain),
            Block::EnhancedPacket(long),
            Block::InterfaceStatistics(statistics),
        ] = &blocks[..]
        else {
            panic!("{blocks:?}")
        };
        let filter = InterfaceDescriptionOption::IfFilter(Cow::Borrowed(b"\0tcp port 80"));
        assert!(r0.options.contains(&filter) && r0.snaplen == 96);
        let name = InterfaceDescriptionOption::IfName(Cow::Borrowed("ns1:r1"));
        assert!(r1.options.contains(&name) && r1.options.len() == 3);
        assert_eq!((plain.interface_id, plain.original_len), (1, 1500));
        assert_eq!(plain.timestamp.as_nanos(), u128::from(time_ns));
        assert_eq!(plain.options, [EnhancedPacketOption::Flags(1)]);
        assert_eq!(plain.data, vec![7; 61]);
        let comment = "super-frame: 45 segments of 1448 bytes";
        assert_eq!(
            long.options,
            [
                EnhancedPacketOption::Flags(2 | 1 << 9 | 1 << 11),
                EnhancedPacketOption::Comment(Cow::Borrowed(comment)),
            ]
        );
        assert_eq!(statistics.timestamp, time_ns);
        let lost = InterfaceStatisticsOption::IsbIfDrop(3);
        assert!(statistics.options.contains(&lost));
    }
}
