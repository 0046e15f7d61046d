//! Values as they are written on the command line. Each mistake is a sentence that says what to write.

use std::time::Duration;

use super::{LinkSettings, PortName};
use crate::wire::ethernet::MacAddress;

/// `a,b`: two different ports.
pub(crate) fn parse_pair(text: &str) -> Result<[PortName; 2], String> {
    let (a, b) = text
        .split_once(',')
        .ok_or_else(|| format!("pair {text:?}: write two ports with a comma: A,B"))?;
    let [a, b]: [PortName; 2] = [a.parse()?, b.parse()?];
    if a == b {
        return Err(format!(
            "pair {text:?}: {a} twice; to send frames back by the same port use --hairpin {a}"
        ));
    }
    Ok([a, b])
}

/// `a,b`, or `e` for a hairpin: a pair that exists.
pub(crate) fn parse_ends(text: &str) -> Result<[PortName; 2], String> {
    if text.contains(',') {
        return parse_pair(text);
    }
    let port: PortName = text.parse()?;
    Ok([port.clone(), port])
}

/// `PORT=MAC`.
pub(crate) fn parse_dst_mac(text: &str) -> Result<(PortName, MacAddress), String> {
    let (port, mac) = text
        .split_once('=')
        .ok_or_else(|| format!("--dst-mac {text:?}: write PORT=MAC"))?;
    Ok((
        port.parse()?,
        mac.parse()
            .map_err(|error| format!("--dst-mac {text:?}: {error}"))?,
    ))
}

/// CPUs in a `cpu_set_t`.
const MAX_CORES: usize = 1024;

/// `1,3-5`: cores and ranges of cores.
pub(crate) fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    let bad = || format!("--cores {text:?}: write numbers and ranges with commas: 1,3-5");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|number| number.trim().parse::<usize>().ok());
        let (Some(first), Some(last)) = (first, last) else {
            return Err(bad());
        };
        if first > last {
            return Err(bad());
        }
        // Beyond it core_affinity would index past the end of its CPU set.
        if last >= MAX_CORES {
            return Err(format!(
                "--cores {text:?}: core {last} is beyond the last that can be named, {}",
                MAX_CORES - 1
            ));
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// `a>b delay 50ms`.
pub(crate) fn parse_link(text: &str) -> Result<LinkSettings, String> {
    let bad = || format!("--link {text:?}: write 'A>B delay TIME', e.g. 'r0>r1 delay 50ms'");
    let mut words = text.split_whitespace();
    let (from, to) = words
        .next()
        .and_then(|ports| ports.split_once('>'))
        .ok_or_else(bad)?;
    let (from, to) = (from.parse()?, to.parse()?);
    let (Some("delay"), Some(delay), None) = (words.next(), words.next(), words.next()) else {
        return Err(bad());
    };
    Ok(LinkSettings {
        from,
        to,
        delay: parse_time(delay).ok_or_else(bad)?,
    })
}

/// A time with its unit: `50ms`, `1.5s`, `200us`. At most an hour.
fn parse_time(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit = match &text[at..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let seconds = text[..at].parse::<f64>().ok()? * unit;
    (0.0..=3600.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}
