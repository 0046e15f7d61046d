//! The machine a measurement was made on: what a reader must know to judge the figures.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::process::{Program, installed};
use crate::run::Run;

/// Facts of machine, system and tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Start of the measurement, UTC.
    pub(crate) date: String,
    /// Processor, as the kernel names it.
    pub(crate) cpu_model: String,
    /// CPUs that this process may use.
    pub(crate) cpus: usize,
    /// Whether a hypervisor runs below.
    pub(crate) virtual_machine: bool,
    /// Memory, in MiB.
    pub(crate) memory_mib: u64,
    /// Name, release and build of the kernel.
    pub(crate) kernel: String,
    /// The distribution.
    pub(crate) system: String,
    /// Runnable tasks, averaged over a minute before the start: more than a few tenths is company
    /// that disturbs.
    pub(crate) load_before: f64,
    /// Tools and their versions.
    pub(crate) versions: Vec<(String, String)>,
    /// The exact command of this measurement.
    pub(crate) command: String,
}

impl Machine {
    /// Reads them.
    pub(crate) fn facts(run: &Run, l2relay: &Path) -> Result<Self> {
        let cpuinfo = read("/proc/cpuinfo");
        let command: Vec<_> = std::env::args().collect();
        Ok(Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            cpu_model: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal")
                .and_then(|m| m.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                / 1024,
            kernel: ["ostype", "osrelease", "version"]
                .map(|n| read(&format!("/proc/sys/kernel/{n}")).trim().to_owned())
                .join(" "),
            system: read("/etc/os-release")
                .lines()
                .find_map(|l| l.strip_prefix("PRETTY_NAME="))
                .map_or("unknown".into(), |n| n.trim_matches('"').to_owned()),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|l| l.parse().ok())
                .unwrap_or(0.0),
            versions: versions(run, l2relay)?,
            command: command.join(" "),
        })
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn versions(run: &Run, l2relay: &Path) -> Result<Vec<(String, String)>> {
    let l2relay = l2relay.to_string_lossy();
    let tools: [(&str, &str, &[&str]); 6] = [
        ("l2relay", &l2relay, &["--version"]),
        ("sockperf", "sockperf", &["--version"]),
        ("iperf3", "iperf3", &["--version"]),
        ("iproute2", "ip", &["-V"]),
        // testpmd says its version only with its devices up; Debian's package knows it.
        (
            "dpdk-testpmd",
            "dpkg-query",
            &["-W", "-f", "dpdk ${Version}", "dpdk-dev"],
        ),
        (
            "ns-3",
            "dpkg-query",
            &["-W", "-f", "ns3 ${Version}", "libns3-dev"],
        ),
    ];
    let mut versions = vec![(
        "l2relay-bench".to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    )];
    for (tool, program, args) in tools {
        if installed(program).is_none() {
            continue;
        }
        let output = Program::new(program)
            .args(args.iter().copied())
            .finish(run, Duration::from_secs(5))?;
        let said = format!("{}\n{}", output.stdout, output.stderr);
        if let Some(version) = said.lines().find(|l| !l.trim().is_empty())
            && output.status.success()
        {
            versions.push((tool.to_owned(), version.trim().to_owned()));
        }
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(field(cpuinfo, "model"), None);
    }
}
