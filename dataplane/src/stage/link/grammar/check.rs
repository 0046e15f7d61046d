//! Settings that can't be, or that contradict each other.

use std::time::Duration;

use crate::stage::link::{
    arena::{CELL, COST},
    bottleneck::{FRAME, full_size},
    schedule::Target,
    settings::{Discipline, Effect, Limit, LossModel, Server, Settings},
};

/// Memory that a frame of full size takes, in bytes.
const FULL_COST: f64 = ((FRAME as usize).div_ceil(CELL) * COST) as f64;
/// The longest delay.
const HOUR: Duration = Duration::from_secs(3600);

impl Settings {
    /// Memory for frames held, unless said otherwise: 1 Gbit/s × 400 ms.
    pub const MEMORY: u64 = 64 << 20;

    /// Every mistake, one sentence each.
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        self.check_queue(&mut mistakes);
        self.check_delay(&mut mistakes);
        self.check_loss(&mut mistakes);
        self.check_schedule(&mut mistakes);
        self.check_memory(&mut mistakes);
        if Effect::ALL
            .iter()
            .any(|effect| !self.order.contains(effect))
        {
            mistakes.push("order: every effect comes once".into());
        }
        mistakes
    }

    fn check_queue(&self, mistakes: &mut Vec<String>) {
        if let Some(Server::Rate(rate)) = &self.server {
            if !(100..=1_000_000_000_000).contains(&rate.bps) {
                mistakes.push(format!("rate {}bit: a rate is 100bit to 1tbit", rate.bps));
            }
            if !(-1000..=1000).contains(&rate.overhead) {
                mistakes.push(format!(
                    "rate: overhead {} is not between -1000 and 1000",
                    rate.overhead
                ));
            }
            if rate.cell.is_some_and(|cell| !(6..=65_535).contains(&cell)) {
                mistakes.push("rate: a cell has 6 to 65535 bytes (ATM: 53)".into());
            }
        }
        if self.server.is_none()
            && (self.queue.limit.is_some() || self.queue.discipline != Discipline::DropTail)
        {
            mistakes.push(
                "limit, droptail, drophead, red, codel, pie: nothing waits without a rate; add rate or trace \
                 (what a delay holds is bounded by memory)"
                    .into(),
            );
        }
        match self.queue.limit {
            Some(Limit::Packets(0)) => mistakes.push("limit 0p: nothing would pass".into()),
            Some(Limit::Bytes(bytes)) if bytes < full_size(&self.server) => mistakes.push(format!(
                "limit {bytes}b: a frame of full size (1514 bytes, counted as {}) would never pass",
                full_size(&self.server)
            )),
            Some(Limit::Time(_)) if matches!(self.server, Some(Server::Trace { .. })) => {
                mistakes.push(
                    "limit in time: how long a trace takes nobody knows before; use packets or bytes"
                        .into(),
                );
            }
            _ => {}
        }
        match &self.queue.discipline {
            Discipline::Red(red) => {
                let valid = match (red.min, red.max) {
                    (Limit::Packets(min), Limit::Packets(max))
                    | (Limit::Bytes(min), Limit::Bytes(max)) => 0 < min && min < max,
                    _ => false,
                };
                if !valid {
                    mistakes.push(
                        "red: min and max are both packets or both bytes, min above 0 and below max"
                            .into(),
                    );
                }
                if red.weight.raw() == 0 || red.probability.raw() == 0 {
                    mistakes.push("red: weight and probability are above 0%".into());
                }
            }
            Discipline::CoDel(codel) if codel.interval.is_zero() => {
                mistakes.push("codel: interval must be longer than 0".into());
            }
            Discipline::Pie(pie) if pie.update < Duration::from_millis(1) => {
                mistakes.push("pie: tupdate must be at least 1ms".into());
            }
            _ => {}
        }
    }

    fn check_delay(&self, mistakes: &mut Vec<String>) {
        if self.delay.base > HOUR {
            mistakes.push("delay: at most 1h".into());
        }
        let scheduled = |change: &&super::Change| matches!(change.to, Target::Delay(_));
        let delayed = !self.delay.base.is_zero()
            || self
                .schedule
                .changes
                .iter()
                .any(|change| scheduled(&change));
        if let Some(jitter) = &self.delay.jitter {
            if jitter.spread > HOUR {
                mistakes.push("delay: jitter is at most 1h".into());
            }
            if jitter.correlation.value() == 1.0 {
                mistakes.push("delay: with a correlation of 100% nothing would vary".into());
            }
        } else if self.reorder.is_some() && !delayed {
            mistakes.push(
                "reorder: a frame overtakes by skipping the delay, and there is none; add delay TIME"
                    .into(),
            );
        }
        if let Some(slot) = &self.slot {
            if slot.max < slot.min || slot.max > HOUR {
                mistakes.push("slot: write the shorter time first; at most 1h".into());
            }
            if slot.packets == Some(0) || slot.bytes == Some(0) {
                mistakes.push("slot: with 0 packets or bytes nothing would pass".into());
            }
            if slot.max.is_zero() && (slot.packets.is_some() || slot.bytes.is_some()) {
                mistakes.push("slot 0s: limits mean nothing without time between slots".into());
            }
        }
    }

    fn check_loss(&self, mistakes: &mut Vec<String>) {
        let chances = [
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("reorder", self.reorder.map(|reorder| reorder.chance)),
            (
                "loss",
                match self.loss.as_ref().map(|loss| &loss.model) {
                    Some(LossModel::Random(chance)) => Some(*chance),
                    _ => None,
                },
            ),
        ];
        for (name, chance) in chances {
            if chance.is_some_and(|chance| chance.correlation.value() == 1.0) {
                mistakes.push(format!(
                    "{name}: with a correlation of 100% what happened once would happen for ever"
                ));
            }
        }
        let total = match self.loss.as_ref().map(|loss| &loss.model) {
            Some(LossModel::Markov { p13, p14, .. }) if p13.value() + p14.value() > 1.0 => {
                "p13 + p14"
            }
            Some(LossModel::Markov { p31, p32, .. }) if p31.value() + p32.value() > 1.0 => {
                "p31 + p32"
            }
            _ => return,
        };
        mistakes.push(format!("loss state: {total} is more than 100%"));
    }

    fn check_schedule(&self, mistakes: &mut Vec<String>) {
        let changes = &self.schedule.changes;
        for (at, change) in changes.iter().enumerate() {
            let name = change.to.name();
            let before = changes[..at].iter().rev();
            // A look at the nearest ones: if these are right, so are those before them.
            if before
                .clone()
                .next()
                .is_some_and(|other| other.at > change.at)
            {
                mistakes.push(format!(
                    "at {:?} {name}: earlier than the change before; write them in order",
                    change.at
                ));
            }
            let same = |other: &&super::Change| {
                let outage = matches!(other.to, Target::Down | Target::Up)
                    && matches!(change.to, Target::Down | Target::Up);
                outage || other.to.name() == name
            };
            if before.clone().find(same).is_some_and(|other| {
                other.at <= change.at && other.at.saturating_add(other.over) > change.at
            }) {
                mistakes.push(format!(
                    "at {:?} {name}: the change of {name} before takes longer than until then",
                    change.at
                ));
            }
            if self
                .schedule
                .repeat
                .is_some_and(|repeat| change.at.saturating_add(change.over) > repeat)
            {
                mistakes.push(format!(
                    "at {:?} {name}: not over when the schedule repeats",
                    change.at
                ));
            }
            if matches!(change.to, Target::Down | Target::Up) && !change.over.is_zero() {
                mistakes.push(format!(
                    "at {:?} {name}: takes no time, leave out over",
                    change.at
                ));
            }
            if matches!(change.to, Target::Delay(delay) if delay > HOUR) {
                mistakes.push(format!("at {:?} delay: at most 1h", change.at));
            }
            if matches!(change.to, Target::Rate(bps) if !(100..=1_000_000_000_000).contains(&bps)) {
                mistakes.push(format!(
                    "at {:?} rate: a rate is 100bit to 1tbit",
                    change.at
                ));
            }
            let missing = match change.to {
                Target::Rate(_) if !matches!(self.server, Some(Server::Rate(_))) => {
                    "a rate to begin with: add rate"
                }
                Target::Loss(_)
                    if !matches!(
                        self.loss.as_ref().map(|loss| &loss.model),
                        Some(LossModel::Random(_))
                    ) =>
                {
                    "a random loss to begin with: add loss, 0% if need be"
                }
                _ => continue,
            };
            mistakes.push(format!("at {:?} {name}: needs {missing}", change.at));
        }
        if self.schedule.repeat.is_some_and(|repeat| repeat.is_zero()) {
            mistakes.push("repeat: longer than 0".into());
        }
        if self.schedule.repeat.is_some() && changes.is_empty() {
            mistakes.push("repeat: there is no 'at' to repeat".into());
        }
    }

    fn check_memory(&self, mistakes: &mut Vec<String>) {
        if !(64 << 10..=64 << 30).contains(&self.memory) {
            return mistakes.push(format!("memory {}b: 64kb to 64gb", self.memory));
        }
        // Bytes of memory for each that the rate counts.
        let cost = FULL_COST / full_size(&self.server) as f64;
        if let Some(Server::Rate(rate)) = &self.server {
            let (mut bps, mut delay) = (rate.bps, self.delay.base);
            for change in &self.schedule.changes {
                match change.to {
                    Target::Rate(to) => bps = bps.max(to),
                    Target::Delay(to) => delay = delay.max(to),
                    _ => {}
                }
            }
            let flight = |time: Duration| bps as f64 / 8.0 * time.as_secs_f64() * cost;
            self.check_held(mistakes, "rate × delay", flight(delay));
            if let Some(Limit::Time(limit)) = self.queue.limit {
                self.check_held(mistakes, "limit", flight(limit));
            }
        }
        let most = match self.queue.limit {
            Some(Limit::Packets(packets)) => packets as f64 * COST as f64,
            Some(Limit::Bytes(bytes)) => bytes as f64 * cost,
            Some(Limit::Time(_)) | None => return,
        };
        self.check_held(mistakes, "limit", most);
    }

    /// `bytes`: the least that frames take which are held at one time, bookkeeping included.
    fn check_held(&self, mistakes: &mut Vec<String>, what: &str, bytes: f64) {
        if bytes > self.memory as f64 {
            let held = match bytes {
                1e6.. => format!("{:.0} MB", bytes / 1e6),
                _ => format!("{:.0} kB", bytes / 1e3),
            };
            mistakes.push(format!(
                "{what}: {held} are held, with their bookkeeping, more than memory: add memory {}mb",
                (bytes * 1.2 / f64::from(1 << 20)).ceil()
            ));
        }
    }
}
