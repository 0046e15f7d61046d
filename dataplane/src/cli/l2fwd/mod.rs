//! `l2relay l2fwd`, and the program called by the name `l2fwd`: DPDK's l2fwd, started as its users start it.
//!
//! Reads EAL's options and l2fwd's, pairs the ports and gives them to cores as l2fwd does, and makes a relay's settings of
//! that. docs/l2fwd.md has the table of all options; facts about l2fwd are from DPDK's `examples/l2fwd/main.c`.

mod app;
mod eal;
mod lcores;
mod moot;
mod plan;
mod table;
mod vdev;

use std::{ffi::OsString, fmt::Write as _, path::Path, time::Duration};

use lexopt::Parser;

pub use table::Table;

use self::{app::App, plan::plan};
use crate::{
    config::{Config, PortName},
    error::Error,
    snapshot::{PortState, Snapshot},
};

/// Ports that l2fwd can have (RTE_MAX_ETHPORTS, and the bits of its mask).
const MAX_PORTS: usize = 32;

/// What the command line asks for.
#[derive(Debug)]
pub enum Asked {
    /// Forwarding.
    Forward(Box<L2fwd>),
    /// Only a text: help or version.
    Text(String),
}

/// An l2fwd that can be started.
#[derive(Debug)]
pub struct L2fwd {
    /// The relay that does it.
    pub config: Config,
    /// Seconds between two statistics; `None`: none but the last.
    pub period_s: Option<f64>,
    /// How long to wait for interfaces that aren't there yet.
    pub wait_ports: Option<Duration>,
    /// What has no effect, or another than the user may think: a sentence each.
    pub remarks: Vec<String>,
    /// What l2fwd says before it opens its ports.
    pub opening: String,
    /// How many ports there are, those that are not enabled too.
    all: usize,
    /// Enabled ports by their ids.
    ports: Vec<(usize, PortName)>,
    /// Which core polls which ports, by their ids.
    polls: Vec<(usize, Vec<usize>)>,
    /// Cores that poll none.
    idle: Vec<usize>,
}

/// What is to be said to the user, collected while options are read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    mistakes: Vec<String>,
    remarks: Vec<String>,
    /// DPDK's words on options with mistakes among them: it says no more, and scripts look for them.
    verdicts: Vec<&'static str>,
}

impl Said {
    fn mistake(&mut self, sentence: String) {
        self.mistakes.push(sentence);
    }

    fn remark(&mut self, sentence: String) {
        self.remarks.push(sentence);
    }
}

/// The arguments of an l2fwd, if these (the program's name first) ask for one.
pub fn arguments(all: &[OsString]) -> Option<Vec<String>> {
    let name = Path::new(all.first()?).file_name()?;
    let rest = match name.to_str() {
        Some("l2fwd") => &all[1..],
        _ if all.get(1)? == "l2fwd" => &all[2..],
        _ => return None,
    };
    Some(
        rest.iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    )
}

/// Reads the arguments: EAL's options, `--`, l2fwd's.
///
/// # Errors
/// Every mistake at once, those against the machine included, except for interfaces that will be waited for.
pub fn read(args: &[String]) -> Result<Asked, Error> {
    let (for_eal, for_app) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let mut said = Said::default();
    let eal = eal::parse(for_eal, &mut said);
    if eal.version {
        return Ok(Asked::Text(format!(
            "l2relay {} in the place of DPDK's l2fwd",
            env!("CARGO_PKG_VERSION")
        )));
    }
    let app = if eal.help {
        App::default()
    } else {
        app::parse(for_app, &mut said)
    };
    if eal.help || app.help {
        return Ok(Asked::Text(HELP.trim_end().into()));
    }
    let verdicts: Vec<String> = std::mem::take(&mut said.verdicts)
        .into_iter()
        .map(Into::into)
        .chain(HELP.lines().next().map(Into::into))
        .collect();
    let l2fwd = plan(
        eal,
        &app,
        core_affinity::get_core_ids().map(|all| all.iter().map(|core| core.id).collect()),
        said,
    );
    let l2fwd = l2fwd.map_err(|mut mistakes| {
        if verdicts.len() > 1 {
            mistakes.extend(verdicts);
        }
        Error::Config(mistakes)
    })?;
    let found = if l2fwd.wait_ports.is_some() {
        l2fwd.config.check_but_for_ports()
    } else {
        l2fwd.config.check()
    };
    found.map_err(Error::Config)?;
    Ok(Asked::Forward(Box::new(l2fwd)))
}

impl L2fwd {
    /// What l2fwd says when its ports are open: on standard output, and on standard error.
    pub fn ready(&self, snapshot: &Snapshot) -> (String, String) {
        let mut out = String::new();
        for id in 0..self.all {
            let Some((_, name)) = self.ports.iter().find(|(port, _)| *port == id) else {
                let _ = writeln!(out, "Skipping disabled port {id}");
                continue;
            };
            let mac = name
                .find()
                .map(|interface| interface.mac.to_string().to_uppercase());
            let _ = write!(
                out,
                "Initializing port {id}... done: \nPort {id}, MAC address: {}\n\n",
                mac.unwrap_or_default()
            );
        }
        out += "\nChecking link status.done\n";
        for (id, name) in &self.ports {
            let name = name.to_string();
            let up = snapshot
                .ports
                .iter()
                .any(|port| port.name == name && port.state == PortState::Up);
            let _ = writeln!(out, "Port {id} Link {}", if up { "up" } else { "down" });
        }
        let mut err = String::new();
        for (lcore, ids) in &self.polls {
            let _ = writeln!(err, "L2FWD: entering main loop on lcore {lcore}");
            for id in ids {
                let _ = writeln!(err, "L2FWD:  -- lcoreid={lcore} portid={id}");
            }
        }
        for lcore in &self.idle {
            let _ = writeln!(err, "L2FWD: lcore {lcore} has nothing to do");
        }
        (out, err)
    }

    /// What l2fwd says at its end, `last` being what was counted; `signal`: the number of the one that ended it.
    pub fn end(&self, signal: Option<i32>, last: &Snapshot) -> String {
        let mut out = String::new();
        if let Some(signal) = signal {
            let _ = writeln!(out, "\n\nSignal {signal} received, preparing to exit...");
        }
        let _ = writeln!(out, "{}", Table::new(self, last));
        for (id, _) in &self.ports {
            let _ = writeln!(out, "Closing port {id}... Done");
        }
        out + "Bye..."
    }
}

/// The entry whose name this is, or the only one whose name begins so, as getopt_long has it.
fn find<'a, T>(
    table: &'a [T],
    name_of: impl Fn(&'a T) -> &'a str,
    name: &str,
) -> Result<&'a T, String> {
    if let Some(exact) = table.iter().find(|entry| name_of(entry) == name) {
        return Ok(exact);
    }
    let begin: Vec<&T> = table
        .iter()
        .filter(|entry| name_of(entry).starts_with(name))
        .collect();
    match begin[..] {
        [one] => Ok(one),
        [] => Err("there is none of that name".into()),
        _ => {
            let names: Vec<String> = begin
                .iter()
                .map(|entry| format!("--{}", name_of(entry)))
                .collect();
            Err(format!("could be {}", names.join(", ")))
        }
    }
}

/// The value of the option that was read last.
fn value(parser: &mut Parser) -> Option<String> {
    parser
        .value()
        .ok()
        .map(|value| value.to_string_lossy().into_owned())
}

const HELP: &str = "\
Usage: l2relay l2fwd [EAL options] -- -p PORTMASK [-P] [-q NQ] [-T PERIOD] [--portmap MAP] [--[no-]mac-updating]

DPDK's l2fwd without DPDK: the same options, pairs, MAC addresses and statistics. The same when the program is called by the
name l2fwd. docs/l2fwd.md maps every option.

EAL options:
  -l LIST, -c MASK, --lcores MAP   Cores; ports are given to them in order, -q to each
  --vdev=net_af_packet0,iface=NAME A port by AF_PACKET; net_af_xdp0 by AF_XDP. Ports are numbered in this order, from 0
  --no-huge                        Frames on ordinary pages
  Others are accepted, and named if they have no effect.

l2fwd options:
  -p PORTMASK          Ports to use, a hexadecimal mask
  -P                   Promiscuous mode
  -q NQ                Ports of a core: 1 to 15 (default 1)
  -T PERIOD            Seconds between two statistics: 1 to 86399 (default 10), 0 for none
  --portmap (0,1)(2,3) Pairs (default: neighbours; an odd last one with itself)
  --no-mac-updating    Leave MAC addresses alone (default: source is the port's, destination 02:00:00:00:00:PORT)
  --coalesce off       auto or on: merge frames of a flow, as `l2relay run` does (not in DPDK)
  --wait-ports S       Wait so long for interfaces that aren't there yet (not in DPDK)

Exit status: 0 after SIGINT or SIGTERM, 2 if something can't be.
";

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn it_is_asked_for_by_name_or_word() {
        let asked = |line: &str| {
            arguments(
                &words(line)
                    .into_iter()
                    .map(Into::into)
                    .collect::<Vec<OsString>>(),
            )
        };
        assert_eq!(
            asked("./l2fwd -l 1 -- -p 1").unwrap(),
            words("-l 1 -- -p 1")
        );
        assert_eq!(asked("l2relay l2fwd -- -p 1").unwrap(), words("-- -p 1"));
        assert_eq!(asked("l2relay run l2fwd"), None);
        assert_eq!(asked("l2relay"), None);
    }
}
