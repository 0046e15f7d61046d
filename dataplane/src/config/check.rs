//! Finding every mistake in settings at once: those that show in the settings alone, and those against the machine.
//!
//! Called before anything is opened, for a start, a change and `l2relay check`. It opens nothing and changes nothing.

use std::collections::{HashMap, HashSet};

use super::{Backend, Config, MacMode, PortName};
use crate::{interface::Interface, sys::netns};

impl Config {
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
