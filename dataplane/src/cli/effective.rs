//! Settings as a configuration file: what `l2relay config --print` shows.

use std::fmt::Display;

use toml::{Table, Value};

use super::run::Settings;
use crate::config::{LinkSettings, PortName};

/// A file that gives these settings, with every key that has a value.
pub fn to_toml(settings: &Settings) -> String {
    let config = &settings.config;
    let mut file = Table::new();
    let mut put = |key: &str, value: Value| {
        file.insert(key.to_owned(), value);
    };
    let pairs = config.pairs.iter().filter(|[a, b]| a != b);
    put("pair", list(pairs.map(|[a, b]| format!("{a},{b}"))));
    let hairpins = config.pairs.iter().filter(|[a, b]| a == b);
    put("hairpin", list(hairpins.map(|[port, _]| port)));
    put("backend", text(config.backend));
    let one = [("rx", config.rx), ("tx", config.tx)];
    for (key, backend) in one {
        if let Some(backend) = backend {
            put(key, text(backend));
        }
    }
    put("xdp-mode", text(config.xdp.mode));
    put("xdp-copy", text(config.xdp.copying));
    put("replace-xdp", Value::Boolean(config.xdp.replace));
    put("coalesce", text(config.coalesce));
    put("kernel-hook", text(config.kernel_hook));
    put("mac", text(config.mac));
    let macs = config.dst_mac.iter();
    put(
        "dst-mac",
        list(macs.map(|(port, mac): &(PortName, _)| format!("{port}={mac}"))),
    );
    if !config.cores.is_empty() {
        put("cores", list(config.cores.iter()));
    }
    put("idle", text(config.idle));
    put("queues", number(config.queues));
    if let Some(ring) = config.ring {
        put("ring", number(ring));
    }
    put("no-promisc", Value::Boolean(!config.promiscuous));
    put("qdisc", Value::Boolean(config.qdisc));
    put("hairpin-guard", Value::Boolean(config.hairpin_guard));
    if let Some(pps) = config.storm_guard_pps {
        put("storm-guard", Value::Integer(pps.into()));
    }
    put("port-by", text(config.port_by));
    put("propagate-link", Value::Boolean(config.propagate_link));
    put("hugepages", text(config.huge_pages));
    put("link", list(config.links.iter().map(link)));
    if let Some(seed) = config.seed {
        // An integer of TOML has 63 bits.
        put(
            "seed",
            i64::try_from(seed).map_or_else(|_| text(seed), Value::Integer),
        );
    }
    if let Some(seconds) = settings.stats_interval_s {
        put("stats-interval", Value::Float(seconds));
    }
    put("json", Value::Boolean(settings.json));
    put("log-format", text(settings.log_format));
    if let Some(name) = &settings.name {
        put("name", text(name));
    }
    if let Some(address) = settings.metrics {
        put("metrics", text(address));
    }
    put("no-control", Value::Boolean(!settings.control));
    if !settings.wait_ports.is_zero() {
        put(
            "wait-ports",
            Value::Float(settings.wait_ports.as_secs_f64()),
        );
    }
    file.to_string()
}

fn text(value: impl Display) -> Value {
    Value::String(value.to_string())
}

fn number(value: usize) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn list(values: impl Iterator<Item = impl Display>) -> Value {
    Value::Array(values.map(text).collect())
}

fn link(link: &LinkSettings) -> String {
    format!("{}>{} {}", link.from, link.to, link.settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::file::{Source, options};

    fn source(words: &[&str]) -> Source {
        let matches = options()
            .no_binary_name(true)
            .try_get_matches_from(words)
            .unwrap();
        let args = <crate::cli::RunArgs as clap::FromArgMatches>::from_arg_matches(&matches);
        Source::new(&matches, args.unwrap())
    }

    #[test]
    fn what_is_printed_can_be_read_and_is_the_same() {
        let words = [
            "--pair=a,b",
            "--hairpin=n:e",
            "--rx=packet",
            "--tx=packet",
            "--mac=update",
            "--dst-mac=a=02:00:00:00:00:07",
            "--cores=0",
            "--ring=512",
            "--storm-guard=9",
            "--stats-interval=1.5",
            "--name=x",
            "--link=a>b delay 1.5ms",
            "--seed=18446744073709551615",
            "--no-promisc",
            "--wait-ports=2",
            "--log-format=json",
            "--metrics=[::1]:8080",
        ];
        let settings = source(&words).settings(false).unwrap();
        let printed = to_toml(&settings);
        let file = std::env::temp_dir().join(format!("l2r-{}-effective.toml", std::process::id()));
        std::fs::write(&file, &printed).unwrap();
        let again = source(&[&format!("--config={}", file.display())]).settings(false);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(again.unwrap(), settings, "{printed}");

        let table: Table = printed.parse().unwrap();
        let options = options();
        for option in options
            .get_arguments()
            .filter_map(|option| option.get_long())
        {
            let shown = table.contains_key(option) || matches!(option, "config" | "help");
            assert!(
                shown,
                "--{option} is not shown: add it to to_toml and to this test"
            );
        }
    }
}
