//! Names of ports, and finding the interfaces that they name: in another network namespace, too.
//!
//! Parsed from flags, files and requests; looked up when settings are checked.

use std::{fmt, str::FromStr};

use crate::{
    interface::{self, Interface},
    sys::netns,
    text::beginning,
};

/// Names an interface, perhaps in another network namespace: `eth0`, `ns1:eth0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The namespace: a name below /run/netns, an absolute path, or a process id. `None`: the relay's own.
    pub netns: Option<String>,
    /// The interface.
    pub interface: String,
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

impl PortName {
    pub(super) fn is_absent(&self) -> bool {
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
    pub(super) fn find_unlisted(&self) -> Result<Interface, String> {
        let found = netns::within(self.netns.as_deref(), || Interface::find(&self.interface));
        let found = found
            .and_then(|looked| looked)
            .map_err(|error| format!("{self}: {error}"))?;
        found.ok_or_else(|| format!("{self}: no such interface"))
    }
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
