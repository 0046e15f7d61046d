//! The chain: the same loads through each relay in each place, one after the other, in interleaved rounds, each time in a topology
//! of its own: nothing of one runs while another is measured.

mod compare;
mod first;
mod plan;
mod progress;
mod throttle;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cli::Chain;
use crate::container::Containers;
use crate::machine::Machine;
use crate::meter::Meter;
use crate::process::Output;
use crate::report::{Measurement, Outcome, Pass, Report, Section, VERSION, Variant};
use crate::rivals::{self, Layout, Rival, Running, Setup};
use crate::rounds;
use crate::run::{Interrupted, Run};
use crate::say;
use crate::topology::{Shape, Topology};
use crate::traffic::{Load, Place, Protocol, probe};
use plan::{BUSY, Plan, busy, notes, title};
use progress::Progress;

/// Measures, prints and writes the report; false if l2relay failed.
pub(crate) fn chain(run: &Run, args: &Chain) -> Result<bool> {
    let mut setup = plan::setup(args)?;
    let plans = plan::plans(args)?;
    let containers = match args.containers {
        true => Some(Containers::prepare(
            run,
            &args.image,
            &args.container_args,
            [setup.other_cpu, setup.relay_cpu],
        )?),
        false => None,
    };
    // Namespaces get the same program.
    let copied = match (&containers, &args.l2relay) {
        (Some(containers), None) => Some(containers.program(run)?),
        _ => None,
    };
    if let Some(copied) = &copied {
        setup.l2relay = copied.path().to_owned();
    }
    plan::check(&setup, &plans)?;

    let started = Instant::now();
    let machine = Machine::facts(run, &setup.l2relay)?;
    if machine.load_before > BUSY {
        say::err(&busy(machine.load_before));
    }
    let places: Vec<Option<&Containers>> = match &containers {
        Some(containers) => vec![None, Some(containers)],
        None => vec![None],
    };
    let rounds = args.rounds as usize;
    let mut progress = Progress::new(&plans, rounds, places.len());
    let mut sections = Vec::new();
    for plan in &plans {
        sections.extend(measured(run, &setup, plan, &places, rounds, &mut progress)?);
    }
    let mut notes = notes(&plans, rounds, machine.load_before);
    notes.extend(compare::containers(&sections));
    let report = Report {
        version: VERSION,
        rounds: args.rounds,
        took_s: started.elapsed().as_secs_f64(),
        notes,
        machine,
        goals: compare::goals(&sections),
        sections,
    };
    say::out(&match args.preset {
        None => report.summary(),
        Some(_) => report.markdown(),
    });
    for line in compare::containers(&report.sections) {
        say::out(&line);
    }
    for path in report.write(&args.out)? {
        say::err(&format!("wrote {}", path.display()));
    }
    Ok(verdict(&report))
}

/// All rounds of a plan: a section for each place. Relay and place change places in each round.
fn measured(
    run: &Run,
    setup: &Setup,
    plan: &Plan,
    places: &[Option<&Containers>],
    rounds: usize,
    progress: &mut Progress,
) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = places
        .iter()
        .map(|containers| section(setup, plan, containers.is_some()))
        .collect();
    for round in 0..rounds {
        for relay in rounds::order(round, plan.relays.len()) {
            let rival = plan.relays[relay].as_ref();
            for place in rounds::order(round, places.len()) {
                let section = &mut sections[place];
                let variant = &mut section.variants[relay];
                let shape = rival
                    .shape(plan.layout)
                    .filter(|_| variant.trouble.is_none());
                let Some(shape) = shape else {
                    progress.skip(plan.loads.len());
                    continue;
                };
                progress.turn(round, &section.place);
                let mut pass = Pass::default();
                let relay = (rival, shape, places[place]);
                let measured = measure(run, setup, plan, relay, &mut pass, progress);
                progress.skip(plan.loads.len() - pass.measurements.len());
                match measured {
                    Ok(command) => variant.command = command,
                    Err(error) if error.is::<Interrupted>() => return Err(error),
                    Err(error) => {
                        say::err(&format!("{}: {error:#}", variant.name));
                        pass.trouble = Some(format!("{error:#}"));
                    }
                }
                variant.rounds.push(pass);
            }
        }
    }
    Ok(sections)
}

/// A place before anything is measured there, with the relays that will not be.
fn section(setup: &Setup, plan: &Plan, in_containers: bool) -> Section {
    let variants = plan.relays.iter().map(|rival| {
        let skipped = match rival.missing(setup) {
            _ if in_containers && !rival.fits_container() => {
                Some("there is no container of it".to_owned())
            }
            None if rival.shape(plan.layout).is_none() => Some("it has no hairpin mode".into()),
            missing => missing,
        };
        let trouble = skipped.map(|why| format!("skipped: {why}"));
        if let Some(trouble) = &trouble {
            say::err(&format!("{}: {trouble}", rival.name()));
        }
        Variant {
            name: rival.name().to_owned(),
            about: rival.about().to_owned(),
            command: String::new(),
            trouble,
            rounds: Vec::new(),
        }
    });
    let (place, suffix) = match in_containers {
        true => ("containers", ", in containers"),
        false => ("namespaces", ""),
    };
    Section {
        title: title(plan) + suffix,
        place: place.into(),
        topology: match plan.layout {
            Layout::Pairs => "pairs".into(),
            Layout::Hairpin => "hairpin".into(),
        },
        delay_ms: plan.delay.as_secs_f64() * 1e3,
        host_cpu: setup.other_cpu,
        relay_cpu: setup.relay_cpu,
        seconds: plan.seconds,
        variants: variants.collect(),
    }
}

/// One relay under all loads, and its command. What was measured before an error stays in `pass`.
fn measure(
    run: &Run,
    setup: &Setup,
    plan: &Plan,
    (rival, shape, containers): (&dyn Rival, Shape, Option<&Containers>),
    pass: &mut Pass,
    progress: &mut Progress,
) -> Result<String> {
    let topology = Topology::build_in(run, shape, !plan.delay.is_zero(), containers)?;
    let mut links = rivals::play_links(run, setup, &topology, plan.delay)?;
    let starting = Instant::now();
    let start = || rival.start(run, setup, &topology);
    let ours = rival.name().starts_with("l2relay");
    let mut relay = match ours {
        true => {
            let (relay, first) = first::frame(run, &topology, start)?;
            pass.first_frame_ms =
                first.map(|at| at.as_secs_f64() * 1e3 - plan.delay.as_secs_f64() * 2e3);
            relay
        }
        false => start()?,
    };
    pass.start_ms = starting.elapsed().as_secs_f64() * 1e3;
    let command = relay.command().to_owned();

    let place = Place {
        run,
        topology: &topology,
        cpu: setup.other_cpu,
    };
    // Outside of containers the group is that of this program, too.
    let own_group = relay.pid().filter(|_| containers.is_some());
    let before = own_group.and_then(throttle::of);
    let mut silence = Silence::default();
    for load in &plan.loads {
        progress.step(rival.name(), load);
        let measurement = one(&place, *load, plan.seconds, &relay, &mut silence)?;
        progress.result(&measurement);
        pass.measurements.push(measurement);
        relay.check()?;
        links
            .check()
            .context("the relay that plays the delayed links")?;
    }
    let after = own_group.and_then(throttle::of);
    pass.throttled = before.zip(after).map(|(a, b)| throttle::between(a, b));
    if let Some(output) = relay.stop() {
        pass.statistics = last_snapshot(&output);
        if ours {
            output.succeed().context("stopping it")?;
        }
    }
    if ours && pass.first_frame_ms.is_none() {
        bail!("no frame had crossed it 2 s after it said that it forwards");
    }
    Ok(command)
}

fn one(
    place: &Place<'_>,
    load: Load,
    seconds: u32,
    relay: &Running,
    silence: &mut Silence,
) -> Result<Measurement> {
    let mut measurement = Measurement {
        load,
        command: String::new(),
        outcome: Outcome::NoConnection(String::new()),
        relay_cpu_percent: None,
    };
    if let Some(why) = silence.of(place, load)? {
        measurement.outcome = Outcome::NoConnection(why);
        return Ok(measurement);
    }
    let meter = relay.pid().map(Meter::start);
    let measured = load.measure(place, seconds);
    // sockperf's own valid duration leaves out half a second.
    let most = Duration::from_secs(seconds.into()).mul_f64(0.8);
    measurement.relay_cpu_percent = meter.and_then(|m| m.busiest(most));
    measurement.outcome = match measured {
        Ok((command, figures)) => {
            measurement.command = command;
            Outcome::Measured(figures)
        }
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    Ok(measurement)
}

/// Which protocols find no way through a relay; each is asked once.
#[derive(Default)]
struct Silence {
    known: Vec<(Protocol, Option<String>)>,
}

impl Silence {
    fn of(&mut self, place: &Place<'_>, load: Load) -> Result<Option<String>> {
        for &protocol in load.needs() {
            let known = self.known.iter().find(|(p, _)| *p == protocol);
            let answer = match known {
                Some((_, answer)) => answer.clone(),
                None => {
                    let answer = probe::connect(place, protocol)?;
                    self.known.push((protocol, answer.clone()));
                    answer
                }
            };
            if answer.is_some() {
                return Ok(answer);
            }
        }
        Ok(None)
    }
}

/// The last JSON line that a relay wrote, if it writes such.
fn last_snapshot(output: &Output) -> Option<serde_json::Value> {
    let line = output.stdout.lines().rfind(|l| l.starts_with('{'))?;
    serde_json::from_str(line).ok()
}

/// False if l2relay was to be measured and was not, or not to the end.
fn verdict(report: &Report) -> bool {
    let ours = report
        .sections
        .iter()
        .flat_map(|s| &s.variants)
        .filter(|v| v.name.starts_with("l2relay"));
    let failures: Vec<_> = ours.filter_map(Variant::failure).collect();
    for failure in &failures {
        say::err(&format!("l2relay failed: {failure}"));
    }
    failures.is_empty()
}
