//! The bench of l2relay: topologies, traffic, rivals and reports.
fn main() {}
