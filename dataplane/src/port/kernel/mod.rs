//! The `kernel` back end: programs that forward without leaving the kernel.
//!
//! It is no receive or transmit queue: a pair is carried by lanes or by the kernel. A [`Way`] is one direction of such a pair. The
//! program attached to the port it comes from rewrites addresses, counts, and redirects to the port it goes to; the relay's control
//! thread tells it of links ([`Way::set`]) and reads its counters. When a way is dropped, nothing of it stays.

#[cfg(not(feature = "xdp"))]
mod absent;
#[cfg(feature = "xdp")]
mod devmap;
#[cfg(feature = "xdp")]
mod hook;
#[cfg(feature = "xdp")]
mod way;

#[cfg(not(feature = "xdp"))]
pub(crate) use absent::{Way, settle, takes_none};
#[cfg(feature = "xdp")]
pub(crate) use way::{Way, settle, takes_none};

use crate::{config::KernelHook, interface::Interface, stage::mac::Rewrite};

/// A port, as a way sees it.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "xdp"), expect(dead_code, reason = "no way reads it"))]
pub(crate) struct End<'a> {
    /// Its namespace; `None` for the calling thread's.
    pub(crate) netns: Option<&'a str>,
    /// The interface.
    pub(crate) interface: &'a Interface,
    /// Whether frames can leave by it.
    pub(crate) up: bool,
}

/// How to open a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Where programs are attached.
    pub(crate) hook: KernelHook,
    /// At XDP: take the place of a program that somebody else attached.
    pub(crate) replace_xdp: bool,
    /// What is done to addresses.
    pub(crate) rewrite: Option<Rewrite>,
    /// Discard group addresses.
    pub(crate) unicast_only: bool,
    /// Receive frames for every address, not just the interface's own.
    pub(crate) promiscuous: bool,
}

/// What becomes of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "xdp"), expect(dead_code, reason = "no way is opened"))]
pub(crate) enum Passage {
    /// They go on.
    Open,
    /// They stay, uncounted, for the lanes or the host: the program is attached and has no say yet.
    Aside,
    /// They are dropped, and counted as [`Reason::LinkDown`](crate::stats::Reason::LinkDown).
    LinkDown,
    /// They are dropped, and counted as [`Reason::Moved`](crate::stats::Reason::Moved).
    Closed,
    /// The gate, or at XDP the program, decides between lanes and a drop as [`Reason::Moved`](crate::stats::Reason::Moved).
    Gated {
        /// The lanes get them.
        lanes: bool,
    },
}
