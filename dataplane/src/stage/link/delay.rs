//! How long frames are on their way.
//!
//! Each is due at its own logical time plus its delay; the time at which somebody looks does not matter. Frames that keep
//! their order are a queue; those that may overtake are a heap.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
};

use super::{
    arena::Packet,
    chance::Dice,
    context::Context,
    jitter::Sampler,
    schedule::Track,
    seed::Draws,
    settings::{Delay as Settings, Reorder},
};

/// Frames on their way.
#[derive(Debug)]
pub(super) struct Line {
    /// The delay over time, in ns, from `start_ns` on.
    base: Track,
    start_ns: u64,
    jitter: Option<Sampler>,
    draws: Draws,
    unordered: bool,
    reorder: Option<Skip>,
    dice: Dice,
    ordered: VecDeque<(u64, Packet)>,
    heap: BinaryHeap<Reverse<Due>>,
    serial: u64,
    /// When the last of those in order is due.
    last_ns: u64,
}

/// Which frames skip the delay.
#[derive(Debug)]
struct Skip {
    gap: u32,
    /// Frames since the last that did.
    since: u32,
}

#[derive(Debug)]
struct Due {
    at_ns: u64,
    serial: u64,
    packet: Packet,
}

impl Line {
    pub(super) fn new(
        settings: &Settings,
        reorder: Option<Reorder>,
        base: Track,
        start_ns: u64,
        (jitter, skips): (Draws, Draws),
    ) -> Self {
        let mut line = Self {
            base,
            start_ns,
            jitter: None,
            draws: jitter,
            unordered: false,
            reorder: None,
            dice: Dice::new(
                reorder.map(|reorder| reorder.chance).unwrap_or_default(),
                skips,
            ),
            ordered: VecDeque::new(),
            heap: BinaryHeap::new(),
            serial: 0,
            last_ns: 0,
        };
        line.apply(settings, reorder);
        line
    }

    /// Other settings from `now_ns` on. What is on its way arrives as it would have.
    pub(super) fn set(
        &mut self,
        settings: &Settings,
        reorder: Option<Reorder>,
        base: Track,
        now_ns: u64,
    ) {
        (self.base, self.start_ns) = (base, now_ns);
        self.apply(settings, reorder);
    }

    fn apply(&mut self, settings: &Settings, reorder: Option<Reorder>) {
        self.jitter = settings.jitter.as_ref().map(Sampler::new);
        self.unordered = settings
            .jitter
            .as_ref()
            .is_some_and(|jitter| jitter.unordered);
        self.dice
            .set(reorder.map(|reorder| reorder.chance).unwrap_or_default());
        self.reorder = reorder.map(|reorder| Skip {
            gap: reorder.gap,
            since: 0,
        });
    }

    /// Other streams of random numbers.
    pub(super) fn reseed(&mut self, reorder: Option<Reorder>, (jitter, skips): (Draws, Draws)) {
        self.draws = jitter;
        self.dice = Dice::new(
            reorder.map(|reorder| reorder.chance).unwrap_or_default(),
            skips,
        );
    }

    /// Takes a frame in. Gives it back if it goes on at once.
    #[inline]
    pub(super) fn enter(&mut self, packet: Packet, at_ns: u64, cx: &Context) -> Option<Packet> {
        if let Some(skip) = &mut self.reorder {
            let hit = self.dice.throw();
            skip.since = skip.since.saturating_add(1);
            if hit && skip.since >= skip.gap {
                skip.since = 0;
                if !self.ordered.is_empty() || !self.heap.is_empty() {
                    cx.gauges.count_reordered();
                }
                return Some(packet);
            }
        }
        let mut delay_ns = self.base.at(at_ns.saturating_sub(self.start_ns));
        if let Some(jitter) = &mut self.jitter {
            delay_ns = delay_ns.saturating_add_signed(jitter.next_ns(&mut self.draws));
        }
        let due_ns = at_ns.saturating_add(delay_ns);
        if self.unordered {
            if self.last_due_ns().is_some_and(|last| last > due_ns) {
                cx.gauges.count_reordered();
            }
            self.serial += 1;
            self.heap.push(Reverse(Due {
                at_ns: due_ns,
                serial: self.serial,
                packet,
            }));
            self.last_ns = self.last_ns.max(due_ns);
            return None;
        }
        let due_ns = due_ns.max(self.last_ns);
        if due_ns <= at_ns && self.ordered.is_empty() && self.heap.is_empty() {
            return Some(packet);
        }
        self.last_ns = due_ns;
        self.ordered.push_back((due_ns, packet));
        None
    }

    /// When the next frame arrives.
    #[inline]
    pub(super) fn due_ns(&self) -> Option<u64> {
        let ordered = self.ordered.front().map(|(due_ns, _)| *due_ns);
        let heap = self.heap.peek().map(|due| due.0.at_ns);
        match (ordered, heap) {
            (Some(ordered), Some(heap)) => Some(ordered.min(heap)),
            (one, other) => one.or(other),
        }
    }

    /// The frame that arrives at [`Line::due_ns`].
    #[inline]
    pub(super) fn advance(&mut self) -> Option<Packet> {
        let ordered = self.ordered.front().map(|(due_ns, _)| *due_ns);
        let from_heap = match (ordered, self.heap.peek()) {
            (Some(ordered), Some(due)) => due.0.at_ns < ordered,
            (None, _) => true,
            (_, None) => false,
        };
        if from_heap {
            self.heap.pop().map(|due| due.0.packet)
        } else {
            self.ordered.pop_front().map(|(_, packet)| packet)
        }
    }

    /// The least that a frame takes which enters from now on.
    pub(super) fn least_ns(&self) -> u64 {
        if self.jitter.is_none() && self.reorder.is_none() && self.base.is_constant() {
            self.base.at(0)
        } else {
            0
        }
    }

    fn last_due_ns(&self) -> Option<u64> {
        (!self.heap.is_empty() || !self.ordered.is_empty()).then_some(self.last_ns)
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.serial).cmp(&(other.at_ns, other.serial))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}
