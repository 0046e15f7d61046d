//! Numbers with units, as tc writes them. Outside of their range they are mistakes, never something else.

use std::time::Duration;

use crate::stage::link::settings::{Limit, Probability};

/// The longest time: an hour for delays, but schedules may take days.
const LONGEST: f64 = 30.0 * 86_400.0;

/// Splits a number from its unit. Neither signs nor exponents.
fn split(word: &str) -> Option<(f64, String)> {
    let at = word
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(word.len());
    let number = word[..at].parse::<f64>().ok()?;
    Some((number, word[at..].to_ascii_lowercase()))
}

/// `2mbit`, `1.5gbit`, `64kbit`, `100bit`; and in bytes `250kbps`. As tc: `kibit` and the like are powers of 1024.
pub(super) fn rate(word: &str) -> Result<u64, String> {
    let bad = || format!("{word:?}: write a rate with its unit, such as 64kbit, 2mbit or 1gbit");
    let (number, unit) = split(word).ok_or_else(bad)?;
    let (prefix, factor) = match unit.strip_suffix("bit") {
        Some(prefix) => (prefix, 1.0),
        None => (unit.strip_suffix("bps").ok_or_else(bad)?, 8.0),
    };
    let prefix = match prefix {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => 1024.0,
        "mi" => 1_048_576.0,
        "gi" => 1_073_741_824.0,
        _ => return Err(bad()),
    };
    let bps = number * prefix * factor;
    if !(100.0..=1e12).contains(&bps) {
        return Err(format!("{word:?}: a rate is 100bit to 1tbit"));
    }
    Ok(bps.round() as u64)
}

/// `50ms`, `1.5s`, `200us`, `10ns`, `2min`.
pub(super) fn time(word: &str) -> Result<Duration, String> {
    let bad = || format!("{word:?}: write a time with its unit, such as 50ms, 200us or 1.5s");
    let (number, unit) = split(word).ok_or_else(bad)?;
    let unit = match &unit[..] {
        "ns" => 1e-9,
        "us" | "usec" | "usecs" => 1e-6,
        "ms" | "msec" | "msecs" => 1e-3,
        "s" | "sec" | "secs" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let seconds = number * unit;
    if seconds > LONGEST {
        return Err(format!("{word:?}: a time is at most 720h"));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// `5%`, `0.1%`.
pub(super) fn percent(word: &str) -> Result<Probability, String> {
    let (number, unit) = split(word)
        .ok_or_else(|| format!("{word:?}: write a percentage with its sign, such as 5%"))?;
    if unit != "%" {
        return Err(format!(
            "{word:?}: write a percentage with its sign, such as 5%"
        ));
    }
    Probability::new(number / 100.0).ok_or_else(|| format!("{word:?}: a percentage is 0% to 100%"))
}

/// `1500`, `64kb`, `1mb`: as tc, in powers of 1024.
pub(super) fn bytes(word: &str) -> Result<u64, String> {
    let bad = || format!("{word:?}: write a size such as 1500b, 64kb or 1mb");
    let (number, unit) = split(word).ok_or_else(bad)?;
    let unit = match &unit[..] {
        "" | "b" => 1.0,
        "k" | "kb" => 1024.0,
        "m" | "mb" => 1_048_576.0,
        "g" | "gb" => 1_073_741_824.0,
        _ => return Err(bad()),
    };
    let bytes = number * unit;
    if bytes > 1e15 || bytes.fract() != 0.0 {
        return Err(format!(
            "{word:?}: a size is a whole number of bytes, at most 900000gb"
        ));
    }
    Ok(bytes as u64)
}

/// A queue's length: `100p`, `64kb` or `50ms`.
pub(super) fn limit(word: &str) -> Result<Limit, String> {
    let packets = ["packets", "packet", "pkts", "p"]
        .iter()
        .find_map(|unit| word.strip_suffix(unit));
    if let Some(packets) = packets {
        return packets
            .parse()
            .map(Limit::Packets)
            .map_err(|_| format!("{word:?}: write a whole number of packets, such as 100p"));
    }
    if let Ok(time) = time(word) {
        return Ok(Limit::Time(time));
    }
    // tc's limit without a unit is packets for netem and bytes for tbf: so it must be said.
    let plain = word.bytes().all(|c| c.is_ascii_digit());
    match bytes(word) {
        Ok(bytes) if !plain => Ok(Limit::Bytes(bytes)),
        _ => Err(format!(
            "{word:?}: write a length with its unit: 100p (packets), 64kb (bytes) or 50ms; what netem's limit \
             bounds, delayed frames too, is memory here: 'memory 64mb'"
        )),
    }
}
