//! Frames as bytes: checked reading and writing of headers, and nothing else.
//!
//! Ports and stages call these functions with plain byte slices. Whatever the bytes are, they return; they never
//! panic and never allocate (except to name a MAC address that is none), and know nothing of sockets and pools.
//!
//! | module | what |
//! |---|---|
//! | [`ethernet`] | MAC addresses, the Ethernet header, VLAN tags |
//! | [`layers`] | one pass over all headers, through tunnels, down to the innermost TCP or UDP |
//! | [`checksum`] | the internet checksum, and completing one that was left to the device |
//! | [`partial`] | finding checksums that were left to the device |
//! | [`segment`] | cutting a super-frame into the frames it stands for |

pub mod checksum;
pub mod ethernet;
pub mod layers;
pub mod partial;
pub mod segment;

#[cfg(test)]
pub(crate) mod sample;

/// The two bytes at `at` as a big-endian number, if they are there.
#[inline]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*two))
}

/// Overwrites the two bytes at `at` with a big-endian number, if they are there.
#[inline]
fn put_be16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    let two = bytes.get_mut(at..)?.first_chunk_mut::<2>()?;
    *two = value.to_be_bytes();
    Some(())
}
