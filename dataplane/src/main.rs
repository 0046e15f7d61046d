//! The program: parse, start, wait, print.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use l2relay::{
    cli::{
        CheckArgs, Cli, Command, LogFormat, Printer, RunArgs, Settings, Source,
        l2fwd::{self, Asked, Table},
        ports_are_there, print, say, say_failure, start_log, to_toml,
    },
    config::Config,
    control::{
        Control, Wait,
        http::{self, Http},
        place::{self, Unclaimed},
        protocol::{Request, Response},
        server::{Answer, Server},
    },
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};
use sd_notify::NotifyState;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(args) = l2fwd::arguments(&words) {
        return status(in_place_of_l2fwd(&args));
    }
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let source = |args: RunArgs| {
        let none = ArgMatches::default();
        let given = matches.subcommand().map_or(&none, |(_, given)| given);
        Source::new(given, args)
    };
    status(match cli.command {
        Command::Run(args) => return run(&source(*args)),
        Command::L2fwd => in_place_of_l2fwd(&[]),
        Command::Check(args) => check(&args),
        Command::Config(args) => args.run(&source(args.run.clone())),
        Command::Ps(args) => args.run(),
        Command::Stats(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Health(args) => args.run(),
        Command::Capture(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Reload(args) => args.run(),
        Command::Stop(args) => args.run(),
        Command::Completions(args) => Ok(args.run(Cli::command())),
        Command::Man(args) => args.run(Cli::command()),
    })
}

fn status(result: Result<ExitCode, Error>) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(error) => {
            say_failure(LogFormat::Human, &error.to_string());
            ExitCode::from(2)
        }
    }
}

fn run(source: &Source) -> ExitCode {
    let format = source.log_format();
    start_log(format);
    relay(source, format).unwrap_or_else(|error| {
        say_failure(format, &error.to_string());
        ExitCode::from(2)
    })
}

fn relay(source: &Source, format: LogFormat) -> Result<ExitCode, Error> {
    // Signals are blocked before any thread starts, so that every thread leaves them to us.
    let mut control = Control::new(source.has_file())?;
    let mut settings = source.settings(true)?;
    // Before any port is opened: a name that is taken changes nothing.
    let claim = match settings.control {
        true => claim(settings.name.as_deref(), &settings.config, format)?,
        false => None,
    };
    let name = serve(&mut control, claim)?;
    let listener = settings.metrics.map(http::listen).transpose();
    let listener = listener.map_err(|mistake| Error::Config(vec![mistake]))?;
    // Before the ports are waited for: probes are answered meanwhile.
    let http = listener.map(|listener| Http::start(listener, &name));
    let http = http.transpose()?;
    let printer = Printer::start(settings.json);
    let (config, patience) = (&settings.config, settings.wait_ports);
    let Some(relay) = start(&mut control, config, patience, format, |last| {
        printer.print(last)
    })?
    else {
        printer.close();
        return Ok(ExitCode::SUCCESS);
    };
    relay.describe().iter().for_each(|line| say(format, line));
    if !name.is_empty() {
        say(format, &format!("name {name}"));
    }
    if let Some(http) = &http {
        http.serve(relay.reader());
        say(format, &http.to_string());
    }
    say(format, "ready");
    notify(&[NotifyState::Ready, NotifyState::Status("relaying")]);
    control.show_every(settings.stats_interval_s);
    // Half of what the service manager allows.
    control.tick_every(sd_notify::watchdog_enabled().map(|limit| limit / 2));
    let mut before: Option<Snapshot> = None;
    loop {
        let shown = settings.stats_interval_s;
        let wait = control.wait(|request| match request {
            Request::Reload {} => Answer::Say(match reload(&relay, source, &mut settings) {
                Ok(done) => Response::Done(done),
                Err(error) => Response::Error(error.into()),
            }),
            Request::Config {} => Answer::Say(Response::Config(to_toml(&Settings {
                config: relay.config(),
                ..settings.clone()
            }))),
            request => relay.answer(&name, request),
        })?;
        match wait {
            Wait::Show => {
                let mut now = relay.snapshot();
                if let Some(before) = &before {
                    now = now.since(before);
                }
                printer.print(&now);
                before = Some(now);
            }
            Wait::Tick => {
                if relay.is_live() {
                    notify(&[NotifyState::Watchdog]);
                }
            }
            Wait::Reload => {
                if let Err(error) = reload(&relay, source, &mut settings) {
                    tracing::error!("the configuration stays as it is: {error}");
                }
            }
            Wait::Stop(_) => break,
        }
        if settings.stats_interval_s != shown {
            control.show_every(settings.stats_interval_s);
        }
    }
    if let Some(http) = http {
        http.stop();
    }
    notify(&[NotifyState::Stopping]);
    printer.finish(&relay.stop());
    Ok(ExitCode::SUCCESS)
}

/// Reads the settings again and applies what is different. Says what has changed; the service manager is told that it goes on.
fn reload(relay: &Relay, source: &Source, settings: &mut Settings) -> Result<Vec<String>, Error> {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
    let result = apply(relay, source, settings);
    notify(&[NotifyState::Ready]);
    result
}

fn apply(relay: &Relay, source: &Source, settings: &mut Settings) -> Result<Vec<String>, Error> {
    if !source.has_file() {
        let mistake = "there is no configuration file: it was started without -c";
        return Err(Error::Config(vec![mistake.into()]));
    }
    let new = source.settings(false)?;
    let mut done = relay.apply(new.config.clone())?;
    let fixed = |settings: &Settings| {
        let Settings {
            json,
            name,
            control,
            log_format,
            metrics,
            ..
        } = settings.clone();
        (json, name, control, log_format, metrics)
    };
    if fixed(settings) != fixed(&new) {
        done.push("json, name, no-control, log-format and metrics change at the next start".into());
    }
    settings.stats_interval_s = new.stats_interval_s;
    settings.config = new.config;
    Ok(done)
}

/// l2fwd's options, messages and statistics. The relay is the same.
fn in_place_of_l2fwd(args: &[String]) -> Result<ExitCode, Error> {
    let mut control = Control::new(false)?;
    start_log(LogFormat::Human);
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
    let claim = claim(None, &l2fwd.config, LogFormat::Human)?;
    let name = serve(&mut control, claim)?;
    let printer = Printer::start(false);
    printer.print(&l2fwd.opening);
    let wait = l2fwd.wait_ports.unwrap_or_default();
    let (config, format) = (&l2fwd.config, LogFormat::Human);
    let started = start(&mut control, config, wait, format, |last| {
        printer.print(&Table::new(&l2fwd, last));
    })?;
    let Some(relay) = started else {
        printer.close();
        return Ok(ExitCode::SUCCESS);
    };
    let (out, err) = l2fwd.ready(&relay.snapshot());
    printer.print(&out);
    eprint!("{err}");
    relay.describe().iter().for_each(|line| say(format, line));
    if !name.is_empty() {
        say(format, &format!("name {name}"));
    }
    eprintln!("ready");
    control.show_every(l2fwd.period_s);
    let signal = loop {
        match control.wait(|request| relay.answer(&name, request))? {
            Wait::Show => printer.print(&Table::new(&l2fwd, &relay.snapshot())),
            Wait::Stop(signal) => break signal,
            Wait::Tick | Wait::Reload => {}
        }
    };
    let last = relay.stop();
    printer.finish(&l2fwd.end(signal, &last));
    Ok(ExitCode::SUCCESS)
}

/// Starts a relay when its ports are there. `None`: it was stopped before; then the last statistics are told.
fn start(
    control: &mut Control,
    config: &Config,
    patience: Duration,
    format: LogFormat,
    tell: impl FnOnce(&Snapshot),
) -> Result<Option<Relay>, Error> {
    let begun = Instant::now();
    let waits = |text: &str| {
        say(format, text);
        notify(&[NotifyState::Status(text)]);
    };
    if !patience.is_zero() && !ports_are_there(control, config, patience, waits)? {
        let ports = config.ports().into_iter().map(ToString::to_string);
        tell(&Snapshot::never_started(begun.elapsed(), ports.collect()));
        return Ok(None);
    }
    Relay::start(config.clone()).map(Some)
}

/// Tells the service manager, if there is one. Whether it listens is its business.
fn notify(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

/// A name for the control socket. A relay runs without one if there is no place for it.
fn claim(
    name: Option<&str>,
    config: &Config,
    format: LogFormat,
) -> Result<Option<place::Claim>, Error> {
    match place::claim(name, &config.pairs) {
        Ok(claim) => Ok(Some(claim)),
        Err(Unclaimed::Name(mistake)) => Err(Error::Config(vec![mistake])),
        Err(why @ Unclaimed::Place(_)) => {
            let text = why.to_string();
            let lines = text.lines();
            lines.for_each(|line| say(format, &format!("l2relay: {line}")));
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
    control.serve(server)?;
    Ok(name)
}

fn listen(claim: place::Claim) -> Option<Server> {
    Server::open(claim)
        .map_err(|error| tracing::warn!("no control socket: {error}"))
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
