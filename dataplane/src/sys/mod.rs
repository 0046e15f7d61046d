//! The only calls into libc and the only foreign functions: each wrapped so that the rest of the program is safe Rust.

#![allow(unsafe_code)]

pub(crate) mod ethtool;
pub(crate) mod event;
#[cfg(feature = "xdp")]
pub(crate) mod forward;
pub(crate) mod mapping;
pub mod netns;
pub(crate) mod packet;
#[cfg(feature = "program")]
pub(crate) mod pcap;
pub(crate) mod ring;
pub(crate) mod signal;
#[cfg(feature = "xdp")]
pub(crate) mod tcx;
#[cfg(feature = "xdp")]
pub(crate) mod xdp;
#[cfg(feature = "xdp")]
pub(crate) mod xsk;

/// The numbers that a kernel's release begins with: `6.1.0-38-amd64` is (6, 1).
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
