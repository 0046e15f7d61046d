//! What an interface allows, as a port.

use std::fs;
use std::io;
use std::net::IpAddr;

use super::Findings;
use crate::config::PortName;
use crate::interface::{Address, Interface, XdpMode};
use crate::sys::ethtool::{Channels, Ethtool, Feature};
use crate::sys::netns;
use crate::sys::packet::PacketSocket;

/// What was asked about an interface. What a driver doesn't answer is empty.
struct Facts {
    interface: Interface,
    addresses: Vec<Address>,
    /// Whether the host routes what comes in by it.
    routes: bool,
    /// Its bridge or bond by name.
    master: Option<String>,
    driver: Option<String>,
    features: Vec<Feature>,
    channels: Option<Channels>,
    /// Why no packet socket may be opened in its namespace.
    refusal: Option<io::Error>,
}

/// Returns the MTU, if the interface can be a port.
pub(super) fn examine(name: &PortName, findings: &mut Findings) -> Option<u32> {
    match netns::within(name.netns.as_deref(), || Facts::gather(&name.interface)).flatten() {
        Ok(Some(facts)) => judge(name, &facts, findings),
        Ok(None) => {
            let list = format!("{} link", command(name, "ip"));
            // Says which there are. It has come into being by now if nothing is the matter.
            let mistake = name
                .find()
                .err()
                .unwrap_or_else(|| "appears and disappears".into());
            let text = mistake
                .strip_prefix(&format!("{name}: "))
                .unwrap_or(&mistake);
            findings.problem(
                "interface",
                text,
                format!("name one that exists ({list}), or create it first"),
            );
            None
        }
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => {
                    "name a namespace that exists (ip netns list), or create it first"
                }
                io::ErrorKind::PermissionDenied => "run as root, or docker run --cap-add SYS_ADMIN",
                _ => {
                    "name a namespace by its name in /run/netns, by an absolute path or by a process number"
                }
            };
            findings.problem("interface", error.to_string(), remedy);
            None
        }
    }
}

impl Facts {
    /// In the namespace of the interface; `None` if it isn't there.
    fn gather(name: &str) -> io::Result<Option<Self>> {
        let Some(interface) = Interface::find(name)? else {
            return Ok(None);
        };
        // An alternative name may have found it.
        let name = &interface.name;
        let ethtool = Ethtool::open(name)?;
        // Read by this thread, so in its namespace.
        let routes = |family| {
            let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
            fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
        };
        let master = match interface.master {
            Some(index) => Interface::with_index(index)?.map(|master| master.name),
            None => None,
        };
        Ok(Some(Self {
            addresses: interface.addresses()?,
            routes: routes("ipv4") || routes("ipv6"),
            master,
            driver: ethtool.driver().ok(),
            features: ethtool.features().unwrap_or_default(),
            channels: ethtool.channels().ok(),
            refusal: PacketSocket::open(interface.index).err(),
            interface,
        }))
    }

    fn has(&self, feature: &str) -> bool {
        self.features
            .iter()
            .any(|known| known.name == feature && known.on)
    }
}

fn judge(name: &PortName, facts: &Facts, findings: &mut Findings) -> Option<u32> {
    let interface = &facts.interface;
    let kind = interface
        .kind
        .as_deref()
        .or(facts.driver.as_deref())
        .unwrap_or("unknown kind");
    if interface.loopback {
        findings.problem(
            "interface",
            "is the loopback: it joins nothing",
            "name another",
        );
        return None;
    }
    if !interface.ethernet {
        let text = format!("{kind}: its frames have no Ethernet header");
        findings.problem(
            "interface",
            text,
            "use one with Ethernet frames: veth, tap, a network card",
        );
        return None;
    }
    let driver = match &facts.driver {
        Some(driver) if driver != kind => format!(", driver {driver}"),
        _ => String::new(),
    };
    findings.ok(
        "interface",
        format!(
            "{kind}{driver}, {}, index {}",
            interface.mac, interface.index
        ),
    );
    if let Some(error) = &facts.refusal {
        let remedy = "take the rights in the user namespace that owns the network namespace";
        findings.problem(
            "packet socket",
            format!("cannot be opened in its namespace: {error}"),
            remedy,
        );
    }
    link(name, facts, findings);
    findings.ok(
        "mtu",
        format!(
            "{} (frames of up to {} bytes)",
            interface.mtu,
            interface.mtu + 14
        ),
    );
    qdisc(name, facts, findings);
    queues(facts, findings);
    offloads(name, facts, findings);
    xdp(name, facts, findings);
    addresses(name, facts, findings);
    master(name, facts, findings);
    let promiscuity = match interface.promiscuity {
        0 => "no; asked for while a relay runs, unless --no-promisc".into(),
        1 => "yes, by 1 user".into(),
        users => format!("yes, by {users} users"),
    };
    findings.ok("promiscuous", promiscuity);
    Some(interface.mtu)
}

fn link(name: &PortName, facts: &Facts, findings: &mut Findings) {
    let interface = &facts.interface;
    if !interface.up {
        let remedy = format!("{} link set dev {} up", command(name, "ip"), interface.name);
        findings.note("link", "down: a relay waits until it is up", remedy);
    } else if !interface.carrier {
        let peer = if interface.kind.as_deref() == Some("veth") {
            "set its peer up"
        } else {
            "connect the other end"
        };
        findings.note(
            "link",
            "up, but without a carrier: a relay waits for it",
            peer,
        );
    } else {
        findings.ok("link", "up");
    }
}

fn qdisc(name: &PortName, facts: &Facts, findings: &mut Findings) {
    match facts.interface.qdisc.as_deref().unwrap_or("unknown") {
        "noqueue" => findings.ok("qdisc", "noqueue: frames go straight to the device"),
        // What every interface has until it is up for the first time.
        "noop" => findings.ok("qdisc", "none yet"),
        qdisc => findings.note(
            "qdisc",
            format!("{qdisc}: all frames go through it, so that it keeps their order, and each costs more"),
            format!(
                "leave it if it shapes on purpose; else {} qdisc replace dev {} root noqueue",
                command(name, "tc"),
                facts.interface.name
            ),
        ),
    }
}

fn queues(facts: &Facts, findings: &mut Findings) {
    let (rx, tx) = (facts.interface.rx_queues, facts.interface.tx_queues);
    let used = match facts.channels {
        Some(Channels {
            rx,
            tx,
            combined: 0,
        }) => format!(" (in use: {rx} and {tx})"),
        Some(Channels {
            rx: 0,
            tx: 0,
            combined,
        }) => format!(" (in use: {combined})"),
        Some(Channels { rx, tx, combined }) => {
            format!(" (in use: {rx}, {tx} and {combined} for both)")
        }
        None => String::new(),
    };
    findings.ok("queues", format!("{rx} to receive, {tx} to send{used}"));
}

/// The features that matter here, in the order of a frame's way.
const OFFLOADS: [(&str, &str); 8] = [
    ("tx-checksum-ip-generic", "tx checksum"),
    ("tx-checksum-ipv4", "tx checksum IPv4"),
    ("tx-checksum-ipv6", "tx checksum IPv6"),
    ("tx-tcp-segmentation", "TSO"),
    ("tx-udp-segmentation", "USO"),
    ("tx-generic-segmentation", "GSO"),
    ("rx-gro", "GRO"),
    ("rx-gro-hw", "hardware GRO"),
];

fn offloads(name: &PortName, facts: &Facts, findings: &mut Findings) {
    let on: Vec<_> = OFFLOADS
        .iter()
        .filter(|(feature, _)| facts.has(feature))
        .map(|(_, short)| *short)
        .collect();
    let on = if on.is_empty() {
        "none".into()
    } else {
        on.join(", ")
    };
    if facts.has("rx-lro") {
        findings.note(
            "offloads",
            format!("{on}, LRO: what LRO has merged cannot be sent on as it was"),
            format!(
                "{} -K {} lro off",
                command(name, "ethtool"),
                facts.interface.name
            ),
        );
    } else {
        findings.ok(
            "offloads",
            format!("{on} (leave them: a relay passes them on)"),
        );
    }
}

fn xdp(name: &PortName, facts: &Facts, findings: &mut Findings) {
    let programs = &facts.interface.xdp;
    if programs.is_empty() {
        return findings.ok("xdp", "no program");
    }
    let list: Vec<String> = programs
        .iter()
        .map(|program| format!("{} program {}", program.mode, program.id))
        .collect();
    let off: Vec<&str> = programs
        .iter()
        .map(|program| match program.mode {
            XdpMode::Native => "xdpdrv off",
            XdpMode::Generic => "xdpgeneric off",
            XdpMode::Offloaded => "xdpoffload off",
        })
        .collect();
    findings.note(
        "xdp",
        format!(
            "{}: sees each frame before a relay does, and may take it",
            list.join(", ")
        ),
        format!(
            "if it is a leftover: {} link set dev {} {} (bpftool net shows who holds it)",
            command(name, "ip"),
            facts.interface.name,
            off.join(" ")
        ),
    );
}

/// A packet socket is a tap: the host's own stack receives every frame, too.
fn addresses(name: &PortName, facts: &Facts, findings: &mut Findings) {
    if facts.addresses.is_empty() {
        return findings.ok("addresses", "none: the host itself stays silent");
    }
    let list: Vec<String> = facts.addresses.iter().map(Address::to_string).collect();
    let automatic =
        |address: &Address| matches!(address.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let (ip, device) = (command(name, "ip"), &facts.interface.name);
    if facts.addresses.iter().all(automatic) {
        let text = format!(
            "{}: the host itself takes part in IPv6 on this link",
            list.join(", ")
        );
        return findings.note(
            "addresses",
            text,
            format!("{ip} link set dev {device} addrgenmode none; {ip} address flush dev {device}"),
        );
    }
    let routes = if facts.routes {
        ", and routes what it receives, so that frames arrive twice"
    } else {
        ""
    };
    let text = format!(
        "{}: the host itself answers, beside the relay{routes}",
        list.join(", ")
    );
    findings.note(
        "addresses",
        text,
        format!("{ip} address flush dev {device}"),
    );
}

fn master(name: &PortName, facts: &Facts, findings: &mut Findings) {
    let Some(master) = &facts.master else {
        return findings.ok("master", "none");
    };
    let kind = facts
        .interface
        .master_kind
        .as_deref()
        .unwrap_or("unknown kind");
    findings.note(
        "master",
        format!("belongs to {master} ({kind}), which takes its frames as well: they are doubled, or lost to it"),
        format!("{} link set dev {} nomaster", command(name, "ip"), facts.interface.name),
    );
}

/// How to run a program where the port is.
fn command(name: &PortName, program: &str) -> String {
    match name.netns.as_deref() {
        None => program.into(),
        Some(path) if path.starts_with('/') => format!("nsenter --net={path} {program}"),
        Some(named) if !netns::names().iter().any(|one| one == named) => {
            format!("nsenter --net --target {named} {program}")
        }
        Some(named) if matches!(program, "ip" | "tc") => format!("{program} -n {named}"),
        Some(named) => format!("ip netns exec {named} {program}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, Verdict};
    use super::*;
    use crate::sys::netns::testing::Namespace;

    fn examined(name: &str) -> (Vec<Finding>, Option<u32>) {
        let mut findings = Findings::about(name);
        let mtu = examine(&name.parse().unwrap(), &mut findings);
        (findings.all, mtu)
    }

    /// The verdict and the text of one item.
    fn item<'a>(findings: &'a [Finding], item: &str) -> (Verdict, &'a str) {
        let finding = findings.iter().find(|finding| finding.item == item);
        let finding = finding.unwrap_or_else(|| panic!("no {item} among {findings:#?}"));
        (finding.verdict, &finding.text)
    }

    #[test]
    fn the_loopback_is_no_port() {
        let (findings, mtu) = examined("lo");
        assert_eq!(mtu, None);
        assert_eq!(
            item(&findings, "interface"),
            (Verdict::Problem, "is the loopback: it joins nothing")
        );
    }

    #[test]
    fn an_absent_namespace_is_a_problem() {
        let (findings, _) = examined("no-such-namespace:eth0");
        let (verdict, text) = item(&findings, "interface");
        assert_eq!(verdict, Verdict::Problem);
        assert!(text.starts_with("no such network namespace"), "{text}");
    }

    #[test]
    fn an_absent_interface_comes_with_those_there_are() {
        let Some(namespace) = Namespace::make("absent") else {
            return;
        };
        namespace.ip("link add name va type veth peer name vb");
        let (findings, _) = examined(&format!("{}:vc", namespace.name));
        let (verdict, text) = item(&findings, "interface");
        assert_eq!(verdict, Verdict::Problem);
        assert!(
            text.starts_with("no such interface") && text.contains("va") && text.contains("vb"),
            "{text}"
        );
        let remedy = findings[0].remedy.as_deref().unwrap();
        assert!(
            remedy.contains(&format!("ip -n {} link", namespace.name)),
            "{remedy}"
        );
    }

    #[test]
    fn a_veth_is_examined_in_its_namespace() {
        let Some(namespace) = Namespace::make("check") else {
            return;
        };
        let name = format!("{}:va", namespace.name);
        namespace.ip("link add name va numtxqueues 2 numrxqueues 3 type veth peer name vb");
        namespace.ip("link set dev va addrgenmode none");
        let (findings, mtu) = examined(&name);
        assert_eq!(mtu, Some(1500));
        assert!(item(&findings, "interface").1.starts_with("veth, "));
        assert_eq!(
            item(&findings, "link"),
            (Verdict::Note, "down: a relay waits until it is up")
        );
        assert_eq!(item(&findings, "qdisc"), (Verdict::Ok, "none yet"));

        namespace.ip("link set va up");
        assert!(
            item(&examined(&name).0, "link")
                .1
                .contains("without a carrier")
        );
        namespace.ip("link set vb up");
        let (findings, _) = examined(&name);
        let notes: Vec<_> = findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .collect();
        assert!(notes.is_empty(), "{notes:#?}");
        assert_eq!(
            item(&findings, "queues").1,
            "3 to receive, 2 to send (in use: 3 and 2)"
        );
        assert!(
            item(&findings, "offloads")
                .1
                .starts_with("tx checksum, TSO, USO, GSO")
        );
    }

    #[test]
    fn what_disturbs_is_noted_with_a_remedy_that_works() {
        let Some(namespace) = Namespace::make("notes") else {
            return;
        };
        let name = format!("{}:va", namespace.name);
        namespace.ip("link add name va type veth peer name vb");
        namespace.ip("link add name br type bridge");
        namespace.ip("link set va master br");
        namespace.ip("link set vb up");
        namespace.ip("link set va up");
        namespace.ip("address add 192.0.2.1/24 dev va");
        let (findings, _) = examined(&name);
        let (verdict, text) = item(&findings, "addresses");
        assert!(
            verdict == Verdict::Note && text.starts_with("192.0.2.1/24"),
            "{text}"
        );
        let (verdict, text) = item(&findings, "master");
        assert!(
            verdict == Verdict::Note && text.starts_with("belongs to br (bridge)"),
            "{text}"
        );
        assert_eq!(
            item(&findings, "promiscuous"),
            (Verdict::Ok, "yes, by 1 user")
        );

        for finding in findings
            .iter()
            .filter(|finding| ["addresses", "master"].contains(&finding.item))
        {
            let remedy = finding.remedy.as_deref().unwrap();
            let status = std::process::Command::new("sh")
                .args(["-c", remedy])
                .status()
                .unwrap();
            assert!(status.success(), "{remedy}");
        }
        let (findings, _) = examined(&name);
        assert_eq!(item(&findings, "addresses").0, Verdict::Ok);
        assert_eq!(item(&findings, "master").0, Verdict::Ok);
    }

    #[test]
    fn what_carries_no_ethernet_is_no_port() {
        let Some(namespace) = Namespace::make("tun") else {
            return;
        };
        namespace.ip("tuntap add dev tun0 mode tun");
        let (findings, mtu) = examined(&format!("{}:tun0", namespace.name));
        assert_eq!(mtu, None);
        assert_eq!(item(&findings, "interface").0, Verdict::Problem);
    }
}
