//! Transit time: from the sender's interface to the receiver's, by the kernel's clock, without sockets and programs of either.
//!
//! `bpf/transit.bpf.c` on the tcx egress of one interface and the tcx ingress of another, held by links that go with their owner. Called
//! by the latency metrics of `peers`. What both ends do is the same for every relay, so the times differ by the relay alone.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use crate::count::map;
use crate::flood::Interface;
use crate::run::Run;
use crate::sys::{self, Hook};
use crate::topology::{self, Host};

/// Built from bpf/transit.bpf.c by bpf/Makefile.
static OBJECT: &[u8] = include_bytes!("../../bpf/transit.bpf.o");

/// Width of a bucket of the program.
const BUCKET_US: f64 = 0.05;

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Datagrams that left.
    pub(crate) stamped: u64,
    /// Those of them that arrived.
    pub(crate) arrived: u64,
    /// Arrivals of what had not left, or had arrived before.
    pub(crate) unknown: u64,
    /// How many took how long, in buckets of 50 ns. The last also holds all that took longer.
    buckets: Vec<u64>,
}

impl Times {
    /// `struct times` of the program.
    fn decode(bytes: &[u8]) -> Option<Times> {
        let mut words = bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
        Some(Times {
            stamped: words.next()?,
            arrived: words.next()?,
            unknown: words.next()?,
            buckets: words.collect(),
        })
    }

    /// The time that this share of the datagrams (0 to 1) did not exceed, in microseconds, to half a bucket. Nothing if none arrived.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        let all: u64 = self.buckets.iter().sum();
        let rank = ((share * all as f64).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let at = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some((at as f64 + 0.5) * BUCKET_US)
    }
}

/// Attached stamps. Dropping them detaches them.
#[derive(Debug)]
pub(crate) struct Stamps {
    _links: [OwnedFd; 2],
    times: MapHandle,
}

impl Stamps {
    /// Begins to look at the datagrams from one host to a UDP port of the other.
    pub(crate) fn attach(run: &Run, from: &Host, to: &Host, port: u16) -> Result<Stamps> {
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default().open_memory(OBJECT)?.load().context(
            "the stamp programs cannot be loaded (root, or CAP_BPF and CAP_NET_ADMIN, is needed)",
        )?;
        let mut config = [0; 8];
        config[..2].copy_from_slice(&port.to_ne_bytes());
        map(&object, "config")?
            .update(&0u32.to_ne_bytes(), &config, MapFlags::ANY)
            .context("the stamp programs' settings cannot be written")?;
        // The receiver's first: what has a stamp is then looked for.
        let arrive = link(run, &object, "arrive", to, Hook::Ingress)?;
        let leave = link(run, &object, "leave", from, Hook::Egress)?;
        Ok(Stamps {
            _links: [arrive, leave],
            times: map(&object, "times")?,
        })
    }

    /// What was seen up to now.
    pub(crate) fn read(&self) -> Result<Times> {
        let bytes = self.times.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        bytes
            .as_deref()
            .and_then(Times::decode)
            .context("the stamps cannot be read")
    }
}

fn link(run: &Run, object: &Object, name: &str, host: &Host, hook: Hook) -> Result<OwnedFd> {
    let index = Interface::find(run, &host.namespace, host.interface)?.index;
    let mut programs = object.progs();
    let program = programs
        .find(|program| program.name() == name)
        .with_context(|| format!("no program {name} in the object"))?;
    let program = program.as_fd();
    topology::enter(&host.namespace, || sys::link_tcx(program, index, hook))?.with_context(|| {
        format!(
            "the stamps cannot be linked to {} (tcx: Linux 6.6 or newer)",
            host.interface
        )
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::run;
    use crate::topology::{Shape, Topology};

    #[test]
    fn quantiles_are_those_of_the_buckets() {
        let words = [10u64, 9, 1, 0, 4, 0, 4, 1];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let times = Times::decode(&bytes).expect("enough words");
        assert_eq!((times.stamped, times.arrived, times.unknown), (10, 9, 1));
        let at = |share| (times.quantile_us(share).expect("a time") / BUCKET_US * 10.0).round();
        // Four in bucket 1, four in 3, one in 4.
        assert_eq!(
            (at(0.0), at(0.44), at(0.5), at(0.99)),
            (15.0, 15.0, 35.0, 45.0)
        );
        let none = Times::decode(&[0; 64]).expect("enough words");
        assert_eq!(none.quantile_us(0.5), None);
        assert_eq!(Times::decode(&[0; 16]), None);
    }

    #[test]
    fn a_datagram_is_timed_once() {
        let Some(run) = run::for_test("a_datagram_is_timed_once") else {
            return;
        };
        let topology = Topology::build(&run, Shape::Direct, false).expect("a topology");
        let [client, server] = topology.hosts();
        let stamps = Stamps::attach(&run, client, server, 9100).expect("stamps");
        let socket = topology::enter(&client.namespace, || UdpSocket::bind((client.address, 0)))
            .expect("the namespace")
            .expect("a socket");
        for number in 0..50u64 {
            let to = (server.address, 9100);
            socket.send_to(&number.to_be_bytes(), to).expect("sent");
            // Another port, and too short for a number.
            socket
                .send_to(&number.to_be_bytes(), (server.address, 9101))
                .expect("sent");
            socket.send_to(b"short", to).expect("sent");
        }
        run.sleep(Duration::from_millis(50))
            .expect("nobody interrupts");
        let times = stamps.read().expect("times");
        assert_eq!((times.stamped, times.arrived, times.unknown), (50, 50, 0));
        let p50 = times.quantile_us(0.5).expect("a time");
        assert!(p50 > 0.0 && p50 < 3000.0, "{p50} us over a cable");
    }
}
