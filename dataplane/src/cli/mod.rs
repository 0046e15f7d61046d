//! The command line: definitions, and turning them into settings. The program itself is `main.rs`.

mod capture;
mod check;
mod config;
mod effective;
mod file;
pub mod l2fwd;
mod log;
mod print;
mod remote;
mod run;
mod top;
mod wait;

use clap::{Parser, Subcommand};

pub use capture::CaptureArgs;
pub use check::CheckArgs;
pub use config::{CompletionsArgs, ConfigArgs, ManArgs};
pub use effective::to_toml;
pub use file::Source;
pub use log::{LogFormat, say, say_failure, start as start_log};
pub use print::{Printer, print};
pub use remote::{HealthArgs, PsArgs, ReloadArgs, SetArgs, StatsArgs, StopArgs, Target};
pub use run::{RunArgs, Settings};
pub use top::TopArgs;
pub use wait::ports_are_there;

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
    /// Do what DPDK's l2fwd does, with its options: [EAL options] -- [l2fwd options]
    // For the list of commands alone: l2fwd::arguments takes its words before clap reads them.
    #[command(name = "l2fwd")]
    L2fwd,
    /// Tell what this machine and its interfaces allow, and what to do about the rest
    Check(CheckArgs),
    /// List the relays that run
    Ps(PsArgs),
    /// Print what a relay has counted
    Stats(StatsArgs),
    /// Show a relay's ports and lanes on the terminal, live
    Top(TopArgs),
    /// Tell whether a relay works: for Docker, Kubernetes and scripts
    Health(HealthArgs),
    /// Copy frames from a relay that runs, into a pcapng file or as lines
    Capture(Box<CaptureArgs>),
    /// Change settings of a relay that runs, without stopping it
    Set(SetArgs),
    /// Have a relay read its configuration file again, as SIGHUP does
    Reload(ReloadArgs),
    /// Check a configuration, or print the one that takes effect
    Config(Box<ConfigArgs>),
    /// Print a shell's completions for l2relay
    Completions(CompletionsArgs),
    /// Write manual pages: l2relay.1 and one for each command
    Man(ManArgs),
    /// Stop a relay, as SIGTERM does, and wait for its end
    Stop(StopArgs),
}
