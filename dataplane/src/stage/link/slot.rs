//! Delivery in batches, as Wi-Fi and cable modems do: frames wait for a slot, and leave together.

use std::collections::VecDeque;

use super::{arena::Packet, schedule::ns, seed::Draws, settings::Slot as Settings};

/// Frames that wait for a slot.
#[derive(Debug)]
pub(super) struct Slots {
    settings: Option<Settings>,
    draws: Draws,
    waiting: VecDeque<Packet>,
    /// When the next slot is. Only while somebody waits.
    next_ns: u64,
    /// What has left in this slot: packets, bytes.
    used: (u64, u64),
}

impl Slots {
    pub(super) fn new(settings: Option<Settings>, draws: Draws) -> Self {
        Self {
            settings,
            draws,
            waiting: VecDeque::new(),
            next_ns: 0,
            used: (0, 0),
        }
    }

    /// Other settings. What waits leaves in the slot it has been given.
    pub(super) fn set(&mut self, settings: Option<Settings>) {
        self.settings = settings;
    }

    /// Another stream of random numbers.
    pub(super) fn reseed(&mut self, draws: Draws) {
        self.draws = draws;
    }

    /// Takes a frame in. Gives it back if it goes on at once.
    pub(super) fn enter(&mut self, packet: Packet, at_ns: u64) -> Option<Packet> {
        if self.waiting.is_empty() {
            if self.settings.is_none() {
                return Some(packet);
            }
            self.ask(at_ns);
        }
        self.waiting.push_back(packet);
        None
    }

    /// When the slot is.
    pub(super) fn due_ns(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.next_ns)
    }

    /// A frame that leaves at [`Slots::due_ns`].
    pub(super) fn advance(&mut self) -> Option<Packet> {
        let packet = self.waiting.pop_front()?;
        self.used = (self.used.0 + 1, self.used.1 + packet.len() as u64);
        if let Some(next) = self.waiting.front() {
            let fits = self.settings.is_none_or(|slot| {
                slot.packets.is_none_or(|most| self.used.0 < most)
                    && slot
                        .bytes
                        .is_none_or(|most| self.used.1 + next.len() as u64 <= most)
            });
            if !fits {
                self.ask(self.next_ns);
            }
        }
        Some(packet)
    }

    fn ask(&mut self, from_ns: u64) {
        self.used = (0, 0);
        let wait_ns = self.settings.map_or(0, |slot| {
            let (min, max) = (ns(slot.min), ns(slot.max));
            min + self.draws.below(max.saturating_sub(min).saturating_add(1))
        });
        self.next_ns = from_ns.saturating_add(wait_ns);
    }
}
