//! A layer-2 relay in user space: frames in by one interface, out by the paired one.
//!
//! A **port** is an interface. A **lane** is one direction between two ports: it owns the receive half of one, the
//! transmit half of the other, the stages between, and the frames that circulate in it. A **worker** is a pinned thread
//! that turns its lanes. Lanes share no ring, no buffer and no counter, so nothing on the packet path is locked.
//!
//! ```text
//!         lane a>b:  rx(a) ──▶ stages ──▶ tx(b)
//!  port a ◀──────────────────────────────────▶ port b
//!         lane b>a:  tx(a) ◀── stages ◀── rx(b)
//! ```
//!
//! The smallest relay, without root and without interfaces:
//!
//! ```
//! use l2relay::{lane::Lane, memory::{FramePool, PoolSize}, port::memory::{self, Packet}};
//!
//! let (rx, _, mut left) = memory::port(16, 1514);
//! let (_, tx, mut right) = memory::port(16, 1514);
//! let pool = FramePool::ordinary(PoolSize { small: 64, large: 0 })?;
//! let mut lane = Lane::new(Box::new(rx), Vec::new(), Box::new(tx), pool);
//!
//! left.send(Packet::new(&[7; 60])).unwrap();
//! lane.turn(0);
//! assert_eq!(right.receive().unwrap().bytes, [7; 60]);
//! # Ok::<(), l2relay::error::Error>(())
//! ```
//!
//! and between two interfaces: see [`relay`].
//!
//! | module | what |
//! |---|---|
//! | [`lane`] | one direction: **the hot loop, on one screen** |
//! | [`worker`] | pinned threads that turn lanes |
//! | [`port`] | where frames come from and go: the contract of a back end, AF_PACKET, AF_XDP, memory |
//! | [`stage`] | what happens to frames between: MAC addresses, filters, link emulation |
//! | [`coalesce`] | merging frames of a flow into super-frames |
//! | [`memory`] | frames, pools, huge pages |
//! | [`burst`] | a handful of frames |
//! | [`stats`] | counters, and why a packet was discarded |
//! | [`relay`] | the composition root: from settings to running workers |
//! | [`config`] | settings, and every mistake in them at once |
//! | [`snapshot`] | what was counted, for tables and JSON |
//! | [`metrics`] | the same for Prometheus |
//! | [`check`] | what this machine and its interfaces allow |
//! | [`interface`] | what the kernel says about interfaces |
//! | [`netns`] | opening things in another network namespace |
//! | [`activity`] | what workers do with their time |
//! | [`idle`] | what a worker does when no frame comes |
//! | [`control`] | signals, timers, link events |
//! | [`wire`] | headers as bytes |
//! | [`error`] | what can go wrong at set-up |

pub mod activity;
pub mod burst;
mod capture;
pub mod check;
pub mod coalesce;
pub mod config;
pub mod control;
mod cut;
pub mod error;
pub mod idle;
pub mod interface;
mod join;
pub mod lane;
pub mod memory;
pub mod metrics;
pub mod port;
pub mod relay;
mod rights;
pub mod snapshot;
pub mod stage;
pub mod stats;
mod sync;
mod sys;
mod text;
pub use sys::netns;
pub mod wire;
pub mod worker;

#[cfg(feature = "program")]
pub mod cli;
