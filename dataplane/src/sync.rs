//! The atomics that threads share: the standard ones, or loom's when the model checker runs (`--cfg loom`).

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, Ordering, fence},
    // In a model, waiting must let the other thread run.
    thread::yield_now as spin_loop,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
};
