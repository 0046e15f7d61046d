//! VLAN tags that are not in the bytes of a frame: whoever sends may leave them to its device, and a card may take them out.
//!
//! The kernel then keeps the tag beside the frame (`skb->vlan_tci`, or the card's descriptor), where no AF_XDP socket looks: the frame would go on
//! without. It can't be seen on a frame, so it is said at the start.

use crate::{
    interface::Interface,
    sys::ethtool::{Ethtool, Feature},
};

/// Whether the device takes the tags out. Asked in its namespace.
pub(super) fn are_stripped(interface: &Interface) -> bool {
    let ask = || Ethtool::open(&interface.name)?.features();
    interface.kind.as_deref() != Some("veth") && ask().is_ok_and(|features| strips(&features))
}

/// The names are those of the kernel (`netdev_features_strings`, net/ethtool/common.c); `ethtool -k` calls the first `rx-vlan-offload`.
fn strips(features: &[Feature]) -> bool {
    features.iter().any(|feature| {
        feature.on && ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"].contains(&&*feature.name)
    })
}

/// What a user must know of a port that receives.
pub(super) fn lost(interface: &Interface, stripped: bool) -> Option<String> {
    match interface.kind.as_deref() {
        // What it receives is as its other end has sent it: the feature of that end decides (`validate_xmit_vlan`, net/core/dev.c).
        Some("veth") => Some(
            "VLAN tags that a host behind it leaves to its device are lost: ethtool -K PEER txvlan off there"
                .into(),
        ),
        _ => stripped.then(|| {
            let name = &interface.name;
            format!(
                "VLAN tags are lost: ethtool -K {name} rxvlan off (and rx-vlan-stag-hw-parse off)"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::netns::{self, testing::Namespace};

    #[test]
    fn a_device_that_strips_tags_is_known_by_its_features() {
        let features = |names: &[(&str, bool)]| -> Vec<Feature> {
            let feature = |&(name, on): &(&str, bool)| Feature {
                name: name.into(),
                on,
            };
            names.iter().map(feature).collect()
        };
        for (names, stripped) in [
            (&[("rx-vlan-hw-parse", true)][..], true),
            (&[("rx-vlan-stag-hw-parse", true)], true),
            (&[("rx-vlan-hw-parse", false), ("rx-gro", true)], false),
            (&[("tx-vlan-hw-insert", true)], false),
        ] {
            assert_eq!(strips(&features(names)), stripped, "{names:?}");
        }
    }

    #[test]
    fn of_a_veth_the_other_end_decides() {
        let Some(namespace) = Namespace::make("tags") else {
            return;
        };
        namespace.ip("link add name va type veth peer name vb");
        let (interface, on, stripped) = netns::within(Some(&namespace.name), || {
            let interface = Interface::find("va").unwrap().unwrap();
            let features = Ethtool::open("va").unwrap().features().unwrap();
            let stripped = are_stripped(&interface);
            (interface, strips(&features), stripped)
        })
        .unwrap();
        // It says that it does, of what it is told beside the frame.
        assert_eq!((on, stripped), (true, false));
        let text = lost(&interface, stripped).unwrap();
        assert!(text.contains("ethtool -K PEER txvlan off"), "{text}");
        let card = Interface {
            kind: None,
            ..interface
        };
        assert!(
            lost(&card, true)
                .unwrap()
                .contains("ethtool -K va rxvlan off")
        );
        assert_eq!(lost(&card, false), None);
    }
}
