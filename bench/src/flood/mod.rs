//! The flood generator: UDP frames of a chosen size, number of flows and rate, without pauses.
//!
//! The frames are made by `bpf/flood.bpf.c`, which the kernel runs on live frames on a thread of ours that is pinned and inside the
//! sender's namespace. They leave by the interface as an XDP program's redirects do: no socket sends them, and on a veth the peer must
//! have NAPI, that is GRO switched on (`ethtool -K PEER gro on`). Nothing is attached to any interface, so nothing is left behind.

pub(crate) mod command;
pub(crate) mod frame;
pub(crate) mod layout;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use rustix::time::{ClockId, clock_gettime};

use crate::count::map;
use crate::process::Program;
use crate::run::Run;
use crate::sys;
use crate::sys::place;
use frame::{Ends, Mac, Template, parse_mac};
use layout::{Config, State};

/// Built from bpf/flood.bpf.c by bpf/Makefile.
static OBJECT: &[u8] = include_bytes!("../../../bpf/flood.bpf.o");

/// How late a frame may be made up for: more than a batch takes the busiest receiver, less than what a relay could take for a pause.
const DEBT: Duration = Duration::from_micros(500);

/// What to send, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Name of the sender's namespace.
    pub(crate) namespace: String,
    /// The interface the frames leave by.
    pub(crate) interface: String,
    /// Addresses and ports.
    pub(crate) ends: Ends,
    /// Bytes from the Ethernet header to the end of the payload. The check sequence is not counted, since a veth has none.
    pub(crate) size: usize,
    /// Number of flows, one source port each, frames taking turns.
    pub(crate) flows: u32,
    /// Frames per second, 0: as many as possible.
    pub(crate) rate_pps: u64,
    /// CPU of the sending thread.
    pub(crate) cpu: usize,
    /// Frames the kernel makes between two chances for softirqs, 1 to 256.
    pub(crate) batch: u32,
    /// Ends by itself after this time, if it isn't stopped before.
    pub(crate) duration: Duration,
}

/// What was sent.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Sent {
    /// Frames made.
    pub(crate) made: u64,
    /// Frames that the interface took.
    pub(crate) taken: u64,
    /// From the first frame to the last.
    pub(crate) seconds: f64,
    /// Frames made per second.
    pub(crate) made_pps: f64,
    /// Time for which a paced flood could not keep its rate.
    pub(crate) given_up_s: f64,
    /// Share of its time, 0 to 1, that the sending thread waited for its CPU because others ran there.
    pub(crate) waited: f64,
    /// Frames made of each flow.
    pub(crate) flows: Vec<u64>,
}

/// A running flood. Dropping it stops it.
pub(crate) struct Flood {
    thread: Option<JoinHandle<Result<f64>>>,
    stop: Arc<AtomicBool>,
    config: Config,
    maps: Maps,
    interface: Interface,
    taken_before: u64,
}

struct Maps {
    config: MapHandle,
    state: MapHandle,
    made: MapHandle,
}

impl Flood {
    /// Loads the program and starts the sending thread; it is sending, or about to, when this returns.
    pub(crate) fn start(run: &Run, spec: &Spec) -> Result<Flood> {
        ensure!(
            (1..=256).contains(&spec.batch),
            "batch {}: from 1 to 256 frames are possible",
            spec.batch
        );
        ensure!(
            (1..=40_000).contains(&spec.flows)
                && u32::from(spec.ends.first_port) + spec.flows <= 65_536,
            "{} flows from port {}: there are not so many ports",
            spec.flows,
            spec.ends.first_port
        );
        let template = Template::new(&spec.ends, spec.size)?;
        let interface = Interface::find(run, &spec.namespace, &spec.interface)?;
        let object = load(spec.flows)?;
        let maps = Maps {
            config: map(&object, "config")?,
            state: map(&object, "state")?,
            made: map(&object, "made")?,
        };
        let config = Config {
            rate_pps: spec.rate_pps,
            debt_ns: DEBT.as_nanos() as u64,
            deadline_ns: now_ns().saturating_add(spec.duration.as_nanos() as u64),
            ifindex: interface.index,
            flows: spec.flows,
            sum: template.sum,
            first_port: spec.ends.first_port,
            ipv6: template.ipv6,
            head: template.head(),
        };
        put(&maps.config, &config)?;

        // The handler does nothing but exist: without one the signal would not end the run.
        signal_hook::flag::register(sys::INTERRUPT, Arc::new(AtomicBool::new(false)))
            .context("signal handler")?;
        let taken_before = interface.taken(run)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new().name("flood".into()).spawn({
            let (stop, spec, frame) = (Arc::clone(&stop), spec.clone(), template.bytes);
            move || send(&object, &spec, &frame, &stop, &ready)
        })?;
        let mut flood = Flood {
            thread: Some(thread),
            stop,
            config,
            maps,
            interface,
            taken_before,
        };
        if started.recv().is_err() {
            // The thread ended before it could say that it was ready: its result says why.
            flood.halt()?;
            bail!("the sending thread ended at once");
        }
        Ok(flood)
    }

    /// Frames made up to now.
    pub(crate) fn made(&self) -> Result<u64> {
        Ok(self.state()?.made)
    }

    /// Ends it and says what was sent.
    pub(crate) fn stop(mut self, run: &Run) -> Result<Sent> {
        let waited = self.halt()?;
        let state = self.state()?;
        let seconds = state.last_ns.saturating_sub(state.first_ns) as f64 / 1e9;
        Ok(Sent {
            made: state.made,
            taken: self.interface.taken(run)?.saturating_sub(self.taken_before),
            seconds,
            made_pps: if seconds > 0.0 {
                state.made as f64 / seconds
            } else {
                0.0
            },
            given_up_s: state.given_up_ns as f64 / 1e9,
            waited,
            flows: (0..self.config.flows)
                .map(|flow| self.made_of(flow))
                .collect::<Result<_>>()?,
        })
    }

    fn made_of(&self, flow: u32) -> Result<u64> {
        let values = self
            .maps
            .made
            .lookup_percpu(&flow.to_ne_bytes(), MapFlags::ANY)?
            .with_context(|| format!("flow {flow} is not counted"))?;
        Ok(values
            .iter()
            .filter_map(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)))
            .sum())
    }

    fn state(&self) -> Result<State> {
        let bytes = self.maps.state.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        bytes
            .as_deref()
            .and_then(State::decode)
            .context("the flood program's state cannot be read")
    }

    /// No more frames, then the end of the thread. Gives the share of its time that it waited for its CPU.
    fn halt(&mut self) -> Result<f64> {
        let Some(thread) = self.thread.take() else {
            return Ok(0.0);
        };
        self.stop.store(true, Ordering::Relaxed);
        self.config.deadline_ns = 0;
        let quiet = put(&self.maps.config, &self.config);
        // Again and again, since a signal that comes before the system call ends nothing.
        while !thread.is_finished() {
            sys::interrupt(&thread);
            thread::sleep(Duration::from_millis(2));
        }
        let waited = thread
            .join()
            .map_err(|_| anyhow!("the sending thread panicked"))??;
        quiet.map(|()| waited)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // Who cares for the result calls `stop`.
        let _ = self.halt();
    }
}

/// The sending thread.
fn send(
    object: &Object,
    spec: &Spec,
    frame: &[u8],
    stop: &AtomicBool,
    ready: &mpsc::Sender<()>,
) -> Result<f64> {
    place::settle(&spec.namespace)?;
    place::pin(spec.cpu)?;
    let program = object.progs().next().context("no program in the object")?;
    let _ = ready.send(());
    while !stop.load(Ordering::Relaxed) {
        match sys::run_live(program.as_fd(), frame, spec.batch) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(error)
                    .context("the kernel does not run the flood program (BPF_PROG_TEST_RUN)");
            }
        }
    }
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    // Nothing if the kernel does not count that.
    Ok(waited(&stat).unwrap_or(0.0))
}

/// Share of the time that a thread was ready to run and did not, of /proc/…/schedstat: ns run, ns waited, times run.
fn waited(stat: &str) -> Option<f64> {
    let mut times = stat.split_whitespace().map(str::parse);
    let (ran, waited): (f64, f64) = (times.next()?.ok()?, times.next()?.ok()?);
    Some(waited / (ran + waited)).filter(|share| share.is_finite())
}

fn load(flows: u32) -> Result<Object> {
    libbpf_rs::set_print(None);
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    for mut map in open.maps_mut() {
        if map.name() == "made" {
            map.set_max_entries(flows)?;
        }
    }
    open.load().context(
        "the flood program cannot be loaded (root, or CAP_BPF and CAP_NET_ADMIN, is needed)",
    )
}

fn put(map: &MapHandle, config: &Config) -> Result<()> {
    map.update(&0u32.to_ne_bytes(), &config.encode(), MapFlags::ANY)
        .context("the flood program's settings cannot be written")
}

/// The clock that the program reads.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An interface in a namespace, as `ip` describes it.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    namespace: String,
    name: String,
    /// Its index in its namespace.
    pub(crate) index: u32,
    /// Its MAC address.
    pub(crate) mac: Mac,
}

impl Interface {
    /// Looks an interface up.
    pub(crate) fn find(run: &Run, namespace: &str, name: &str) -> Result<Interface> {
        let link = describe(run, namespace, name)?;
        let index = link["ifindex"]
            .as_u64()
            .and_then(|index| index.try_into().ok());
        let (Some(index), Some(mac)) = (index, link["address"].as_str()) else {
            bail!("interface {name}: ip does not tell its index and MAC");
        };
        Ok(Interface {
            namespace: namespace.into(),
            name: name.into(),
            index,
            mac: parse_mac(mac)?,
        })
    }

    /// Frames it has transmitted. On a veth: what the peer has received.
    fn taken(&self, run: &Run) -> Result<u64> {
        describe(run, &self.namespace, &self.name)?["stats64"]["tx"]["packets"]
            .as_u64()
            .with_context(|| format!("interface {}: ip does not tell its counters", self.name))
    }
}

fn describe(run: &Run, namespace: &str, name: &str) -> Result<serde_json::Value> {
    let output = Program::new("ip")
        .args(["-n", namespace, "-j", "-s", "link", "show", "dev", name])
        .run(run, Duration::from_secs(5))?;
    let links: serde_json::Value = serde_json::from_str(&output.stdout)?;
    Ok(links[0].clone())
}
