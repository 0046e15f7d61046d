//! Whether frames are merged.

use std::{fmt, str::FromStr};

use super::{Backend, Config};

/// Whether frames of a flow that arrive together leave as one super-frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Where the sending side can have them cut again, and no link is emulated.
    #[default]
    Auto,
    /// Whatever the sending device says, as the kernel cuts for it; a [mistake](Config::mistakes) with back ends that merge nothing, and
    /// with links.
    On,
    /// Never: every frame leaves as it came.
    Off,
}

impl Coalesce {
    /// What was asked for and can't be.
    pub(super) fn mistakes(self, config: &Config, mistakes: &mut Vec<String>) {
        if self != Self::On {
            return;
        }
        if config.backend == Backend::Kernel {
            mistakes.push(
                "--coalesce on: the kernel carries frames one by one with --backend kernel: use packet, or --coalesce auto"
                    .into(),
            );
        } else if config.sends_by() == Backend::Xdp {
            mistakes.push(
                "--coalesce on: AF_XDP sends no super-frames: add --tx packet, or use --coalesce auto"
                    .into(),
            );
        }
        for link in &config.links {
            mistakes.push(format!(
                "--coalesce on with --link '{}>{}': a link counts frames, so none are merged behind it: use --coalesce auto",
                link.from, link.to
            ));
        }
    }
}

impl FromStr for Coalesce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("--coalesce {text:?}: use auto, on or off")),
        }
    }
}

impl fmt::Display for Coalesce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortName, parse_link};
    use super::*;

    #[test]
    fn what_can_not_be_merged_is_refused_only_if_asked_for() {
        let port = |name: &str| -> PortName { name.parse().unwrap() };
        let config = |coalesce, backend, tx, link: &[&str]| Config {
            pairs: vec![[port("a"), port("b")]],
            coalesce,
            backend,
            tx,
            links: link.iter().map(|link| parse_link(link).unwrap()).collect(),
            ..Config::default()
        };
        let mut cases = vec![(Backend::Packet, None, &["a>b delay 1ms"][..], "'a>b'")];
        if cfg!(feature = "xdp") {
            cases.extend([
                (Backend::Xdp, None, &[][..], "add --tx packet"),
                (Backend::Packet, Some(Backend::Xdp), &[], "add --tx packet"),
                (Backend::Kernel, None, &[], "with --backend kernel"),
            ]);
        }
        for (backend, tx, link, part) in cases {
            let mistakes = config(Coalesce::On, backend, tx, link).mistakes();
            assert!(
                mistakes.len() == 1 && mistakes[0].contains(part),
                "{part}: {mistakes:?}"
            );
            for other in [Coalesce::Auto, Coalesce::Off] {
                assert!(config(other, backend, tx, link).mistakes().is_empty());
            }
        }
        let both = config(Coalesce::On, Backend::Packet, Some(Backend::Packet), &[]);
        assert!(both.mistakes().is_empty());
    }
}
