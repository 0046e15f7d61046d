//! The program: parse, start, wait, print.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use l2relay::{
    cli::{CheckArgs, Cli, Command, RunArgs},
    control::{self, Wait},
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};
use serde::Serialize;

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
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    let (config, interval) = args.settings()?;
    // Signals are blocked before any thread starts, so that every thread leaves them to us.
    let mut control = control::Control::new(interval)?;
    let relay = Relay::start(config)?;
    relay.describe().iter().for_each(|line| eprintln!("{line}"));
    eprintln!("ready");
    let mut before: Option<Snapshot> = None;
    loop {
        match control.wait()? {
            Wait::Stop => break,
            Wait::Show => {
                let mut now = relay.snapshot();
                if let Some(before) = &before {
                    now = now.since(before);
                }
                print(&now, args.json);
                before = Some(now);
            }
        }
    }
    print(&relay.stop(), args.json);
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode, Error> {
    let report = args.report()?;
    print(&report, args.json);
    Ok(if report.ready {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Nobody may be reading any more: that is no reason to stop relaying.
fn print(what: &(impl Serialize + Display), json: bool) {
    let text = if json {
        serde_json::to_string(what)
            .unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
    } else {
        what.to_string()
    };
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
