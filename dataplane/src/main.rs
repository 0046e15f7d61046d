//! The program: parse, start, wait, print.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Parser;
use l2relay::{
    cli::{CheckArgs, Cli, Command, Printer, RunArgs, Settings, print},
    control::{
        Control, Wait,
        place::{self, Unclaimed},
        server::Server,
    },
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Ps(args) => args.run(),
        Command::Stats(args) => args.run(),
        Command::Health(args) => args.run(),
        Command::Capture(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Stop(args) => args.run(),
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
    let settings = args.settings()?;
    // Before any port is opened: a name that is taken changes nothing.
    let claim = claim(&settings)?;
    let relay = Relay::start(settings.config)?;
    relay.describe().iter().for_each(|line| eprintln!("{line}"));
    let mut name = String::new();
    if let Some(server) = claim.and_then(listen) {
        name = server.name().to_owned();
        eprintln!("name {name}");
        control.serve(server)?;
    }
    eprintln!("ready");
    let printer = Printer::start(settings.json);
    if let Some(seconds) = settings.stats_interval_s {
        control.show_every(seconds);
    }
    let mut before: Option<Snapshot> = None;
    while control.wait(|request| relay.answer(&name, request))? == Wait::Show {
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

/// A name for the control socket. A relay runs without one if there is no place for it.
fn claim(settings: &Settings) -> Result<Option<place::Claim>, Error> {
    if !settings.control {
        return Ok(None);
    }
    match place::claim(settings.name.as_deref(), &settings.config.pairs) {
        Ok(claim) => Ok(Some(claim)),
        Err(Unclaimed::Name(mistake)) => Err(Error::Config(vec![mistake])),
        Err(why @ Unclaimed::Place(_)) => {
            let text = why.to_string();
            text.lines().for_each(|line| eprintln!("l2relay: {line}"));
            Ok(None)
        }
    }
}

fn listen(claim: place::Claim) -> Option<Server> {
    Server::open(claim)
        .map_err(|error| eprintln!("l2relay: no control socket: {error}"))
        .ok()
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
