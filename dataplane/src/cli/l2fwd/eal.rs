//! Options of DPDK's environment layer (EAL), those before `--`: which of them mean something here.
//!
//! Every option of DPDK 19.08 to 25.11 is in one table. What it would change in the forwarding is honoured or refused; the
//! rest is named in one remark, so that nobody believes in an effect that isn't there.

use lexopt::{Arg, Parser};

use super::{Said, find, lcores, lcores::Lcore, moot, value, vdev, vdev::Device};
use crate::memory::HugePages;

/// What EAL's options say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Eal {
    /// In order of their numbers; empty if no option names any.
    pub(super) lcores: Vec<Lcore>,
    /// The ports, in the order of their ids.
    pub(super) devices: Vec<Device>,
    pub(super) huge_pages: HugePages,
    /// `--help` was among them.
    pub(super) help: bool,
    /// `--version` was among them.
    pub(super) version: bool,
}

/// What an option comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    List,
    Mask,
    Main,
    Vdev,
    NoHuge,
    Process,
    Help,
    Version,
    /// It is so anyway.
    Always,
    /// It would change nothing that is forwarded, and has no effect.
    Moot,
    /// It would change what is forwarded.
    Refused(&'static str),
}

use Effect::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    Perhaps,
}

const PCI: &str = "a device that is bound to a DPDK driver can't be a port; give it back to the kernel \
                   (dpdk-devbind.py --bind=…) and name its interface: --vdev=net_af_packet0,iface=NAME";

/// Long name (empty if there is none), short name, whether a value follows, and what it comes to.
const OPTIONS: &[(&str, Option<char>, Takes, Effect)] = &[
    ("lcores", Some('l'), Takes::Value, List),
    ("coremask", Some('c'), Takes::Value, Mask),
    ("main-lcore", None, Takes::Value, Main),
    ("master-lcore", None, Takes::Value, Main),
    ("vdev", None, Takes::Value, Vdev),
    ("no-huge", None, Takes::Nothing, NoHuge),
    ("proc-type", None, Takes::Value, Process),
    ("help", Some('h'), Takes::Nothing, Help),
    ("version", Some('v'), Takes::Nothing, Version),
    ("no-pci", None, Takes::Nothing, Always),
    ("in-memory", None, Takes::Nothing, Always),
    ("no-shconf", None, Takes::Nothing, Always),
    ("no-telemetry", None, Takes::Nothing, Always),
    ("no-hpet", None, Takes::Nothing, Always),
    ("block", Some('b'), Takes::Value, Always),
    ("pci-blacklist", None, Takes::Value, Always),
    ("allow", Some('a'), Takes::Value, Refused(PCI)),
    ("pci-whitelist", Some('w'), Takes::Value, Refused(PCI)),
    ("memory-size", Some('m'), Takes::Value, Moot),
    ("memory-channels", Some('n'), Takes::Value, Moot),
    ("memory-ranks", Some('r'), Takes::Value, Moot),
    ("socket-mem", None, Takes::Value, Moot),
    ("numa-mem", None, Takes::Value, Moot),
    ("socket-limit", None, Takes::Value, Moot),
    ("numa-limit", None, Takes::Value, Moot),
    ("huge-dir", None, Takes::Value, Moot),
    ("huge-unlink", None, Takes::Perhaps, Moot),
    ("huge-worker-stack", None, Takes::Perhaps, Moot),
    ("file-prefix", None, Takes::Value, Moot),
    ("single-file-segments", None, Takes::Nothing, Moot),
    ("legacy-mem", None, Takes::Nothing, Moot),
    ("match-allocations", None, Takes::Nothing, Moot),
    ("base-virtaddr", None, Takes::Value, Moot),
    ("iova-mode", None, Takes::Value, Moot),
    ("mbuf-pool-ops-name", None, Takes::Value, Moot),
    ("driver-path", Some('d'), Takes::Value, Moot),
    ("service-coremask", Some('s'), Takes::Value, Moot),
    ("service-corelist", Some('S'), Takes::Value, Moot),
    ("remap-lcore-ids", Some('R'), Takes::Perhaps, Moot),
    ("log-level", None, Takes::Value, Moot),
    ("log-color", None, Takes::Perhaps, Moot),
    ("log-timestamp", None, Takes::Perhaps, Moot),
    ("syslog", None, Takes::Perhaps, Moot),
    ("trace", None, Takes::Perhaps, Moot),
    ("trace-dir", None, Takes::Value, Moot),
    ("trace-bufsz", None, Takes::Value, Moot),
    ("trace-mode", None, Takes::Value, Moot),
    ("telemetry", None, Takes::Nothing, Moot),
    ("create-uio-dev", None, Takes::Nothing, Moot),
    ("vfio-intr", None, Takes::Value, Moot),
    ("vfio-vf-token", None, Takes::Value, Moot),
    ("vmware-tsc-map", None, Takes::Nothing, Moot),
    ("force-max-simd-bitwidth", None, Takes::Value, Moot),
];

/// Reads the options before `--`.
pub(super) fn parse(args: &[String], said: &mut Said) -> Eal {
    let mut eal = Eal::default();
    // Which option has named cores already, and the core that is to be the main one.
    let (mut cores_by, mut main, mut unneeded) = (None::<String>, None, Vec::<String>::new());
    let before = said.mistakes.len();
    let mut parser = Parser::from_args(args);
    loop {
        let (as_written, found) = match parser.next() {
            Ok(None) => break,
            Ok(Some(Arg::Short(c))) => (
                format!("-{c}"),
                OPTIONS
                    .iter()
                    .find(|option| option.1 == Some(c))
                    .ok_or_else(|| format!("unknown EAL option -{c}")),
            ),
            Ok(Some(Arg::Long(name))) => (
                format!("--{name}"),
                find(OPTIONS, |option| option.0, name)
                    .map_err(|why| format!("EAL option --{name}: {why}")),
            ),
            Ok(Some(Arg::Value(word))) => {
                said.mistake(format!(
                    "unexpected argument {word:?} among EAL's options: l2fwd's own come after --"
                ));
                continue;
            }
            Err(error) => {
                said.mistake(format!("EAL: {error}"));
                continue;
            }
        };
        let &(long, short, takes, effect) = match found {
            Ok(option) => option,
            Err(mistake) => {
                said.mistake(mistake);
                // Whatever belongs to it is none of the others' business.
                let _ = parser.optional_value();
                continue;
            }
        };
        let value = match takes {
            Takes::Value => match value(&mut parser) {
                Some(value) => value,
                None => {
                    said.mistake(format!("{as_written}: its value is missing"));
                    continue;
                }
            },
            // A short one without value may have others behind it.
            Takes::Nothing if short.is_some() && !as_written.starts_with("--") => String::new(),
            Takes::Nothing | Takes::Perhaps => {
                let given = parser.optional_value();
                if given.is_some() && takes == Takes::Nothing {
                    said.mistake(format!("{as_written}: it takes no value"));
                }
                given.unwrap_or_default().to_string_lossy().into_owned()
            }
        };
        match effect {
            List | Mask => {
                if let Some(other) = &cores_by {
                    said.mistake(format!("{as_written}: {other} has named the cores already"));
                    continue;
                }
                cores_by = Some(as_written.clone());
                match if effect == Mask { lcores::mask(&value) } else { lcores::list(&as_written, &value) } {
                    Ok(cores) => eal.lcores = cores,
                    Err(mistake) => said.mistake(mistake),
                }
            }
            Main => match value.parse::<usize>() {
                Ok(id) => main = Some((as_written, id)),
                Err(_) => said.mistake(format!("{as_written} {value:?}: write the number of a core")),
            },
            Vdev => {
                if let Some(device) = vdev::parse(&value, said) {
                    if eal.devices.iter().any(|other| other.name == device.name) {
                        said.mistake(format!("--vdev {}: given twice, give each a number of its own", device.name));
                    }
                    eal.devices.push(device);
                }
            }
            NoHuge => eal.huge_pages = HugePages::Off,
            Process => match value.as_str() {
                "primary" | "auto" => {}
                "secondary" => said.mistake(
                    "--proc-type secondary: there is no primary process to share ports with; start one relay with all of them"
                        .into(),
                ),
                _ => said.mistake(format!("--proc-type {value:?}: use primary or auto")),
            },
            Help => eal.help = true,
            Version => eal.version = true,
            Always => {}
            Moot => match moot::mistake(long, &value) {
                None => unneeded.push(as_written),
                Some(instead) => said.mistake(format!("{as_written} {value:?}: write {instead}")),
            },
            Refused(why) => said.mistake(format!("{as_written} {value}: {why}")),
        }
    }
    if let Some((option, id)) = main
        && cores_by.is_some()
        && eal.lcores.iter().all(|core| core.id != id)
        && !eal.lcores.is_empty()
    {
        said.mistake(format!("{option} {id}: not among the cores that are named"));
    }
    if said.mistakes.len() > before {
        said.verdicts.push("Invalid EAL arguments");
    }
    if !unneeded.is_empty() {
        said.remark(format!(
            "not needed here, and without effect: {}",
            unneeded.join(" ")
        ));
    }
    eal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (Eal, Said) {
        let args: Vec<String> = line.split_whitespace().map(Into::into).collect();
        let mut said = Said::default();
        (parse(&args, &mut said), said)
    }

    #[test]
    fn the_options_of_the_comnetsemu_example() {
        let (eal, said) = read(
            "-l 1 -m 256 --vdev=eth_af_packet0,iface=relay-s1 --no-pci --single-file-segments",
        );
        assert_eq!(eal.lcores, [Lcore::plain(1)]);
        assert_eq!(eal.devices[0].port.to_string(), "relay-s1");
        assert!(said.mistakes.is_empty());
        assert_eq!(
            said.remarks,
            ["not needed here, and without effect: -m --single-file-segments"]
        );
    }

    #[test]
    fn options_are_written_in_every_way() {
        for line in [
            "-l1,2 --no-huge",
            "-l 1-2 --no-hug",
            "--lcores=1,2 --no-huge",
            "-c 0x6 --no-huge",
            "-c6 --no-huge",
        ] {
            let (eal, said) = read(line);
            assert_eq!(
                (eal.lcores.len(), eal.huge_pages),
                (2, HugePages::Off),
                "{line}: {said:?}"
            );
            assert_eq!(said, Said::default(), "{line}");
        }
        let (eal, said) = read(
            "-vh -n4 --huge-unlink=never --file-prefix a --proc-type=auto --main-lcore 1 -l 0-1",
        );
        assert!(eal.version && eal.help);
        assert_eq!(said.mistakes, [""; 0]);
        assert_eq!(
            said.remarks,
            ["not needed here, and without effect: -n --huge-unlink --file-prefix"]
        );
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let (_, said) = read(
            "-l x -m abc --lcores 1 --main-lcore y --bogus=3 --huge word -a 0000:00:01.0 --proc-type secondary --no-pci=1 \
             --vdev=net_af_packet0,iface=a --vdev=net_af_packet0,iface=b -Z --vdev",
        );
        let parts = [
            "-l \"x\"",
            "-m \"abc\": write megabytes",
            "--lcores: -l has named",
            "\"y\"",
            "--bogus",
            "--huge: could be",
            "\"word\"",
            "-a 0000:00:01.0",
            "--proc-type secondary",
            "--no-pci: it takes no value",
            "net_af_packet0: given twice",
            "-Z",
            "--vdev: its value is missing",
        ];
        for part in parts {
            assert!(
                said.mistakes.iter().any(|mistake| mistake.contains(part)),
                "{part}: {said:#?}"
            );
        }
        assert_eq!(said.mistakes.len(), parts.len(), "{said:#?}");
        assert_eq!(said.verdicts, ["Invalid EAL arguments"]);
    }

    #[test]
    fn the_main_core_is_one_of_those_named() {
        assert!(read("-l 1,2 --main-lcore 3").1.mistakes[0].contains("--main-lcore 3"));
        assert_eq!(read("-l 1,2 --master-lcore 2").1, Said::default());
    }

    #[test]
    fn no_option_is_twice_in_the_table() {
        for (at, option) in OPTIONS.iter().enumerate() {
            let same = |other: &&(&str, Option<char>, Takes, Effect)| {
                other.0 == option.0 || (option.1.is_some() && other.1 == option.1)
            };
            assert_eq!(OPTIONS[..at].iter().find(same), None);
        }
    }
}
