//! Links in words, close to tc-netem's: `rate 2mbit delay 100ms loss 5% limit 100p seed 1`.
//!
//! Called for `--link`, for the same in a file, and for `set`. Every mistake is found at once, with what to write instead;
//! what a value is in words, [`Settings`] prints, and reads again as the same.

mod check;
mod foreign;
mod show;
mod units;
mod words;

use std::sync::Arc;

use super::{
    jitter::Table,
    schedule::{Change, Target},
    settings::{
        Chance, CoDel, Count, Discipline, Effect, Jitter, Loss, LossModel, Pattern, Pie,
        Probability, Rate, Red, Reorder, Server, Settings, Shape, Slot,
    },
    trace::Trace,
};
use units::{bytes, limit, percent, rate, time};
use words::Words;

/// The words that begin a part.
const PARTS: [&str; 19] = [
    "rate",
    "trace",
    "limit",
    "droptail",
    "drophead",
    "red",
    "codel",
    "pie",
    "slot",
    "delay",
    "reorder",
    "loss",
    "duplicate",
    "corrupt",
    "at",
    "repeat",
    "order",
    "seed",
    "memory",
];

impl Settings {
    /// Reads settings from words.
    ///
    /// # Errors
    /// Every mistake, one sentence each.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let mut words = Words::split(text).map_err(|mistake| vec![mistake])?;
        let (mut settings, mut mistakes) = (Self::default(), Vec::new());
        let mut seen: Vec<&str> = Vec::new();
        if words.peek().is_none() {
            mistakes.push("nothing is said: write what the link does, e.g. 'delay 50ms'".into());
        }
        while let Some(word) = words.next() {
            if !PARTS.contains(&word) {
                mistakes.push(match foreign::remedy(word) {
                    Some(remedy) => format!("{word:?}: {remedy}"),
                    None => format!("{word:?} is none of {}", PARTS.join(", ")),
                });
                words.skip();
                continue;
            }
            let kind = match word {
                "droptail" | "drophead" | "red" | "codel" | "pie" => "queue discipline",
                "rate" | "trace" => "rate or trace",
                other => other,
            };
            if kind != "at" && seen.contains(&kind) {
                mistakes.push(format!("{kind}: given twice"));
            }
            seen.push(kind);
            let begin = words.at();
            while let Err(mistake) = part(word, &mut words, &mut settings) {
                mistakes.push(format!("{word}: {mistake}"));
                // What stands behind the bad word is looked at, too.
                let again = |words: &mut Words<'_>| {
                    // Only how far it comes is of interest.
                    let _ = part(word, words, &mut Self::default());
                };
                if !words.stand_in(begin, again) {
                    words.skip();
                    break;
                }
            }
            let rest = words.skip();
            if let Some(first) = rest.first() {
                let is_number = first.starts_with(|c: char| c == '-' || c.is_ascii_digit());
                let overhead = (word == "rate" && is_number).then_some(foreign::OVERHEAD);
                let remedies = rest.iter().filter_map(|word| foreign::remedy(word));
                let remedies: Vec<_> = overhead.into_iter().chain(remedies).collect();
                let remedies = match remedies.is_empty() {
                    true => String::new(),
                    false => format!(": {}", remedies.join("; ")),
                };
                let rest = rest.join(" ");
                mistakes.push(format!("{word}: {rest:?} is not understood here{remedies}"));
            }
        }
        if mistakes.is_empty() {
            mistakes = settings.mistakes();
        }
        if mistakes.is_empty() {
            Ok(settings)
        } else {
            Err(mistakes)
        }
    }
}

/// Reads one part, its name already taken.
fn part(word: &str, words: &mut Words, settings: &mut Settings) -> Result<(), String> {
    match word {
        "rate" => settings.server = Some(Server::Rate(rate_part(words)?)),
        "trace" => settings.server = Some(trace_part(words)?),
        "limit" => {
            settings.queue.limit = Some(words.value("100p, 64kb or 50ms", limit)?);
        }
        "droptail" => settings.queue.discipline = Discipline::DropTail,
        "drophead" => settings.queue.discipline = Discipline::DropHead,
        "red" => settings.queue.discipline = Discipline::Red(red_part(words)?),
        "codel" => settings.queue.discipline = Discipline::CoDel(codel_part(words)?),
        "pie" => settings.queue.discipline = Discipline::Pie(pie_part(words)?),
        "slot" => settings.slot = Some(slot_part(words)?),
        "delay" => delay_part(words, settings)?,
        "reorder" => {
            let chance = chance(words)?;
            let gap = words.option("gap", whole)?.unwrap_or(0);
            let gap = u32::try_from(gap).map_err(|_| "gap: too large".to_owned())?;
            settings.reorder = Some(Reorder { chance, gap });
        }
        "loss" => settings.loss = Some(loss_part(words)?),
        "duplicate" => settings.duplicate = Some(chance(words)?),
        "corrupt" => settings.corrupt = Some(chance(words)?),
        "at" => {
            let change = change_part(words)?;
            settings.schedule.changes.push(change);
        }
        "repeat" => settings.schedule.repeat = Some(words.value("a time", time)?),
        // A name of an effect may stand alone, and is that of a part as well.
        "order" => {
            settings.order = order(words.peek().unwrap_or_default())?;
            words.next();
        }
        "seed" => settings.seed = Some(words.value("a whole number", whole)?),
        _ => settings.memory = words.value("a size such as 64mb", bytes)?,
    }
    Ok(())
}

fn count(words: &mut Words) -> Option<Count> {
    let known = [("l2", Count::L2), ("l3", Count::L3), ("wire", Count::Wire)];
    known
        .into_iter()
        .find(|(name, _)| words.has(name))
        .map(|(_, count)| count)
}

fn rate_part(words: &mut Words) -> Result<Rate, String> {
    let bps = words.value("a rate such as 2mbit", rate)?;
    Ok(Rate {
        bps,
        count: count(words).unwrap_or_default(),
        overhead: words.option("overhead", whole_signed)?.unwrap_or(0),
        cell: words
            .option("cell", whole)?
            .map(|cell| u32::try_from(cell).map_err(|_| "cell: too large".to_owned()))
            .transpose()?,
    })
}

fn trace_part(words: &mut Words) -> Result<Server, String> {
    let trace = words.value("a file", Trace::read)?;
    let once = words.has("once");
    Ok(Server::Trace {
        trace: Arc::new(trace),
        once,
        count: count(words).unwrap_or(Count::L3),
    })
}

fn red_part(words: &mut Words) -> Result<Red, String> {
    let min = words.option("min", limit)?;
    let max = words.option("max", limit)?;
    let (Some(min), Some(max)) = (min, max) else {
        return Err("write 'red min 5p max 15p', or both in bytes".into());
    };
    let fraction = |value| Probability::new(value).unwrap_or_default();
    Ok(Red {
        min,
        max,
        probability: words
            .option("probability", percent)?
            .unwrap_or(fraction(0.1)),
        weight: words.option("weight", percent)?.unwrap_or(fraction(0.002)),
        ecn: words.has("ecn"),
    })
}

fn codel_part(words: &mut Words) -> Result<CoDel, String> {
    let default = CoDel::default();
    Ok(CoDel {
        target: words.option("target", time)?.unwrap_or(default.target),
        interval: words.option("interval", time)?.unwrap_or(default.interval),
        ecn: words.has("ecn"),
    })
}

fn pie_part(words: &mut Words) -> Result<Pie, String> {
    let default = Pie::default();
    Ok(Pie {
        target: words.option("target", time)?.unwrap_or(default.target),
        update: words.option("tupdate", time)?.unwrap_or(default.update),
        ecn: words.has("ecn"),
    })
}

fn slot_part(words: &mut Words) -> Result<Slot, String> {
    let min = words.value("a time", time)?;
    Ok(Slot {
        min,
        max: words.maybe(time)?.unwrap_or(min),
        packets: words.option("packets", whole)?,
        bytes: words.option("bytes", bytes)?,
    })
}

fn delay_part(words: &mut Words, settings: &mut Settings) -> Result<(), String> {
    settings.delay.base = words.value("a time such as 100ms", time)?;
    let spread = words.maybe(time)?;
    let correlation = match spread {
        Some(_) => words.maybe(percent)?,
        None => None,
    };
    let shape = match words.has("distribution") {
        true => Some(shape(words)?),
        false => None,
    };
    let unordered = words.has("unordered");
    settings.delay.jitter = match spread {
        Some(spread) => Some(Jitter {
            spread,
            correlation: correlation.unwrap_or_default(),
            shape: shape.unwrap_or_default(),
            unordered,
        }),
        None if shape.is_some() || unordered => {
            return Err("without jitter: write 'delay TIME JITTER distribution …'".into());
        }
        None => None,
    };
    Ok(())
}

fn shape(words: &mut Words) -> Result<Shape, String> {
    let known = [
        ("uniform", Shape::Uniform),
        ("normal", Shape::Normal),
        ("pareto", Shape::Pareto),
    ];
    if let Some((_, shape)) = known.into_iter().find(|(name, _)| words.has(name)) {
        return Ok(shape);
    }
    match words.peek() {
        Some("table") => {
            words.next();
            let table = words.value("a file", Table::read)?;
            Ok(Shape::Table(Arc::new(table)))
        }
        other => Err(format!(
            "distribution {:?}: use uniform, normal, pareto or table FILE",
            other.unwrap_or_default()
        )),
    }
}

fn loss_part(words: &mut Words) -> Result<Loss, String> {
    let model = match words.peek() {
        Some("state") => {
            words.next();
            let p13 = words.value("p13", percent)?;
            LossModel::Markov {
                p13,
                p31: words.maybe(percent)?.unwrap_or(p13.complement()),
                p32: words.maybe(percent)?.unwrap_or_default(),
                p23: words.maybe(percent)?.unwrap_or(Probability::ONE),
                p14: words.maybe(percent)?.unwrap_or_default(),
            }
        }
        Some("gemodel") => {
            words.next();
            let p = words.value("p", percent)?;
            LossModel::GilbertElliott {
                p,
                r: words.maybe(percent)?.unwrap_or(p.complement()),
                bad: words.maybe(percent)?.unwrap_or(Probability::ONE),
                good: words.maybe(percent)?.unwrap_or_default(),
            }
        }
        Some("pattern") => {
            words.next();
            let pattern = words.value("noughts and ones, or file:PATH", Pattern::parse)?;
            LossModel::Pattern(Arc::new(pattern))
        }
        _ => {
            words.has("random");
            LossModel::Random(chance(words)?)
        }
    };
    Ok(Loss {
        model,
        ecn: words.has("ecn"),
    })
}

fn change_part(words: &mut Words) -> Result<Change, String> {
    let at = words.value("a time", time)?;
    let to = match words.peek() {
        Some("rate") => Target::Rate(words.argument("a rate", rate)?),
        Some("delay") => Target::Delay(words.argument("a time", time)?),
        Some("loss") => Target::Loss(words.argument("a percentage", percent)?),
        Some("down") if words.has("down") => Target::Down,
        Some("up") if words.has("up") => Target::Up,
        other => {
            return Err(format!(
                "{:?}: write 'at TIME' and then rate, delay, loss, down or up",
                other.unwrap_or_default()
            ));
        }
    };
    let over = words.option("over", time)?.unwrap_or_default();
    Ok(Change { at, over, to })
}

fn chance(words: &mut Words) -> Result<Chance, String> {
    Ok(Chance {
        probability: words.value("a percentage such as 5%", percent)?,
        correlation: words.maybe(percent)?.unwrap_or_default(),
    })
}

/// Those named come first, in that order; the others follow in theirs.
fn order(text: &str) -> Result<[Effect; Effect::COUNT], String> {
    let mut order: Vec<Effect> = Vec::new();
    for name in text.split(',') {
        let effect = Effect::ALL.into_iter().find(|effect| effect.name() == name);
        match effect {
            Some(effect) if order.contains(&effect) => return Err(format!("{name} twice")),
            Some(effect) => order.push(effect),
            None => {
                return Err(format!(
                    "{name:?} is none of {}",
                    Effect::ALL.map(Effect::name).join(", ")
                ));
            }
        }
    }
    let rest = Effect::ALL
        .into_iter()
        .filter(|effect| !order.contains(effect));
    let rest: Vec<Effect> = rest.collect();
    order.extend(rest);
    order
        .try_into()
        .map_err(|_| "every effect once, please".to_owned())
}

fn whole(word: &str) -> Result<u64, String> {
    word.parse()
        .map_err(|_| format!("{word:?}: write a whole number"))
}

fn whole_signed(word: &str) -> Result<i32, String> {
    word.parse()
        .map_err(|_| format!("{word:?}: write a whole number"))
}

#[cfg(test)]
mod tests;
