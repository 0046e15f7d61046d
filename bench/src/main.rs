//! The bench of l2relay: topologies, traffic, rivals and reports.

mod process;
mod rivals;
mod run;
mod topology;
fn main() {}
