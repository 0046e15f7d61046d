//! Link emulation: stages that make a lane behave like a line.

mod arena;
mod delay;

pub use delay::Delay;
