//! The rate of a link: frames leave one after another, each when its last bit would.
//!
//! All in logical times: a frame that is looked at late has still left in time, so the rate is exact over any time. A line
//! that was idle sends its next frame at its own speed, unlike a token bucket.

use super::{
    arena::Packet,
    context::Context,
    queue::{Busy, Queue, Waiting},
    schedule::Track,
    seed::Draws,
    settings::{Count, Limit, Queue as QueueSettings, Server},
    trace::OPPORTUNITY,
};
use crate::wire::ethernet;

/// The longest ordinary frame, to tell how long one takes.
pub(super) const FRAME: u64 = 1514;

/// Rate (or trace) and queue.
#[derive(Debug)]
pub(super) struct Bottleneck {
    server: Option<Server>,
    /// The rate over time, in bit/s, from `start_ns` on.
    rate: Track,
    start_ns: u64,
    queue: Queue,
    sending: Option<Sending>,
    /// Rate: part of a nanosecond that the last frame took more, in units of 1/rate.
    carry: u64,
    /// Trace: bytes that the opportunity now is still good for, and the number of the next.
    credit: u64,
    next: u64,
}

#[derive(Debug)]
struct Sending {
    packet: Packet,
    size: u64,
    /// Rate: when it has left. Trace: bytes that are to be sent still.
    until: u64,
}

impl Bottleneck {
    pub(super) fn new(
        server: Option<Server>,
        queue: &QueueSettings,
        rate: Track,
        start_ns: u64,
        draws: Draws,
    ) -> Self {
        Self {
            queue: Queue::new(queue, default_limit(&server), draws),
            server,
            rate,
            start_ns,
            sending: None,
            carry: 0,
            credit: 0,
            next: 0,
        }
    }

    /// Other settings from `now_ns` on. What waits stays; a frame being sent begins anew if rate and trace change places. A
    /// trace that stays the same goes on where it is.
    pub(super) fn set(
        &mut self,
        server: Option<Server>,
        queue: &QueueSettings,
        rate: Track,
        now_ns: u64,
        cx: &mut Context,
    ) {
        self.queue.set(queue, default_limit(&server));
        if matches!(server, Some(Server::Trace { .. })) && self.server == server {
            return;
        }
        let paced = |server: &Option<Server>| matches!(server, Some(Server::Rate(_)));
        let same = paced(&self.server) && paced(&server);
        (self.server, self.rate, self.start_ns) = (server, rate, now_ns);
        (self.credit, self.next) = (0, 0);
        if !same && let Some(Sending { packet, .. }) = self.sending.take() {
            self.begin(packet, now_ns, cx);
        }
    }

    /// Another stream of random numbers.
    pub(super) fn reseed(&mut self, draws: Draws) {
        self.queue.reseed(draws);
    }

    /// Takes a frame in. Gives it back if it leaves at once.
    pub(super) fn enter(&mut self, packet: Packet, at_ns: u64, cx: &mut Context) -> Option<Packet> {
        if self.sending.is_some() {
            let size = self.size(&packet, cx);
            let busy = self.busy(at_ns);
            self.queue.offer(packet, size, at_ns, busy, cx);
            return None;
        }
        if self.server.is_none() {
            return Some(packet);
        }
        // Past the queue, but not past what the discipline or the limit has to say.
        let size = self.size(&packet, cx);
        let busy = self.busy(at_ns);
        self.queue.offer(packet, size, at_ns, busy, cx);
        if let Some(Waiting { packet, .. }) = self.queue.take(at_ns, cx) {
            self.begin(packet, at_ns, cx);
        }
        None
    }

    /// When the next frame leaves, or the next opportunity is.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let sending = self.sending.as_ref()?;
        match &self.server {
            Some(Server::Trace { trace, once, .. }) => {
                let number = self.next - u64::from(self.credit > 0);
                let since = trace.time_ns(number, *once)?;
                Some(self.start_ns.saturating_add(since))
            }
            Some(Server::Rate(_)) | None => Some(sending.until),
        }
    }

    /// What happens at [`Bottleneck::due_ns`]: perhaps a frame leaves.
    pub(super) fn advance(&mut self, now_ns: u64, cx: &mut Context) -> Option<Packet> {
        if let Some(Server::Trace { .. }) = self.server {
            if self.credit == 0 {
                self.credit = OPPORTUNITY;
                self.next += 1;
            }
            let sending = self.sending.as_mut()?;
            let spent = sending.until.min(self.credit);
            (sending.until, self.credit) = (sending.until - spent, self.credit - spent);
            if sending.until > 0 {
                return None;
            }
        }
        let Sending { packet, .. } = self.sending.take()?;
        match self.queue.take(now_ns, cx) {
            Some(Waiting { packet, .. }) => self.begin(packet, now_ns, cx),
            // What is left of an opportunity is lost.
            None => (self.credit, self.carry) = (0, 0),
        }
        Some(packet)
    }

    /// Packets and bytes that wait, what is being sent included.
    pub(super) fn backlog(&self) -> (u64, u64) {
        let (packets, bytes) = self.sending.as_ref().map_or((0, 0), |s| (1, s.size));
        (
            self.queue.len() as u64 + packets,
            self.queue.bytes() + bytes,
        )
    }

    /// Begins to send a frame.
    fn begin(&mut self, packet: Packet, at_ns: u64, cx: &mut Context) {
        let size = self.size(&packet, cx);
        let until = match &self.server {
            None => at_ns,
            Some(Server::Rate(_)) => {
                let bps = self.bps(at_ns);
                let (bits, part) = (u128::from(size) * 8 * 1_000_000_000, u128::from(self.carry));
                let all = bits + part.min(u128::from(bps));
                self.carry = (all % u128::from(bps)) as u64;
                at_ns.saturating_add((all / u128::from(bps)) as u64)
            }
            Some(Server::Trace { trace, .. }) => {
                // Opportunities that nobody waited for are lost.
                if self.credit == 0 {
                    let since_ns = at_ns.saturating_sub(self.start_ns);
                    self.next = self.next.max(trace.first_at(since_ns));
                }
                size
            }
        };
        self.sending = Some(Sending {
            packet,
            size,
            until,
        });
    }

    fn bps(&self, at_ns: u64) -> u64 {
        self.rate.at(at_ns.saturating_sub(self.start_ns)).max(1)
    }

    fn busy(&self, at_ns: u64) -> Busy {
        let bps = match &self.server {
            None => u64::MAX,
            Some(Server::Rate(_)) => self.bps(at_ns),
            Some(Server::Trace { trace, .. }) => trace.mean_bps().max(1),
        };
        let time = |bytes: u64| {
            u64::try_from(u128::from(bytes) * 8_000_000_000 / u128::from(bps)).unwrap_or(u64::MAX)
        };
        let rest = match (&self.sending, &self.server) {
            (Some(sending), Some(Server::Trace { .. })) => time(sending.until),
            (Some(sending), _) => sending.until.saturating_sub(at_ns),
            (None, _) => 0,
        };
        Busy {
            size: self.sending.as_ref().map(|sending| sending.size),
            wait_ns: time(self.queue.bytes()).saturating_add(rest),
            frame_ns: time(FRAME),
            full_ns: time(full_size(&self.server)),
        }
    }

    /// Bytes of a frame, as the rate counts them.
    fn size(&self, packet: &Packet, cx: &Context) -> u64 {
        let header = || ethernet::walk(cx.arena.head(packet)).map_or(0, |walk| walk.offset as u64);
        counted(&self.server, packet.len() as u64, header)
    }
}

/// Bytes of a frame of [`FRAME`] bytes, as the rate counts them.
pub(super) fn full_size(server: &Option<Server>) -> u64 {
    counted(server, FRAME, || 14)
}

/// Bytes of a frame of that length, as the rate counts them. `header`: where the packet begins in it.
fn counted(server: &Option<Server>, len: u64, header: impl FnOnce() -> u64) -> u64 {
    let (count, overhead, cell) = match server {
        Some(Server::Rate(rate)) => (rate.count, rate.overhead, rate.cell),
        Some(Server::Trace { count, .. }) => (*count, 0, None),
        None => (Count::L2, 0, None),
    };
    let counted = match count {
        Count::L2 => len,
        Count::L3 => len - header(),
        // At least 64 with the check sequence; then preamble, start and gap.
        Count::Wire => len.max(60) + 4 + 20,
    };
    let counted = counted.saturating_add_signed(overhead.into()).max(1);
    match cell {
        // ATM: 48 of 53 bytes are payload; so in proportion for others.
        Some(cell) => {
            let payload = u64::from(cell.saturating_sub(5)).max(1);
            counted.div_ceil(payload) * u64::from(cell)
        }
        None => counted,
    }
}

/// The limit of a queue for which none is given.
fn default_limit(server: &Option<Server>) -> Limit {
    match server {
        Some(Server::Trace { .. }) => Limit::DEFAULT_TRACE,
        _ => Limit::DEFAULT,
    }
}
