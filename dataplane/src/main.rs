//! The program: parse, start, wait, print.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use l2relay::{
    cli::{
        CheckArgs, Cli, Command, Printer, RunArgs, Settings, Source, print, say, start_log, to_toml,
    },
    control::{
        Control, Wait,
        place::{self, Unclaimed},
        protocol::{Failure, FailureCode, Health, Request, Response},
        server::{Answer, Server},
    },
    error::Error,
    relay::Relay,
    snapshot::Snapshot,
};
use sd_notify::NotifyState;

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let source = |args: RunArgs| {
        let none = ArgMatches::default();
        let given = matches.subcommand().map_or(&none, |(_, given)| given);
        Source::new(given, args)
    };
    let result = match cli.command {
        Command::Run(args) => run(&source(*args)),
        Command::Check(args) => check(&args),
        Command::Config(args) => args.run(&source(args.run.clone())),
        Command::Ps(args) => args.run(),
        Command::Stats(args) => args.run(),
        Command::Health(args) => args.run(),
        Command::Capture(args) => args.run(),
        Command::Set(args) => args.run(),
        Command::Reload(args) => args.run(),
        Command::Stop(args) => args.run(),
        Command::Completions(args) => Ok(args.run(Cli::command())),
        Command::Man(args) => args.run(Cli::command()),
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

fn run(source: &Source) -> Result<ExitCode, Error> {
    // Signals are blocked before any thread starts, so that every thread leaves them to us.
    let mut control = Control::new(source.has_file())?;
    let mut settings = source.settings(true)?;
    start_log(settings.log_format);
    let format = settings.log_format;
    // Before any port is opened: a name that is taken changes nothing.
    let mut name = String::new();
    if let Some(server) = claim(&settings)?.and_then(listen) {
        name = server.name().to_owned();
        control.serve(server)?;
    }
    if !wait_for_ports(&mut control, &settings)? {
        return Ok(ExitCode::SUCCESS);
    }
    let relay = Relay::start(settings.config.clone())?;
    relay.describe().iter().for_each(|line| say(format, line));
    if !name.is_empty() {
        say(format, &format!("name {name}"));
    }
    say(format, "ready");
    notify(&[NotifyState::Ready, NotifyState::Status("relaying")]);
    let printer = Printer::start(settings.json);
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
                if let Ok(now) = NotifyState::monotonic_usec_now() {
                    notify(&[NotifyState::Reloading, now]);
                }
                if let Err(error) = reload(&relay, source, &mut settings) {
                    tracing::error!("the configuration stays as it is: {error}");
                }
                notify(&[NotifyState::Ready]);
            }
            Wait::Stop => break,
        }
        if settings.stats_interval_s != shown {
            control.show_every(settings.stats_interval_s);
        }
    }
    notify(&[NotifyState::Stopping]);
    printer.finish(&relay.stop());
    Ok(ExitCode::SUCCESS)
}

/// Reads the settings again and applies what is different. Says what has changed.
fn reload(relay: &Relay, source: &Source, settings: &mut Settings) -> Result<Vec<String>, Error> {
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
            ..
        } = settings.clone();
        (json, name, control, log_format)
    };
    if fixed(settings) != fixed(&new) {
        done.push("json, name, no-control and log-format change at the next start".into());
    }
    settings.stats_interval_s = new.stats_interval_s;
    settings.config = new.config;
    Ok(done)
}

/// Waits for ports that are absent, if that is asked for. `false`: told to stop meanwhile.
fn wait_for_ports(control: &mut Control, settings: &Settings) -> Result<bool, Error> {
    let Some(limit) = settings.wait_ports_s.map(Duration::from_secs_f64) else {
        return Ok(true);
    };
    let (start, mut told) = (Instant::now(), Vec::new());
    control.tick_every(Some(Duration::from_millis(20)));
    loop {
        let absent = settings.config.absent();
        if absent.is_empty() || start.elapsed() >= limit {
            // What is still absent is told with everything else.
            control.tick_every(None);
            return Ok(true);
        }
        if absent != told {
            let text = format!("waiting for {}", absent.join(", "));
            say(settings.log_format, &text);
            notify(&[NotifyState::Status(&text)]);
            told = absent.clone();
        }
        let wait = control.wait(|request| match request {
            Request::Health {} => Response::Health(Health {
                live: true,
                ready: false,
                reasons: vec![format!("waiting for {}", absent.join(", "))],
            }),
            Request::Stop {} => Response::Done(vec!["stopping".into()]),
            _ => Response::Error(Failure {
                code: FailureCode::Refused,
                message: format!("the relay is waiting for {}", absent.join(", ")),
            }),
        })?;
        if wait == Wait::Stop {
            return Ok(false);
        }
    }
}

/// Tells the service manager, if there is one. Whether it listens is its business.
fn notify(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
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
            let lines = text.lines();
            lines.for_each(|line| say(settings.log_format, &format!("l2relay: {line}")));
            Ok(None)
        }
    }
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
