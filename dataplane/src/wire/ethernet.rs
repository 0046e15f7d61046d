//! The Ethernet header: addresses, ethertype, VLAN tags.
//!
//! Called by the MAC stage for every frame, by the back ends that put a stripped VLAN tag back, and by
//! [`layers`](super::layers). Readers return `None` where the bytes are missing, writers leave such a frame untouched.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// Bytes of an Ethernet header without tags.
pub const HEADER_LEN: usize = 14;
/// Bytes of one VLAN tag.
pub const TAG_LEN: usize = 4;
/// Most tags [`walk`] steps over (the kernel's own bound is `VLAN_MAX_DEPTH`, 8, in `include/linux/if_vlan.h`).
pub const MAX_TAGS: u8 = 8;

/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Ethertype of an Ethernet frame inside a tunnel (transparent Ethernet bridging).
pub const TEB: u16 = 0x6558;

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Whether this is a group address; broadcast is one.
    #[inline]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is no MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacAddressError {
    text: String,
}

impl fmt::Display for MacAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a MAC address: six pairs of hexadecimal digits, all joined by ':' or all by '-', \
             as in 02:00:00:00:00:01",
            self.text
        )
    }
}

impl Error for MacAddressError {}

impl FromStr for MacAddress {
    type Err = MacAddressError;

    /// Accepts `aa:bb:cc:dd:ee:ff` and `aa-bb-cc-dd-ee-ff`, in either case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || MacAddressError { text: text.into() };
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut pairs = text.split(separator);
        let mut address = [0; 6];
        for byte in &mut address {
            let pair = pairs.next().ok_or_else(error)?;
            // from_str_radix alone would take "+f" as well.
            if pair.len() != 2 || !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        match pairs.next() {
            None => Ok(Self(address)),
            Some(_) => Err(error()),
        }
    }
}

/// The destination address.
#[inline]
pub fn dst(frame: &[u8]) -> Option<MacAddress> {
    frame.first_chunk().copied().map(MacAddress)
}

/// The source address.
#[inline]
pub fn src(frame: &[u8]) -> Option<MacAddress> {
    frame.get(6..)?.first_chunk().copied().map(MacAddress)
}

/// The ethertype right behind the addresses: of the first VLAN tag, if there is one. See [`walk`] for the one behind
/// the tags.
#[inline]
pub fn ethertype(frame: &[u8]) -> Option<u16> {
    super::be16(frame, 12)
}

/// Exchanges source and destination.
#[inline]
pub fn swap_macs(frame: &mut [u8]) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *addresses;
        *addresses = [s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5];
    }
}

/// Writes both addresses.
#[inline]
pub fn set_macs(frame: &mut [u8], dst: MacAddress, src: MacAddress) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses[..6].copy_from_slice(&dst.0);
        addresses[6..].copy_from_slice(&src.0);
    }
}

/// Writes the source address only.
#[inline]
pub fn set_src(frame: &mut [u8], src: MacAddress) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses[6..].copy_from_slice(&src.0);
    }
}

/// Whether an ethertype announces a VLAN tag: 802.1Q, 802.1ad, or the 0x9100 that came before it.
#[inline]
pub fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100)
}

/// The four bytes of a VLAN tag. They belong between the addresses and the ethertype, at offset 12.
#[inline]
pub fn vlan_tag(tpid: u16, tci: u16) -> [u8; TAG_LEN] {
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    [a, b, c, d]
}

/// Where [`walk`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// What is at `offset`, in ethertype numbers; below 0x600 it is the length of an 802.3 frame.
    pub ethertype: u16,
    /// Where the network header starts.
    pub offset: usize,
    /// How many tags were stepped over.
    pub tags: u8,
}

/// Steps over the Ethernet header and its VLAN tags. `None` if the frame ends before, or has more than [`MAX_TAGS`].
#[inline]
pub fn walk(frame: &[u8]) -> Option<Walk> {
    let mut ethertype = ethertype(frame)?;
    let mut offset = HEADER_LEN;
    let mut tags = 0;
    while is_tag(ethertype) {
        if tags == MAX_TAGS {
            return None;
        }
        ethertype = super::be16(frame, offset + 2)?;
        offset += TAG_LEN;
        tags += 1;
    }
    Some(Walk {
        ethertype,
        offset,
        tags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0xaf]);
    const B: MacAddress = MacAddress([0x33, 0x33, 0, 1, 2, 3]);

    #[test]
    fn addresses_are_read_in_both_notations() {
        for text in ["02:00:00:00:00:af", "02-00-00-00-00-AF"] {
            assert_eq!(text.parse(), Ok(A));
        }
        assert_eq!(A.to_string(), "02:00:00:00:00:af");
        assert!(!A.is_multicast());
        assert!(B.is_multicast());
        assert!(MacAddress([0xff; 6]).is_multicast());
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:af:",
            "02:00:00:00:00:af:01",
            "02:00:00-00:00:af",
            "2:0:0:0:0:af",
            "02:00:00:00:00:+f",
            "02:00:00:00:00:é",
            " 02:00:00:00:00:af",
            "0200000000af",
        ] {
            let error = text.parse::<MacAddress>().expect_err(text);
            assert!(error.to_string().starts_with(&format!("'{text}' is not")));
        }
    }

    #[test]
    fn header_is_read_and_written() {
        let mut frame = [0; 14];
        set_macs(&mut frame, A, B);
        frame[12..].copy_from_slice(&[0x08, 0x06]);
        assert_eq!((dst(&frame), src(&frame)), (Some(A), Some(B)));
        assert_eq!(ethertype(&frame), Some(0x0806));
        swap_macs(&mut frame);
        assert_eq!((dst(&frame), src(&frame)), (Some(B), Some(A)));
        set_src(&mut frame, B);
        assert_eq!((dst(&frame), src(&frame)), (Some(B), Some(B)));
        assert_eq!(ethertype(&frame), Some(0x0806));
    }

    #[test]
    fn tags_are_walked_up_to_the_bound() {
        for tags in 0..=MAX_TAGS + 1 {
            let mut frame = vec![0; 12];
            for n in 0..tags {
                frame.extend(vlan_tag([0x8100, 0x88a8, 0x9100][n as usize % 3], 0xe123));
            }
            frame.extend(IPV6.to_be_bytes());
            let wanted = (tags <= MAX_TAGS).then_some(Walk {
                ethertype: IPV6,
                offset: frame.len(),
                tags,
            });
            assert_eq!(walk(&frame), wanted);
            frame.pop();
            assert_eq!(walk(&frame), None);
        }
        assert_eq!(vlan_tag(0x88a8, 0xe123), [0x88, 0xa8, 0xe1, 0x23]);
    }

    #[test]
    fn short_frames_are_left_alone() {
        for len in 0..12 {
            let mut frame = vec![7; len];
            swap_macs(&mut frame);
            set_macs(&mut frame, A, B);
            set_src(&mut frame, A);
            assert_eq!(frame, vec![7; len]);
            assert_eq!(src(&frame), None);
            assert_eq!(walk(&frame), None);
        }
    }

    proptest! {
        #[test]
        fn notation_round_trips(bytes: [u8; 6]) {
            prop_assert_eq!(MacAddress(bytes).to_string().parse(), Ok(MacAddress(bytes)));
        }

        #[test]
        fn swapping_twice_is_nothing(mut frame in prop::collection::vec(any::<u8>(), 0..40)) {
            let before = frame.clone();
            swap_macs(&mut frame);
            prop_assert_eq!(dst(&frame), src(&before).or(dst(&before)));
            swap_macs(&mut frame);
            prop_assert_eq!(frame, before);
        }

        #[test]
        fn any_text_and_any_bytes_return(text: String, frame in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = text.parse::<MacAddress>();
            if let Some(end) = walk(&frame) {
                prop_assert!(end.offset <= frame.len());
            }
        }
    }
}
