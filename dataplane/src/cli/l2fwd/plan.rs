//! From l2fwd's options to a relay's settings: which ports pair, which core polls which, and what becomes of their devices.
//!
//! Called once both halves of the command line have been read. Every mistake is found before anything is made of them.

use std::{fmt::Write as _, time::Duration};

use super::{L2fwd, MAX_PORTS, Said, app::App, eal::Eal, lcores::Lcore, vdev::Device};
use crate::{
    config::{Backend, Config, MacMode, XdpCopy, XdpMode, XdpSettings},
    stage::mac::Rewrite,
};

/// Pairs the ports, gives them to cores, and makes settings of it.
pub(super) fn plan(
    eal: Eal,
    app: &App,
    allowed: Option<Vec<usize>>,
    mut said: Said,
) -> Result<L2fwd, Vec<String>> {
    let devices = &eal.devices;
    if devices.is_empty() && said.mistakes.is_empty() {
        said.mistake(
            "No Ethernet ports - bye: name some with --vdev=net_af_packet0,iface=NAME, before --"
                .into(),
        );
    }
    if devices.len() > MAX_PORTS {
        said.mistake(format!(
            "{} ports: l2fwd has at most {MAX_PORTS}",
            devices.len()
        ));
    }
    let possible = (1u64 << devices.len().min(MAX_PORTS)) - 1;
    let mask = app.mask.unwrap_or(0);
    if mask & !possible != 0 && !devices.is_empty() {
        said.mistake(format!("Invalid portmask; possible ({possible:#x}): -p {mask:x} names ports that no --vdev makes"));
    }
    let mut enabled: Vec<usize> = (0..devices.len().min(MAX_PORTS))
        .filter(|id| mask >> id & 1 == 1)
        .collect();
    if let Some(map) = &app.portmap {
        check_map(map, &enabled, devices.len(), &mut said);
        enabled.retain(|id| map.iter().flatten().any(|port| port == id));
    }
    let pairs = pair(&enabled, app.portmap.as_deref());
    let mut opening = format!(
        "MAC updating {}\n",
        if app.mac_updating {
            "enabled"
        } else {
            "disabled"
        }
    );
    if app.portmap.is_none() && enabled.len() % 2 == 1 {
        opening += "Notice: odd number of ports in portmask.\n";
    }
    let lcores = match eal.lcores {
        lcores if lcores.is_empty() => allowed
            .unwrap_or_else(|| vec![0])
            .into_iter()
            .map(Lcore::plain)
            .collect(),
        lcores => lcores,
    };
    let polls = share_out(&enabled, &lcores, app.per_core, &mut said);
    if !said.mistakes.is_empty() {
        return Err(said.mistakes);
    }
    let peer = |id: usize| {
        pairs
            .iter()
            .find_map(|&[a, b]| (a == id).then_some(b).or((b == id).then_some(a)))
    };
    for (lcore, ids) in &polls {
        for id in ids {
            let _ = writeln!(
                opening,
                "Lcore {lcore}: RX port {id} TX port {}",
                peer(*id).unwrap_or(*id)
            );
        }
    }
    let name = |id: usize| devices[id].port.clone();
    let used: Vec<&Device> = enabled.iter().map(|id| &devices[*id]).collect();
    let cpu = |lcore: usize| {
        lcores
            .iter()
            .find(|core| core.id == lcore)
            .map_or(lcore, |core| core.cpus[0])
    };
    let mut cores: Vec<usize> = polls.iter().map(|(lcore, _)| cpu(*lcore)).collect();
    cores.sort_unstable();
    cores.dedup();
    for core in lcores
        .iter()
        .filter(|core| core.cpus.len() > 1 && polls.iter().any(|(id, _)| *id == core.id))
    {
        said.remark(format!(
            "lcore {} stays on CPU {}, the first of those it may use",
            core.id, core.cpus[0]
        ));
    }
    let config = Config {
        pairs: pairs.iter().map(|pair| pair.map(name)).collect(),
        backend: one_for_all(
            "driver",
            &used,
            |device| device.backend,
            Backend::Packet,
            &mut said,
        ),
        xdp: XdpSettings {
            mode: one_for_all(
                "mode",
                &used,
                |device| device.mode,
                XdpMode::Auto,
                &mut said,
            ),
            copying: one_for_all(
                "force_copy",
                &used,
                |device| device.copying,
                XdpCopy::Copy,
                &mut said,
            ),
            replace: false,
        },
        mac: if app.mac_updating {
            MacMode::Update
        } else {
            MacMode::Keep
        },
        // By the ids that l2fwd gives, which need not be ours.
        dst_mac: if app.mac_updating {
            enabled
                .iter()
                .map(|&id| (name(id), Rewrite::l2fwd_dst(id as u8)))
                .collect()
        } else {
            Vec::new()
        },
        cores,
        rx_cores: polls
            .iter()
            .flat_map(|(lcore, ids)| ids.iter().map(|&id| (name(id), cpu(*lcore))))
            .collect(),
        ring: used.iter().filter_map(|device| device.ring).max(),
        promiscuous: app.promiscuous,
        coalesce: app.coalesce,
        qdisc: one_for_all(
            "qdisc_bypass",
            &used,
            |device| device.qdisc,
            true,
            &mut said,
        ),
        huge_pages: eal.huge_pages,
        ..Config::default()
    };
    Ok(L2fwd {
        config,
        period_s: (app.period_s > 0).then_some(app.period_s.into()),
        wait_ports: (app.wait_ports_ms > 0).then(|| Duration::from_millis(app.wait_ports_ms)),
        remarks: said.remarks,
        opening,
        all: devices.len(),
        idle: lcores
            .iter()
            .map(|core| core.id)
            .filter(|id| polls.iter().all(|(lcore, _)| lcore != id))
            .collect(),
        ports: enabled.iter().map(|&id| (id, name(id))).collect(),
        polls,
    })
}

/// What all devices say, or `common` where they differ.
fn one_for_all<T: PartialEq + Copy>(
    what: &str,
    devices: &[&Device],
    of: impl Fn(&Device) -> T,
    common: T,
    said: &mut Said,
) -> T {
    let first = devices.first().map_or(common, |device| of(device));
    if devices.iter().all(|device| of(device) == first) {
        return first;
    }
    let names: Vec<&str> = devices
        .iter()
        .filter(|device| of(device) == common)
        .map(|device| device.name.as_str())
        .collect();
    said.remark(format!(
        "{what}: one for all ports, so that of {} holds for the others too",
        names.join(", ")
    ));
    common
}

/// l2fwd's demands on a port map.
fn check_map(map: &[[usize; 2]], enabled: &[usize], ports: usize, said: &mut Said) {
    for (at, pair) in map.iter().enumerate() {
        for (which, port) in pair.iter().enumerate() {
            // A pair may name one port twice: a port that sends back what it receives.
            let known = map[..at].iter().flatten().any(|other| other == port);
            if known {
                said.mistake(format!(
                    "Invalid port pair config: port {port} is used in other port pairs"
                ));
            } else if which == 1 && pair[0] == pair[1] {
            } else if *port >= ports {
                said.mistake(format!(
                    "Invalid port pair config: port {port} is not present: no --vdev makes it"
                ));
            } else if !enabled.contains(port) {
                said.mistake(format!(
                    "Invalid port pair config: port {port} is not enabled in port mask"
                ));
            }
        }
    }
}

/// Pairs as mapped, or else neighbours; a port that is left over pairs with itself.
fn pair(enabled: &[usize], map: Option<&[[usize; 2]]>) -> Vec<[usize; 2]> {
    match map {
        Some(map) => map.to_vec(),
        None => enabled
            .chunks(2)
            .map(|ports| [ports[0], ports[ports.len() - 1]])
            .collect(),
    }
}

/// Which lcore polls which ports: in order of their numbers, each full before the next.
fn share_out(
    enabled: &[usize],
    lcores: &[Lcore],
    per_core: usize,
    said: &mut Said,
) -> Vec<(usize, Vec<usize>)> {
    let needed = enabled.len().div_ceil(per_core);
    if needed > lcores.len() {
        said.mistake(format!(
            "Not enough cores: {} ports at {per_core} a core need {needed}, and there are {}: raise -q, or name more with -l",
            enabled.len(),
            lcores.len()
        ));
    }
    let shares = enabled.chunks(per_core).zip(lcores);
    shares
        .map(|(ports, lcore)| (lcore.id, ports.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{app, eal, tests::words},
        *,
    };

    fn planned(eal: &str, app: &str) -> Result<L2fwd, Vec<String>> {
        let mut said = Said::default();
        let eal = eal::parse(&words(eal), &mut said);
        let app = app::parse(&words(app), &mut said);
        plan(eal, &app, Some(vec![0, 1]), said)
    }

    /// Devices `e0`, `e1` … on AF_PACKET.
    fn devices(count: usize) -> String {
        (0..count)
            .map(|id| format!(" --vdev=net_af_packet{id},iface=e{id}"))
            .collect()
    }

    fn pairs(l2fwd: &L2fwd) -> Vec<String> {
        l2fwd
            .config
            .pairs
            .iter()
            .map(|[a, b]| format!("{a}-{b}"))
            .collect()
    }

    #[test]
    fn the_comnetsemu_example_is_a_hairpin_on_core_1() {
        let l2fwd = planned(
            "-l 1 -m 256 --vdev=eth_af_packet0,iface=relay-s1 --no-pci --single-file-segments",
            "-p 1 --no-mac-updating",
        )
        .unwrap();
        assert_eq!(pairs(&l2fwd), ["relay-s1-relay-s1"]);
        assert_eq!(
            (l2fwd.config.mac, &l2fwd.config.cores[..]),
            (MacMode::Keep, &[1][..])
        );
        assert_eq!(l2fwd.config.backend, Backend::Packet);
        assert_eq!(l2fwd.period_s, Some(10.0));
        assert_eq!(
            l2fwd.opening,
            "MAC updating disabled\nNotice: odd number of ports in portmask.\nLcore 1: RX port 0 TX port 0\n"
        );
    }

    #[test]
    fn ports_pair_with_their_neighbours_in_the_mask() {
        let l2fwd = planned(&format!("-l 0-1{}", devices(5)), "-p 0x1b -q 2 -T 0").unwrap();
        assert_eq!(pairs(&l2fwd), ["e0-e1", "e3-e4"]);
        assert_eq!(l2fwd.period_s, None);
        let l2fwd = planned(&format!("-l 0-1{}", devices(5)), "-p 15 -q 2").unwrap();
        assert_eq!(pairs(&l2fwd), ["e0-e2", "e4-e4"]);
        assert!(l2fwd.opening.contains("Notice: odd number"));
    }

    #[test]
    fn a_map_pairs_and_leaves_out() {
        let l2fwd = planned(
            &format!("-l 0-1{}", devices(5)),
            "-p 1f -q 3 --portmap (0,3)(2,2)",
        )
        .unwrap();
        assert_eq!(pairs(&l2fwd), ["e0-e3", "e2-e2"]);
        assert_eq!(l2fwd.polls, [(0, vec![0, 2, 3])]);
        assert!(!l2fwd.opening.contains("Notice"));
        for (map, part) in [
            ("(0,1)(1,2)", "port 1 is used in other"),
            ("(0,4)", "port 4 is not enabled"),
            ("(0,9)", "port 9 is not present"),
        ] {
            let mistakes = planned(
                &format!("-l 0-1{}", devices(5)),
                &format!("-p f -q 5 --portmap {map}"),
            )
            .unwrap_err();
            assert!(
                mistakes.iter().any(|mistake| mistake.contains(part)),
                "{map}: {mistakes:?}"
            );
        }
    }

    #[test]
    fn cores_are_filled_in_order() {
        let l2fwd = planned(&format!("--lcores 3@1,7@0{}", devices(4)), "-p f -q 3").unwrap();
        assert_eq!(l2fwd.polls, [(3, vec![0, 1, 2]), (7, vec![3])]);
        assert_eq!(l2fwd.idle, [0; 0]);
        assert_eq!(l2fwd.config.cores, [0, 1]);
        let cores: Vec<usize> = l2fwd
            .config
            .rx_cores
            .iter()
            .map(|(_, core)| *core)
            .collect();
        assert_eq!(cores, [1, 1, 1, 0]);
        assert!(l2fwd.opening.contains("Lcore 3: RX port 0 TX port 1\n"));
        let mistakes = planned(&format!("-l 0-1{}", devices(4)), "-p f").unwrap_err();
        assert!(
            mistakes[0].starts_with("Not enough cores: 4 ports at 1 a core need 4"),
            "{mistakes:?}"
        );
        // Without a list, every core that may be used.
        assert_eq!(planned(&devices(2), "-p 3").unwrap().config.cores, [0, 1]);
    }

    #[test]
    fn addresses_follow_l2fwds_port_numbers() {
        let l2fwd = planned(&format!("-l 0{}", devices(4)), "-p c -q 2").unwrap();
        assert_eq!(l2fwd.config.mac, MacMode::Update);
        let given: Vec<String> = l2fwd
            .config
            .dst_mac
            .iter()
            .map(|(port, mac)| format!("{port} {mac}"))
            .collect();
        assert_eq!(given, ["e2 02:00:00:00:00:02", "e3 02:00:00:00:00:03"]);
        assert_eq!(l2fwd.config.mistakes(), [""; 0]);
    }

    #[test]
    fn one_setting_for_all_ports_is_said() {
        let l2fwd = planned(
            "-l 0 --vdev=net_af_packet0,iface=a,qdisc_bypass=0,framecnt=256 --vdev=net_af_xdp0,iface=b",
            "-p 3 -q 2",
        )
        .unwrap();
        assert_eq!(
            (l2fwd.config.backend, l2fwd.config.qdisc, l2fwd.config.ring),
            (Backend::Packet, true, Some(256))
        );
        assert_eq!(l2fwd.remarks.len(), 2, "{:?}", l2fwd.remarks);
    }

    #[test]
    fn mistakes_of_all_parts_come_together() {
        let mistakes = planned("-l x -a 1 --vdev=net_null0", "-q 0").unwrap_err();
        assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
        let mistakes = planned(&format!("-l 0{}", devices(2)), "-p 7 -q 2").unwrap_err();
        assert!(
            mistakes[0].starts_with("Invalid portmask; possible (0x3)"),
            "{mistakes:?}"
        );
        assert!(planned("-l 0", "-p 1").unwrap_err()[0].starts_with("No Ethernet ports - bye"));
    }
}
