//! l2fwd's own options, those after `--`.

use lexopt::{Arg, Parser};

use super::{MAX_PORTS, Said, find, value};
use crate::config::{Coalesce, parse_wait};

/// Statistics appear this often unless told otherwise, in seconds.
const PERIOD_S: u32 = 10;
/// Less than a day: l2fwd's check refuses the 86400 of its own help.
const MAX_PERIOD_S: u32 = 86_399;
/// Ports of a core (l2fwd's MAX_RX_QUEUE_PER_LCORE, 16, is itself refused).
const MAX_PER_CORE: usize = 15;
/// Pairs of a port map.
const MAX_PAIRS: usize = MAX_PORTS / 2;

/// What l2fwd's options say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct App {
    /// A bit for each port; none if the option is missing or wrong.
    pub(super) mask: Option<u64>,
    pub(super) promiscuous: bool,
    pub(super) per_core: usize,
    /// 0: no statistics.
    pub(super) period_s: u32,
    pub(super) mac_updating: bool,
    pub(super) portmap: Option<Vec<[usize; 2]>>,
    /// Whether frames are merged; l2fwd doesn't. This option and the next are ours alone.
    pub(super) coalesce: Coalesce,
    /// How long to wait for interfaces, in ms.
    pub(super) wait_ports_ms: u64,
    /// `--help` was among them.
    pub(super) help: bool,
}

impl Default for App {
    fn default() -> Self {
        Self {
            mask: None,
            promiscuous: false,
            per_core: 1,
            period_s: PERIOD_S,
            mac_updating: true,
            portmap: None,
            coalesce: Coalesce::Off,
            wait_ports_ms: 0,
            help: false,
        }
    }
}

const LONG: &[&str] = &[
    "mac-updating",
    "no-mac-updating",
    "portmap",
    "coalesce",
    "wait-ports",
    "help",
];

/// Reads the options after `--`.
pub(super) fn parse(args: &[String], said: &mut Said) -> App {
    let mut app = App::default();
    let (mut has_mask, before) = (false, said.mistakes.len());
    let mut parser = Parser::from_args(args);
    loop {
        let (as_written, name) = match parser.next() {
            Ok(None) => break,
            Ok(Some(Arg::Short(c))) => (format!("-{c}"), c.to_string()),
            Ok(Some(Arg::Long(long))) => match find(LONG, |name| name, long) {
                Ok(name) => (format!("--{name}"), (*name).to_owned()),
                Err(why) => {
                    said.mistake(format!("l2fwd option --{long}: {why}"));
                    let _ = parser.optional_value();
                    continue;
                }
            },
            Ok(Some(Arg::Value(word))) => {
                said.remark(format!("{word:?} is no option, and without effect"));
                continue;
            }
            Err(error) => {
                said.mistake(format!("l2fwd: {error}"));
                continue;
            }
        };
        let mut text = String::new();
        if ["p", "q", "T", "portmap", "coalesce", "wait-ports"].contains(&name.as_str()) {
            match value(&mut parser) {
                Some(given) => text = given,
                None => {
                    said.mistake(format!("{as_written}: its value is missing"));
                    continue;
                }
            }
        }
        let outcome = match name.as_str() {
            "p" => {
                has_mask = true;
                port_mask(&text).map(|mask| app.mask = Some(mask))
            }
            "P" => {
                app.promiscuous = true;
                Ok(())
            }
            "q" => ranged(&text, 1..=MAX_PER_CORE)
                .map(|number| app.per_core = number)
                .ok_or_else(|| format!("invalid queue number: -q {text:?}: write 1 to {MAX_PER_CORE}")),
            "T" => ranged(&text, 0..=MAX_PERIOD_S)
                .map(|number| app.period_s = number)
                .ok_or_else(|| {
                    format!("invalid timer period: -T {text:?}: write seconds, 1 to {MAX_PERIOD_S}, or 0 for none")
                }),
            "mac-updating" | "no-mac-updating" => {
                app.mac_updating = name == "mac-updating";
                Ok(())
            }
            "portmap" => port_map(&text).map(|map| app.portmap = Some(map)),
            "coalesce" => text.parse().map(|how| app.coalesce = how),
            "wait-ports" => parse_wait(&text).map(|wait| app.wait_ports_ms = wait.as_millis() as u64),
            "help" => {
                app.help = true;
                Ok(())
            }
            _ => {
                // What follows in the same word belongs to it.
                let _ = parser.optional_value();
                Err(format!(
                    "unknown l2fwd option {as_written}: there are -p, -P, -q, -T, --portmap, --[no-]mac-updating, --coalesce, --wait-ports"
                ))
            }
        };
        if let Err(mistake) = outcome {
            said.mistake(mistake);
        }
    }
    if said.mistakes.len() > before {
        said.verdicts.push("Invalid L2FWD arguments");
    }
    if !has_mask && !app.help {
        said.mistake(
            "All available ports are disabled. Please set portmask: -p MASK, a hexadecimal mask of ports, after --".into(),
        );
    }
    app
}

fn ranged<T: std::str::FromStr + PartialOrd>(
    text: &str,
    range: std::ops::RangeInclusive<T>,
) -> Option<T> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// A number as strtoul reads it with base 0: hexadecimal after 0x, octal after 0.
fn number(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // A sign, which from_str_radix would take, is none of a port's.
    usize::from_str_radix(digits, radix)
        .ok()
        .filter(|_| !digits.starts_with('+'))
}

fn port_mask(text: &str) -> Result<u64, String> {
    let digits = text
        .strip_prefix("0x")
        .or(text.strip_prefix("0X"))
        .unwrap_or(text);
    // A sign, which from_str_radix would take, is none of a mask's.
    let mask = u64::from_str_radix(digits, 16)
        .ok()
        .filter(|_| !digits.starts_with('+'));
    match mask {
        Some(mask @ 1..=0xffff_ffff) => Ok(mask),
        _ => Err(format!(
            "invalid portmask: -p {text:?}: write a hexadecimal mask of ports, 1 to ffffffff (3 for the first two)"
        )),
    }
}

/// `(0,1)(2,3)`.
fn port_map(text: &str) -> Result<Vec<[usize; 2]>, String> {
    let bad =
        || format!("Invalid config: --portmap {text:?}: write pairs of ports such as (0,1)(2,3)");
    let mut pairs = Vec::new();
    // l2fwd looks for the parentheses only; commas between the pairs do no harm.
    for part in text
        .split(')')
        .map(|part| part.trim_start_matches([',', ' ']))
    {
        if part.is_empty() {
            continue;
        }
        let (a, b) = part
            .strip_prefix('(')
            .and_then(|pair| pair.split_once(','))
            .ok_or_else(bad)?;
        let port = |text: &str| number(text).filter(|port| *port < MAX_PORTS);
        pairs.push([port(a).ok_or_else(bad)?, port(b).ok_or_else(bad)?]);
    }
    if pairs.len() > MAX_PAIRS {
        return Err(format!(
            "exceeded max number of port pair params: --portmap: at most {MAX_PAIRS} pairs"
        ));
    }
    if pairs.is_empty() || !text.trim_end().ends_with(')') {
        return Err(bad());
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (App, Said) {
        let args: Vec<String> = line.split_whitespace().map(Into::into).collect();
        let mut said = Said::default();
        (parse(&args, &mut said), said)
    }

    #[test]
    fn defaults_are_l2fwds() {
        let (app, said) = read("-p 1");
        assert_eq!(said, Said::default());
        let defaults = App {
            mask: Some(1),
            ..App::default()
        };
        assert_eq!(app, defaults);
        assert!(app.mac_updating && !app.promiscuous && app.period_s == 10 && app.per_core == 1);
    }

    #[test]
    fn options_are_written_in_every_way() {
        for line in [
            "-p 0xf -P -q 15 -T 86399 --no-mac-updating --portmap (0,1)(2,2)",
            "-pf -Pq15 -T86399 --no-mac --portmap=(0x0,01),(0X2,2) --wait-ports 0",
            "-p F -P -q15 -T 86399 --mac-updating --no-mac-updating --port (0,1)(2,2)",
        ] {
            let (app, said) = read(line);
            assert_eq!(said, Said::default(), "{line}");
            let all = App {
                mask: Some(15),
                promiscuous: true,
                per_core: 15,
                period_s: 86_399,
                mac_updating: false,
                portmap: Some(vec![[0, 1], [2, 2]]),
                ..App::default()
            };
            assert_eq!(app, all, "{line}");
        }
        assert_eq!(read("-p 1 -T 0").0.period_s, 0);
        assert_eq!(read("-p 1 --wait-ports 1.5").0.wait_ports_ms, 1500);
        assert_eq!(read("-p 1").0.coalesce, Coalesce::Off);
        assert_eq!(read("-p 1 --coalesce auto").0.coalesce, Coalesce::Auto);
    }

    #[test]
    fn limits_are_l2fwds() {
        for (line, part) in [
            ("-p 0", "invalid portmask"),
            ("-p 100000000", "invalid portmask"),
            ("-p 0xg", "invalid portmask"),
            ("-p +1", "invalid portmask"),
            ("-p 1 -q 16", "invalid queue number"),
            ("-p 1 -q 0", "invalid queue number"),
            ("-p 1 -T 86400", "invalid timer period"),
            ("-p 1 -T -1", "invalid timer period"),
            ("-p 3 --portmap (0,1", "Invalid config"),
            ("-p 3 --portmap 0,1", "Invalid config"),
            ("-p 3 --portmap (0,32)", "Invalid config"),
            ("-p 3 --portmap (0,08)", "Invalid config"),
            ("-p 3 --portmap (0,+1)", "Invalid config"),
            ("-p 3 --coalesce never", "auto, on or off"),
            ("-p 3 --portmap=", "Invalid config"),
            ("-P", "Please set portmask"),
            ("-p 1 -x", "unknown l2fwd option -x"),
            ("-p 1 --mode poll", "--mode"),
            ("-p 1 -q", "-q: its value is missing"),
        ] {
            let (_, said) = read(line);
            assert_eq!(said.mistakes.len(), 1, "{line}: {said:?}");
            assert!(said.mistakes[0].contains(part), "{line}: {said:?}");
            // Without a mask l2fwd's arguments are valid; it has nothing to do.
            let invalid = !part.contains("portmask") || part.starts_with("invalid");
            assert_eq!(
                said.verdicts.len(),
                usize::from(invalid),
                "{line}: {said:?}"
            );
        }
        let many: String = (0..17).map(|_| "(0,1)").collect();
        assert!(read(&format!("-p 3 --portmap {many}")).1.mistakes[0].contains("at most 16"));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let (_, said) = read("-p x -q 99 -T y --portmap z --speed 3 -Z word");
        assert_eq!(said.mistakes.len(), 6, "{said:#?}");
        assert_eq!(said.remarks.len(), 2, "{said:#?}");
    }
}
