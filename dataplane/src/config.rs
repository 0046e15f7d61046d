//! Typed settings of a relay, and finding every mistake in them at once.
//!
//! The program fills a [`Config`] from its flags, an embedder directly; [`Relay::start`](crate::relay::Relay::start)
//! checks it against the machine.

mod backend;
mod check;
mod coalesce;
mod parse;
mod port;

use std::{collections::HashSet, fmt, str::FromStr};

pub use backend::{Backend, KernelHook, XdpCopy, XdpMode, XdpSettings};
pub use coalesce::Coalesce;
#[cfg(feature = "program")]
pub(crate) use parse::parse_wait;
pub(crate) use parse::{parse_carry, parse_dst_mac, parse_ends, parse_link};
#[cfg(any(test, feature = "program"))]
pub(crate) use parse::{parse_cores, parse_pair};
pub use port::{PortBy, PortName};

use crate::{idle::IdlePolicy, memory::HugePages, stage::link, wire::ethernet::MacAddress};

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

    /// Slots of a ring of AF_PACKET's.
    pub(crate) fn slots(&self) -> usize {
        self.ring.unwrap_or(1024)
    }

    /// Slots of a ring of AF_XDP's. Where frames are merged: the deeper, the more frames of a flow are in it together, and it
    /// costs nothing while nothing waits.
    #[cfg(feature = "xdp")]
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
