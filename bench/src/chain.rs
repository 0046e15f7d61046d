//! The chain: the same loads through each relay, one after the other, each in a topology of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cli::{Chain, Preset};
use crate::machine::Machine;
use crate::meter::Meter;
use crate::process::{Output, installed};
use crate::report::{Measurement, Outcome, Report, Section, VERSION, Variant};
use crate::rivals::{self, Layout, Rival, Running, Setup};
use crate::run::{Interrupted, Run};
use crate::say;
use crate::topology::{Shape, Topology};
use crate::traffic::{Load, Place, Protocol, probe};

/// Payload of a throughput message: the largest UDP payload in an Ethernet frame.
const THROUGHPUT_SIZE: u32 = 1472;

/// Load average of a minute above which figures are not to be trusted.
const BUSY: f64 = 0.7;

/// Loads and relays of one section.
struct Plan {
    layout: Layout,
    delay: Duration,
    seconds: u32,
    loads: Vec<Load>,
    relays: Vec<Box<dyn Rival>>,
}

/// Measures, prints and writes the report; false if l2relay failed.
pub(crate) fn chain(run: &Run, args: &Chain) -> Result<bool> {
    let setup = setup(args)?;
    let plans = plans(args)?;
    check(&setup, &plans)?;

    let started = Instant::now();
    let machine = Machine::facts(run, &setup.l2relay)?;
    if machine.load_before > BUSY {
        say::err(&busy(machine.load_before));
    }
    let mut progress = Progress::new(&plans);
    let mut sections = Vec::new();
    for plan in &plans {
        sections.push(section(run, &setup, plan, &mut progress)?);
    }
    let report = Report {
        version: VERSION,
        took_s: started.elapsed().as_secs_f64(),
        notes: notes(&plans, machine.load_before),
        machine,
        sections,
    };
    say::out(&match args.preset {
        None => report.summary(),
        Some(_) => report.markdown(),
    });
    for path in report.write(&args.out)? {
        say::err(&format!("wrote {}", path.display()));
    }
    Ok(verdict(&report))
}

fn setup(args: &Chain) -> Result<Setup> {
    let l2relay = match &args.l2relay {
        Some(path) => path.clone(),
        None => {
            let own = std::env::current_exe().context("finding this program")?;
            own.with_file_name("l2relay")
        }
    };
    // It is started from within a namespace, but from this directory: a relative path stays right.
    let words = args.l2relay_args.split_whitespace();
    Ok(Setup {
        relay_cpu: args.relay_cpu,
        other_cpu: args.host_cpu,
        l2relay: if l2relay.is_relative() {
            PathBuf::from(".").join(l2relay)
        } else {
            l2relay
        },
        l2relay_args: words.map(Into::into).collect(),
    })
}

fn plans(args: &Chain) -> Result<Vec<Plan>> {
    let preset = args.preset == Some(Preset::Comnetsemu);
    let relays = || -> Result<Vec<Box<dyn Rival>>> {
        let default = match preset {
            false => vec!["none", "l2relay"],
            true => vec!["none", "testpmd", "testpmd-txoff", "l2relay"],
        };
        match &args.relays {
            Some(names) => names.iter().map(|n| rivals::find(n)).collect(),
            None => default.into_iter().map(rivals::find).collect(),
        }
    };
    let protocols = args.protocols.clone().unwrap_or(match preset {
        false => vec![Protocol::Udp],
        true => vec![Protocol::Udp, Protocol::Tcp],
    });
    let rates = |default: &[u32]| args.rates.clone().unwrap_or(default.to_vec());
    let under_load = |mps| {
        protocols
            .iter()
            .map(move |&protocol| Load::UnderLoad { protocol, mps })
    };

    if preset {
        let loads: Vec<Load> = rates(&[50]).into_iter().flat_map(under_load).collect();
        let delays = [
            args.delay.unwrap_or(Duration::from_millis(50)),
            Duration::ZERO,
        ];
        return delays
            .into_iter()
            .map(|delay| {
                Ok(Plan {
                    layout: args.topology.unwrap_or(Layout::Hairpin),
                    delay,
                    seconds: args.seconds.unwrap_or(10),
                    loads: loads.clone(),
                    relays: relays()?,
                })
            })
            .collect();
    }
    let ping_pong = protocols
        .iter()
        .map(|&protocol| Load::PingPong { protocol });
    let mut loads: Vec<Load> = ping_pong
        .chain(rates(&[1000, 10_000]).into_iter().flat_map(under_load))
        .collect();
    loads.extend([
        Load::Throughput {
            protocol: Protocol::Udp,
            size: THROUGHPUT_SIZE,
        },
        Load::Iperf3 {
            protocol: Protocol::Tcp,
        },
        Load::Iperf3 {
            protocol: Protocol::Udp,
        },
    ]);
    Ok(vec![Plan {
        layout: args.topology.unwrap_or(Layout::Pairs),
        delay: args.delay.unwrap_or_default(),
        seconds: args.seconds.unwrap_or(3),
        loads,
        relays: relays()?,
    }])
}

/// Says what is missing before anything is made.
fn check(setup: &Setup, plans: &[Plan]) -> Result<()> {
    let mut missing: Vec<String> = [
        "ip", "bridge", "tc", "ping", "taskset", "setpriv", "sockperf", "iperf3",
    ]
    .into_iter()
    .filter(|program| installed(program).is_none())
    .map(|program| format!("{program} is not installed (run `make setup`)"))
    .collect();
    let delayed = plans.iter().any(|p| !p.delay.is_zero());
    let ours = plans
        .iter()
        .flat_map(|p| &p.relays)
        .any(|r| r.name().starts_with("l2relay"));
    if delayed || ours {
        missing.extend(rivals::l2relay_missing(setup));
    }
    let allowed = rustix::thread::sched_getaffinity(None).context("reading the allowed CPUs")?;
    for (option, cpu) in [
        ("--host-cpu", setup.other_cpu),
        ("--relay-cpu", setup.relay_cpu),
    ] {
        if cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu) {
            missing.push(format!(
                "CPU {cpu} is not one of ours: choose another with {option}"
            ));
        }
    }
    if !missing.is_empty() {
        bail!("{}", missing.join("\n"));
    }
    Ok(())
}

fn section(run: &Run, setup: &Setup, plan: &Plan, progress: &mut Progress) -> Result<Section> {
    let mut variants = Vec::new();
    for rival in &plan.relays {
        let mut variant = Variant {
            name: rival.name().to_owned(),
            about: rival.about().to_owned(),
            command: String::new(),
            start_ms: 0.0,
            trouble: None,
            statistics: None,
            measurements: Vec::new(),
        };
        let steps = plan.loads.len();
        let missing = rival.missing(setup);
        match (missing, rival.shape(plan.layout)) {
            (Some(why), _) => variant.trouble = Some(format!("skipped: {why}")),
            (None, None) => variant.trouble = Some("skipped: it has no hairpin mode".into()),
            (None, Some(shape)) => {
                let measured = measure(
                    run,
                    setup,
                    plan,
                    rival.as_ref(),
                    shape,
                    &mut variant,
                    progress,
                );
                if let Err(error) = measured {
                    if error.is::<Interrupted>() {
                        return Err(error);
                    }
                    variant.trouble = Some(format!("{error:#}"));
                }
            }
        }
        progress.skip(steps - variant.measurements.len());
        if let Some(trouble) = &variant.trouble {
            say::err(&format!("{}: {trouble}", variant.name));
        }
        variants.push(variant);
    }
    Ok(Section {
        title: title(plan),
        topology: match plan.layout {
            Layout::Pairs => "pairs".into(),
            Layout::Hairpin => "hairpin".into(),
        },
        delay_ms: plan.delay.as_secs_f64() * 1e3,
        host_cpu: setup.other_cpu,
        relay_cpu: setup.relay_cpu,
        seconds: plan.seconds,
        variants,
    })
}

/// One relay under all loads. What was measured before an error stays in `variant`.
fn measure(
    run: &Run,
    setup: &Setup,
    plan: &Plan,
    rival: &dyn Rival,
    shape: Shape,
    variant: &mut Variant,
    progress: &mut Progress,
) -> Result<()> {
    let topology = Topology::build(run, shape, !plan.delay.is_zero())?;
    let mut links = rivals::play_links(run, setup, &topology, plan.delay)?;
    let starting = Instant::now();
    let mut relay = rival.start(run, setup, &topology)?;
    variant.start_ms = starting.elapsed().as_secs_f64() * 1e3;
    variant.command = relay.command().to_owned();

    let place = Place {
        run,
        topology: &topology,
        cpu: setup.other_cpu,
    };
    let mut silence = Silence::default();
    for load in &plan.loads {
        progress.step(rival.name(), load);
        let measurement = one(&place, *load, plan.seconds, &relay, &mut silence)?;
        progress.result(&measurement);
        variant.measurements.push(measurement);
        relay.check()?;
        links
            .check()
            .context("the relay that plays the delayed links")?;
    }
    if let Some(output) = relay.stop() {
        variant.statistics = last_snapshot(&output);
        if rival.name().starts_with("l2relay") {
            output.succeed().context("stopping it")?;
        }
    }
    Ok(())
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
        // iperf3 controls its UDP runs over TCP.
        let needed: &[Protocol] = match load {
            Load::Iperf3 {
                protocol: Protocol::Udp,
            } => &[Protocol::Tcp, Protocol::Udp],
            _ => &[load.protocol()],
        };
        for &protocol in needed {
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

fn title(plan: &Plan) -> String {
    let layout = match plan.layout {
        Layout::Pairs => "Relay with two ports",
        Layout::Hairpin => "Relay with one port on a switch (client to server only)",
    };
    if plan.delay.is_zero() {
        return format!("{layout}, links without delay");
    }
    let delay = plan.delay.as_secs_f64() * 1e3;
    format!("{layout}, {delay} ms on the client's and on the server's link")
}

fn notes(plans: &[Plan], load: f64) -> Vec<String> {
    let delayed = plans.iter().any(|p| !p.delay.is_zero());
    let mut notes = vec![
        "sockperf prints half the round trip and calls it latency; so do these tables. It leaves out \
         the first 400 ms and the last 50 ms of a run (\"valid duration\").",
        "sockperf under-load counts as dropped also the messages whose answer was still on its way \
         when the test ended: rate × round trip of them. With 50 messages/s and 200 ms that is 10, \
         and no loss at all.",
        "Client and server share one CPU, as in ComNetsEmu's example. Under load they wait for each \
         other, so the upper percentiles of under-load say more about the scheduler than about a \
         relay; ping-pong has one message in flight and does not suffer from it.",
        "All interfaces keep their default offloads, except with testpmd-txoff. With the defaults, \
         frames carry unfinished checksums and TCP super-frames, which DPDK's af_packet does not \
         understand: then there is no connection.",
        "TCP uses cubic (set on the route). Goodput and received throughput are counted at the \
         receiver. sockperf's own BandWidth is the sender's, in units of 1024 × 1024.",
        "The Linux bridge and \"none\" run on the sender's CPU; a relay in user space has a CPU to \
         itself. Its CPU figure is that of the busiest stretch of the run; below 100 % for a relay that \
         spins, something else took its CPU.",
        "Each figure is one run; on a virtual machine, repeat it before you believe a difference \
         below 15 %.",
    ];
    if delayed {
        notes.push(
            "The delayed links are played by a further l2relay, on the CPU of client and server, the \
             same for every relay. 2 × 50 ms hide any relay: compare them without delay.",
        );
    }
    let mut notes: Vec<String> = notes.into_iter().map(Into::into).collect();
    if load > BUSY {
        notes.insert(0, busy(load));
    }
    notes
}

fn busy(load: f64) -> String {
    format!(
        "The machine was busy with something else before the start (load average {load:.2}): the \
         figures are worse than they could be, and they scatter."
    )
}

/// Says on standard error what runs, how far it is and how long it will take.
struct Progress {
    step: usize,
    steps: usize,
    started: Instant,
    expected: Duration,
}

impl Progress {
    fn new(plans: &[Plan]) -> Self {
        let (mut steps, mut expected) = (0, Duration::ZERO);
        for plan in plans {
            steps += plan.relays.len() * plan.loads.len();
            for _ in &plan.relays {
                expected += plan
                    .loads
                    .iter()
                    .map(|l| l.duration(plan.seconds))
                    .sum::<Duration>();
            }
        }
        Self {
            step: 0,
            steps,
            started: Instant::now(),
            expected,
        }
    }

    fn step(&mut self, relay: &str, load: &Load) {
        self.step += 1;
        say::err(&format!(
            "[{:2}/{}] {:3.0} s of about {:.0} s  {relay}: {load}",
            self.step,
            self.steps,
            self.started.elapsed().as_secs_f64(),
            self.expected.as_secs_f64()
        ));
    }

    fn skip(&mut self, steps: usize) {
        self.step += steps;
    }

    fn result(&self, measurement: &Measurement) {
        match &measurement.outcome {
            Outcome::Measured(figures) => say::err(&format!("        {}", figures.brief())),
            Outcome::NoConnection(why) => say::err(&format!("        no connection: {why}")),
            Outcome::Failed(why) => say::err(&format!("        failed: {why}")),
        }
    }
}
