//! What waits in front of a rate, and what is dropped instead.
//!
//! Called by the [bottleneck](super::bottleneck) with logical times. The frame being sent is no longer here, but it counts
//! against the limit: of a burst of k frames into a limit of q, k − q are dropped.

mod codel;
mod pie;
mod red;

use std::collections::VecDeque;

use super::{
    arena::Packet,
    bottleneck::FRAME,
    context::Context,
    ecn,
    schedule::ns,
    seed::Draws,
    settings::{Discipline, Limit, Queue as Settings},
};
use crate::stats::Reason;
use codel::CoDel;
use pie::Pie;
use red::Red;

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) packet: Packet,
    /// Bytes, as the rate counts them.
    pub(super) size: u64,
    /// Since when it waits.
    since_ns: u64,
}

/// What the bottleneck is doing when a frame comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    /// Bytes of the frame being sent, if there is one.
    pub(super) size: Option<u64>,
    /// How long a frame that comes now would wait.
    pub(super) wait_ns: u64,
    /// How long [`FRAME`] bytes take to send.
    pub(super) frame_ns: u64,
    /// How long a frame of that size takes, counted as the rate counts it.
    pub(super) full_ns: u64,
}

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    limit: Limit,
    /// Full frames that may wait whatever a limit in time says.
    least: u64,
    discipline: Discipline,
    state: State,
    draws: Draws,
}

/// What a discipline remembers.
#[derive(Debug)]
enum State {
    DropTail,
    DropHead,
    Red(Red),
    CoDel(CoDel),
    Pie(Pie),
}

/// What a discipline wants done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Mark it, if it can be marked; else drop it.
    Mark,
    Drop,
}

impl Queue {
    pub(super) fn new(settings: &Settings, default: Limit, draws: Draws) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            limit: settings.limit.unwrap_or(default),
            least: least(settings),
            discipline: settings.discipline.clone(),
            state: State::new(&settings.discipline),
            draws,
        }
    }

    /// Other settings; what waits stays, and so does what a discipline remembers if it is the same.
    pub(super) fn set(&mut self, settings: &Settings, default: Limit) {
        self.limit = settings.limit.unwrap_or(default);
        self.least = least(settings);
        if self.discipline != settings.discipline {
            self.discipline = settings.discipline.clone();
            self.state = State::new(&settings.discipline);
        }
    }

    /// Another stream of random numbers.
    pub(super) fn reseed(&mut self, draws: Draws) {
        self.draws = draws;
    }

    /// Frames that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a frame in, or drops it, or another instead.
    pub(super) fn offer(
        &mut self,
        packet: Packet,
        size: u64,
        at_ns: u64,
        mut busy: Busy,
        cx: &mut Context,
    ) {
        while self.is_full(size, busy) {
            let head = match self.state {
                State::DropHead => self.pop(),
                _ => None,
            };
            let Some(head) = head else {
                return cx.discard(packet, Reason::QueueFull);
            };
            // What the head would have taken to send, the new frame does not wait for.
            let share_ns = u128::from(busy.frame_ns) * u128::from(head.size) / u128::from(FRAME);
            busy.wait_ns = busy.wait_ns.saturating_sub(share_ns as u64);
            cx.discard(head.packet, Reason::QueueFull);
        }
        let (packets, bytes) = (self.waiting.len() as u64, self.bytes);
        let verdict = match &mut self.state {
            State::Red(red) => red.judge(packets, bytes, at_ns, busy, &mut self.draws),
            State::Pie(pie) => pie.judge(bytes, at_ns, busy.wait_ns, &mut self.draws),
            _ => Verdict::Keep,
        };
        if let Some(packet) = obey(verdict, packet, cx) {
            self.bytes += size;
            self.waiting.push_back(Waiting {
                packet,
                size,
                since_ns: at_ns,
            });
        }
    }

    /// The next frame to send.
    pub(super) fn take(&mut self, at_ns: u64, cx: &mut Context) -> Option<Waiting> {
        loop {
            let next = self.pop()?;
            let sojourn_ns = at_ns.saturating_sub(next.since_ns);
            let left = self.bytes;
            let verdict = match &mut self.state {
                State::CoDel(codel) => codel.judge(sojourn_ns, left, at_ns),
                _ => Verdict::Keep,
            };
            if let Some(packet) = obey(verdict, next.packet, cx) {
                return Some(Waiting { packet, ..next });
            }
            if self.waiting.is_empty()
                && let State::CoDel(codel) = &mut self.state
            {
                codel.rest();
            }
        }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.size;
        Some(next)
    }

    fn is_full(&self, size: u64, busy: Busy) -> bool {
        let sending = u64::from(busy.size.is_some());
        match self.limit {
            Limit::Packets(limit) => self.waiting.len() as u64 + sending >= limit,
            Limit::Bytes(limit) => self.bytes + busy.size.unwrap_or(0) + size > limit,
            Limit::Time(limit) => {
                busy.wait_ns > ns(limit).max(self.least.saturating_mul(busy.full_ns))
            }
        }
    }
}

/// At low rates the default in time would hold one frame, and TCP starve.
fn least(settings: &Settings) -> u64 {
    match settings.limit {
        Some(_) => 0,
        None => Limit::DEFAULT_LEAST,
    }
}

impl State {
    fn new(discipline: &Discipline) -> Self {
        match discipline {
            Discipline::DropTail => Self::DropTail,
            Discipline::DropHead => Self::DropHead,
            Discipline::Red(red) => Self::Red(Red::new(*red)),
            Discipline::CoDel(codel) => Self::CoDel(CoDel::new(*codel)),
            Discipline::Pie(pie) => Self::Pie(Pie::new(*pie)),
        }
    }
}

/// Gives the frame back if it goes on.
fn obey(verdict: Verdict, packet: Packet, cx: &mut Context) -> Option<Packet> {
    match verdict {
        Verdict::Keep => {}
        Verdict::Mark if ecn::mark(cx.arena.head_mut(&packet)) => cx.gauges.count_marked(),
        Verdict::Mark | Verdict::Drop => {
            cx.discard(packet, Reason::EarlyDrop);
            return None;
        }
    }
    Some(packet)
}
