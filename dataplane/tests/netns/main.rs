//! The relay as a black box in network namespaces, with real traffic. Needs root; says so aloud and skips without it
//! (`L2RELAY_REQUIRE_ROOT=1` turns a skip into a failure).

mod common;

mod bad_input;
mod capture;
mod change;
mod check;
mod configuration;
mod control;
mod encapsulation;
mod hairpin;
mod idle;
mod jumbo;
mod link;
mod link_events;
mod load;
mod mac;
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
