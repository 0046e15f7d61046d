//! The program: parse, start, wait, print.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Parser;
use l2relay::{
    cli::{CheckArgs, Cli, Command, Printer, RunArgs, print},
    control::{Control, Wait},
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            let text = error.to_string();
            text.lines().for_each(|line| eprintln!("l2relay: {line}"));
            ExitCode::from(2)
        }
    }
}

fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    // Signals are blocked before any thread starts, so that every thread leaves them to us.
    let mut control = Control::new()?;
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    let (config, interval) = args.settings()?;
    let relay = Relay::start(config)?;
    relay.describe().iter().for_each(|line| eprintln!("{line}"));
    eprintln!("ready");
    let printer = Printer::start(args.json);
    if let Some(seconds) = interval {
        control.show_every(seconds);
    }
    let mut before: Option<Snapshot> = None;
    while control.wait()? == Wait::Show {
        let mut now = relay.snapshot();
        if let Some(before) = &before {
            now = now.since(before);
        }
        printer.print(&now);
        before = Some(now);
    }
    printer.finish(&relay.stop());
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode, Error> {
    let report = args.report()?;
    if let Err(error) = print(&report, args.json) {
        eprintln!("l2relay: the report can't be written: {error}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if report.ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
