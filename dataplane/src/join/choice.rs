//! Which back ends are to carry a pair: as it was asked for, or what suits the interfaces, with the reason.
//!
//! Asked by [`join`](super) before it opens anything. It opens nothing, and asks drivers alone.

use super::{End, directions};
use crate::config::{Backend, Config};
#[cfg(feature = "xdp")]
use crate::sys::netns;

/// What carries a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) rx: Backend,
    pub(super) tx: Backend,
    /// Why, if nobody has named it.
    pub(super) why: Option<String>,
}

/// Whether nobody has named a back end, so that no xdp is better than a bad one.
pub(super) fn is_automatic(config: &Config) -> bool {
    [config.rx, config.tx] == [None; 2]
        && matches!(config.backend, Backend::Auto | Backend::Fastest)
}

/// Which back ends are to carry a pair.
pub(super) fn choose(ends: &[End], config: &Config) -> Choice {
    // Where the kernel does not carry a pair, the fastest is what suits the interfaces.
    let or_auto = |named| match named {
        Backend::Fastest => Backend::Auto,
        named => named,
    };
    let (rx, tx) = (or_auto(config.receives_by()), or_auto(config.sends_by()));
    if rx != Backend::Auto && tx != Backend::Auto {
        return Choice { rx, tx, why: None };
    }
    let (auto, why) = automatic(ends, config);
    let or = |named| if named == Backend::Auto { auto } else { named };
    Choice {
        rx: or(rx),
        tx: or(tx),
        why: Some(why),
    }
}

/// What suits the interfaces best, and why.
fn automatic(ends: &[End], config: &Config) -> (Backend, String) {
    if config.qdisc {
        return (Backend::Packet, "--qdisc".into());
    }
    if is_linked(ends, config) {
        let why = "a link is emulated, and packet sockets tell when a frame came";
        return (Backend::Packet, why.into());
    }
    for end in ends {
        let (name, packet) = (end.name, Backend::Packet);
        if let Some(kind) = &end.interface.kind {
            // A virtual interface hands over super-frames, which only AF_PACKET carries whole.
            return (
                packet,
                format!("{name} is a {kind}, which sends super-frames"),
            );
        }
        if is_native(end) == Some(false) {
            return (packet, format!("the driver of {name} runs no XDP programs"));
        }
        if strips_tags(end) {
            let why = format!(
                "{name} takes VLAN tags out of what it receives, and XDP doesn't see them; for xdp: ethtool -K {name} rxvlan off"
            );
            return (packet, why);
        }
    }
    // Where one does not say, it is tried.
    (Backend::Xdp, "the drivers run XDP programs".into())
}

pub(super) fn is_linked(ends: &[End], config: &Config) -> bool {
    directions(ends)
        .into_iter()
        .any(|(from, to)| config.link(ends[from].name, ends[to].name).is_some())
}

/// Whether a driver runs XDP programs; `None` if it does not say.
#[cfg(feature = "xdp")]
fn is_native(end: &End) -> Option<bool> {
    let ask = || crate::port::xdp::is_native(end.interface);
    netns::within(end.name.netns.as_deref(), ask).unwrap_or(Some(false))
}

#[cfg(not(feature = "xdp"))]
fn is_native(_: &End) -> Option<bool> {
    Some(false)
}

#[cfg(feature = "xdp")]
fn strips_tags(end: &End) -> bool {
    let ask = || crate::port::xdp::strips_tags(end.interface);
    netns::within(end.name.netns.as_deref(), ask).unwrap_or(false)
}

#[cfg(not(feature = "xdp"))]
fn strips_tags(_: &End) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{config::PortName, interface::Interface, port::Link, wire::ethernet::MacAddress};

    /// What would carry a pair of such interfaces.
    fn choice(kinds: [Option<&str>; 2], config: &Config) -> Choice {
        let names: Vec<PortName> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        let link = Arc::new(Link::new(true, 1500));
        let interfaces = kinds.map(|kind| Interface {
            name: "no-such".into(),
            // A number that no interface has, so no driver says that it runs programs.
            index: i32::MAX.cast_unsigned(),
            mac: MacAddress::default(),
            mtu: 1500,
            kind: kind.map(Into::into),
            qdisc: None,
            up: true,
            carrier: true,
            loopback: false,
            ethernet: true,
            rx_queues: 1,
            tx_queues: 1,
            promiscuity: 0,
            master: None,
            master_kind: None,
            xdp: Vec::new(),
            tx_dropped: 0,
        });
        let ends: Vec<End> = (0..2)
            .map(|id| End {
                id,
                name: &names[id],
                interface: &interfaces[id],
                link: &link,
                gate: None,
            })
            .collect();
        choose(&ends, config)
    }

    #[test]
    fn what_is_named_is_taken_and_the_rest_chosen_with_a_reason() {
        let named = |backend, rx, tx| Config {
            backend,
            rx,
            tx,
            ..Config::default()
        };
        let veth = [Some("veth"), None];
        let (auto, packet, xdp) = (Backend::Auto, Backend::Packet, Backend::Xdp);
        for (config, rx, tx) in [
            (named(xdp, None, None), xdp, xdp),
            (named(packet, Some(xdp), None), xdp, packet),
            (named(auto, Some(xdp), Some(packet)), xdp, packet),
        ] {
            assert_eq!(choice(veth, &config), Choice { rx, tx, why: None });
        }
        for (kinds, config, reason) in [
            (veth, named(auto, None, None), "a is a veth"),
            ([None, Some("tun")], named(auto, None, None), "driver of a"),
            (
                [None, None],
                named(auto, None, None),
                "runs no XDP programs",
            ),
        ] {
            let choice = choice(kinds, &config);
            assert_eq!((choice.rx, choice.tx), (packet, packet));
            assert!(choice.why.as_ref().unwrap().contains(reason), "{choice:?}");
        }
        // A link counts from the arrival of a frame, which AF_XDP does not tell; who asks for it gets it.
        let links = vec![crate::config::parse_link("b>a delay 1ms").unwrap()];
        let linked = |rx| Config {
            links: links.clone(),
            ..named(auto, rx, None)
        };
        let found = choice([None; 2], &linked(None));
        assert_eq!((found.rx, found.tx), (packet, packet));
        assert!(found.why.unwrap().contains("a link is emulated"));
        assert_eq!(choice([None; 2], &linked(Some(xdp))).rx, xdp);
        let half = choice(veth, &named(auto, Some(xdp), None));
        assert_eq!((half.rx, half.tx), (xdp, packet));
    }
}
