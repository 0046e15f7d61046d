//! The relay as a black box in network namespaces, with real traffic. Needs root; says so aloud and skips without it
//! (`L2RELAY_REQUIRE_ROOT=1` turns a skip into a failure).

mod common;

mod bad_input;
mod capture;
#[cfg(feature = "xdp")]
mod carry;
mod change;
mod check;
mod coalesce;
mod configuration;
mod container;
mod control;
mod emulation;
mod encapsulation;
mod hairpin;
mod hosts;
mod idle;
mod jumbo;
#[cfg(feature = "xdp")]
mod kernel;
#[cfg(feature = "xdp")]
mod kernel_xdp;
mod l2fwd;
mod labs;
mod link;
mod link_events;
mod load;
mod mac;
mod metrics;
mod pairs;
mod sceptic;
mod set;
mod stop;
mod tap;
mod traffic;
mod tunnel;
mod vlan;
#[cfg(feature = "xdp")]
mod xdp;
