//! What is merged of what leaves by a port: as it was asked for, and as the port's device lets it.
//!
//! The kernel cuts a super-frame for any device that can't take it whole, if it comes by a plain AF_PACKET socket
//! (`validate_xmit_skb`, `net/core/dev.c`): so it arrives as its frames everywhere, but the saving is gone. Hence `auto` asks the
//! device. Switching its features off (`ethtool -K … tx-udp-segmentation off`) is also how a user tells that readers behind the
//! port don't know super-frames.

use super::{End, choice::Choice};
use crate::{
    coalesce::Kinds,
    config::{Backend, Coalesce, Config},
    port::packet::UDP_SUPER_FRAMES,
    sys::{ethtool::Ethtool, netns, release},
};

/// What is merged, and why not more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merging {
    pub(crate) kinds: Kinds,
    why: Option<String>,
}

impl Merging {
    fn none(why: impl Into<String>) -> Self {
        Self {
            kinds: Kinds::default(),
            why: Some(why.into()),
        }
    }

    /// For what comes from one end and leaves by the other.
    pub(super) fn choose(from: &End, to: &End, config: &Config, choice: &Choice) -> Self {
        if config.coalesce == Coalesce::Off {
            return Self::none("--coalesce off");
        }
        if choice.tx == Backend::Xdp {
            return Self::none("AF_XDP sends no super-frames: --tx packet does");
        }
        if config.link(from.name, to.name).is_some() {
            return Self::none("a link is emulated, which counts frames");
        }
        let release = release::running();
        if config.coalesce == Coalesce::On {
            let all = Self {
                kinds: Kinds::ALL,
                why: None,
            };
            return all.within(release);
        }
        let features = || Ethtool::open(&to.interface.name).and_then(|ethtool| ethtool.features());
        match netns::within(to.name.netns.as_deref(), features).and_then(|answer| answer) {
            Ok(features) => {
                let on = |name: &str| features.iter().any(|known| known.name == name && known.on);
                Self::by_features(&to.name.to_string(), on).within(release)
            }
            Err(error) => Self::none(format!("{} does not tell what it can: {error}", to.name)),
        }
    }

    /// What a device takes whole.
    fn by_features(name: &str, on: impl Fn(&str) -> bool) -> Self {
        let kinds = Kinds {
            udp: on("tx-udp-segmentation"),
            tcp4: on("tx-tcp-segmentation"),
            tcp6: on("tx-tcp6-segmentation"),
        };
        let why = (kinds != Kinds::ALL).then(|| {
            format!("{name} can't cut the others, or is told not to: see ethtool -k, or use --coalesce on")
        });
        Self { kinds, why }
    }

    /// Less what a packet socket of this kernel does not take, whatever the device says. What an unknown kernel refuses is cut when
    /// it does.
    fn within(mut self, release: Option<(u32, u32)>) -> Self {
        let Some((major, minor)) = release.filter(|release| *release < UDP_SUPER_FRAMES) else {
            return self;
        };
        if self.kinds.udp {
            self.kinds.udp = false;
            let why = format!(
                "packet sockets of Linux {major}.{minor} take no UDP super-frames: 6.2 and later do"
            );
            self.why = Some(match self.why {
                Some(other) => format!("{why}; {other}"),
                None => why,
            });
        }
        self
    }

    /// In a few words.
    pub(super) fn describe(&self) -> String {
        let named = [
            (self.kinds.udp, "UDP"),
            (self.kinds.tcp4, "TCP"),
            (self.kinds.tcp6, "TCP over IPv6"),
        ];
        let named: Vec<&str> = named
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| *name)
            .collect();
        let what = match (self.kinds, named.len()) {
            (_, 0) => "nothing is merged".into(),
            (Kinds::ALL, _) => "frames of a flow are merged".into(),
            _ => format!("frames of a flow are merged if {}", named.join(" or ")),
        };
        match &self.why {
            Some(why) => format!("{what} ({why})"),
            None => what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_taken_at_its_word() {
        let all = Merging::by_features("r1", |_| true);
        assert_eq!(
            (all.kinds, all.describe().as_str()),
            (Kinds::ALL, "frames of a flow are merged")
        );
        let tcp = Merging::by_features("r1", |name| name == "tx-tcp-segmentation");
        assert!(tcp.kinds.tcp4 && !tcp.kinds.udp && !tcp.kinds.tcp6);
        assert!(
            tcp.describe().contains("if TCP (r1 can't"),
            "{}",
            tcp.describe()
        );
        let none = Merging::by_features("r1", |_| false);
        assert_eq!(none.clone().within(Some((5, 4))), none);
        assert!(none.describe().starts_with("nothing is merged"));
    }

    #[test]
    fn a_kernel_that_knows_no_udp_super_frames_gets_none() {
        let all = || Merging::by_features("r1", |_| true);
        for release in [None, Some((6, 2)), Some((6, 18)), Some((10, 0))] {
            assert_eq!(all().within(release), all(), "{release:?}");
        }
        for release in [(4, 20), (5, 15), (6, 1)] {
            let merging = all().within(Some(release));
            let without = Kinds {
                udp: false,
                ..Kinds::ALL
            };
            assert_eq!(merging.kinds, without);
            let (major, minor) = release;
            let said = merging.describe();
            let reason = format!(
                "if TCP or TCP over IPv6 (packet sockets of Linux {major}.{minor} take no UDP"
            );
            assert!(said.contains(&reason), "{said}");
        }
        let less = Merging::by_features("r1", |name| name != "tx-tcp6-segmentation");
        let said = less.within(Some((6, 1))).describe();
        assert!(
            said.contains("if TCP (packet sockets of Linux 6.1") && said.contains("; r1 can't cut"),
            "{said}"
        );
    }
}
