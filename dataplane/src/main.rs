//! The program: parse, start, wait, print.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use l2relay::{
    cli::{
        CheckArgs, Cli, Command, Printer, RunArgs,
        l2fwd::{self, Asked, Table},
        ports_are_there, print,
    },
    config::Config,
    control::{Control, Wait},
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let result = match l2fwd::arguments(&words) {
        Some(args) => in_place_of_l2fwd(&args),
        None => match Cli::parse().command {
            Command::Run(args) => run(&args),
            Command::L2fwd => in_place_of_l2fwd(&[]),
            Command::Check(args) => check(&args),
        },
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
    start_log();
    let (config, interval, wait) = args.settings()?;
    let printer = Printer::start(args.json);
    let Some(relay) = start(&mut control, config, wait, |last| printer.print(last))? else {
        printer.close();
        return Ok(ExitCode::SUCCESS);
    };
    relay.describe().iter().for_each(|line| eprintln!("{line}"));
    eprintln!("ready");
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

/// l2fwd's options, messages and statistics. The relay is the same.
fn in_place_of_l2fwd(args: &[String]) -> Result<ExitCode, Error> {
    let mut control = Control::new()?;
    start_log();
    let l2fwd = match l2fwd::read(args)? {
        Asked::Forward(l2fwd) => l2fwd,
        Asked::Text(text) => {
            println!("{text}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    for remark in &l2fwd.remarks {
        eprintln!("l2relay: {remark}");
    }
    let printer = Printer::start(false);
    printer.print(&l2fwd.opening);
    let wait = l2fwd.wait_ports.unwrap_or_default();
    let started = start(&mut control, l2fwd.config.clone(), wait, |last| {
        printer.print(&Table::new(&l2fwd, last));
    })?;
    let Some(relay) = started else {
        printer.close();
        return Ok(ExitCode::SUCCESS);
    };
    let (out, err) = l2fwd.ready(&relay.snapshot());
    printer.print(&out);
    eprint!("{err}");
    eprintln!("ready");
    if let Some(seconds) = l2fwd.period_s {
        control.show_every(seconds);
    }
    while control.wait()? == Wait::Show {
        printer.print(&Table::new(&l2fwd, &relay.snapshot()));
    }
    printer.finish(&Table::new(&l2fwd, &relay.stop()));
    Ok(ExitCode::SUCCESS)
}

/// Starts a relay when its ports are there. `None`: it was stopped before; then the last statistics are told.
fn start(
    control: &mut Control,
    config: Config,
    wait: Duration,
    tell: impl FnOnce(&Snapshot),
) -> Result<Option<Relay>, Error> {
    let begun = Instant::now();
    if !wait.is_zero() && !ports_are_there(control, &config, wait)? {
        let ports = config.ports().into_iter().map(ToString::to_string);
        tell(&Snapshot::never_started(begun.elapsed(), ports.collect()));
        return Ok(None);
    }
    Relay::start(config).map(Some)
}

fn start_log() {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
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
