//! The right to a buffer, and what is known about the frame in it.
//!
//! Back ends fill [`Meta`] when a frame arrives; stages and transmit queues read it.

use crate::wire::segment::{self, Gso, GsoKind};

/// The move-only right to one buffer of one [`FramePool`](super::FramePool).
///
/// It can't be copied, so a buffer has one owner at a time: a ring, a burst, a stage or the pool. Give it back with
/// [`FramePool::free`](super::FramePool::free) or
/// [`Turn::discard`](crate::lane::Turn::discard); dropping it leaks the buffer until the pool is dropped.
#[derive(Debug)]
#[must_use = "a frame that is dropped leaks its buffer: free or discard it"]
pub struct Frame {
    pub(super) index: u32,
    /// The pool that made it, to catch a frame that is shown to another.
    pub(super) pool: u32,
}

/// What is known about the frame in a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    /// Where the frame starts in its buffer, in bytes.
    pub(super) offset: u32,
    /// Length of the frame in bytes, without FCS; of a chain, of what is in this buffer.
    pub(super) len: u32,
    /// Of a chain: the buffer that goes on, as one more than its index. 0 at the end.
    pub(super) next: u32,
    /// Of a chain's first buffer: the last one's index, and the bytes in all but the first.
    pub(super) last: u32,
    pub(super) rest: u32,
    /// Packets that this frame stands for: 1, or the segments of a super-frame.
    pub segments: u32,
    /// What is left to do for the checksum and the segmentation.
    pub offload: Offload,
    /// When the frame was received, in ns of the lane's clock; behind an emulated link, when it was due there.
    pub arrival_ns: u64,
}

/// Checksum and segmentation state, with the layout and the meaning of the kernel's `struct virtio_net_hdr`.
///
/// Source: `include/uapi/linux/virtio_net.h`. Offsets count from the first byte of the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// [`NEEDS_CSUM`](Self::NEEDS_CSUM), [`DATA_VALID`](Self::DATA_VALID).
    pub flags: u8,
    /// One of the `VIRTIO_NET_HDR_GSO_*` values, perhaps with [`ECN`](Self::ECN); see [`Offload::gso`].
    pub gso_type: u8,
    /// Length of all headers in bytes: a hint how much to keep linear.
    pub hdr_len: u16,
    /// Payload of each segment in bytes.
    pub gso_size: u16,
    /// Where the checksum begins to sum, in bytes.
    pub csum_start: u16,
    /// Where the checksum goes, in bytes from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Length of the header in bytes.
    pub const LEN: usize = 10;
    /// The checksum field holds the pseudo-header's sum only; the rest is to be added.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum is known to be right.
    pub const DATA_VALID: u8 = 2;
    /// Flag in `gso_type`: the TCP segments carry congestion marks.
    pub const ECN: u8 = 0x80;
    const GSO_TCPV4: u8 = 1;
    const GSO_TCPV6: u8 = 4;
    const GSO_UDP_L4: u8 = 5;

    /// Whether the checksum is still partial.
    pub fn needs_csum(&self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    /// Whether this is a super-frame, of whatever kind.
    pub fn is_gso(&self) -> bool {
        self.gso_type != 0
    }

    /// How to cut the super-frame; `None` for a plain frame, and for kinds that Linux no longer makes (UFO).
    pub fn gso(&self) -> Option<Gso> {
        let kind = match self.gso_type & !Self::ECN {
            Self::GSO_TCPV4 => GsoKind::Tcp4,
            Self::GSO_TCPV6 => GsoKind::Tcp6,
            Self::GSO_UDP_L4 => GsoKind::Udp,
            _ => return None,
        };
        Some(Gso {
            kind,
            size: self.gso_size,
            csum_start: self.csum_start,
            csum_offset: self.csum_offset,
        })
    }

    /// Of a super-frame whose checksum is partial, with so many bytes of headers.
    pub(crate) fn of_super_frame(gso: Gso, header_len: u16) -> Self {
        Self {
            flags: Self::NEEDS_CSUM,
            gso_type: match gso.kind {
                GsoKind::Tcp4 => Self::GSO_TCPV4,
                GsoKind::Tcp6 => Self::GSO_TCPV6,
                GsoKind::Udp => Self::GSO_UDP_L4,
            },
            hdr_len: header_len,
            gso_size: gso.size,
            csum_start: gso.csum_start,
            csum_offset: gso.csum_offset,
        }
    }

    /// Reads the header as the kernel writes it: native byte order.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: half(2),
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
        }
    }

    /// Writes the header as the kernel reads it.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        bytes
    }

    /// Moves every offset by `bytes`, because a tag was put in front of the network header.
    pub fn shift(&mut self, bytes: u16) {
        if self.needs_csum() {
            self.csum_start = self.csum_start.saturating_add(bytes);
        }
        if self.hdr_len != 0 {
            self.hdr_len = self.hdr_len.saturating_add(bytes);
        }
    }

    /// Packets that a frame of `len` bytes stands for; `frame` may be its beginning.
    pub fn segments(&self, frame: &[u8], len: usize) -> u32 {
        let count = self.gso().map_or(1, |gso| segment::count(frame, len, gso));
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offload_survives_its_bytes(bytes: [u8; 10]) {
            prop_assert_eq!(Offload::from_bytes(&bytes).to_bytes(), bytes);
        }
    }

    #[test]
    fn a_tag_moves_only_what_is_set() {
        let mut partial = Offload {
            flags: 1,
            csum_start: 34,
            hdr_len: 66,
            ..Offload::default()
        };
        partial.shift(4);
        assert_eq!((partial.csum_start, partial.hdr_len), (38, 70));
        let mut whole = Offload::default();
        whole.shift(4);
        assert_eq!(whole, Offload::default());
    }
}
