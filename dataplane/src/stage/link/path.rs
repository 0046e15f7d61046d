//! The effects of a link in their order, and the frames between them.
//!
//! A small discrete-event simulator: whatever happens does so at a logical time, in order of these times, up to now. How
//! late somebody looks changes nothing in the result, so errors of wake-ups never add up.

use std::collections::VecDeque;

use super::{
    arena::Packet,
    bottleneck::Bottleneck,
    chance::{Dice, Losses},
    context::Context,
    delay::Line,
    ecn,
    schedule::{Track, ns},
    seed::{Draws, Stream},
    settings::{Chance, Effect, LossModel, Probability, Server, Settings},
    slot::Slots,
};
use crate::{
    memory::Offload,
    stats::Reason,
    wire::{checksum, ethernet},
};

/// Everything a frame meets on a link.
#[derive(Debug)]
pub(super) struct Path {
    order: [Effect; Effect::COUNT],
    start_ns: u64,
    up: Track,
    bottleneck: Bottleneck,
    slots: Slots,
    line: Line,
    losses: Losses,
    loss: Option<bool>,
    random_loss: Track,
    duplicate: Option<Dice>,
    corrupt: Option<Dice>,
    /// Frames that have arrived, and when.
    arrived: VecDeque<(Packet, u64)>,
}

/// The parts of the settings that change over time, from the start on.
struct Tracks {
    rate: Track,
    delay: Track,
    loss: Track,
    up: Track,
}

impl Path {
    pub(super) fn new(settings: &Settings, name: &str, seed: u64, start_ns: u64) -> Self {
        let tracks = Tracks::new(settings);
        let draws = |stream| Draws::new(seed, name, stream);
        let dice = |chance: Option<Chance>, stream| chance.map(|c| Dice::new(c, draws(stream)));
        Self {
            order: settings.order,
            start_ns,
            up: tracks.up,
            bottleneck: Bottleneck::new(
                settings.server.clone(),
                &settings.queue,
                tracks.rate,
                start_ns,
                draws(Stream::Queue),
            ),
            slots: Slots::new(settings.slot, draws(Stream::Slot)),
            line: Line::new(
                &settings.delay,
                settings.reorder,
                tracks.delay,
                start_ns,
                (draws(Stream::Jitter), draws(Stream::Reorder)),
            ),
            losses: Losses::new(loss_model(settings), draws(Stream::Loss)),
            loss: settings.loss.as_ref().map(|loss| loss.ecn),
            random_loss: tracks.loss,
            duplicate: dice(settings.duplicate, Stream::Duplicate),
            corrupt: dice(settings.corrupt, Stream::Corrupt),
            arrived: VecDeque::new(),
        }
    }

    /// Other settings from `now_ns` on; what is held goes on. With `reseed`, random numbers begin anew as well.
    pub(super) fn set(
        &mut self,
        settings: &Settings,
        name: &str,
        (seed, reseed): (u64, bool),
        now_ns: u64,
        cx: &mut Context,
    ) {
        let tracks = Tracks::new(settings);
        let draws = |stream| Draws::new(seed, name, stream);
        (self.order, self.start_ns, self.up) = (settings.order, now_ns, tracks.up);
        if reseed {
            self.bottleneck.reseed(draws(Stream::Queue));
            self.slots.reseed(draws(Stream::Slot));
            let streams = (draws(Stream::Jitter), draws(Stream::Reorder));
            self.line.reseed(settings.reorder, streams);
            self.losses = Losses::new(loss_model(settings), draws(Stream::Loss));
            (self.duplicate, self.corrupt) = (None, None);
        }
        self.bottleneck.set(
            settings.server.clone(),
            &settings.queue,
            tracks.rate,
            now_ns,
            cx,
        );
        self.slots.set(settings.slot);
        self.line
            .set(&settings.delay, settings.reorder, tracks.delay, now_ns);
        self.losses.set(loss_model(settings));
        self.loss = settings.loss.as_ref().map(|loss| loss.ecn);
        self.random_loss = tracks.loss;
        for (dice, chance, stream) in [
            (&mut self.duplicate, settings.duplicate, Stream::Duplicate),
            (&mut self.corrupt, settings.corrupt, Stream::Corrupt),
        ] {
            match (dice.as_mut(), chance) {
                (Some(dice), Some(chance)) => dice.set(chance),
                (None, Some(chance)) => *dice = Some(Dice::new(chance, draws(stream))),
                (_, None) => *dice = None,
            }
        }
    }

    /// Takes a frame in that came at `at_ns`. Frames come in order of that.
    pub(super) fn offer(&mut self, packet: Packet, at_ns: u64, cx: &mut Context) {
        self.run(at_ns, cx);
        if self.up.at(at_ns.saturating_sub(self.start_ns)) == 0 {
            return cx.discard(packet, Reason::Outage);
        }
        self.forward(0, packet, at_ns, cx);
    }

    /// Lets everything happen that does until `until_ns`.
    pub(super) fn run(&mut self, until_ns: u64, cx: &mut Context) {
        while let Some((due_ns, at)) = self.next().filter(|(due_ns, _)| *due_ns <= until_ns) {
            let packet = match self.order[at] {
                Effect::Rate => self.bottleneck.advance(due_ns, cx),
                Effect::Slot => self.slots.advance(),
                Effect::Delay => self.line.advance(),
                Effect::Loss | Effect::Duplicate | Effect::Corrupt => None,
            };
            if let Some(packet) = packet {
                self.forward(at + 1, packet, due_ns, cx);
            }
        }
    }

    /// The next frame that has arrived, and when it was due.
    pub(super) fn pop(&mut self) -> Option<(Packet, u64)> {
        self.arrived.pop_front()
    }

    /// Puts back what could not go on.
    pub(super) fn unpop(&mut self, packet: Packet, due_ns: u64) {
        self.arrived.push_front((packet, due_ns));
    }

    /// When the next frame can arrive at the earliest.
    pub(super) fn due_ns(&self) -> Option<u64> {
        if let Some((_, due_ns)) = self.arrived.front() {
            return Some(*due_ns);
        }
        // From the last effect to the first: what those behind take at least.
        let (mut due, mut behind) = (None::<u64>, 0u64);
        for effect in self.order.iter().rev() {
            if let Some(at) = self.held_until(*effect) {
                let at = at.saturating_add(behind);
                due = Some(due.map_or(at, |due| due.min(at)));
            }
            if *effect == Effect::Delay {
                behind = behind.saturating_add(self.line.least_ns());
            }
        }
        due
    }

    /// Packets and bytes in the queue.
    pub(super) fn backlog(&self) -> (u64, u64) {
        self.bottleneck.backlog()
    }

    fn held_until(&self, effect: Effect) -> Option<u64> {
        match effect {
            Effect::Rate => self.bottleneck.due_ns(),
            Effect::Slot => self.slots.due_ns(),
            Effect::Delay => self.line.due_ns(),
            Effect::Loss | Effect::Duplicate | Effect::Corrupt => None,
        }
    }

    /// The next event, and the place of its effect. Of several at once that of the last effect.
    #[inline]
    fn next(&self) -> Option<(u64, usize)> {
        let mut next = None::<(u64, usize)>;
        for (at, effect) in self.order.iter().enumerate() {
            if let Some(due_ns) = self.held_until(*effect)
                && next.is_none_or(|(earliest, _)| due_ns <= earliest)
            {
                next = Some((due_ns, at));
            }
        }
        next
    }

    /// Takes a frame through the effects from place `from` on, until one holds it.
    fn forward(&mut self, from: usize, mut packet: Packet, at_ns: u64, cx: &mut Context) {
        for at in from..Effect::COUNT {
            let goes_on = match self.order[at] {
                Effect::Rate => self.bottleneck.enter(packet, at_ns, cx),
                Effect::Slot => self.slots.enter(packet, at_ns),
                Effect::Delay => self.line.enter(packet, at_ns, cx),
                Effect::Loss => self.lose(packet, at_ns, cx),
                Effect::Duplicate => match self.copy(&packet, cx) {
                    Some(copy) => {
                        self.forward(at + 1, packet, at_ns, cx);
                        Some(copy)
                    }
                    None => Some(packet),
                },
                Effect::Corrupt => {
                    self.damage(&mut packet, cx);
                    Some(packet)
                }
            };
            match goes_on {
                Some(same) => packet = same,
                None => return,
            }
        }
        self.arrived.push_back((packet, at_ns));
    }

    fn lose(&mut self, packet: Packet, at_ns: u64, cx: &mut Context) -> Option<Packet> {
        let Some(ecn) = self.loss else {
            return Some(packet);
        };
        let random = self.random_loss.at(at_ns.saturating_sub(self.start_ns));
        if !self.losses.throw(Probability::from_raw(random)) {
            return Some(packet);
        }
        if ecn && ecn::mark(cx.arena.head_mut(&packet)) {
            cx.gauges.count_marked();
            return Some(packet);
        }
        cx.discard(packet, Reason::Lost);
        None
    }

    /// A second frame of the same bytes, if the dice say so. One that there is no room for is counted as made and dropped.
    fn copy(&mut self, packet: &Packet, cx: &mut Context) -> Option<Packet> {
        if !self.duplicate.as_mut()?.throw() {
            return None;
        }
        let mut bytes = vec![0; packet.len()];
        cx.arena.read(packet, &mut bytes);
        let copy = cx.arena.push(&bytes, packet.offload);
        cx.tally.created += 1;
        if copy.is_none() {
            cx.tally.dropped[Reason::LinkMemory as usize] += 1;
        }
        copy
    }

    /// Turns over one bit of the packet in the frame, if the dice say so. Checksums stay as they were, those that were
    /// still to be completed included.
    fn damage(&mut self, packet: &mut Packet, cx: &mut Context) {
        let Some(dice) = &mut self.corrupt else {
            return;
        };
        let (hit, place) = (dice.throw(), u64::from(dice.draws().next()));
        if !hit {
            return;
        }
        let mut bytes = vec![0; packet.len()];
        cx.arena.read(packet, &mut bytes);
        let offload = packet.offload;
        if offload.needs_csum() {
            let (start, offset) = (offload.csum_start.into(), offload.csum_offset.into());
            // A field outside of the frame: there is nothing to complete.
            let _ = checksum::complete(&mut bytes, start, offset);
        }
        packet.offload = Offload::default();
        let (from, until) = payload(&bytes);
        let bits = 8 * (until - from) as u64;
        if bits > 0 {
            let bit = ((place * bits) >> 32) as usize;
            bytes[from + bit / 8] ^= 1 << (bit % 8);
            cx.arena.write(packet, &bytes);
            cx.gauges.count_corrupted();
        }
    }
}

/// Where the packet is in a frame: not its addresses, which no checksum guards, and not its padding.
fn payload(frame: &[u8]) -> (usize, usize) {
    let Some(walk) = ethernet::walk(frame) else {
        return (0, frame.len());
    };
    let ip = &frame[walk.offset..];
    let len = match walk.ethertype {
        ethernet::IPV4 => ip
            .get(2..4)
            .map(|len| usize::from(len[0]) << 8 | usize::from(len[1])),
        ethernet::IPV6 => ip
            .get(4..6)
            .map(|len| 40 + (usize::from(len[0]) << 8 | usize::from(len[1]))),
        _ => None,
    };
    let until = len
        .map_or(frame.len(), |len| walk.offset + len)
        .min(frame.len());
    (walk.offset, until)
}

fn loss_model(settings: &Settings) -> LossModel {
    let model = settings.loss.as_ref().map(|loss| loss.model.clone());
    model.unwrap_or(LossModel::Random(Chance::default()))
}

impl Tracks {
    fn new(settings: &Settings) -> Self {
        use super::schedule::Target;
        let schedule = &settings.schedule;
        let rate = match &settings.server {
            Some(Server::Rate(rate)) => rate.bps,
            _ => 0,
        };
        let loss = match loss_model(settings) {
            LossModel::Random(chance) => chance.probability.raw(),
            _ => 0,
        };
        Self {
            rate: Track::new(rate, schedule, |to| match to {
                Target::Rate(bps) => Some(bps),
                _ => None,
            }),
            delay: Track::new(ns(settings.delay.base), schedule, |to| match to {
                Target::Delay(delay) => Some(ns(delay)),
                _ => None,
            }),
            loss: Track::new(loss, schedule, |to| match to {
                Target::Loss(probability) => Some(probability.raw()),
                _ => None,
            }),
            up: Track::new(1, schedule, |to| match to {
                Target::Up => Some(1),
                Target::Down => Some(0),
                _ => None,
            }),
        }
    }
}
