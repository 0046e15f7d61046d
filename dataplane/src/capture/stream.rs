//! One capture: takes copies from its taps, and sends them to its reader until one of them has had enough.
//!
//! Runs in a thread of its own, started by [`Captures`](super::Captures). It may wait for its reader, nobody waits for it.

use std::{
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::pcapng::{Span, Writer};
use crate::{
    control::protocol::CaptureRequest,
    relay::observe::{Fate, Observation},
    stage::tap::{Copied, Point, TapCounts},
    sys::event::Poller,
};

/// How often taps are looked at that had nothing.
const LOOK: Duration = Duration::from_millis(5);
/// How long the reader may take for the rest, once the capture is over.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a port's taps are gone before that is told, while others are there.
const SETTLE: Duration = Duration::from_millis(100);
/// How long one attempt to write may take, before it is looked whether the capture is over.
const ATTEMPT: Duration = Duration::from_millis(100);
/// Bytes that are sent together.
const BATCH: usize = 256 << 10;
/// The longest snaplen that a file states; more means whole frames (libpcap's `MAXIMUM_SNAPLEN`).
const SNAPLEN_MAX: u32 = 262_144;

/// A capture that has been asked for.
pub(super) struct Stream {
    taps: Vec<Source>,
    ports: Vec<Port>,
    writer: Writer,
    /// Frames that are still wanted; `None`: no limit.
    left: Option<u64>,
    start_ns: u64,
}

/// A tap, and its oldest copy.
struct Source {
    tap: Observation,
    port: usize,
    next: Option<Copied>,
}

struct Port {
    name: String,
    /// Frames that were written.
    delivered: u64,
    /// Since when its taps are gone.
    gone_since: Option<Instant>,
}

/// The reader has left, or does not read.
struct Left;

impl Stream {
    pub(super) fn new(taps: Vec<Observation>, request: &CaptureRequest) -> Self {
        let mut writer = Writer::new();
        let mut ports: Vec<Port> = Vec::new();
        let source = |tap: Observation| {
            let known = ports.iter().position(|port| port.name == tap.port());
            let port = known.unwrap_or_else(|| {
                let snaplen = request.snaplen.map_or(0, |bytes| bytes.min(SNAPLEN_MAX));
                writer.port(tap.port(), tap.mac(), snaplen, &request.expression);
                ports.push(Port {
                    name: tap.port().to_owned(),
                    delivered: 0,
                    gone_since: None,
                });
                ports.len() - 1
            });
            Source {
                tap,
                port,
                next: None,
            }
        };
        let taps = taps.into_iter().map(source).collect();
        Self {
            taps,
            ports,
            writer,
            left: request.count,
            start_ns: now_ns(),
        }
    }

    /// The ports that are looked at, in the order of their descriptions.
    pub(super) fn ports(&self) -> impl Iterator<Item = &str> {
        self.ports.iter().map(|port| port.name.as_str())
    }

    /// Sends `first`, and then pcapng until the count is reached, the reader closes its half, or the taps are gone.
    pub(super) fn run(mut self, connection: UnixStream, first: &[u8]) {
        let mut reader = Reader {
            connection,
            poller: Poller::default(),
            deadline: None,
        };
        let _ = reader.stream(&mut self, first);
        // Otherwise it has left, and whoever leaves knows why. Dropping the taps takes them out of their lanes.
    }

    /// Moves copies from the taps to the writer, in order of time. How many.
    fn gather(&mut self) -> usize {
        let mut moved = 0;
        while self.left != Some(0) && self.writer.len() < BATCH {
            for source in self.taps.iter_mut().filter(|source| source.next.is_none()) {
                source.next = source.tap.receive();
            }
            let oldest = self
                .taps
                .iter_mut()
                .filter(|source| source.next.is_some())
                .min_by_key(|source| source.next.as_ref().map(|copy| copy.time_ns));
            let Some((source, copy)) =
                oldest.and_then(|source| source.next.take().map(|copy| (source, copy)))
            else {
                break;
            };
            let inbound = source.tap.point() == Point::Before;
            let time_ns = source.tap.unix_ns(copy.time_ns);
            self.writer
                .frame(source.port as u32, inbound, time_ns, &copy);
            self.ports[source.port].delivered += 1;
            if let Some(left) = &mut self.left {
                *left -= 1;
            }
            moved += 1;
        }
        moved
    }

    /// Whether every tap is gone. What they copied before may still wait.
    fn is_over(&self) -> bool {
        self.taps.iter().all(|source| source.tap.is_abandoned())
    }

    /// Ends the capture at ports whose taps are gone while others are there: their pair was closed, for example.
    fn leave_ports(&mut self) {
        if self.is_over() {
            return;
        }
        for port in 0..self.ports.len() {
            let mut gone = None;
            let taps = self.taps.iter_mut().filter(|source| source.port == port);
            let stays = taps.fold(false, |stays, source| {
                // Looked at before the copies: what was copied earlier is among them.
                gone = source.tap.is_abandoned().then(|| source.tap.fate());
                source.next = source.next.take().or_else(|| source.tap.receive());
                stays || gone.is_none() || source.next.is_some()
            });
            let since = &mut self.ports[port].gone_since;
            match gone.filter(|fate| !stays && *fate != Fate::Stopped) {
                None => *since = None,
                // The other lanes of a pair follow at once, as a rule, and then everything is over.
                Some(_) if since.get_or_insert_with(Instant::now).elapsed() < SETTLE => {}
                Some(fate) => {
                    self.describe(port, &format!("{fate}{}", CaptureRequest::GOES_ON));
                    self.taps.retain(|source| source.port != port);
                }
            }
        }
    }

    /// Describes what was counted. The taps must be out of their lanes, and their copies taken or not wanted.
    fn finish(&mut self, why: &str) {
        for port in 0..self.ports.len() {
            if self.taps.iter().any(|source| source.port == port) {
                self.describe(port, why);
            }
        }
    }

    /// Describes what was counted at a port.
    fn describe(&mut self, port: usize, why: &str) {
        let span = Span {
            start_ns: self.start_ns,
            end_ns: now_ns(),
        };
        let mut sum = TapCounts::default();
        for source in self.taps.iter_mut().filter(|source| source.port == port) {
            // Beyond the count that was asked for: they are no part of the capture.
            let waiting = source.next.take().into_iter();
            let unwanted = waiting.chain(std::iter::from_fn(|| source.tap.receive()));
            let unwanted = unwanted.count() as u64;
            let counts = source.tap.counts();
            sum.seen += counts.seen;
            sum.matched += counts.matched - unwanted;
            sum.lost += counts.lost;
        }
        let delivered = self.ports[port].delivered;
        debug_assert_eq!(sum.matched, delivered + sum.lost);
        self.writer
            .statistics(port as u32, span, sum, delivered, why);
    }
}

/// The other end of the connection.
struct Reader {
    connection: UnixStream,
    poller: Poller,
    /// Set when the capture is over.
    deadline: Option<Instant>,
}

impl Reader {
    fn stream(&mut self, capture: &mut Stream, first: &[u8]) -> Result<(), Left> {
        self.connection.set_nonblocking(false).map_err(|_| Left)?;
        self.connection
            .set_write_timeout(Some(ATTEMPT))
            .map_err(|_| Left)?;
        self.send(first, capture)?;
        let why = loop {
            // Looked at before the copies: what was copied earlier is among them.
            let over = capture.is_over();
            let moved = capture.gather();
            capture.leave_ports();
            let blocks = capture.writer.take();
            self.send(&blocks, capture)?;
            if capture.left == Some(0) {
                break "as many frames as were asked for".to_owned();
            }
            if moved == 0 && over {
                let any = capture.taps.first();
                break any.map_or_else(String::new, |source| source.tap.fate().to_string());
            }
            let wait = if moved == 0 { LOOK } else { Duration::ZERO };
            if self.has_closed(wait)? {
                break "ended by the reader".to_owned();
            }
        };
        self.deadline = Some(Instant::now() + PATIENCE);
        capture
            .taps
            .iter_mut()
            .for_each(|source| source.tap.detach());
        while capture.gather() > 0 {
            let blocks = capture.writer.take();
            self.send(&blocks, capture)?;
        }
        capture.finish(&why);
        let blocks = capture.writer.take();
        self.send(&blocks, capture)
    }

    /// Whether the reader has closed its half, within a while. What it says is of no interest.
    fn has_closed(&mut self, wait: Duration) -> Result<bool, Left> {
        let ready = self
            .poller
            .wait(&[self.connection.as_fd()], Some(wait))
            .map_err(|_| Left)?;
        if !ready.iter().any(|fd| fd.readable() || fd.error()) {
            return Ok(false);
        }
        match self.connection.read(&mut [0; 64]) {
            Ok(0) => Ok(true),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(_) => Err(Left),
        }
    }

    /// Sends all of it. A reader that does not read is waited for as long as the capture runs, and a little longer.
    fn send(&mut self, mut bytes: &[u8], capture: &Stream) -> Result<(), Left> {
        while !bytes.is_empty() {
            match self.connection.write(bytes) {
                Ok(0) => return Err(Left),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if capture.is_over() {
                        let over = self.deadline.get_or_insert(Instant::now() + PATIENCE);
                        if Instant::now() >= *over {
                            return Err(Left);
                        }
                    }
                }
                Err(_) => return Err(Left),
            }
        }
        Ok(())
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
