//! Network namespaces and veth pairs of one test: made with `ip`, named by process and counter, removed on drop.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{PATIENCE, eventually};

const PREFIX: &str = "l2t-";
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The namespaces of one test.
pub(crate) struct Net {
    tag: String,
    spaces: Vec<String>,
}

/// An interface's counters as the kernel keeps them. veth counts socket buffers: a super-frame is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_dropped: u64,
}

impl Net {
    /// Makes a namespace for each name, or says aloud that the test is skipped; `L2RELAY_REQUIRE_ROOT=1` forbids that.
    pub(crate) fn open(names: &[&str]) -> Option<Net> {
        sweep();
        let tag = format!(
            "{PREFIX}{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mut net = Net {
            tag,
            spaces: Vec::new(),
        };
        for name in names {
            let space = net.ns(name);
            let made = Command::new("ip")
                .args(["netns", "add", &space])
                .output()
                .expect("ip (iproute2) is installed");
            if !made.status.success() {
                let cause = String::from_utf8_lossy(&made.stderr).trim().to_owned();
                assert!(
                    std::env::var("L2RELAY_REQUIRE_ROOT").as_deref() != Ok("1"),
                    "L2RELAY_REQUIRE_ROOT is set, and no namespace can be made: {cause}"
                );
                // Past the test harness's own capture: a skip is to be heard.
                let _ = writeln!(std::io::stderr(), "skipped: needs root ({cause})");
                return None;
            }
            net.spaces.push(space);
            // Silent interfaces: without IPv6's own chatter every counter has an exact expected value.
            net.sh(name, "ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        }
        Some(net)
    }

    /// The full name of a namespace.
    pub(crate) fn ns(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    /// A name for a file of this test.
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("{}-{name}", self.tag))
    }

    /// A command that will run inside a namespace, with the process id it is started with.
    pub(crate) fn command(&self, name: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.ns(name)])
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// Runs a shell line inside a namespace; it must succeed. Returns its standard output.
    pub(crate) fn sh(&self, name: &str, line: &str) -> String {
        let output = self.try_sh(name, line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "`{line}` failed: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs a shell line inside a namespace, whatever comes of it.
    pub(crate) fn try_sh(&self, name: &str, line: &str) -> Output {
        self.command(name, "sh")
            .args(["-c", line])
            .output()
            .expect("sh runs")
    }

    /// A veth pair between two namespaces, both ends up. The MAC addresses are [`mac`]'s.
    pub(crate) fn veth(&self, a: (&str, &str), b: (&str, &str)) {
        let (ns_a, ns_b) = (self.ns(a.0), self.ns(b.0));
        let made = Command::new("ip")
            .args([
                "link",
                "add",
                a.1,
                "address",
                &mac_text(a.1),
                "netns",
                &ns_a,
                "type",
                "veth",
                "peer",
                "name",
                b.1,
            ])
            .args(["address", &mac_text(b.1), "netns", &ns_b])
            .output()
            .expect("ip runs");
        assert!(
            made.status.success(),
            "veth {} {}: {}",
            a.1,
            b.1,
            String::from_utf8_lossy(&made.stderr)
        );
        self.sh(a.0, &format!("ip link set {} up", a.1));
        self.sh(b.0, &format!("ip link set {} up", b.1));
    }

    /// The counters of an interface.
    pub(crate) fn counters(&self, name: &str, interface: &str) -> Counters {
        let value = self.link(name, interface);
        let count = |way: &str, what: &str| {
            value["stats64"][way][what]
                .as_u64()
                .expect("ip prints counters")
        };
        Counters {
            rx_packets: count("rx", "packets"),
            rx_bytes: count("rx", "bytes"),
            rx_dropped: count("rx", "dropped"),
            tx_packets: count("tx", "packets"),
            tx_bytes: count("tx", "bytes"),
            tx_dropped: count("tx", "dropped"),
        }
    }

    /// All that `ip` knows of an interface.
    pub(crate) fn link(&self, name: &str, interface: &str) -> serde_json::Value {
        let text = self.sh(name, &format!("ip -d -s -j link show dev {interface}"));
        let mut list: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        list[0].take()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for space in &self.spaces {
            remove(space);
        }
    }
}

/// Client `c0` — `r0` relay `r1` — `s0` server, the topology of most tests.
pub(crate) struct Chain {
    pub(crate) net: Net,
}

impl Chain {
    pub(crate) const CLIENT: &str = "10.9.0.1";
    pub(crate) const SERVER: &str = "10.9.0.2";

    /// The chain with IPv4 addresses at its ends (none on the relay) and interfaces of this MTU.
    pub(crate) fn open(mtu: u32) -> Option<Chain> {
        let net = Net::open(&["client", "relay", "server"])?;
        net.veth(("client", "c0"), ("relay", "r0"));
        net.veth(("server", "s0"), ("relay", "r1"));
        for (space, interface) in [
            ("client", "c0"),
            ("relay", "r0"),
            ("relay", "r1"),
            ("server", "s0"),
        ] {
            net.sh(space, &format!("ip link set {interface} mtu {mtu}"));
        }
        net.sh(
            "client",
            &format!("ip address add {}/24 dev c0", Self::CLIENT),
        );
        net.sh(
            "server",
            &format!("ip address add {}/24 dev s0", Self::SERVER),
        );
        Some(Chain { net })
    }

    /// Fixed neighbour entries at both ends, so that nothing but the test's own frames is on the wire.
    pub(crate) fn without_arp(self) -> Chain {
        self.net.sh(
            "client",
            &format!(
                "ip neigh replace {} lladdr {} dev c0",
                Self::SERVER,
                mac_text("s0")
            ),
        );
        self.net.sh(
            "server",
            &format!(
                "ip neigh replace {} lladdr {} dev s0",
                Self::CLIENT,
                mac_text("c0")
            ),
        );
        self
    }

    /// Pings from the client, one after another: with several under way, ping gives the last answer no more than two round
    /// trips of time, which a busy machine exceeds. Returns the round trips in ms.
    pub(crate) fn ping(&self, count: usize, options: &str, target: &str) -> Vec<f64> {
        let line = format!("ping -n -c 1 -W 5 {options} {target}");
        let round_trip = |_| {
            let text = self.net.sh("client", &line);
            let time = text
                .split("time=")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            time.and_then(|time| time.parse().ok())
                .unwrap_or_else(|| panic!("{text}"))
        };
        (0..count).map(round_trip).collect()
    }

    /// Waits until both counters stand still, so that a comparison of them means something.
    pub(crate) fn settle(&self) {
        let read = || {
            (
                self.net.counters("client", "c0"),
                self.net.counters("server", "s0"),
            )
        };
        let mut last = read();
        let quiet = eventually(PATIENCE, || {
            std::thread::sleep(std::time::Duration::from_millis(40));
            let now = read();
            std::mem::replace(&mut last, now) == now
        });
        assert!(quiet, "the interfaces do not come to rest");
    }
}

/// The address every test interface of this name has: 02, then the name in ASCII.
pub(crate) fn mac(interface: &str) -> [u8; 6] {
    let mut mac = [2, 0, 0, 0, 0, 0];
    for (byte, letter) in mac[1..].iter_mut().zip(interface.bytes()) {
        *byte = letter;
    }
    mac
}

/// [`mac`] as `ip` writes it.
pub(crate) fn mac_text(interface: &str) -> String {
    mac(interface).map(|byte| format!("{byte:02x}")).join(":")
}

/// Ends what still runs in a namespace of ours and removes it, with every interface in it.
fn remove(space: &str) {
    if let Ok(pids) = Command::new("ip").args(["netns", "pids", space]).output() {
        for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace() {
            let _ = Command::new("kill").args(["-9", pid]).output();
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", space]).output();
}

/// Removes namespaces of earlier test processes that were killed before they could do it themselves.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}
