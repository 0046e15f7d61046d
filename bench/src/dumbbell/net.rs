//! Dumbbells in namespaces: two hosts and a router on each side, and the relay between the routers.
//!
//! ```text
//! n1 ──┐                                ┌── n5      n1 n2  senders      n3 n4  routers
//!      n3 ──(aN)── relay ──(zN)── n4                n5 n6  receivers
//! n2 ──┘                                └── n6
//! ```
//! Several stand side by side, with one relay for all, so that many runs take the time of one.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};

use super::case::{Bottleneck, Case, RATE_KBPS};
use crate::process::{Process, Program};
use crate::run::Run;
use crate::topology::{Namespaces, ip};

/// The longest that making things takes.
const SETUP: Duration = Duration::from_secs(30);

/// All dumbbells of a run, removed on drop.
pub(super) struct Dumbbells {
    relay_space: String,
    names: Vec<[String; 6]>,
    _namespaces: Namespaces,
}

impl Dumbbells {
    /// Makes `count` of them.
    pub(super) fn build(run: &Run, count: usize) -> Result<Self> {
        let relay_space = run.name("e");
        let names: Vec<[String; 6]> = (0..count)
            .map(|at| [1, 2, 3, 4, 5, 6].map(|n| run.name(&format!("d{at}n{n}"))))
            .collect();
        let all = names
            .iter()
            .flatten()
            .chain([&relay_space])
            .cloned()
            .collect();
        let dumbbells = Self {
            relay_space,
            names,
            _namespaces: Namespaces::named(all),
        };
        dumbbells.lay(run)?;
        Ok(dumbbells)
    }

    fn lay(&self, run: &Run) -> Result<()> {
        let mut script = format!("netns add {}\n", self.relay_space);
        for names in &self.names {
            names.iter().for_each(|name| {
                let _ = writeln!(script, "netns add {name}");
            });
        }
        for (at, [n1, n2, n3, n4, n5, n6]) in self.names.iter().enumerate() {
            let e = &self.relay_space;
            for (host, router, port) in [
                (n1, n3, "h1"),
                (n2, n3, "h2"),
                (n5, n4, "h1"),
                (n6, n4, "h2"),
            ] {
                let _ = writeln!(
                    script,
                    "link add h0 netns {host} type veth peer name {port} netns {router}"
                );
            }
            // Addresses that are known: ARP would cross the lossy line.
            for (router, port, mac) in [(n3, "a", 3), (n4, "z", 4)] {
                let _ = writeln!(
                    script,
                    "link add b0 address 02:00:00:00:00:0{mac} netns {router} type veth peer name {port}{at} netns {e}"
                );
            }
        }
        ip(run, None, script)?;
        for (at, names) in self.names.iter().enumerate() {
            for (n, name) in names.iter().enumerate() {
                ip(run, Some(name), configuration(n + 1))?;
                if n == 2 || n == 3 {
                    sysctl(run, name, &["net.ipv4.ip_forward=1"])?;
                } else {
                    // A run must not learn from the one before.
                    sysctl(run, name, &["net.ipv4.tcp_no_metrics_save=1"])?;
                }
            }
            ip(
                run,
                Some(&self.relay_space),
                format!("link set a{at} up\nlink set z{at} up\n"),
            )?;
        }
        Ok(())
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    /// Namespaces of the sender and the receiver of a flow.
    pub(super) fn ends(&self, dumbbell: usize, flow: usize) -> (&str, &str) {
        let names = &self.names[dumbbell];
        (&names[flow], &names[4 + flow])
    }

    /// The receiver's address.
    pub(super) fn address(flow: usize) -> String {
        format!("10.0.{}.2", 5 + flow)
    }

    /// Puts the token bucket on the routers, or takes it away.
    pub(super) fn shape(&self, run: &Run, bottleneck: Bottleneck) -> Result<()> {
        for names in &self.names {
            for router in &names[2..4] {
                let tc = |words: &str| {
                    Program::new("tc")
                        .args(["-n", router])
                        .args(words.split(' '))
                        .finish(run, SETUP)
                };
                // Fails where there is none.
                let _ = tc("qdisc del dev b0 root")?;
                if bottleneck == Bottleneck::Tbf {
                    // The original's bucket of 10 KB; the limit it meant to have, 15 KB, had no effect there, so netem's 1000 packets ruled.
                    tc(&format!(
                        "qdisc add dev b0 root tbf rate {RATE_KBPS}kbit burst 10k limit 1514000"
                    ))?
                    .succeed()?;
                }
            }
        }
        Ok(())
    }

    /// Starts the relay with the lines of a case; dumbbell k has seed `seed` + k.
    pub(super) fn start_relay(
        &self,
        run: &Run,
        program: &str,
        case: &Case,
        seed: u32,
    ) -> Result<Process> {
        let mut relay = Program::new(program)
            .args(["run", "--json", "--idle", "sleep", "--ring", "256"])
            .within(&self.relay_space);
        for at in 0..self.count() {
            let (left, right) = (format!("a{at}"), format!("z{at}"));
            relay = relay.args(["--pair", &format!("{left},{right}")]);
            for link in case.links(&left, &right, seed + at as u32) {
                relay = relay.args(["--link", &link]);
            }
        }
        let mut process = relay.start(run)?;
        process
            .wait_until(run, SETUP, "it forwarded (\"ready\")", |p| {
                p.written().lines().any(|line| line.trim() == "ready")
            })
            .context("the relay that plays the bottleneck")?;
        Ok(process)
    }
}

/// Lines of `ip -batch` that make node `n` what it is.
fn configuration(n: usize) -> String {
    let mut script = String::from("link set lo up\n");
    match n {
        3 | 4 => {
            let (first, own, other) = if n == 3 { (1, 1, 2) } else { (5, 2, 1) };
            for port in 0..2 {
                let _ = writeln!(
                    script,
                    "addr add 10.0.{}.1/24 dev h{}",
                    first + port,
                    port + 1
                );
                let _ = writeln!(script, "link set h{} up", port + 1);
            }
            let _ = writeln!(script, "addr add 10.0.0.{own}/24 dev b0\nlink set b0 up");
            let _ = writeln!(
                script,
                "neigh add 10.0.0.{other} lladdr 02:00:00:00:00:0{} dev b0 nud permanent",
                other + 2
            );
            let _ = writeln!(script, "route add default via 10.0.0.{other}");
        }
        host => {
            let _ = writeln!(script, "addr add 10.0.{host}.2/24 dev h0\nlink set h0 up");
            let _ = writeln!(script, "route add default via 10.0.{host}.1");
        }
    }
    script
}

fn sysctl(run: &Run, namespace: &str, settings: &[&str]) -> Result<()> {
    Program::new("sysctl")
        .arg("-qw")
        .args(settings.iter().copied())
        .within(namespace)
        .run(run, SETUP)?;
    Ok(())
}
