//! Finds the group of a flow among those of one burst.

use super::read::Flow;

/// Open addressing over the groups of a burst. It is not cleared between bursts: every entry carries the number of its burst.
pub(super) struct Table {
    slots: Vec<Slot>,
    mask: usize,
    burst: u16,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    burst: u16,
    group: u16,
}

/// What the table knows of a flow.
pub(super) enum Found {
    /// Its group.
    Group(usize),
    /// None so far, but a place for one.
    Free(usize),
    /// Neither: too many others where it belongs. It will have none in this burst, so its frames keep their order.
    Full,
}

/// Places that are looked at for a flow. Bounds the work that chosen flows can cause.
const PROBES: usize = 8;
/// The burst's number of entries that belong to none.
const NONE: u16 = 0;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            mask: 0,
            burst: NONE,
        }
    }

    /// Forgets every group; there will be up to `count`.
    #[inline]
    pub(super) fn begin(&mut self, count: usize) {
        // Small bursts use a small part, which stays in the cache.
        let wanted = (2 * count).next_power_of_two().max(16);
        if wanted > self.slots.len() {
            self.slots.resize(wanted, Slot::default());
        }
        self.mask = wanted - 1;
        self.burst = match self.burst.checked_add(1) {
            Some(next) => next,
            None => {
                self.slots.fill(Slot::default());
                NONE + 1
            }
        };
    }

    /// Looks for a flow; `flow_of` tells the flow of a group.
    #[inline]
    pub(super) fn find<'a>(&self, flow: &Flow, flow_of: impl Fn(usize) -> &'a Flow) -> Found {
        let start = flow.hash() as usize;
        for at in 0..PROBES {
            let at = start.wrapping_add(at) & self.mask;
            let slot = self.slots[at];
            if slot.burst != self.burst {
                return Found::Free(at);
            }
            let group = usize::from(slot.group);
            if flow_of(group).identity == flow.identity {
                return Found::Group(group);
            }
        }
        Found::Full
    }

    /// Notes the group of a flow at the place that [`Table::find`] gave.
    #[inline]
    pub(super) fn set(&mut self, at: usize, group: usize) {
        self.slots[at] = Slot {
            burst: self.burst,
            group: group as u16,
        };
    }
}
