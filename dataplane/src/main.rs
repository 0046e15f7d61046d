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
    let words: Vec<_> = std::env::args_os().collect();
    let result = match l2fwd::arguments(&words) {
        Some(args) => in_place_of_l2fwd(&args),
        None => match Cli::parse().command {
            Command::Run(args) => run(&args),
            Command::L2fwd => in_place_of_l2fwd(&[]),
            Command::Check(args) => check(&args),
            Command::Ps(args) => args.run(),
            Command::Stats(args) => args.run(),
            Command::Health(args) => args.run(),
            Command::Set(args) => args.run(),
            Command::Stop(args) => args.run(),
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
    let settings = args.settings()?;
    // Before any port is opened: a name that is taken changes nothing.
    let claim = match settings.control {
        true => claim(settings.name.as_deref(), &settings.config)?,
        false => None,
    };
    let printer = Printer::start(settings.json);
    let Some(relay) = start(&mut control, settings.config, settings.wait_ports, |last| {
        printer.print(last);
    })?
    else {
        printer.close();
        return Ok(ExitCode::SUCCESS);
    };
    relay.describe().iter().for_each(|line| eprintln!("{line}"));
    let name = serve(&mut control, claim)?;
    eprintln!("ready");
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
    let claim = claim(None, &l2fwd.config)?;
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
    let name = serve(&mut control, claim)?;
    eprintln!("ready");
    if let Some(seconds) = l2fwd.period_s {
        control.show_every(seconds);
    }
    while control.wait(|request| relay.answer(&name, request))? == Wait::Show {
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

/// A name for the control socket. A relay runs without one if there is no place for it.
fn claim(name: Option<&str>, config: &Config) -> Result<Option<place::Claim>, Error> {
    match place::claim(name, &config.pairs) {
        Ok(claim) => Ok(Some(claim)),
        Err(Unclaimed::Name(mistake)) => Err(Error::Config(vec![mistake])),
        Err(why @ Unclaimed::Place(_)) => {
            let text = why.to_string();
            text.lines().for_each(|line| eprintln!("l2relay: {line}"));
            Ok(None)
        }
    }
}

/// From now on requests are answered, to the name that is given back.
fn serve(control: &mut Control, claim: Option<place::Claim>) -> Result<String, Error> {
    let Some(server) = claim.and_then(listen) else {
        return Ok(String::new());
    };
    let name = server.name().to_owned();
    eprintln!("name {name}");
    control.serve(server)?;
    Ok(name)
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
