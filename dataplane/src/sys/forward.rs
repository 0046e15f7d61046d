//! The programs that forward without leaving the kernel, of one direction: loading them, their state and their counters.
//!
//! Called by the `kernel` back end. What is here belongs to bpf/forward.h, which says how programs and reader share the counters.
//! Where the programs are attached is the matter of `tcx` and `xdp`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use super::xdp::bpf_error;
use crate::{
    port::kernel::Passage,
    stats::{Reason, Tally},
};

/// Built from bpf/forward.bpf.c and bpf/forward_xdp.bpf.c by bpf/Makefile.
static TC_OBJECT: &[u8] = include_bytes!("../../../bpf/forward.bpf.o");
static XDP_OBJECT: &[u8] = include_bytes!("../../../bpf/forward_xdp.bpf.o");
/// The name of the tc program, by which a filter that was left behind is known.
pub(crate) const TC_PROGRAM: &str = "l2relay_forward";
/// The name of the XDP program.
pub(crate) const XDP_PROGRAM: &str = "l2relay_devmap";
const GATE_PROGRAM: &str = "l2relay_gate";

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At tc.
    Tc,
    /// At XDP.
    Xdp,
}

/// What does not change while the programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The index of the interface to send by.
    pub(crate) target: u32,
    /// What is done to addresses.
    pub(crate) mac: Mac,
    /// Discard group addresses.
    pub(crate) unicast_only: bool,
    /// Complete checksums that were left to a device. (XDP alone: at tc the frame says so.)
    pub(crate) complete: bool,
}

/// What is done to addresses. (`enum mac_mode`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Mac {
    Keep,
    Swap,
    Update,
}

/// What may change at any time. (`struct state`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// What becomes of frames.
    pub(crate) passage: Passage,
    /// Of the interface to send by, in bytes without the Ethernet header.
    pub(crate) mtu: u32,
    /// For [`Mac::Update`]: destination and source.
    pub(crate) macs: [u8; 12],
}

/// The programs of one direction, loaded. They go with their last descriptor and their last attachment.
pub(crate) struct Forward {
    program: OwnedFd,
    /// None at XDP, which is before taps: what it passes is the lanes'.
    gate: Option<OwnedFd>,
    state: MapHandle,
    counters: MapHandle,
}

/// For which reasons programs drop. (`enum reason`.)
const REASONS: [Reason; 6] = [
    Reason::Oversize,
    Reason::LinkDown,
    Reason::Filtered,
    Reason::Moved,
    Reason::GsoUnsupported,
    Reason::Refused,
];
const LINK_DOWN: u32 = 1;
const MOVED: u32 = 3;
const ASIDE: u32 = 0xfe;
const GATED: u32 = 0xff;
/// The key of the only element of a map.
const ONLY: [u8; 4] = [0; 4];

impl Forward {
    /// Loads the programs, in the network namespace of the interface to send by.
    pub(crate) fn load(place: Place, settings: &Settings, state: &State) -> io::Result<Self> {
        let (object, name) = match place {
            Place::Tc => (TC_OBJECT, TC_PROGRAM),
            Place::Xdp => (XDP_OBJECT, XDP_PROGRAM),
        };
        // What libbpf would print is in the errors.
        libbpf_rs::set_print(None);
        let open = ObjectBuilder::default().name("l2relay").map(|builder| {
            let open = builder.open_memory(object)?;
            prepare(open, settings, state)?.load()
        });
        let object = open.and_then(|loaded| loaded).map_err(bpf_error)?;
        let gate = match place {
            Place::Tc => Some(program(&object, GATE_PROGRAM)?),
            Place::Xdp => {
                let target = settings.target.to_ne_bytes();
                // The index is looked up in the caller's namespace (dev_map_update_elem, kernel/bpf/devmap.c).
                map(&object, "ports")?
                    .update(&ONLY, &target, MapFlags::ANY)
                    .map_err(bpf_error)?;
                None
            }
        };
        Ok(Self {
            program: program(&object, name)?,
            gate,
            state: map(&object, ".bss")?,
            counters: map(&object, "counters")?,
        })
    }

    /// The program that forwards.
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// The filter for the packet sockets of lanes, while [`Passage::Gated`].
    pub(crate) fn gate(&self) -> Option<BorrowedFd<'_>> {
        self.gate.as_ref().map(AsFd::as_fd)
    }

    /// From now on this holds for every frame.
    pub(crate) fn set(&self, state: &State) -> io::Result<()> {
        let words = state.to_bytes();
        self.state
            .update(&ONLY, &words, MapFlags::ANY)
            .map_err(bpf_error)
    }

    /// What was counted since it was loaded.
    pub(crate) fn read(&self) -> io::Result<Tally> {
        let cpus = self.counters.lookup_percpu(&ONLY, MapFlags::ANY);
        let cpus = cpus.map_err(bpf_error)?.ok_or(io::ErrorKind::NotFound)?;
        let mut tally = Tally::default();
        for cpu in cpus {
            let words = cpu.as_chunks::<8>().0;
            let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
            let mut next = || words.next().unwrap_or_default();
            let [packets, bytes, lost_bytes] = [next(), next(), next()];
            let lost = REASONS.map(|reason| (reason, next()));
            tally.tx_packets += packets;
            tally.tx_bytes += bytes;
            tally.rx_packets += packets;
            tally.rx_bytes += bytes + lost_bytes;
            for (reason, packets) in lost {
                tally.dropped[reason as usize] += packets;
                tally.rx_packets += packets;
            }
        }
        Ok(tally)
    }
}

impl State {
    fn to_bytes(self) -> [u8; 24] {
        let (blocked, lanes) = match self.passage {
            Passage::Open => (0, false),
            Passage::Aside => (ASIDE, true),
            Passage::LinkDown => (1 + LINK_DOWN, false),
            Passage::Closed => (1 + MOVED, false),
            Passage::Gated { lanes } => (GATED, lanes),
        };
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&blocked.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.mtu.to_ne_bytes());
        bytes[8..12].copy_from_slice(&u32::from(lanes).to_ne_bytes());
        bytes[12..].copy_from_slice(&self.macs);
        bytes
    }
}

/// Gives an object its settings and its first state.
fn prepare(
    mut open: OpenObject,
    settings: &Settings,
    state: &State,
) -> libbpf_rs::Result<OpenObject> {
    let words = [
        settings.target,
        settings.mac as u32,
        u32::from(settings.unicast_only),
        u32::from(settings.complete),
    ];
    let settings: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let Some(value) = map.initial_value_mut() else {
            continue;
        };
        let given = match &name {
            name if name.ends_with(".rodata") => &settings[..],
            name if name.ends_with(".bss") => &state.to_bytes()[..],
            _ => continue,
        };
        let length = given.len().min(value.len());
        value[..length].copy_from_slice(&given[..length]);
    }
    Ok(open)
}

fn program(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let program = object.progs().find(|program| program.name() == name);
    program
        .ok_or(io::ErrorKind::NotFound)?
        .as_fd()
        .try_clone_to_owned()
}

fn map(object: &Object, name: &str) -> io::Result<MapHandle> {
    let ends = |map: &libbpf_rs::Map<'_>| map.name().to_string_lossy().ends_with(name);
    let map = object.maps().find(ends).ok_or(io::ErrorKind::NotFound)?;
    MapHandle::try_from(&map).map_err(bpf_error)
}
