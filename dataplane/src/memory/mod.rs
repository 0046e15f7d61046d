//! Frames and the memory they lie in.
//!
//! A [`Region`] is one mapping, on huge pages if there are any. A [`FramePool`] is a lane's share of it: a plain free
//! list of buffers. A [`Frame`] is the move-only right to one buffer; only its pool makes one and gives access to its
//! bytes. A frame that is lost shows in [`FramePool::outstanding`], which every test looks at.

mod frame;
mod pool;
mod region;

pub use frame::{Frame, Meta, Offload};
#[cfg(feature = "xdp")]
pub(crate) use pool::Chunks;
pub use pool::{FramePool, HEADROOM, LARGE_FRAME, PoolSize, SMALL_FRAME};
pub use region::{HugePages, Region};
