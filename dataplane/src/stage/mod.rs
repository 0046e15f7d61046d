//! Stages: what happens to frames between two ports.
//!
//! A stage sees a burst, and may edit frames, discard them ([`Burst::filter`]) or hold them. It knows no socket, and takes
//! time from its [`Turn`]. A stage of one's own is ten lines:
//!
//! ```
//! use l2relay::{burst::Burst, lane::Turn, stage::Stage, stats::Reason};
//!
//! /// Lets no frame longer than `max` bytes pass.
//! struct Shorter { max: usize }
//!
//! impl Stage for Shorter {
//!     fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
//!         burst.filter(turn, Reason::Filtered, |pool, frame| pool.len(frame) <= self.max);
//!     }
//! }
//! ```

pub mod filter;
pub mod link;
pub mod mac;
pub mod tap;

use crate::{burst::Burst, lane::Turn};

/// Something that is done to every burst of a lane.
pub trait Stage: Send {
    /// Edits, discards, holds or releases frames. Called every turn, also with an empty burst.
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn);

    /// Whether the stage holds frames over turns: then it is fed even when the transmit side is full, and releases at
    /// most [`Turn::room`] frames.
    fn is_queue(&self) -> bool {
        false
    }

    /// Packets held.
    fn held(&self) -> u64 {
        0
    }

    /// When the next frame held is due, in ns of the lane's clock.
    fn due_ns(&self) -> Option<u64> {
        None
    }

    /// The frames that the last [`Stage::process`] released have left, and it is `now_ns`. Called only for queues.
    fn departed(&mut self, _now_ns: u64) {}

    /// The emulated link, if the stage is one.
    fn link(&self) -> Option<link::LinkHandle> {
        None
    }

    /// Gives up: discards what [`Stage::held`] counts, as [`Stopped`](crate::stats::Reason::Stopped).
    fn abandon(&mut self, _turn: &mut Turn) {}
}
