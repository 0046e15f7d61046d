//! Ports: where frames come from and where they go.
//!
//! A back end supplies an [`RxQueue`] and a [`TxQueue`]; a lane owns one of each and nobody else touches them. Calls are
//! dynamic, once a burst. Every back end keeps this contract, and one test suite (`tests/contract.rs`) holds them to it:
//!
//! * order: frames of a flow leave in the order in which they came;
//! * nothing is lost uncounted: whoever frees a frame counts it, with its reason;
//! * frames up to [`LARGE_FRAME`](crate::memory::LARGE_FRAME) bytes cross unchanged, checksum and segmentation state
//!   included; a longer or cut one is counted and never sent on;
//! * a full transmit side holds frames back ([`TxQueue::room`]) and never blocks, never reorders;
//! * an empty pool leaves frames where they are, in the kernel (where the kernel has no buffers but ours, it drops and
//!   counts them);
//! * a transmit side that is down takes every frame and counts it `link_down`; when it is up again it works by itself.

#[cfg(feature = "xdp")]
pub mod dual;
pub(crate) mod kernel;
pub mod memory;
pub mod packet;
mod queue;
#[cfg(feature = "xdp")]
pub mod xdp;

use std::{
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::{burst::Burst, coalesce::Kinds, lane::Turn, stats::Reason, wire::ethernet};

/// What is known of a port's link. The control thread writes it, transmit queues read it once a burst.
#[derive(Debug)]
pub struct Link {
    up: AtomicBool,
    mtu: AtomicU32,
}

impl Link {
    /// A link in the given state. `mtu` is the interface's, in bytes without the Ethernet header.
    pub fn new(up: bool, mtu: u32) -> Self {
        Self {
            up: AtomicBool::new(up),
            mtu: AtomicU32::new(mtu),
        }
    }

    /// Whether frames can leave: the interface is up and has a carrier.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// The longest packet the interface may send, in bytes without the Ethernet header.
    pub fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed) as usize
    }

    /// Notes what the kernel said.
    pub fn set(&self, up: bool, mtu: u32) {
        self.up.store(up, Ordering::Relaxed);
        self.mtu.store(mtu, Ordering::Relaxed);
    }
}

/// The receive half of a port.
pub trait RxQueue: Send {
    /// Adds up to `limit` received frames to the burst and counts them. Never blocks.
    fn rx_burst(&mut self, burst: &mut Burst, limit: usize, turn: &mut Turn);

    /// What an idle worker waits on until a frame comes. `None`: it must look from time to time.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Called when a wait ended with an error condition on [`RxQueue::wait_fd`], e.g. the link went down.
    fn clear_error(&mut self) {}

    /// From now on frames bear the time at which the kernel received them, as exactly as it says; else it is that of the
    /// turn.
    fn stamp_arrivals(&mut self) {}

    /// Packets that the kernel dropped since the last call.
    fn kernel_drops(&mut self) -> u64 {
        0
    }

    /// Buffers of the lane's pool that the kernel has, to receive into.
    fn lent(&self) -> usize {
        0
    }

    /// Stops taking in. What arrived before is still received; what comes later is not.
    fn close(&mut self);
}

/// The transmit half of a port.
pub trait TxQueue: Send {
    /// Frames that the next [`TxQueue::tx_burst`] surely takes. A port that is down takes all (it discards them).
    fn room(&mut self) -> usize;

    /// Takes frames from the front of the burst, hands them to the kernel and counts them. Called every turn, also with
    /// an empty burst, so that what could not go earlier goes now. Frames left in the burst were not accepted.
    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn);

    /// Whether frames leave by a cheaper way if no super-frame is among them.
    fn has_plain_way(&self) -> bool {
        false
    }

    /// Super-frames that the kernel has refused: they are cut here and arrive, but to make them is in vain.
    fn refuses(&self) -> Kinds {
        Kinds::default()
    }

    /// Packets taken but not yet handed to the kernel.
    fn held(&self) -> u64 {
        0
    }

    /// Whether to try soon again to send what is held. While a link is down it would be in vain: whoever hears that it is up turns the lane.
    fn wants_retry(&self) -> bool {
        self.held() > 0
    }

    /// Buffers of the lane's pool that the kernel has, to send from.
    fn lent(&self) -> usize {
        0
    }

    /// Gives up: discards what [`TxQueue::held`] counts.
    fn abandon(&mut self, turn: &mut Turn);
}

/// Whether a frame is longer than an interface sends: `max_frame` bytes, not counting VLAN tags.
#[inline]
fn exceeds(frame: &[u8], max_frame: usize) -> bool {
    let tags =
        || ethernet::walk(frame).map_or(0, |walk| usize::from(walk.tags) * ethernet::TAG_LEN);
    frame.len() > max_frame && frame.len() > max_frame + tags()
}

/// Both halves of a port that is not there. Of a lane whose interfaces are being exchanged.
pub(crate) struct Nowhere;

impl RxQueue for Nowhere {
    fn rx_burst(&mut self, _: &mut Burst, _: usize, _: &mut Turn) {}

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn close(&mut self) {}
}

impl TxQueue for Nowhere {
    fn room(&mut self) -> usize {
        Burst::MAX
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        for frame in burst.drain() {
            turn.discard(frame, Reason::LinkDown);
        }
    }

    fn abandon(&mut self, _: &mut Turn) {}
}
