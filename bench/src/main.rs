//! The bench of l2relay: topologies, traffic, rivals and reports.
//!
//! `l2relay-bench chain` puts relays between a client and a server, in network namespaces, and measures
//! them with sockperf and iperf3. Start reading at `chain.rs`.
//!
//! ```text
//! run       signals, names; process   children, bounded and never left behind
//! container containers in their place
//! topology  namespaces and cables;    rivals    the relays; traffic   the loads and their parsers
//! chain     loads × relays;           report    JSON, Markdown, HTML with plots
//! peers     relays × metrics;         rounds    medians, ratios within a round, verdicts
//! dumbbell  TCP over emulated links: DCE Cradle's experiment
//! accuracy  emulated links, measured at both ends
//! flood     the steady flood generator; count   the counter at the receiver
//! reader    a socket that reads it;       limit   the kernel's AF_XDP transmit alone
//! transit   the time between two interfaces
//! ```

mod accuracy;
mod chain;
mod cli;
mod container;
mod count;
mod dumbbell;
mod flood;
mod limit;
mod lines;
mod machine;
mod meter;
mod peers;
mod process;
mod reader;
mod report;
mod rivals;
mod rounds;
mod run;
mod say;
mod sys;
mod topology;
mod traffic;
mod transit;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::run::{Interrupted, Run};

/// What was to be measured could not be: bad input, something missing, a tool of the system failed.
const UNUSABLE: u8 = 2;

/// 128 + SIGINT, as a shell says it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = Run::start().and_then(|run| match &cli.command {
        Command::Chain(args) => chain::chain(&run, args),
        Command::Peers(flags) => peers::peers(&run, flags),
        Command::Dumbbell(flags) => dumbbell::dumbbell(&run, flags),
        Command::LinkAccuracy(flags) => accuracy::accuracy(&run, flags),
        Command::Flood(flags) => flood::command::flood(&run, flags).map(|()| true),
        Command::Ends => container::ends(&run).map(|()| true),
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // A relay of ours failed, or missed its goal.
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => {
            say::err("interrupted; everything this run made is removed");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            say::err(&format!("l2relay-bench: {error:#}"));
            ExitCode::from(UNUSABLE)
        }
    }
}
