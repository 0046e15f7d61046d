//! A layer-2 relay in user space.
pub mod wire;
