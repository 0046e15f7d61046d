//! Values of EAL's options that have no effect here. EAL refuses wrong ones, so a command line that DPDK takes is one that is
//! taken here, and the other way round. Called by the reader of EAL's options; facts are from DPDK's `eal_common_options.c`.

use super::lcores;

/// What to write instead, if the option of this long name would not take the value.
pub(super) fn mistake(option: &str, value: &str) -> Option<&'static str> {
    let (right, instead) = match option {
        "memory-size" => (value.parse::<u32>().is_ok(), "megabytes"),
        "memory-channels" => (among(value, 1..=u32::MAX), "a number from 1"),
        "memory-ranks" => (among(value, 1..=16), "1 to 16"),
        "socket-mem" | "numa-mem" | "socket-limit" | "numa-limit" => (
            value.split(',').all(|part| part.parse::<u64>().is_ok()),
            "megabytes for each NUMA node: 64,64",
        ),
        "huge-unlink" => (
            ["", "always", "existing", "never"].contains(&value),
            "always, existing or never",
        ),
        "huge-worker-stack" => (
            value.is_empty() || value.parse::<u32>().is_ok(),
            "kilobytes",
        ),
        "file-prefix" => (
            !value.is_empty() && !value.contains('%'),
            "a name without %",
        ),
        "base-virtaddr" => (number(value).is_some(), "an address: 0x100000000"),
        "iova-mode" => (["pa", "va"].contains(&value), "pa or va"),
        "vfio-intr" => (
            ["legacy", "msi", "msix"].contains(&value),
            "legacy, msi or msix",
        ),
        "vfio-vf-token" => (is_uuid(value), "a UUID"),
        "service-coremask" => (lcores::mask(value).is_ok(), "a hexadecimal mask of cores"),
        "service-corelist" => (lcores::list("-S", value).is_ok(), "cores and ranges: 1,3-5"),
        "trace-mode" => (
            ["overwrite", "discard"]
                .iter()
                .any(|mode| !value.is_empty() && mode.starts_with(value)),
            "overwrite or discard",
        ),
        "trace-bufsz" => (
            among(value.trim_end_matches(['B', 'K', 'M']), 1..=u32::MAX),
            "a size: 1M",
        ),
        "force-max-simd-bitwidth" => (
            number(value).is_some_and(|bits| bits == 0 || (bits >= 64 && bits.is_power_of_two())),
            "0, or a power of two from 64",
        ),
        _ => return None,
    };
    (!right).then_some(instead)
}

fn among(text: &str, range: std::ops::RangeInclusive<u32>) -> bool {
    text.parse().is_ok_and(|number| range.contains(&number))
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12]
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_judged_as_eal_judges_them() {
        for (option, good, bad) in [
            ("memory-size", &["256", "0"][..], &["abc", "-5", ""][..]),
            ("memory-channels", &["1", "33"], &["0", "x"]),
            ("memory-ranks", &["1", "16"], &["0", "17"]),
            ("socket-mem", &["64", "0,64"], &["x", "64,x", ""]),
            ("huge-unlink", &["", "never"], &["zz"]),
            ("huge-worker-stack", &["", "64"], &["zz"]),
            ("file-prefix", &["a"], &["", "a%b"]),
            ("base-virtaddr", &["0x100", "4096"], &["zz"]),
            ("iova-mode", &["pa", "va"], &["x", ""]),
            ("vfio-intr", &["msix"], &["zz"]),
            (
                "vfio-vf-token",
                &["14d63f20-8445-11ea-8900-1f9ce7d5650d"],
                &["x"],
            ),
            ("service-coremask", &["2"], &["zz"]),
            ("service-corelist", &["1-2"], &["zz"]),
            ("trace-mode", &["d", "overwrite"], &["zz", ""]),
            ("trace-bufsz", &["1M", "4096"], &["0", "zz"]),
            ("force-max-simd-bitwidth", &["256", "0"], &["zz", "100"]),
        ] {
            for value in good {
                assert_eq!(mistake(option, value), None, "{option} {value}");
            }
            for value in bad {
                assert!(mistake(option, value).is_some(), "{option} {value}");
            }
        }
        // EAL itself complains of it, and goes on.
        assert_eq!(mistake("log-level", "zzz"), None);
        assert_eq!(mistake("huge-dir", "/nowhere"), None);
    }
}
