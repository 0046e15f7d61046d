//! The command line: definitions, and turning them into settings. The program itself is `main.rs`.

mod capture;
mod check;
mod print;
mod remote;
mod run;

use clap::{Parser, Subcommand};

pub use capture::CaptureArgs;
pub use check::CheckArgs;
pub use print::{Printer, print};
pub use remote::{HealthArgs, PsArgs, SetArgs, StatsArgs, StopArgs, Target};
pub use run::{RunArgs, Settings};

/// A layer-2 relay in user space: frames in by one interface, out by the paired one.
#[derive(Debug, Parser)]
#[command(name = "l2relay", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Relay frames between pairs of interfaces until SIGINT or SIGTERM
    Run(Box<RunArgs>),
    /// Tell what this machine and its interfaces allow, and what to do about the rest
    Check(CheckArgs),
    /// List the relays that run
    Ps(PsArgs),
    /// Print what a relay has counted
    Stats(StatsArgs),
    /// Tell whether a relay works: for Docker, Kubernetes and scripts
    Health(HealthArgs),
    /// Copy frames from a relay that runs, into a pcapng file or as lines
    Capture(Box<CaptureArgs>),
    /// Change settings of a relay that runs, without stopping it
    Set(SetArgs),
    /// Stop a relay, as SIGTERM does, and wait for its end
    Stop(StopArgs),
}
