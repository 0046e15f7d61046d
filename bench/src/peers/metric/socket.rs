//! What a real UDP socket reads of a paced flood: with the system's receive buffer and with a large one, at several rates.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::flood::Stream;
use super::{Metric, Outcome};
use crate::peers::scene::Scene;
use crate::reader::Reader;
use crate::rounds::figure::Figure;

/// Rates, in kpps.
const RATES: [u32; 4] = [50, 100, 200, 400];

/// Receive buffers: their name, and their bytes if not the system's default (212992, which holds some 270 datagrams of 64-byte frames).
pub(super) const BUFFERS: [Buffer; 2] = [
    Buffer {
        name: "default",
        bytes: None,
    },
    Buffer {
        name: "4m",
        bytes: Some(4 << 20),
    },
];

/// A receive buffer.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    name: &'static str,
    bytes: Option<usize>,
}

/// After the flood's end, until the last datagram is in the socket.
const DRAIN: Duration = Duration::from_millis(30);

/// A real socket with one of the buffers.
pub(super) struct Socket {
    pub(super) buffer: Buffer,
    pub(super) size: usize,
    pub(super) flows: u32,
}

impl Metric for Socket {
    fn name(&self) -> String {
        format!("socket-{}-{}-{}", self.buffer.name, self.size, self.flows)
    }

    fn figures(&self) -> Vec<Figure> {
        let buffer = match self.buffer.bytes {
            None => "default buffer",
            Some(_) => "4 MiB buffer",
        };
        let of = |rate| {
            let (key, what) = (
                format!("{}-{rate}k", self.name()),
                format!(
                    "socket with {buffer}, {} B, {} flows, {rate} kpps sent",
                    self.size, self.flows
                ),
            );
            [
                Figure::more(format!("{key}-read"), format!("{what}, read"), "kpps"),
                Figure::less(format!("{key}-lost"), format!("{what}, lost"), "%"),
            ]
        };
        RATES.into_iter().flat_map(of).collect()
    }

    fn takes(&self, time: Duration) -> Duration {
        (time + DRAIN + Duration::from_millis(150)) * RATES.len() as u32
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let stream = Stream::new(scene, self.size, self.flows)?;
        let server = &scene.topology.server;
        let mut values = Vec::new();
        for rate in RATES {
            let reader = Reader::start(
                server,
                &stream.ends,
                self.size,
                self.flows,
                self.buffer.bytes,
                scene.cpu,
            )?;
            let flood = stream.generator(u64::from(rate) * 1000, scene.time * 2)?;
            scene.run.sleep(scene.time)?;
            let sent = flood.stop(scene.run)?;
            scene.run.sleep(DRAIN)?;
            let read = reader.stop()?;
            ensure!(
                read.damaged == 0 && read.out_of_order == 0,
                "of {} datagrams read, {} are not what was sent and {} out of order",
                read.datagrams,
                read.damaged,
                read.out_of_order
            );
            // Against what was made, which is less than was asked for where the sender's CPU does not suffice: offered is what it made.
            let lost = 1.0 - read.datagrams as f64 / sent.made.max(1) as f64;
            values.push(read.datagrams as f64 / sent.seconds.max(1e-3) / 1e3);
            values.push(100.0 * lost.max(0.0));
        }
        Ok(Outcome::values(values))
    }
}
