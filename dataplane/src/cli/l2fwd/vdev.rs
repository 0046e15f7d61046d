//! `--vdev`: virtual devices of DPDK, as far as they are interfaces of the kernel.

use std::str::FromStr;

use super::Said;
use crate::config::{Backend, PortName, XdpCopy, XdpMode};

/// An interface that DPDK would open with one of its two drivers for such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// Its name in DPDK.
    pub(super) name: String,
    /// What its driver stands for.
    pub(super) backend: Backend,
    pub(super) port: PortName,
    /// `framecnt`.
    pub(super) ring: Option<usize>,
    /// `qdisc_bypass=0`.
    pub(super) qdisc: bool,
    /// `force_copy`.
    pub(super) copying: XdpCopy,
    /// `mode`.
    pub(super) mode: XdpMode,
}

/// Reads the value of one `--vdev`.
pub(super) fn parse(text: &str, said: &mut Said) -> Option<Device> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or_default();
    let is = |drivers: &[&str]| drivers.iter().any(|driver| name.starts_with(driver));
    let backend = if is(&["net_af_packet", "eth_af_packet"]) {
        Backend::Packet
    } else if is(&["net_af_xdp", "eth_af_xdp"]) {
        Backend::Xdp
    } else {
        said.mistake(format!(
            "--vdev {name:?}: no interface of the kernel, so it can't be a port; use net_af_packet or net_af_xdp with \
             iface=NAME (a tap is made with ip tuntap add)"
        ));
        return None;
    };
    let mut device = Device {
        name: name.to_owned(),
        backend,
        port: PortName {
            netns: None,
            interface: String::new(),
        },
        ring: None,
        qdisc: false,
        copying: XdpCopy::default(),
        mode: XdpMode::default(),
    };
    let mut port = None;
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let outcome = match (key, backend) {
            ("iface", _) => value.parse().map(|named| port = Some(named)),
            (_, Backend::Packet) => packet(&mut device, key, value, said),
            _ => xdp(&mut device, key, value, said),
        };
        if let Err(mistake) = outcome {
            said.mistake(format!("--vdev {name}: {mistake}"));
        }
    }
    match port {
        Some(port) => Some(Device { port, ..device }),
        None => {
            if !text.contains("iface=") {
                said.mistake(format!("--vdev {name}: iface=NAME is missing"));
            }
            None
        }
    }
}

/// A parameter of DPDK's af_packet driver.
fn packet(device: &mut Device, key: &str, value: &str, said: &mut Said) -> Result<(), String> {
    let name = &device.name;
    match key {
        "framecnt" => {
            device.ring = Some(number(key, value, 16..=32_768)?);
        }
        "qdisc_bypass" => {
            device.qdisc = number(key, value, 0..=1)? == 0;
            if !device.qdisc {
                said.remark(format!(
                    "{name}: qdisc_bypass=1 holds where the interface has no qdisc; one that is there is kept to"
                ));
            }
        }
        "qpairs" => {
            if number(key, value, 1..=1024)? > 1 {
                said.remark(format!(
                    "{name}: qpairs={value}: l2fwd polls one queue of a port, so one is opened, and it gets every frame"
                ));
            }
        }
        // A slot's size bounds no frame here: what does not fit is fetched whole.
        "framesz" | "blocksz" => {
            number(key, value, 1..=1 << 30)?;
            said.remark(format!(
                "{name}: {key}={value}: without effect, frames of any length pass"
            ));
        }
        "fanout_mode" => {
            if !["hash", "lb", "cpu", "rollover", "rnd", "qm"].contains(&value) {
                return Err(format!(
                    "fanout_mode={value}: use hash, lb, cpu, rollover, rnd or qm"
                ));
            }
            said.remark(format!(
                "{name}: fanout_mode={value}: without effect, one queue gets every frame"
            ));
        }
        _ => {
            return Err(format!(
                "no parameter {key:?}; use iface, framecnt, qdisc_bypass, qpairs, framesz, blocksz, fanout_mode"
            ));
        }
    }
    Ok(())
}

/// A parameter of DPDK's af_xdp driver.
fn xdp(device: &mut Device, key: &str, value: &str, said: &mut Said) -> Result<(), String> {
    let name = &device.name;
    match key {
        "force_copy" => {
            if number(key, value, 0..=1)? == 1 {
                device.copying = XdpCopy::Copy;
            }
        }
        "mode" => {
            device.mode = match value {
                "drv" => XdpMode::Native,
                "skb" => XdpMode::Generic,
                "hw" => {
                    return Err(
                        "mode=hw: offloaded programs can't reach a socket; use drv or skb".into(),
                    );
                }
                _ => return Err(format!("mode={value}: use drv or skb")),
            };
        }
        "start_queue" => {
            if number(key, value, 0..=1023)? != 0 {
                return Err(format!(
                    "start_queue={value}: a port begins at queue 0; make it so with ethtool -L, or steer frames there"
                ));
            }
        }
        "queue_count" => {
            if number(key, value, 1..=1024)? > 1 {
                said.remark(format!(
                    "{name}: queue_count={value}: l2fwd polls one queue of a port, so one is opened"
                ));
            }
        }
        // One memory for both ports of a pair is how it is always done.
        "shared_umem" => {
            if number(key, value, 0..=1)? == 0 {
                said.remark(format!(
                    "{name}: shared_umem=0: the ports of a pair share their memory all the same"
                ));
            }
        }
        "busy_budget" => {
            if number(key, value, 0..=65_535)? > 0 {
                said.remark(format!(
                    "{name}: busy_budget={value}: sockets are not busy-polled by the kernel"
                ));
            }
        }
        "xdp_prog" => {
            return Err(
                "xdp_prog: another program would decide which frames arrive; leave it out".into(),
            );
        }
        "use_cni" | "use_pinned_map" | "dp_path" => {
            return Err(format!(
                "{key}: the map of a device plug-in can't be used; leave it out, and give the container the rights to load \
                 a program (docs/user-guide.md)"
            ));
        }
        _ => {
            return Err(format!(
                "no parameter {key:?}; use iface, force_copy, mode, start_queue, queue_count, shared_umem, busy_budget"
            ));
        }
    }
    Ok(())
}

fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    key: &str,
    value: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{key}={value}: write {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Device>, Said) {
        let mut said = Said::default();
        (parse(text, &mut said), said)
    }

    #[test]
    fn devices_become_ports() {
        let (device, said) = read("eth_af_packet0,iface=relay-s1");
        let device = device.unwrap();
        assert_eq!(
            (device.port.to_string().as_str(), device.backend),
            ("relay-s1", Backend::Packet)
        );
        assert_eq!((device.ring, device.qdisc), (None, false));
        assert_eq!(said, Said::default());

        let (device, said) = read(
            "net_af_packet1,iface=e,framecnt=256,qdisc_bypass=0,qpairs=4,framesz=4096,blocksz=8192,fanout_mode=cpu",
        );
        let device = device.unwrap();
        assert_eq!((device.ring, device.qdisc), (Some(256), true));
        assert_eq!(said.mistakes, [""; 0]);
        for (remark, what) in said.remarks.iter().zip([
            "qpairs=4",
            "framesz=4096",
            "blocksz=8192",
            "fanout_mode=cpu",
        ]) {
            assert!(remark.contains(what), "{said:?}");
        }
        assert_eq!(said.remarks.len(), 4, "{said:?}");

        let (_, said) = read("net_af_xdp0,iface=e,shared_umem=0,queue_count=2,busy_budget=64");
        assert_eq!(said.remarks.len(), 3, "{said:?}");
        assert!(said.remarks[0].contains("shared_umem=0"), "{said:?}");
        let (device, said) =
            read("net_af_xdp0,iface=e,force_copy=1,mode=skb,shared_umem=1,queue_count=1");
        let device = device.unwrap();
        assert_eq!(
            (device.backend, device.copying, device.mode),
            (Backend::Xdp, XdpCopy::Copy, XdpMode::Generic)
        );
        assert_eq!(said, Said::default());
    }

    #[test]
    fn what_would_change_the_traffic_is_refused() {
        for (text, part) in [
            ("net_pcap0,rx_pcap=a.pcap", "net_pcap0"),
            ("net_tap0,iface=tap0", "ip tuntap"),
            ("net_af_packet0", "iface=NAME is missing"),
            ("net_af_packet0,iface=", "port \"\""),
            ("net_af_packet0,iface=e,speed=1", "\"speed\""),
            ("net_af_packet0,iface=e,framecnt=8", "framecnt=8"),
            ("net_af_packet0,iface=e,framecnt", "framecnt="),
            ("net_af_packet0,iface=e,fanout_mode=x", "fanout_mode=x"),
            ("net_af_xdp0,iface=e,start_queue=1", "queue 0"),
            ("net_af_xdp0,iface=e,xdp_prog=x.o", "xdp_prog"),
            ("net_af_xdp0,iface=e,mode=hw", "mode=hw"),
            ("net_af_xdp0,iface=e,use_cni=1", "use_cni"),
        ] {
            let (_, said) = read(text);
            assert_eq!(said.mistakes.len(), 1, "{text}: {said:?}");
            assert!(said.mistakes[0].contains(part), "{text}: {said:?}");
        }
    }
}
