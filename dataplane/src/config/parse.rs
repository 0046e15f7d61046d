//! Values as they are written on the command line. Each mistake is a sentence that says what to write.

#[cfg(feature = "program")]
use std::time::Duration;

use super::{Backend, LinkSettings, PortName};
use crate::{stage::link::Settings, wire::ethernet::MacAddress};

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

/// `A,B=BACKEND`, or `E=BACKEND` for a hairpin.
pub(crate) fn parse_carry(text: &str) -> Result<([PortName; 2], Backend), String> {
    // A name may have such a sign too, a back end has none.
    let (pair, backend) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("{text:?}: write A,B=BACKEND"))?;
    Ok((parse_ends(pair)?, backend.parse()?))
}

/// `PORT=MAC`.
pub(crate) fn parse_dst_mac(text: &str) -> Result<(PortName, MacAddress), String> {
    let (port, mac) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("--dst-mac {text:?}: write PORT=MAC"))?;
    Ok((
        port.parse()?,
        mac.parse()
            .map_err(|error| format!("--dst-mac {text:?}: {error}"))?,
    ))
}

/// CPUs in a `cpu_set_t`.
#[cfg(any(test, feature = "program"))]
const MAX_CORES: usize = 1024;

/// `1,3-5`: cores and ranges of cores.
#[cfg(any(test, feature = "program"))]
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

/// `a>b delay 50ms`, and whatever else a link does.
pub(crate) fn parse_link(text: &str) -> Result<LinkSettings, Vec<String>> {
    let bad =
        || format!("--link {text:?}: write 'A>B' and what the link does, e.g. 'r0>r1 delay 50ms'");
    let (ports, words) = text
        .trim()
        .split_once(char::is_whitespace)
        .unwrap_or((text.trim(), ""));
    let (from, to) = ports.split_once('>').ok_or_else(|| vec![bad()])?;
    let mut mistakes = Vec::new();
    let [from, to] = [from, to].map(|port| {
        let port: Result<PortName, String> = port.parse();
        port.map_err(|mistake| mistakes.push(mistake)).ok()
    });
    let settings = Settings::parse(words)
        .map_err(|more| mistakes.extend(more))
        .ok();
    match (from, to, settings) {
        (Some(from), Some(to), Some(settings)) => Ok(LinkSettings { from, to, settings }),
        _ => Err(mistakes
            .into_iter()
            .map(|mistake| format!("--link '{ports} …': {mistake}"))
            .collect()),
    }
}

/// `--wait-ports`: seconds, 0 to a day.
#[cfg(feature = "program")]
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("--wait-ports {text:?}: write seconds, 0 to 86400"))
}
