//! A layer-2 relay in user space.
pub mod interface;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the ports and workers that call it follow")
)]
mod sys;
pub mod wire;
