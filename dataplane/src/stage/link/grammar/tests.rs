use std::{fs, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::stage::link::settings::{Delay, Limit, Queue};

fn parse(text: &str) -> Settings {
    Settings::parse(text).unwrap_or_else(|mistakes| panic!("{text}: {mistakes:?}"))
}

#[test]
fn the_line_of_the_dumbbell() {
    let settings = parse("rate 2mbit delay 100ms loss 5% limit 100p seed 1");
    let wanted = Settings {
        server: Some(Server::Rate(Rate {
            bps: 2_000_000,
            count: Count::L2,
            overhead: 0,
            cell: None,
        })),
        queue: Queue {
            limit: Some(Limit::Packets(100)),
            discipline: Discipline::DropTail,
        },
        delay: Delay {
            base: Duration::from_millis(100),
            jitter: None,
        },
        loss: Some(Loss {
            model: LossModel::Random(Chance {
                probability: Probability::new(0.05).unwrap(),
                ..Chance::default()
            }),
            ecn: false,
        }),
        seed: Some(1),
        ..Settings::default()
    };
    assert_eq!(settings, wanted);
}

/// Everything there is reads, and what it prints reads as the same.
#[test]
fn words_survive() {
    let dir = std::env::temp_dir().join(format!("l2relay-grammar-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (trace, table) = (dir.join("t.up"), dir.join("d.dist"));
    let spaced = dir.join("two words.up");
    fs::write(&spaced, "1\n2\n").unwrap();
    let spaced = spaced.display();
    fs::write(&trace, "1\n2\n").unwrap();
    fs::write(&table, "# two\n-8192 0 8192\n").unwrap();
    let (trace, table) = (trace.display(), table.display());
    for text in [
        "delay 0s".into(),
        "rate 1500bit l3 overhead -4 cell 53 limit 64kb drophead".into(),
        "rate 100mbit wire limit 50ms codel target 5ms interval 100ms ecn".into(),
        "rate 250kbps red min 5p max 15p probability 10% weight 0.2% ecn".into(),
        "rate 1gbit pie target 15ms tupdate 15ms".into(),
        "rate 8mbit codel".into(),
        "rate 8mbit droptail".into(),
        format!("trace {trace} once l2 limit 100packets"),
        format!("trace {trace} delay 20ms"),
        format!("trace \"{spaced}\" once delay 20ms"),
        format!("delay '1ms' trace '{spaced}'"),
        "delay 100ms 10ms 25% distribution normal".into(),
        format!("delay 100ms 10ms distribution table {table} unordered"),
        "delay 1.5s 3us distribution pareto reorder 25% 50% gap 5".into(),
        "loss 0.3% 25% ecn duplicate 1% corrupt 0.1% 3%".into(),
        "loss random 5% order loss,delay,rate".into(),
        "loss state 1% 10% 5% 20% 0.5%".into(),
        "loss state 1%".into(),
        "loss gemodel 1% 10% 70% 0.1%".into(),
        "loss gemodel 1%".into(),
        "loss pattern 0010".into(),
        "slot 800us 1ms packets 42 bytes 64kb".into(),
        "slot 10ms seed 18446744073709551615".into(),
        "rate 10mbit loss 0% at 1s rate 1mbit over 500ms at 2s delay 9ms at 3s loss 2% at 4s down \
         at 4.5s up repeat 10s memory 1mb"
            .into(),
    ] {
        let settings = parse(&text);
        let shown = settings.to_string();
        assert_eq!(parse(&shown), settings, "{text} shown as {shown}");
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// A rate says what it counts, also where nobody asked; percentages are as they were written.
#[test]
fn what_counts_is_said() {
    for (text, shown) in [
        ("rate 2mbit", "rate 2mbit l2"),
        ("rate 2mbit l3", "rate 2mbit l3"),
        ("rate 2mbit wire", "rate 2mbit wire"),
        ("loss 10%", "loss 10%"),
        ("loss 0.1% 33%", "loss 0.1% 33%"),
    ] {
        assert_eq!(parse(text).to_string(), shown);
    }
}

/// Just what fits, fits.
#[test]
fn limits_that_hold_one_frame() {
    for text in [
        "rate 1mbit limit 1514b",
        "rate 1mbit l3 limit 1500b",
        "rate 1mbit cell 53 limit 1696b",
        "rate 10gbit delay 50ms memory 92mb",
        "rate 1gbit limit 45mb",
    ] {
        parse(text);
    }
}

/// Each mistake is found, named, and the others with it.
#[test]
fn mistakes_are_named() {
    for (text, parts) in [
        ("", &["nothing is said"][..]),
        ("dalay 5ms", &["\"dalay\" is none of rate, trace"]),
        ("delay", &["delay: a time such as 100ms is missing"]),
        ("delay 5", &["\"5\": write a time with its unit"]),
        ("delay -5ms", &["-5ms"]),
        ("delay 5ms x", &["\"x\" is not understood"]),
        ("delay 5h", &["at most 1h"]),
        ("delay 999999999999999999999h", &["at most 720h"]),
        ("delay 5ms distribution normal", &["without jitter"]),
        ("delay 5ms 1ms distribution bell", &["bell"]),
        ("delay 5ms 1ms 100%", &["100%"]),
        ("delay 5ms delay 6ms", &["delay: given twice"]),
        ("rate 2", &["64kbit, 2mbit"]),
        ("rate 2mbit trace x", &["given twice", "x: No such file"]),
        ("rate 0mbit", &["100bit to 1tbit"]),
        ("rate -1mbit", &["-1mbit"]),
        ("rate 99999999gbit", &["100bit to 1tbit"]),
        ("rate 1mbit cell 3", &["cell"]),
        ("rate 1mbit limit 100", &["100p (packets)"]),
        ("rate 1mbit limit 0p", &["nothing would pass"]),
        ("rate 1mbit limit 100b", &["full size"]),
        (
            "rate 1mbit red min 5p max 5p",
            &["min above 0 and below max"],
        ),
        (
            "rate 1mbit red min 5p max 30kb",
            &["both packets or both bytes"],
        ),
        ("rate 1mbit red", &["red min 5p max 15p"]),
        ("rate 1mbit codel interval 0s", &["longer than 0"]),
        ("rate 1mbit pie tupdate 1us", &["at least 1ms"]),
        ("rate 1mbit codel pie", &["queue discipline: given twice"]),
        ("limit 100p", &["add rate or trace"]),
        ("codel", &["add rate or trace"]),
        ("loss 5", &["with its sign"]),
        ("loss 101%", &["0% to 100%"]),
        ("loss NaN%", &["NaN%"]),
        ("loss 1e1%", &["1e1%"]),
        ("loss 5% 100%", &["for ever"]),
        ("loss state 60% 10% 5% 5% 60%", &["p13 + p14"]),
        ("loss pattern 01x", &["01x"]),
        ("loss pattern file:/dev/zero", &["not an ordinary file"]),
        ("trace /dev/urandom", &["not an ordinary file"]),
        ("reorder 5%", &["add delay TIME"]),
        ("slot 5ms 1ms", &["shorter time first"]),
        ("slot 5ms packets 0", &["nothing would pass"]),
        ("order rate,rate", &["rate twice"]),
        ("order fate", &["\"fate\""]),
        ("seed -1", &["whole number"]),
        ("seed 18446744073709551616", &["whole number"]),
        ("delay 1ms memory 1kb", &["64kb to 64gb"]),
        ("rate 10gbit delay 1s", &["rate × delay: 1605 MB are held"]),
        ("rate 100mbit delay 5ms memory 64kb", &["80 kB are held"]),
        // 62.5 MB of frames, and their bookkeeping.
        ("rate 10gbit delay 50ms", &["add memory 92mb"]),
        ("rate 1mbit delay 50ms at 1s rate 10gbit", &["memory 92mb"]),
        ("rate 10gbit delay 1ms at 1s delay 50ms", &["memory 92mb"]),
        ("rate 10gbit limit 50ms", &["limit: 80 MB"]),
        ("rate 1gbit limit 60mb", &["limit: 81 MB are held"]),
        ("rate 1gbit limit 300000p", &["limit: 97 MB are held"]),
        ("rate 1mbit limit 1513b", &["counted as 1514"]),
        ("rate 1mbit l3 limit 1499b", &["counted as 1500"]),
        (
            "rate 1mbit wire overhead 1000 limit 2kb",
            &["counted as 2538"],
        ),
        ("rate 1mbit cell 65535 limit 10kb", &["counted as 65535"]),
        ("rate 1mbit cell 53 limit 1600b", &["counted as 1696"]),
        ("at 1s rate 1mbit", &["add rate"]),
        ("at 1s loss 1%", &["add loss"]),
        ("at 2s down at 1s up", &["write them in order"]),
        (
            "at 1s delay 5ms over 2s at 2s delay 6ms",
            &["longer than until then"],
        ),
        ("at 1s down over 1s", &["leave out over"]),
        ("at 5s down repeat 4s", &["not over when"]),
        ("at 1s sideways", &["rate, delay, loss, down or up"]),
        ("delay 1ms repeat 4s", &["no 'at'"]),
        ("rate x loss y% delay z", &["\"x\"", "\"y%\"", "\"z\""]),
        // What stands behind a bad word is looked at, too.
        ("delay 5 10 25", &["\"5\"", "\"10\"", "\"25\""]),
        (
            "delay 5 1ms distribution bell backwards",
            &["\"5\"", "\"bell\"", "\"backwards\" is not"],
        ),
        ("loss gemodel 1 2 x", &["\"1\"", "\"2\"", "\"x\" is not"]),
        (
            "at soon sideways over 5",
            &["\"soon\"", "\"sideways\"", "\"5\""],
        ),
        ("slot x packets y bytes z", &["\"x\"", "\"y\"", "\"z\""]),
        ("rate 2 cell x limit 3", &["\"2\"", "\"x\"", "\"3\""]),
        (
            "order fate x delay 5",
            &["\"fate\"", "\"x\" is not", "\"5\""],
        ),
        ("delay 5ms x y", &["\"x y\" is not understood"]),
        // Habits of tc.
        (
            "rate 2mbit 14 48 5",
            &["\"14 48 5\"", "overhead N cell N", "cell 53"],
        ),
        ("gap 5 delay 10ms", &["reorder 100% gap 5"]),
        ("delay 10ms gap 5", &["reorder 100% gap 5"]),
        ("rate 1mbit ecn", &["name before it what marks"]),
        (
            "rate 1mbit burst 32kb latency 50ms",
            &["leave it out", "32kb latency", "write 'limit 50ms'"],
        ),
        (
            "rate 1mbit limit 50ms latency 50ms",
            &["write 'limit 50ms'"],
        ),
        ("netem delay 5", &["leave tc's words out", "\"5\""]),
        ("delay 5ms limit 1000", &["memory 64mb"]),
        ("trace \"a b", &["the quote is not closed"]),
    ] {
        let mistakes = Settings::parse(text).expect_err(text);
        for part in parts {
            assert!(
                mistakes.iter().any(|mistake| mistake.contains(part)),
                "{text}: {part} is not in {mistakes:#?}"
            );
        }
        assert!(
            mistakes.len() <= parts.len().max(1),
            "{text}: {mistakes:#?}"
        );
    }
}

proptest! {
    /// Whatever is written: an answer, and no panic.
    #[test]
    fn anything_is_answered(words in prop::collection::vec(prop_oneof![
        prop::sample::select(&PARTS[..]).prop_map(str::to_owned),
        prop::sample::select(vec![
            "5%", "100%", "1ms", "2mbit", "10p", "ecn", "min", "max", "target", "over", "gap", "down", "table", "state",
            "0", "99999999999999999999999%", "1.2.3ms", "-", ".", "%", "ms", "distribution", "normal", "pattern", "01",
        ]).prop_map(str::to_owned),
        "[ -~]{0,6}",
    ], 0..12)) {
        if let Ok(settings) = Settings::parse(&words.join(" ")) {
            prop_assert_eq!(Settings::parse(&settings.to_string()), Ok(settings));
        }
    }
}
