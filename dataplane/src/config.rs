//! Typed settings of a relay, and finding every mistake in them at once.
//!
//! The program fills a [`Config`] from its flags, an embedder directly; [`Relay::start`](crate::relay::Relay::start)
//! checks it against the machine.

mod backend;
mod coalesce;
mod parse;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
};

pub use backend::{Backend, KernelHook, XdpCopy, XdpMode, XdpSettings};
pub use coalesce::Coalesce;
pub(crate) use parse::{
    parse_carry, parse_cores, parse_dst_mac, parse_ends, parse_link, parse_pair, parse_wait,
};

use crate::{
    idle::IdlePolicy,
    interface::{self, Interface},
    memory::HugePages,
    stage::link,
    sys::netns,
    text::beginning,
    wire::ethernet::MacAddress,
};

/// Settings of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ports that are joined, in both directions. A port that is joined with itself is a hairpin: it sends back what it
    /// receives.
    pub pairs: Vec<[PortName; 2]>,
    /// How frames are received and sent.
    pub backend: Backend,
    /// How frames are received, if not by `backend`.
    pub rx: Option<Backend>,
    /// How frames are sent, if not by `backend`.
    pub tx: Option<Backend>,
    /// How AF_XDP is opened.
    pub xdp: XdpSettings,
    /// Whether frames of a flow that arrive together leave as one.
    pub coalesce: Coalesce,
    /// Where programs that forward in the kernel are attached.
    pub kernel_hook: KernelHook,
    /// What is done to MAC addresses.
    pub mac: MacMode,
    /// For [`MacMode::Update`]: the destination of frames sent by a port, instead of l2fwd's.
    pub dst_mac: Vec<(PortName, MacAddress)>,
    /// Cores to pin workers to, one each. Empty: one worker, not pinned.
    pub cores: Vec<usize>,
    /// On which of these cores the lanes run that receive from a port; those of other ports, or for other cores, are spread
    /// over all.
    pub rx_cores: Vec<(PortName, usize)>,
    /// What a worker does when no frame comes.
    pub idle: IdlePolicy,
    /// Lanes per direction, 1 to 64 (one where a link is emulated); frames are spread over them by flow. AF_XDP spreads as the interfaces do over their
    /// queues, and refuses more lanes than they have.
    pub queues: usize,
    /// Slots of each ring, 16 to 32768. `None`: 1024, or 4096 for AF_XDP's where frames are merged.
    pub ring: Option<usize>,
    /// Receive frames for every address.
    pub promiscuous: bool,
    /// Send through the interface's qdisc.
    pub qdisc: bool,
    /// Discard multicast on hairpins.
    pub hairpin_guard: bool,
    /// Multicast and broadcast packets that a lane lets pass in a second. `None`: all.
    pub storm_guard_pps: Option<u32>,
    /// By what an interface that is created anew is known.
    pub port_by: PortBy,
    /// Set the other port of a pair down while one has no link.
    pub propagate_link: bool,
    /// Whether frames lie on huge pages.
    pub huge_pages: HugePages,
    /// Link emulation, per direction.
    pub links: Vec<LinkSettings>,
    /// The seed of links that have none of their own. `None`: another one for each, at every start.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            backend: Backend::default(),
            rx: None,
            tx: None,
            xdp: XdpSettings::default(),
            coalesce: Coalesce::default(),
            kernel_hook: KernelHook::default(),
            mac: MacMode::default(),
            dst_mac: Vec::new(),
            cores: Vec::new(),
            rx_cores: Vec::new(),
            idle: IdlePolicy::default(),
            queues: 1,
            ring: None,
            promiscuous: true,
            qdisc: false,
            hairpin_guard: false,
            storm_guard_pps: None,
            port_by: PortBy::default(),
            propagate_link: false,
            huge_pages: HugePages::default(),
            links: Vec::new(),
            seed: None,
        }
    }
}

/// What is done to MAC addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacMode {
    /// Nothing.
    #[default]
    Keep,
    /// Source and destination are exchanged.
    Swap,
    /// As l2fwd does: source is the sending port's, destination `02:00:00:00:00:<its id>` or as given.
    Update,
}

/// By what a port knows its interface when that is created anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortBy {
    /// By its name.
    #[default]
    Name,
    /// By its hardware address, whatever its name.
    Mac,
}

/// Names an interface, perhaps in another network namespace: `eth0`, `ns1:eth0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The namespace: a name below /run/netns, an absolute path, or a process id. `None`: the relay's own.
    pub netns: Option<String>,
    /// The interface.
    pub interface: String,
}

/// Emulation of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// The port that frames come from.
    pub from: PortName,
    /// The port they leave by.
    pub to: PortName,
    /// What the link does.
    pub settings: link::Settings,
}

impl Config {
    /// Most pairs of a relay, hairpins among them.
    pub const PAIRS_MAX: usize = 1024;

    /// The ports in the order in which they are named: a port's place is its id.
    pub fn ports(&self) -> Vec<&PortName> {
        let mut known = HashSet::new();
        let ports = self.pairs.iter().flatten();
        ports.filter(|port| known.insert(*port)).collect()
    }

    /// Told alone: to look for all mistakes of so many would take long, and nobody could read them.
    fn too_many(&self) -> Option<String> {
        let (count, max) = (self.pairs.len(), Self::PAIRS_MAX);
        (count > max).then(|| format!("{count} pairs: at most {max}"))
    }

    /// Every mistake that can be found without looking at the machine, one sentence each.
    pub fn mistakes(&self) -> Vec<String> {
        if let Some(mistake) = self.too_many() {
            return vec![mistake];
        }
        let mut mistakes = Vec::new();
        if self.pairs.is_empty() {
            mistakes.push("no ports: name two with --pair A,B, or one with --hairpin E".into());
        }
        let mut uses = HashMap::<&PortName, usize>::new();
        for [a, b] in &self.pairs {
            *uses.entry(a).or_default() += 1;
            if a != b {
                *uses.entry(b).or_default() += 1;
            }
        }
        let mut ports = self.ports();
        ports.retain(|port| uses[port] > 1);
        mistakes.extend(ports.iter().map(|port| {
            format!(
                "{port} is named {} times: a port can be in one pair only",
                uses[port]
            )
        }));
        range(&mut mistakes, "--queues", self.queues, 1, 64);
        range(&mut mistakes, "--ring", self.slots(), 16, 32_768);
        let named = [Some(self.backend), self.rx, self.tx];
        if !cfg!(feature = "xdp") && named.contains(&Some(Backend::Xdp)) {
            mistakes.push(
                "this l2relay was built without AF_XDP (cargo feature xdp): use packet".into(),
            );
        }
        if self.backend == Backend::Kernel {
            self.kernel_mistakes(&mut mistakes);
        }
        for (option, named) in [("--rx", self.rx), ("--tx", self.tx)] {
            if matches!(named, Some(Backend::Kernel | Backend::Fastest)) {
                mistakes.push(format!(
                    "{option}: the kernel carries a pair whole: use --backend"
                ));
            }
        }
        if self.qdisc && self.sends_by() == Backend::Xdp {
            mistakes
                .push("AF_XDP sends past the qdisc: leave out --qdisc, or add --tx packet".into());
        }
        self.coalesce.mistakes(self, &mut mistakes);
        const MAX_SLOTS: usize = 262_144;
        if self.queues.saturating_mul(self.slots()) > MAX_SLOTS {
            mistakes.push(format!(
                "--queues {} with --ring {}: more than {MAX_SLOTS} slots for a port's ring, lower one of them",
                self.queues, self.slots()
            ));
        }
        let mut given = HashSet::new();
        for (port, _) in &self.dst_mac {
            if !given.insert(port) {
                mistakes.push(format!("--dst-mac {port}: given twice, a port has one"));
            }
            if !uses.contains_key(port) {
                mistakes.push(format!("--dst-mac {port}: no such port in any pair"));
            }
        }
        if !self.dst_mac.is_empty() && self.mac != MacMode::Update {
            mistakes.push("--dst-mac has no effect without --mac update: add it".into());
        }
        let joined: HashSet<[&PortName; 2]> = self
            .pairs
            .iter()
            .flat_map(|[a, b]| [[a, b], [b, a]])
            .collect();
        let mut given = HashSet::new();
        for link in &self.links {
            let ends = [&link.from, &link.to];
            if !given.insert(ends) {
                mistakes.push(format!(
                    "--link '{}>{}': given twice, write all of it in one",
                    link.from, link.to
                ));
            }
            if !joined.contains(&ends) {
                mistakes.push(format!(
                    "--link '{}>{}': no pair joins these ports",
                    link.from, link.to
                ));
            }
            mistakes.extend(
                link.settings
                    .mistakes()
                    .into_iter()
                    .map(|mistake| format!("--link '{}>{}': {mistake}", link.from, link.to)),
            );
        }
        if self.storm_guard_pps == Some(0) {
            mistakes.push(
                "--storm-guard 0: at least 1 packet a second; none would take ARP away".into(),
            );
        }
        for (at, core) in self.cores.iter().enumerate() {
            if self.cores[..at].contains(core) {
                mistakes.push(format!(
                    "core {core} is named twice in --cores: a worker needs a core of its own"
                ));
            }
        }
        mistakes
    }

    /// What needs frames in user space, where the kernel keeps them.
    fn kernel_mistakes(&self, mistakes: &mut Vec<String>) {
        if !cfg!(feature = "xdp") {
            mistakes.push(
                "this l2relay was built without BPF programs (cargo feature xdp): use packet"
                    .into(),
            );
        }
        for (option, named) in [("--rx", self.rx), ("--tx", self.tx)] {
            if let Some(named) = named {
                mistakes.push(format!(
                    "{option} {named} with --backend kernel: the kernel carries a pair whole, leave one of them out"
                ));
            }
        }
        if self.storm_guard_pps.is_some() {
            mistakes.push(
                "--storm-guard counts frames in user space, where --backend kernel does not bring them: use packet, or fastest"
                    .into(),
            );
        }
        for link in &self.links {
            mistakes.push(format!(
                "--link '{}>{}': link emulation holds frames in user space, where --backend kernel does not bring them: \
                 use packet, or fastest to choose pair by pair",
                link.from, link.to
            ));
        }
    }

    /// Every mistake, those against the machine included.
    ///
    /// # Errors
    /// One sentence for each mistake.
    pub fn check(&self) -> Result<(), Vec<String>> {
        self.resolve(&[]).map(drop)
    }

    /// As [`Config::check`], for whoever will wait for [absent](Config::absent) ports: that one is absent is no mistake.
    ///
    /// # Errors
    /// One sentence for each mistake.
    pub fn check_but_for_ports(&self) -> Result<(), Vec<String>> {
        self.look(&[], true).map(drop)
    }

    /// The ports that are not there (yet): no such interface, or no such namespace.
    pub fn absent(&self) -> Vec<&PortName> {
        let mut ports = self.ports();
        ports.retain(|port| port.is_absent());
        ports
    }

    /// Every mistake at once; else the interfaces, in the order of [`Config::ports`]. Those of ports that are open already are
    /// not looked for: they may be gone for the moment.
    pub(crate) fn resolve(
        &self,
        open: &[(PortName, Interface)],
    ) -> Result<Vec<Interface>, Vec<String>> {
        self.look(open, false)
    }

    fn look(
        &self,
        open: &[(PortName, Interface)],
        may_be_absent: bool,
    ) -> Result<Vec<Interface>, Vec<String>> {
        if let Some(mistake) = self.too_many() {
            return Err(vec![mistake]);
        }
        let mut mistakes = self.mistakes();
        if let Some(allowed) = core_affinity::get_core_ids() {
            let allowed: Vec<usize> = allowed.iter().map(|core| core.id).collect();
            for core in self.cores.iter().filter(|core| !allowed.contains(core)) {
                mistakes.push(format!(
                    "core {core} is not allowed here: use {}",
                    list_cores(&allowed)
                ));
            }
        }
        let mut found: Vec<Interface> = Vec::new();
        let mut known = HashMap::new();
        let open: HashMap<_, _> = open.iter().map(|(name, found)| (name, found)).collect();
        // Which interfaces there are in a namespace is told once.
        let mut listed = HashSet::new();
        for port in self.ports() {
            let place = netns::identity(port.netns.as_deref()).ok();
            let find = || match listed.contains(&port.netns) {
                false => port.find().inspect_err(|_| {
                    listed.insert(&port.netns);
                }),
                true => port.find_unlisted(),
            };
            let found_open = open.get(port).map(|interface| Ok((*interface).clone()));
            match found_open.unwrap_or_else(find) {
                Ok(interface) if interface.loopback => {
                    mistakes.push(format!(
                        "{port} is a loopback interface: it joins nothing, name another"
                    ));
                }
                Ok(interface) if !interface.ethernet => {
                    mistakes.push(format!(
                        "{port} carries no Ethernet frames: name an interface that does (veth, tap, a NIC)"
                    ));
                }
                Ok(interface) => {
                    if let Some(other) = known.insert((place, interface.index), port) {
                        mistakes.push(format!(
                            "{other} and {port} are one interface: a port can be in one pair only"
                        ));
                    }
                    found.push(interface);
                }
                Err(_) if may_be_absent && port.is_absent() => {}
                Err(mistake) => mistakes.push(mistake),
            }
        }
        for [a, b] in &self.pairs {
            let places = [a, b].map(|port| netns::identity(port.netns.as_deref()).ok());
            if self.backend == Backend::Kernel && places[0] != places[1] {
                mistakes.push(format!(
                    "{a} and {b} are in two network namespaces: tc redirects within one only, use --backend packet"
                ));
            }
        }
        if mistakes.is_empty() {
            Ok(found)
        } else {
            Err(mistakes)
        }
    }

    /// Slots of a ring of AF_PACKET's.
    pub(crate) fn slots(&self) -> usize {
        self.ring.unwrap_or(1024)
    }

    /// Slots of a ring of AF_XDP's. Where frames are merged: the deeper, the more frames of a flow are in it together, and it
    /// costs nothing while nothing waits.
    pub(crate) fn xdp_slots(&self, merges: bool) -> usize {
        self.ring.unwrap_or(if merges { 4096 } else { 1024 })
    }

    /// What is done to frames, in words.
    pub(crate) fn edit_words(&self) -> String {
        let mut words = format!("mac {}", self.mac);
        for (port, mac) in &self.dst_mac {
            words += &format!(", dst-mac {port}={mac}");
        }
        if self.hairpin_guard {
            words += ", hairpin-guard";
        }
        if let Some(pps) = self.storm_guard_pps {
            words += &format!(", storm-guard {pps}");
        }
        words
    }

    /// How frames are received: what `rx` says, or `backend`.
    pub fn receives_by(&self) -> Backend {
        self.rx.unwrap_or(self.backend)
    }

    /// How frames are sent: what `tx` says, or `backend`.
    pub fn sends_by(&self) -> Backend {
        self.tx.unwrap_or(self.backend)
    }

    /// Puts a link in the place of the one there is between its ports in this direction.
    pub(crate) fn set_link(&mut self, link: LinkSettings) {
        self.remove_link(&link);
        self.links.push(link);
    }

    /// Removes the link there is between the ports of this one in its direction.
    pub(crate) fn remove_link(&mut self, link: &LinkSettings) {
        self.links
            .retain(|other| (&other.from, &other.to) != (&link.from, &link.to));
    }

    /// The settings of the direction between two ports.
    pub(crate) fn link(&self, from: &PortName, to: &PortName) -> Option<&LinkSettings> {
        self.links
            .iter()
            .rfind(|link| link.from == *from && link.to == *to)
    }

    /// What the link between two ports does in this direction, if there is one: its seed is its own, or that of all.
    pub(crate) fn link_settings(&self, from: &PortName, to: &PortName) -> Option<link::Settings> {
        let settings = self.link(from, to)?.settings.clone();
        let seed = settings.seed.or(self.seed);
        Some(link::Settings { seed, ..settings })
    }

    /// Whether a link is emulated between two ports, in whatever direction.
    pub(crate) fn is_linked(&self, a: &PortName, b: &PortName) -> bool {
        self.link(a, b).is_some() || self.link(b, a).is_some()
    }

    /// How many lanes there are in a direction. An emulated link is one line with one queue: several lanes would be several lines.
    pub(crate) fn lanes(&self, from: &PortName, to: &PortName) -> usize {
        match self.link(from, to) {
            Some(_) => 1,
            None => self.queues,
        }
    }
}

impl PortName {
    fn is_absent(&self) -> bool {
        let looked = netns::within(self.netns.as_deref(), || Interface::find(&self.interface));
        match looked.and_then(|looked| looked) {
            Ok(found) => found.is_none(),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }

    /// Looks the interface up; says in a sentence why it can't be had, and which there are.
    pub(crate) fn find(&self) -> Result<Interface, String> {
        self.find_unlisted().map_err(|mistake| {
            // The list is for the message alone: it costs more the more interfaces there are.
            let all = netns::within(self.netns.as_deref(), Interface::list);
            let Ok(Ok(all)) = all else {
                return mistake;
            };
            let names: Vec<String> = all
                .into_iter()
                .filter(|other| !other.loopback)
                .map(|other| other.name)
                .collect();
            let names = if names.is_empty() {
                "none".into()
            } else {
                names.join(", ")
            };
            format!("{mistake} (there are: {names})")
        })
    }

    /// The same, without which there are.
    fn find_unlisted(&self) -> Result<Interface, String> {
        let found = netns::within(self.netns.as_deref(), || Interface::find(&self.interface));
        let found = found
            .and_then(|looked| looked)
            .map_err(|error| format!("{self}: {error}"))?;
        found.ok_or_else(|| format!("{self}: no such interface"))
    }
}

fn range(mistakes: &mut Vec<String>, option: &str, value: usize, min: usize, max: usize) {
    if !(min..=max).contains(&value) {
        mistakes.push(format!("{option} {value}: must be {min} to {max}"));
    }
}

fn list_cores(cores: &[usize]) -> String {
    cores
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

impl FromStr for PortName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An interface name has no colon (dev_valid_name), so the last one ends the namespace.
        let (netns, interface) = match text.rsplit_once(':') {
            Some((netns, interface)) => (Some(netns), interface),
            None => (None, text),
        };
        const MAX: usize = interface::NAME_MAX;
        let valid = !interface.is_empty()
            && interface.len() <= MAX
            && !matches!(interface, "." | "..")
            && !interface.contains(|c: char| "/,>\u{fffd}".contains(c) || c.is_whitespace());
        if !valid || netns.is_some_and(str::is_empty) {
            return Err(format!(
                "port {:?}: write an interface's name (1 to {MAX} bytes of UTF-8, without spaces and any of / , > :), or NAMESPACE:NAME",
                beginning(text)
            ));
        }
        Ok(Self {
            netns: netns.map(str::to_owned),
            interface: interface.to_owned(),
        })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.netns {
            Some(netns) => write!(f, "{netns}:{}", self.interface),
            None => f.write_str(&self.interface),
        }
    }
}

impl fmt::Display for PortBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Mac => "mac",
        })
    }
}

impl FromStr for PortBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "name" => Ok(Self::Name),
            "mac" => Ok(Self::Mac),
            _ => Err(format!("--port-by {text:?}: use name or mac")),
        }
    }
}

impl fmt::Display for MacMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "keep",
            Self::Swap => "swap",
            Self::Update => "update",
        })
    }
}

impl FromStr for MacMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "keep" => Ok(Self::Keep),
            "swap" => Ok(Self::Swap),
            "update" => Ok(Self::Update),
            _ => Err(format!("MAC mode {text:?}: use keep, swap or update")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> PortName {
        name.parse().unwrap()
    }

    #[test]
    fn ports_parse() {
        assert_eq!(
            port("ns1:eth0"),
            PortName {
                netns: Some("ns1".into()),
                interface: "eth0".into()
            }
        );
        assert_eq!(port("/run/netns/x:e").to_string(), "/run/netns/x:e");
        for bad in [
            "",
            "ns:",
            ":e",
            "sixteen-letters-",
            "a b",
            "..",
            "<b>&\"",
            "a,b",
            "a\u{fffd}",
        ] {
            let mistake = bad.parse::<PortName>().expect_err(bad);
            assert!(
                mistake.contains("without spaces and any of / , > :"),
                "{mistake}"
            );
        }
    }

    #[test]
    fn pairs_cores_macs_and_links_parse() {
        assert_eq!(parse_pair("a,b").unwrap(), [port("a"), port("b")]);
        assert!(parse_pair("a,a").unwrap_err().contains("--hairpin a"));
        assert!(parse_pair("a").is_err());
        assert_eq!(parse_cores("1,3-5").unwrap(), [1, 3, 4, 5]);
        for bad in ["", "a", "3-1", "1-", "1024", "-1"] {
            assert!(parse_cores(bad).is_err(), "{bad}");
        }
        assert_eq!(
            parse_dst_mac("a=02:00:00:00:00:07").unwrap().1,
            MacAddress([2, 0, 0, 0, 0, 7])
        );
        assert!(parse_dst_mac("a=02:00").is_err());
        assert_eq!(
            parse_dst_mac("a=b=02:00:00:00:00:07").unwrap().0,
            port("a=b")
        );
        let carried = parse_carry("a=b,c=kernel").unwrap();
        assert_eq!(carried, ([port("a=b"), port("c")], Backend::Kernel));
        let link = parse_link("a>b delay 1.5ms").unwrap();
        assert_eq!((link.from, link.to), (port("a"), port("b")));
        assert_eq!(link.settings.to_string(), "delay 1500us");
        for (bad, count) in [
            ("a>b", 1),
            ("", 1),
            ("ab delay 5ms", 1),
            ("a> delay 5ms", 1),
            ("a b>c/d delay 5", 1),
            ("a>c/d delay 5 loss x", 3),
        ] {
            assert_eq!(parse_link(bad).unwrap_err().len(), count, "{bad}");
        }
    }

    #[test]
    fn all_mistakes_are_found_at_once() {
        let config = Config {
            pairs: vec![[port("a"), port("b")], [port("b"), port("c")]],
            cores: vec![1, 1],
            queues: 0,
            ring: Some(3),
            dst_mac: vec![(port("z"), MacAddress::default())],
            links: vec![parse_link("a>c delay 1ms").unwrap()],
            ..Config::default()
        };
        let mistakes = config.mistakes();
        for part in [
            "b is named 2 times",
            "core 1 is named twice",
            "--queues 0",
            "--ring 3",
            "--dst-mac z",
            "--mac update",
            "a>c",
        ] {
            assert!(
                mistakes.iter().any(|mistake| mistake.contains(part)),
                "{part}: {mistakes:?}"
            );
        }
        assert_eq!(mistakes.len(), 7);
        assert!(Config::default().mistakes()[0].contains("no ports"));
    }

    /// What takes long is not begun, and what there is otherwise is told once.
    #[test]
    fn there_is_a_limit_to_pairs() {
        let pairs = |count: usize| -> Vec<_> {
            let pair = |at| [port(&format!("absent{at}")), port(&format!("none{at}"))];
            (0..count).map(pair).collect()
        };
        let config = Config {
            pairs: pairs(Config::PAIRS_MAX + 1),
            queues: 0,
            ..Config::default()
        };
        assert_eq!(config.mistakes(), ["1025 pairs: at most 1024"]);
        assert_eq!(config.check().unwrap_err(), config.mistakes());
        let config = Config {
            pairs: pairs(Config::PAIRS_MAX),
            ..Config::default()
        };
        let mistakes = config.check().unwrap_err();
        assert_eq!(mistakes.len(), 2 * Config::PAIRS_MAX);
        let lists = mistakes.iter().filter(|one| one.contains("there are:"));
        assert_eq!(lists.count(), 1);
    }
}
