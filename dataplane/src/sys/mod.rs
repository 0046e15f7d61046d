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
pub(crate) mod release;
pub(crate) mod ring;
pub(crate) mod signal;
#[cfg(feature = "xdp")]
pub(crate) mod tcx;
#[cfg(feature = "xdp")]
pub(crate) mod xdp;
#[cfg(feature = "xdp")]
pub(crate) mod xsk;
