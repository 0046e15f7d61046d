//! Settings as words that read as the same settings.

use std::{fmt, time::Duration};

use super::units::percent;
use crate::stage::link::{
    schedule::Target,
    settings::{
        Chance, Count, Discipline, Effect, Limit, LossModel, Probability, Server, Settings, Shape,
    },
};

/// A file's name as one word.
fn quoted(name: &str) -> String {
    match name.contains(char::is_whitespace) || name.starts_with(['"', '\'']) {
        true if name.contains('"') => format!("'{name}'"),
        true => format!("\"{name}\""),
        false => name.into(),
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match &self.server {
            Some(Server::Rate(rate)) => {
                let mut text = format!("rate {}", show_rate(rate.bps));
                text += count(rate.count);
                if rate.overhead != 0 {
                    text += &format!(" overhead {}", rate.overhead);
                }
                if let Some(cell) = rate.cell {
                    text += &format!(" cell {cell}");
                }
                parts.push(text);
            }
            Some(Server::Trace {
                trace,
                once,
                count: counted,
            }) => parts.push(format!(
                "trace {}{}{}",
                quoted(trace.name()),
                if *once { " once" } else { "" },
                count(*counted)
            )),
            None => {}
        }
        if let Some(limit) = self.queue.limit {
            parts.push(format!("limit {}", show_limit(limit)));
        }
        parts.extend(discipline(&self.queue.discipline));
        if let Some(slot) = &self.slot {
            let mut text = format!("slot {}", show_time(slot.min));
            if slot.max != slot.min {
                text += &format!(" {}", show_time(slot.max));
            }
            text += &option("packets", slot.packets);
            text += &option("bytes", slot.bytes);
            parts.push(text);
        }
        if !self.delay.base.is_zero() || self.delay.jitter.is_some() {
            let mut text = format!("delay {}", show_time(self.delay.base));
            if let Some(jitter) = &self.delay.jitter {
                text += &format!(" {}", show_time(jitter.spread));
                text += &maybe(jitter.correlation);
                match &jitter.shape {
                    Shape::Uniform => {}
                    Shape::Normal => text += " distribution normal",
                    Shape::Pareto => text += " distribution pareto",
                    Shape::Table(table) => {
                        text += &format!(" distribution table {}", quoted(table.name()));
                    }
                }
                text += if jitter.unordered { " unordered" } else { "" };
            }
            parts.push(text);
        }
        if let Some(reorder) = &self.reorder {
            let gap = option("gap", (reorder.gap > 0).then_some(u64::from(reorder.gap)));
            parts.push(format!("reorder {}{gap}", chance(reorder.chance)));
        }
        if let Some(loss) = &self.loss {
            let ecn = if loss.ecn { " ecn" } else { "" };
            parts.push(format!("loss {}{ecn}", model(&loss.model)));
        }
        for (name, event) in [("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            parts.extend(event.map(|event| format!("{name} {}", chance(event))));
        }
        for change in &self.schedule.changes {
            let to = match change.to {
                Target::Rate(bps) => format!("rate {}", show_rate(bps)),
                Target::Delay(delay) => format!("delay {}", show_time(delay)),
                Target::Loss(loss) => format!("loss {}", show_percent(loss)),
                Target::Down | Target::Up => change.to.name().to_owned(),
            };
            let mut text = format!("at {} {to}", show_time(change.at));
            if !change.over.is_zero() {
                text += &format!(" over {}", show_time(change.over));
            }
            parts.push(text);
        }
        if let Some(repeat) = self.schedule.repeat {
            parts.push(format!("repeat {}", show_time(repeat)));
        }
        if self.order != Effect::ALL {
            parts.push(format!("order {}", self.order.map(Effect::name).join(",")));
        }
        if self.memory != Self::MEMORY {
            parts.push(format!("memory {}", self.memory));
        }
        parts.extend(self.seed.map(|seed| format!("seed {seed}")));
        // A link that does nothing is still a link.
        if parts.is_empty() {
            parts.push("delay 0s".into());
        }
        f.write_str(&parts.join(" "))
    }
}

fn discipline(discipline: &Discipline) -> Option<String> {
    let ecn = |ecn| if ecn { " ecn" } else { "" };
    match discipline {
        Discipline::DropTail => None,
        Discipline::DropHead => Some("drophead".into()),
        Discipline::Red(red) => Some(format!(
            "red min {} max {} probability {} weight {}{}",
            show_limit(red.min),
            show_limit(red.max),
            show_percent(red.probability),
            show_percent(red.weight),
            ecn(red.ecn)
        )),
        Discipline::CoDel(codel) => Some(format!(
            "codel target {} interval {}{}",
            show_time(codel.target),
            show_time(codel.interval),
            ecn(codel.ecn)
        )),
        Discipline::Pie(pie) => Some(format!(
            "pie target {} tupdate {}{}",
            show_time(pie.target),
            show_time(pie.update),
            ecn(pie.ecn)
        )),
    }
}

fn model(model: &LossModel) -> String {
    match model {
        LossModel::Random(event) => chance(*event),
        LossModel::GilbertElliott { p, r, bad, good } => {
            format!(
                "gemodel {}",
                [*p, *r, *bad, *good].map(show_percent).join(" ")
            )
        }
        LossModel::Markov {
            p13,
            p31,
            p32,
            p23,
            p14,
        } => format!(
            "state {}",
            [*p13, *p31, *p32, *p23, *p14].map(show_percent).join(" ")
        ),
        LossModel::Pattern(pattern) => format!("pattern {}", pattern.words()),
    }
}

fn chance(chance: Chance) -> String {
    show_percent(chance.probability) + &maybe(chance.correlation)
}

fn maybe(correlation: Probability) -> String {
    if correlation > Probability::ZERO {
        format!(" {}", show_percent(correlation))
    } else {
        String::new()
    }
}

fn option(name: &str, value: Option<u64>) -> String {
    value.map_or_else(String::new, |value| format!(" {name} {value}"))
}

/// Always said: a rate means little without.
fn count(count: Count) -> &'static str {
    match count {
        Count::L2 => " l2",
        Count::L3 => " l3",
        Count::Wire => " wire",
    }
}

fn show_rate(bps: u64) -> String {
    for (unit, factor) in [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000)] {
        if bps.is_multiple_of(factor) && bps > 0 {
            return format!("{}{unit}", bps / factor);
        }
    }
    format!("{bps}bit")
}

fn show_time(time: Duration) -> String {
    let ns = time.as_nanos();
    for (unit, factor) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
        if ns.is_multiple_of(factor) {
            return format!("{}{unit}", ns / factor);
        }
    }
    format!("{ns}ns")
}

fn show_limit(limit: Limit) -> String {
    match limit {
        Limit::Packets(packets) => format!("{packets}p"),
        Limit::Bytes(bytes) => format!("{bytes}b"),
        Limit::Time(time) => show_time(time),
    }
}

/// As few digits as tell it: the same step of 2⁻³² is read again.
fn show_percent(probability: Probability) -> String {
    let shown = |digits| format!("{:.digits$}%", probability.value() * 100.0);
    let tells = |text: &String| percent(text).is_ok_and(|read| read == probability);
    (0..8).map(shown).find(tells).unwrap_or_else(|| shown(8))
}
