//! The receiver-side counter: datagrams of a flood, counted where they are delivered.
//!
//! `bpf/count.bpf.c` on the tcx ingress of the receiver's interface, held by a link that goes with its owner, also after SIGKILL. It
//! counts the segments of a super-frame one by one. By default what it counts goes no further, so that the cost of the receiver's stack
//! is no part of what is measured.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use crate::flood::Interface;
use crate::run::Run;
use crate::sys;
use crate::topology;

/// Built from bpf/count.bpf.c by bpf/Makefile.
static OBJECT: &[u8] = include_bytes!("../../bpf/count.bpf.o");

/// How many samples the program has room for.
const SAMPLES: u32 = 256;

/// What becomes of a counted frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes no further.
    #[default]
    Drop,
    /// It goes on to the receiver's stack.
    Pass,
}

/// What to count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// UDP destination ports, both included.
    pub(crate) ports: (u16, u16),
    /// What becomes of it.
    pub(crate) verdict: Verdict,
    /// Whether the longest time between two arrivals is kept (costs a look at the clock each).
    pub(crate) gaps: bool,
    /// Bytes that every datagram's payload is to have; 0: any.
    pub(crate) payload: u32,
    /// A datagram of one socket buffer in so many is kept; 0: none.
    pub(crate) sample_every: u32,
}

impl Spec {
    /// Counts and drops what is sent to one port.
    pub(crate) fn port(port: u16) -> Spec {
        Spec {
            ports: (port, port),
            verdict: Verdict::Drop,
            gaps: false,
            payload: 0,
            sample_every: 0,
        }
    }

    /// `struct config` of the program.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16);
        bytes.extend(self.ports.0.to_ne_bytes());
        bytes.extend(self.ports.1.to_ne_bytes());
        bytes.extend([
            u8::from(self.verdict == Verdict::Drop),
            u8::from(self.gaps),
            0,
            0,
        ]);
        bytes.extend(self.payload.to_ne_bytes());
        bytes.extend(self.sample_every.to_ne_bytes());
        bytes
    }
}

/// What has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    /// Datagrams.
    pub(crate) packets: u64,
    /// Bytes of their frames, without check sequences.
    pub(crate) bytes: u64,
    /// Socket buffers they came in: fewer where there are super-frames.
    pub(crate) buffers: u64,
    /// Longest time between two arrivals, if it is kept.
    pub(crate) longest_gap_ns: u64,
    /// Datagrams in socket buffers whose segments are not of the payload expected.
    pub(crate) odd: u64,
}

/// A datagram that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// UDP source port.
    pub(crate) source: u16,
    /// Which segment of its super-frame it was, 0 for the first or only one.
    pub(crate) segment: u16,
    /// The payload.
    pub(crate) payload: Vec<u8>,
}

impl Sample {
    /// `struct sample` of the program; nothing if the slot is empty.
    fn decode(bytes: &[u8]) -> Option<Sample> {
        const HEAD: usize = 8;
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        (len > 0).then_some(())?;
        Some(Sample {
            source: half(4)?,
            segment: half(6)?,
            payload: bytes.get(HEAD..HEAD + len)?.to_vec(),
        })
    }
}

impl Counts {
    /// Adds one CPU's share, `struct count` of the program.
    fn add(&mut self, bytes: &[u8]) {
        let word = |n: usize| {
            bytes
                .get(n * 8..n * 8 + 8)
                .and_then(|word| word.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        };
        self.packets += word(0);
        self.bytes += word(1);
        self.buffers += word(2);
        self.longest_gap_ns = self.longest_gap_ns.max(word(3));
        self.odd += word(4);
    }

    /// What came between an earlier reading and this one; the gap stays the longest of all.
    pub(crate) fn since(self, earlier: Counts) -> Counts {
        Counts {
            packets: self.packets.saturating_sub(earlier.packets),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            buffers: self.buffers.saturating_sub(earlier.buffers),
            longest_gap_ns: self.longest_gap_ns,
            odd: self.odd.saturating_sub(earlier.odd),
        }
    }
}

/// An attached counter. Dropping it detaches it.
#[derive(Debug)]
pub(crate) struct Counter {
    _link: OwnedFd,
    counts: MapHandle,
    samples: MapHandle,
}

impl Counter {
    /// Starts to count at an interface in a namespace.
    pub(crate) fn attach(
        run: &Run,
        namespace: &str,
        interface: &str,
        spec: &Spec,
    ) -> Result<Counter> {
        let index = Interface::find(run, namespace, interface)?.index;
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default().open_memory(OBJECT)?.load().context(
            "the counter program cannot be loaded (root, or CAP_BPF and CAP_NET_ADMIN, is needed)",
        )?;
        map(&object, "config")?
            .update(&0u32.to_ne_bytes(), &spec.encode(), MapFlags::ANY)
            .context("the counter program's settings cannot be written")?;
        let program = object.progs().next().context("no program in the object")?;
        let program = program.as_fd();
        let link = topology::enter(namespace, || sys::link_tcx(program, index, sys::Hook::Ingress))?
            .with_context(|| {
                format!("the counter cannot be linked to the ingress of {interface} (tcx: Linux 6.6 or newer)")
            })?;
        Ok(Counter {
            _link: link,
            counts: map(&object, "counts")?,
            samples: map(&object, "samples")?,
        })
    }

    /// The datagrams that were kept, the last ones if there were more than there is room for.
    pub(crate) fn samples(&self) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for slot in 0..SAMPLES {
            let bytes = self.samples.lookup(&slot.to_ne_bytes(), MapFlags::ANY)?;
            samples.extend(bytes.as_deref().and_then(Sample::decode));
        }
        Ok(samples)
    }

    /// What has arrived up to now.
    pub(crate) fn read(&self) -> Result<Counts> {
        let shares = self
            .counts
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("the counter has no counts")?;
        let mut counts = Counts::default();
        for share in &shares {
            counts.add(share);
        }
        Ok(counts)
    }
}

/// A map of a loaded object.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .with_context(|| format!("no map {name} in the object"))?;
    Ok(MapHandle::try_from(&map)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_is_laid_out_as_in_c() {
        let spec = Spec {
            ports: (9000, 9001),
            verdict: Verdict::Pass,
            gaps: true,
            payload: 22,
            sample_every: 64,
        };
        let bytes = spec.encode();
        assert_eq!(bytes[..2], 9000u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 9001u16.to_ne_bytes());
        assert_eq!(bytes[4..8], [0, 1, 0, 0]);
        assert_eq!(bytes[8..12], 22u32.to_ne_bytes());
        assert_eq!(bytes[12..], 64u32.to_ne_bytes());
        assert_eq!(Spec::port(1).encode()[4..8], [1, 0, 0, 0]);
    }

    #[test]
    fn samples_are_laid_out_as_in_c() {
        let mut bytes = vec![0; 1544];
        assert_eq!(Sample::decode(&bytes), None, "an empty slot");
        bytes[..4].copy_from_slice(&3u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&20_001u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&7u16.to_ne_bytes());
        bytes[8..11].copy_from_slice(b"abc");
        let sample = Sample::decode(&bytes).expect("a sample");
        assert_eq!((sample.source, sample.segment), (20_001, 7));
        assert_eq!(sample.payload, b"abc");
        assert_eq!(Sample::decode(&bytes[..10]), None, "cut");
    }

    #[test]
    fn shares_add_up_and_the_longest_gap_stays() {
        let share = |words: [u64; 5]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let mut counts = Counts::default();
        counts.add(&share([1, 60, 1, 7, 0]));
        counts.add(&share([64, 4096, 1, 5, 64]));
        let expected = Counts {
            packets: 65,
            bytes: 4156,
            buffers: 2,
            longest_gap_ns: 7,
            odd: 64,
        };
        assert_eq!(counts, expected);
        let later = Counts {
            packets: 100,
            bytes: 6256,
            buffers: 10,
            longest_gap_ns: 9,
            odd: 65,
        };
        assert_eq!(
            later.since(counts),
            Counts {
                packets: 35,
                bytes: 2100,
                buffers: 8,
                longest_gap_ns: 9,
                odd: 1,
            }
        );
    }
}
