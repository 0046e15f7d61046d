//! The reader: a real UDP socket of the server that reads a flood, and knows each datagram by its number.
//!
//! Called by the socket metrics of `peers`. The flood's sender never sleeps, so a reader of equal rank would get its CPU only after
//! milliseconds, whoever relays; this one runs as soon as a datagram is there.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::flood::frame::{Ends, Template};
use crate::say;
use crate::sys::place;
use crate::sys::udp::{self, Batch};
use crate::topology::{self, Host};

/// Datagrams read in one call at most.
const BATCH: usize = 64;

/// How long what is left in the socket is read after the end. A flood should have ended before.
const LEFT_OVER: Duration = Duration::from_millis(500);

/// One payload in so many is compared byte by byte, and the mark of every one.
const LOOK_EVERY: u64 = 64;

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    /// Datagrams.
    pub(crate) datagrams: u64,
    /// Those that came after a later one of their flow, or twice.
    pub(crate) out_of_order: u64,
    /// Those that were not what was sent.
    pub(crate) damaged: u64,
}

/// A reading socket. Dropping it stops it.
pub(crate) struct Reader {
    thread: Option<JoinHandle<Result<Read>>>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    /// Opens a socket at the flood's destination, with this receive buffer (the system's default if none), and begins to read on a CPU.
    pub(crate) fn start(
        host: &Host,
        ends: &Ends,
        size: usize,
        flows: u32,
        buffer: Option<usize>,
        cpu: usize,
    ) -> Result<Reader> {
        let template = Template::new(ends, size)?;
        let (address, port) = (host.address, ends.port);
        let socket = topology::enter(&host.namespace, || UdpSocket::bind((address, port)))?
            .with_context(|| format!("a socket at {address}:{port}"))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        if let Some(buffer) = buffer {
            // The kernel doubles what it is asked for.
            udp::force_receive_buffer(&socket, buffer / 2).context("a larger receive buffer")?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("reader".into()).spawn({
            let stop = Arc::clone(&stop);
            let mut check = Check::new(template, ends.first_port, flows);
            move || {
                place::pin(cpu)?;
                if let Err(error) = place::go_first() {
                    say::err(&format!("  the reader waits its turn: {error:#}"));
                }
                read(&socket, &stop, &mut check)
            }
        })?;
        Ok(Reader {
            thread: Some(thread),
            stop,
        })
    }

    /// Ends it and says what was read.
    pub(crate) fn stop(mut self) -> Result<Read> {
        self.halt()
    }

    fn halt(&mut self) -> Result<Read> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(Read::default());
        };
        thread.join().map_err(|_| anyhow!("the reader panicked"))?
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Who cares for the result calls `stop`.
        let _ = self.halt();
    }
}

fn read(socket: &UdpSocket, stop: &AtomicBool, check: &mut Check) -> Result<Read> {
    let mut batch = Batch::new(BATCH);
    let mut end: Option<Instant> = None;
    loop {
        if end.is_none() && stop.load(Ordering::Relaxed) {
            end = Some(Instant::now() + LEFT_OVER);
        }
        match batch.receive(socket) {
            Ok(()) if end.is_some_and(|end| Instant::now() > end) => return Ok(check.read),
            Ok(()) => batch
                .iter()
                .for_each(|(source, payload)| check.take(source, payload)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if end.is_some() {
                    return Ok(check.read);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading datagrams"),
        }
    }
}

/// Knows what was sent.
struct Check {
    template: Template,
    first_port: u16,
    /// The number that each flow's next datagram has at least.
    next: Vec<u64>,
    read: Read,
}

impl Check {
    fn new(template: Template, first_port: u16, flows: u32) -> Check {
        Check {
            template,
            first_port,
            next: vec![0; flows as usize],
            read: Read::default(),
        }
    }

    fn take(&mut self, source: u16, payload: &[u8]) {
        self.read.datagrams += 1;
        let flow = source.wrapping_sub(self.first_port);
        let whole = self.read.datagrams.is_multiple_of(LOOK_EVERY);
        let number = self.template.number(payload, flow.into(), whole);
        let (Some(number), Some(next)) = (number, self.next.get_mut(usize::from(flow))) else {
            self.read.damaged += 1;
            return;
        };
        if number < *next {
            self.read.out_of_order += 1;
        } else {
            *next = number + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_or_damaged_is_counted() {
        let ends = Ends::between([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let template = Template::new(&ends, 100).expect("a template");
        let payload = |flow, number| template.frame(20_000, flow, number)[42..].to_vec();
        let mut check = Check::new(template.clone(), 20_000, 2);
        check.take(20_000, &payload(0, 0));
        check.take(20_001, &payload(1, 5));
        check.take(20_000, &payload(0, 3));
        let read = |datagrams, out_of_order, damaged| Read {
            datagrams,
            out_of_order,
            damaged,
        };
        assert_eq!(check.read, read(3, 0, 0));
        // Late, and twice.
        check.take(20_000, &payload(0, 1));
        check.take(20_001, &payload(1, 5));
        assert_eq!(check.read, read(5, 2, 0));
        // Another flow's, a flow that there is not, a cut one.
        check.take(20_000, &payload(1, 9));
        check.take(20_002, &payload(2, 0));
        check.take(20_000, &payload(0, 9)[..57]);
        assert_eq!(check.read, read(8, 2, 3));
        // The rest of the payload, where it is looked at.
        let mut wrong = payload(0, 9);
        wrong[50] ^= 1;
        check.read.datagrams = LOOK_EVERY - 1;
        check.take(20_000, &wrong);
        assert_eq!(check.read.damaged, 4);
    }
}
