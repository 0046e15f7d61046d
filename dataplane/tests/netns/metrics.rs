//! Prometheus, a browser and somebody who means harm read the relay by HTTP; and every way of reading it says the same.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{
    Chain, Net, PATIENCE, Relay, Signal, attempt, eventually, plain, program, send_raw,
};

const SCRIPT: &str = include_str!("http.py");

/// A chain with a relay of this test's own name that serves metrics, and the port where.
fn serving_relay() -> Option<(Chain, Relay, String, u16)> {
    let chain = Chain::open(1500).map(Chain::without_arp)?;
    let name = chain.net.ns("relay");
    let args = ["--pair", "r0,r1", "--name", &name, "--metrics", "0"];
    let relay = Relay::start(&chain.net, "relay", &args);
    let port = port(&relay);
    Some((chain, relay, name, port))
}

/// Where it says that it serves.
fn port(relay: &Relay) -> u16 {
    let said = relay.said();
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("metrics http://127.0.0.1:"))
        .unwrap_or_else(|| panic!("no address in\n{said}"));
    line.trim_end_matches('/').parse().expect("a port")
}

fn command(net: &Net, port: u16, what: &str) -> Command {
    let mut command = net.command("relay", "/usr/bin/python3");
    command
        .args(["-c", SCRIPT, "127.0.0.1", &port.to_string()])
        .args(what.split_whitespace());
    command
}

fn http(net: &Net, port: u16, what: &str) -> Value {
    let output = command(net, port, what).output().expect("python3 runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{what}: {error}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Samples by name and labels, as the parser of python3-prometheus-client reads them.
fn samples(parsed: &Value) -> BTreeMap<(String, Vec<(String, String)>), f64> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let sample = |sample: &Value| {
        let labels = sample[1].as_object().expect("labels");
        let labels = labels
            .iter()
            .map(|(name, value)| (name.clone(), text(value)));
        (
            (text(&sample[0]), labels.collect()),
            sample[2].as_f64().expect("a number"),
        )
    };
    parsed["samples"]
        .as_array()
        .expect("a list")
        .iter()
        .map(sample)
        .collect()
}

fn tell(net: &Net, args: &[&str]) -> String {
    let output = attempt(net, "relay", &[], args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Frames cross, some are too long for the way out and dropped; then whoever asks in whatever way gets the same numbers.
#[test]
fn every_way_to_read_it_says_the_same() {
    let Some((chain, mut relay, name, port)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    net.sh("relay", "ip link set r1 mtu 1000");
    relay.snapshot_when("dropped the long ones", |snapshot| {
        let frames: Vec<Vec<u8>> = (0..12)
            .map(|at| plain([100, 1200][at % 2], at as u32))
            .collect();
        send_raw(net, "client", "c0", &frames);
        snapshot.way("r0", "r1").lost() > 0
    });
    send_raw(net, "server", "s0", &vec![plain(200, 1); 3]);
    chain.settle();

    let by_signal = relay.snapshot();
    let stats: Value = serde_json::from_str(&tell(net, &["stats", "--json", "--name", &name]))
        .expect("one object");
    let got = http(net, port, "get /snapshot.json");
    let by_http: Value =
        serde_json::from_str(got[0][2].as_str().expect("a body")).expect("one object");
    let parsed = http(net, port, "parse");
    let samples = samples(&parsed);
    let metric = |name: &str, labels: &[(&str, &str)]| {
        let mut labels: Vec<_> = labels
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        labels.sort();
        let key = (format!("l2relay_{name}"), labels);
        *samples
            .get(&key)
            .unwrap_or_else(|| panic!("no {key:?} in {samples:?}"))
    };

    for (at, lane) in by_signal.lanes.iter().enumerate() {
        let [a, b] = [&stats, &by_http].map(|snapshot| &snapshot["lanes"][at]);
        let (rx, tx) = (lane.rx.as_str(), lane.tx.as_str());
        let level = |field: &str| a[field].as_u64().expect("a count");
        let kernel_drops = level("kernel_drops");
        for (field, count, metric_name, port) in [
            ("rx_packets", lane.rx_packets, "rx_packets_total", rx),
            ("rx_bytes", lane.rx_bytes, "rx_bytes_total", rx),
            ("tx_packets", lane.tx_packets, "tx_packets_total", tx),
            ("tx_bytes", lane.tx_bytes, "tx_bytes_total", tx),
            ("created", lane.created, "created_packets_total", tx),
            (
                "kernel_drops",
                kernel_drops,
                "kernel_dropped_packets_total",
                rx,
            ),
            ("held", lane.held, "held_packets", tx),
            ("pool_size", level("pool_size"), "pool_size_buffers", tx),
        ] {
            let labels = [("lane", lane.name.as_str()), ("port", port)];
            assert_eq!(
                (&a[field], &b[field]),
                (&json!(count), &json!(count)),
                "{field}"
            );
            assert_eq!(metric(metric_name, &labels), count as f64, "{metric_name}");
        }
        let dropped = json!(lane.dropped);
        assert_eq!((&a["dropped"], &b["dropped"]), (&dropped, &dropped));
        let total: f64 = samples
            .iter()
            .filter(|((name, labels), _)| {
                name == "l2relay_dropped_packets_total"
                    && labels.contains(&("lane".to_owned(), lane.name.clone()))
            })
            .map(|(_, count)| count)
            .sum();
        assert_eq!(total, lane.lost() as f64);
        for (reason, count) in &lane.dropped {
            let labels = [
                ("lane", lane.name.as_str()),
                ("port", tx),
                ("reason", reason),
            ];
            assert_eq!(metric("dropped_packets_total", &labels), *count as f64);
        }
    }
    assert!(by_signal.way("r0", "r1").lost() > 0);

    // Every field of a lane that is a number is a metric, and every metric of a lane is a field: new ones can't be forgotten.
    let fields = stats["lanes"][0].as_object().expect("an object");
    let numbers = fields.iter().filter(|(_, value)| value.is_number()).count();
    let of_lanes: std::collections::BTreeSet<_> = samples
        .keys()
        .filter(|(_, labels)| labels.iter().any(|(label, _)| label == "lane"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        of_lanes.len(),
        numbers + 1,
        "{of_lanes:?} of {fields:?}: and the drops by reason"
    );

    let table = tell(net, &["stats", "--name", &name]);
    let top = tell(
        net,
        &["top", "--once", "--interval", "0.1", "--name", &name],
    );
    let list = tell(net, &["ps"]);
    for text in [&table, &top] {
        assert!(text.contains("idle") && text.contains(" %"), "{text}");
    }
    let times: f64 = ["busy", "looking", "asleep"]
        .iter()
        .map(|state| metric("worker_seconds_total", &[("worker", "0"), ("state", state)]))
        .sum();
    let uptime = stats["uptime_s"].as_f64().expect("seconds");
    assert!((uptime - times).abs() < 5.0, "{times} s of {uptime} s");
    for port in &by_signal.ports {
        assert_eq!(
            metric(
                "port_state",
                &[("port", &port.name), ("state", &port.state)]
            ),
            1.0
        );
        let row = |text: &str| -> Vec<String> {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{} ", port.name)));
            let line = line.unwrap_or_else(|| panic!("no row {} in\n{text}", port.name));
            line.split_whitespace().map(str::to_owned).collect()
        };
        let (in_stats, in_top) = (row(&table), row(&top));
        assert_eq!(in_stats[1], port.state);
        assert_eq!(
            in_stats[2..6],
            [
                port.rx_packets,
                port.rx_bytes,
                port.tx_packets,
                port.tx_bytes
            ]
            .map(|n| n.to_string())
        );
        // State, dropped and kernel drops.
        assert_eq!(in_top[1], in_stats[1]);
        assert_eq!(in_top[in_top.len() - 2..], in_stats[6..8]);
        assert!(list.contains(&port.name), "{list}");
    }
    let oversize = format!("oversize {}", by_signal.way("r0", "r1").dropped["oversize"]);
    assert!(
        table.contains(&oversize) && top.contains(&oversize),
        "{table}\n{top}"
    );
}

/// What the rules of `promtool check metrics` say against an exposition (client_golang, prometheus/testutil/promlint), for those that
/// concern these metrics.
fn lint(text: &str) -> Vec<String> {
    const NOT_BASE: &[&str] = &[
        "milliseconds",
        "microseconds",
        "nanoseconds",
        "ms",
        "us",
        "ns",
        "sec",
        "minutes",
        "hours",
        "bits",
        "kilobytes",
        "megabytes",
        "kb",
        "mb",
        "percent",
        "percentage",
    ];
    let mut mistakes = Vec::new();
    let mut families: BTreeMap<&str, (Option<&str>, &str)> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match [words.next(), words.next(), words.next(), words.next()] {
            [Some("#"), Some("HELP"), Some(name), Some(help)] if !help.is_empty() => {
                let known = families.insert(name, (Some(help), ""));
                mistakes.extend(known.map(|_| format!("{name}: twice")));
            }
            [Some("#"), Some("TYPE"), Some(name), Some(kind)] => match families.get_mut(name) {
                Some(family) => family.1 = kind,
                None => mistakes.push(format!("{name}: no help text")),
            },
            _ => {}
        }
    }
    for (name, (_, kind)) in families {
        let words: Vec<&str> = name.split('_').collect();
        let mut wrong = |what: &str| mistakes.push(format!("{name}: {what}"));
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !name.starts_with("l2relay_") || !name.chars().all(is_name) {
            wrong("not snake_case with the program's name before");
        }
        if (kind == "counter") != (words.last() == Some(&"total")) {
            wrong("counters end in _total, and nothing else does");
        }
        if words.iter().any(|word| NOT_BASE.contains(word)) {
            wrong("not a base unit");
        }
        if ["gauge", "counter", "histogram", "summary"]
            .iter()
            .any(|kind| words.contains(kind))
        {
            wrong("the type in the name");
        }
        let ends = ["_count", "_sum", "_bucket"];
        if kind != "histogram" && ends.iter().any(|end| name.ends_with(end)) {
            wrong("named like a part of a histogram");
        }
        for part in ends.iter().filter(|_| kind == "histogram") {
            if !text.contains(&format!("\n{name}{part}{{")) {
                wrong(&format!("no {part}"));
            }
        }
    }
    mistakes
}

/// The lint itself does find what is wrong.
#[test]
fn the_lint_of_metrics_finds_mistakes() {
    let bad = "# HELP l2relay_x_total X.\n# TYPE l2relay_x_total gauge\nl2relay_x_total 1\n\
               # HELP l2relay_time_ms X.\n# TYPE l2relay_time_ms gauge\nl2relay_time_ms 1\n\
               # TYPE l2relay_y gauge\nl2relay_y 1\n\
               # HELP l2relay_h X.\n# TYPE l2relay_h histogram\nl2relay_h_bucket{le=\"+Inf\"} 1\nl2relay_h_count{} 1\n";
    let found = lint(bad);
    for mistake in [
        "l2relay_x_total: counters",
        "l2relay_time_ms: not a base",
        "l2relay_y: no help",
        "l2relay_h: no _sum",
    ] {
        assert!(
            found.iter().any(|one| one.starts_with(mistake)),
            "{mistake} in {found:?}"
        );
    }
    assert_eq!(found.len(), 4, "{found:?}");
}

/// Names, types and units are by Prometheus' conventions; its own tool says so too, where it is installed.
#[test]
fn names_and_units_are_by_convention() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let args = [
        "--pair",
        "r0,r1",
        "--link",
        "r0>r1 delay 1ms",
        "--metrics",
        "0",
    ];
    let mut relay = Relay::start(&chain.net, "relay", &args);
    let port = port(&relay);
    send_raw(&chain.net, "client", "c0", &vec![plain(100, 1); 20]);
    relay.snapshot_when("forwarded all", |snapshot| {
        snapshot.way("r0", "r1").tx_packets == 20
    });
    let parsed = http(&chain.net, port, "parse");
    let late = [
        ("lane".to_owned(), "r0>r1".to_owned()),
        ("port".to_owned(), "r1".to_owned()),
    ];
    let late = (
        "l2relay_link_lateness_seconds_count".to_owned(),
        late.to_vec(),
    );
    assert_eq!(samples(&parsed)[&late], 20.0);
    for (family, kind) in [
        ("l2relay_rx_packets", "counter"),
        ("l2relay_held_packets", "gauge"),
        ("l2relay_turn_seconds", "histogram"),
        ("l2relay_burst_frames", "histogram"),
        ("l2relay_link_lateness_seconds", "histogram"),
    ] {
        assert_eq!(parsed["types"][family], kind, "{family}");
    }
    let got = http(&chain.net, port, "get /metrics");
    assert_eq!(
        (&got[0][0], &got[0][1]),
        (
            &json!(200),
            &json!("text/plain; version=0.0.4; charset=utf-8")
        )
    );
    let text = got[0][2].as_str().expect("a body");
    assert_eq!(lint(text), Vec::<String>::new(), "{text}");
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else {
        let _ = writeln!(
            std::io::stderr(),
            "not checked with promtool as well: install prometheus (Debian)"
        );
        return;
    };
    let mut stdin = promtool.stdin.take().expect("stdin is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = promtool.wait_with_output().expect("it ends");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

/// The status page's own script, run by node against a relay: it shows what the relay counts, and that a relay is gone.
#[test]
fn the_status_page_shows_what_is_counted() {
    let Some((chain, mut relay, name, port)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    if Command::new("node").arg("--version").output().is_err() {
        let _ = writeln!(
            std::io::stderr(),
            "the page's script was not run: install nodejs"
        );
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/netns/page.mjs");
    let url = format!("http://127.0.0.1:{port}/");
    let page = |polls: &str| {
        let mut command = net.command("relay", "timeout");
        let command = command.args(["30", "node", script, &url, polls]);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("node runs")
    };
    let shown = |page: Child| -> Value {
        let output = page.wait_with_output().expect("it ends");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    };
    net.sh("relay", "ip link set r1 mtu 1000");
    let sent = std::cell::Cell::new(0);
    relay.snapshot_when("dropped some", |snapshot| {
        sent.set(sent.get() + 2);
        send_raw(net, "client", "c0", &[plain(100, 1), plain(1500, 1)]);
        snapshot.way("r0", "r1").lost() > 0
    });
    let sent = sent.get();
    let counted = relay.snapshot_when("counted all", |snapshot| {
        snapshot.way("r0", "r1").rx_packets == sent
    });
    tell(net, &["set", "--name", &name, "--link", "r1>r0 delay 5ms"]);
    let now = shown(page("3"));
    assert_eq!(now["trouble"], Value::Null, "{now}");
    let up = now["up"].as_str().expect("text");
    assert!(
        up.starts_with("up 00:00:") && up.contains("worker 0 idle"),
        "{now}"
    );
    let lanes = now["lanes"].as_array().expect("a list");
    let text = lanes[0]["text"].as_str().expect("text");
    let lost = counted.way("r0", "r1").lost();
    for part in ["r0>r1", "in 0 pps", &format!("oversize {lost}")] {
        assert!(text.contains(part), "{part} in {now}");
    }
    // How late a link is, where there is one.
    let linked = lanes[1]["text"].as_str().expect("text");
    assert!(
        linked.contains("link delay 5ms · late by 0.0 us (half), 0.0 us (99 %)")
            && !text.contains("late by"),
        "{now}"
    );
    assert!(
        lanes.len() == 2
            && lanes[0]["paths"][0]
                .as_str()
                .is_some_and(|d| d.starts_with('M')),
        "{now}"
    );
    let row = |port: &str| {
        let rows = now["ports"].as_array().expect("a list");
        let row = rows.iter().find(|row| row[0] == port);
        row.unwrap_or_else(|| panic!("no row {port}: {now}"))
            .clone()
    };
    assert_eq!(
        (&row("r0")[1], &row("r0")[2]),
        (&json!("up"), &json!(sent.to_string()))
    );
    assert_eq!(row("r1")[4], json!((sent - lost).to_string()));
    // One that looks on while the relay ends.
    let mut looking = page("40");
    let mut begun = String::new();
    let stderr = looking.stderr.as_mut().expect("stderr is piped");
    BufReader::new(stderr)
        .read_line(&mut begun)
        .expect("it says that it has begun");
    assert_eq!(begun.trim(), "has the page");
    relay.stop(Signal::Term);
    let after = shown(looking);
    let trouble = after["trouble"].as_str().unwrap_or_default();
    assert!(trouble.contains("has not answered since"), "{after}");
}

/// Probes are answered while the ports are waited for: it lives and is not ready.
#[test]
fn health_is_told_before_the_ports_are_there() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    let args = ["--pair", "r0,r1", "--wait-ports", "30", "--metrics", "9922"];
    let mut relay = Relay::launch(&net, "relay", &[], &args);
    assert!(relay.says("waiting for r1"));
    let got = http(&net, 9922, "get /healthz /readyz /metrics /snapshot.json /");
    let status = |at: usize| got[at][0].clone();
    assert_eq!(
        (0..5).map(status).collect::<Vec<_>>(),
        [200, 503, 503, 503, 200]
    );
    let why = got[1][2].as_str().expect("a body");
    assert!(why.contains("waits for its ports"), "{why}");
    net.veth(("server", "s0"), ("relay", "r1"));
    relay.wait_ready();
    assert_eq!(port(&relay), 9922);
    let got = http(&net, 9922, "get /readyz /metrics");
    assert_eq!((&got[0][0], &got[1][0]), (&json!(200), &json!(200)));
    relay.stop(Signal::Term);
}

#[test]
fn health_follows_the_ports() {
    let Some((chain, relay, _, port)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    let status = |path: &str| http(net, port, &format!("get {path}"))[0][0].clone();
    assert_eq!([status("/healthz"), status("/readyz")], [200, 200]);
    net.sh("relay", "ip link set r1 down");
    assert!(eventually(PATIENCE, || status("/readyz") == 503));
    assert_eq!(status("/healthz"), 200);
    let got = http(net, port, "get /readyz /metrics /nothing /");
    assert!(
        got[0][2].as_str().expect("a body").contains("r1 is down"),
        "{got}"
    );
    let state = "l2relay_port_state{port=\"r1\",state=\"down\"} 1";
    assert!(got[1][2].as_str().expect("a body").contains(state));
    assert_eq!(got[2][0], 404);
    assert_eq!(
        (&got[3][0], &got[3][1]),
        (&json!(200), &json!("text/html; charset=utf-8"))
    );
    relay.stop(Signal::Term);
}

/// A thousand connections that say nothing, a slow one, and requests that are none: others are served, frames cross, the
/// descriptors come back, and the end does not wait for anybody.
#[test]
fn misuse_harms_nobody() {
    let Some((chain, mut relay, _, port)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    http(net, port, "get /healthz");
    let (before, threads) = relay.descriptors_and_threads();

    let answers = http(net, port, "misuse");
    for (name, status) in [
        ("nothing", ""),
        ("no http", "HTTP/1.1 400"),
        ("zeros", "HTTP/1.1 400"),
        ("tls", "HTTP/1.1 400"),
        ("half a head", ""),
        ("many headers", "HTTP/1.1 431"),
        ("post", "HTTP/1.1 405"),
        ("delete", "HTTP/1.1 405"),
        ("up", "HTTP/1.1 404"),
        ("two", "HTTP/1.1 200"),
        ("old", "HTTP/1.0 200"),
        ("no host", "HTTP/1.1 400"),
        ("two hosts", "HTTP/1.1 400"),
        ("another's name", "HTTP/1.1 421"),
        ("another's address", "HTTP/1.1 421"),
        ("head", "HTTP/1.1 200"),
    ] {
        let line = answers[name].as_str().expect("a line");
        assert!(
            line.starts_with(status) && (line.is_empty() == status.is_empty()),
            "{name}: {line:?}"
        );
    }
    // More than fits: an answer, or the connection is reset while the rest comes in.
    for name in ["long path", "long header", "huge body"] {
        let line = answers[name].as_str().expect("a line");
        assert!(
            line.is_empty() || line.starts_with("HTTP/1.1 4"),
            "{name}: {line:?}"
        );
    }

    let mut crowd = Held::start(net, port, "crowd 1000");
    assert_eq!(crowd.line(), "open");
    let mut slow = Held::start(net, port, "slow");
    let start = Instant::now();
    assert_eq!(http(net, port, "get /metrics")[0][0], 200);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    let (during, _) = relay.descriptors_and_threads();
    assert!(
        during <= before + 128,
        "{before} descriptors, then {during}"
    );
    let frames: Vec<Vec<u8>> = (60..100).map(|size| plain(size, size as u32)).collect();
    send_raw(net, "client", "c0", &frames);
    relay.snapshot_when("forwarded all", |snapshot| {
        snapshot.way("r0", "r1").tx_packets == frames.len() as u64
    });

    let cut_off = slow.line().as_f64().expect("seconds");
    assert!((8.0..15.0).contains(&cut_off), "{cut_off} s");
    // Whoever says nothing is sent away after a while.
    assert!(eventually(PATIENCE, || relay.descriptors_and_threads()
        == (before, threads)));
    assert_eq!(crowd.finish(), 1000);

    let mut crowd = Held::start(net, port, "crowd 50");
    assert_eq!(crowd.line(), "open");
    let start = Instant::now();
    relay.stop(Signal::Term);
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

/// A client that stays.
struct Held {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Held {
    fn start(net: &Net, port: u16, what: &str) -> Held {
        let mut child = command(net, port, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Held { child, out }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it prints text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn finish(mut self) -> Value {
        drop(self.child.stdin.take());
        self.line()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address is taken: told with every other mistake, status 2, and nothing is touched. Another address is used only if named.
#[test]
fn an_address_that_is_taken_is_one_mistake_among_others() {
    let Some((chain, _relay, _, port)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    net.veth(("relay", "x0"), ("relay", "x1"));
    let port = port.to_string();
    let args = [
        "run",
        "--pair",
        "x0,x1",
        "--mac",
        "none",
        "--ring",
        "1",
        "--metrics",
        &port,
    ];
    let output = attempt(net, "relay", &[], &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in [
        "Address already in use",
        "another port",
        "\"none\"",
        "--ring 1",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    for (address, part) in [
        ("192.0.2.7:0", "no interface here has this address"),
        ("example.org", "ADDRESS:PORT"),
        ("70000", "ADDRESS:PORT"),
    ] {
        let output = attempt(
            net,
            "relay",
            &[],
            &["run", "--pair", "x0,x1", "--metrics", address],
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains(part),
            "{said}"
        );
    }

    let open = Relay::start(
        net,
        "relay",
        &["--pair", "x0,x1", "--no-control", "--metrics", "0.0.0.0:0"],
    );
    assert!(
        open.said().contains("whoever reaches this address"),
        "{}",
        open.said()
    );
    let listening = net.sh("relay", "ss -ltnH");
    assert_eq!(
        listening.matches("0.0.0.0:").count() - listening.matches("0.0.0.0:*").count(),
        1,
        "{listening}"
    );
    assert_eq!(listening.matches("127.0.0.1:").count(), 1, "{listening}");
    open.stop(Signal::Term);
}

/// `l2relay top` on a terminal of 80 × 24: what is shown, the keys, another size, a relay that goes and comes again.
#[test]
fn top_works_on_a_terminal() {
    let Some((chain, relay, name, _)) = serving_relay() else {
        return;
    };
    let net = &chain.net;
    let args = ["top", "--name", &name, "--interval", "0.2"];
    let mut top = Terminal::start(net, &args);
    let screen = top.wait("r0>r1");
    assert_eq!(screen.len(), 24);
    assert!(
        screen[0].contains(&name) && screen[23].contains("q quit"),
        "{screen:#?}"
    );
    send_raw(net, "client", "c0", &vec![plain(100, 1); 60]);
    top.wait("█");

    net.sh("relay", "ip link set r1 mtu 600");
    assert!(eventually(PATIENCE, || {
        send_raw(net, "client", "c0", &vec![plain(1000, 1); 5]);
        tell(net, &["stats", "--name", &name]).contains("oversize")
    }));
    top.wait("oversize");
    top.ask(&json!(["keys", " "]));
    top.wait("PAUSED");
    top.ask(&json!(["keys", " s"]));
    top.wait("sort: name");
    top.ask(&json!(["resize", 40, 120]));
    assert_eq!(top.wait("kernel drops").len(), 40);
    let title = |screen: &[String]| screen[39].contains("q quit");
    assert!(eventually(PATIENCE, || title(&top.wait("q quit"))));
    top.ask(&json!(["resize", 5, 20]));
    top.wait("l2relay");
    top.ask(&json!(["resize", 24, 80]));
    top.wait("kernel drops");

    relay.stop(Signal::Term);
    top.wait("WAITING");
    let again = Relay::start(net, "relay", &["--pair", "r0,r1", "--name", &name]);
    assert!(eventually(PATIENCE, || !top.wait("l2relay")[0].contains("WAITING")));
    top.ask(&json!(["keys", "q"]));
    let end = top.ask(&json!(["end"]));
    assert_eq!(end, json!([0, ["entered", "left"], true, true]));

    // What says that it has no columns gets as many as what says nothing.
    let once = ["top", "--once", "--interval", "0.1", "--name", &name];
    for (columns, width) in [
        ("COLUMNS=0", 80),
        ("COLUMNS=65535", 80),
        ("COLUMNS=100", 100),
    ] {
        let output = attempt(net, "relay", &["env", columns], &once);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(
            text.contains("r0>r1") && longest.is_some_and(|longest| longest <= width),
            "{columns}: {text}"
        );
    }

    for signal in [2, 15] {
        let mut top = Terminal::start(net, &args);
        top.wait("r0>r1");
        top.ask(&json!(["signal", signal]));
        let end = top.ask(&json!(["end"]));
        assert_eq!(end, json!([0, ["entered", "left"], true, true]), "{signal}");
    }
    let mut cut = Terminal::start(net, &args);
    cut.wait("r0>r1");
    assert_eq!(cut.ask(&json!(["close"])), json!(0));
    again.stop(Signal::Term);

    let output = attempt(net, "relay", &[], &["top"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("--once"),
        "{said}"
    );
    let mut none = Terminal::start(net, &args);
    none.wait("no relay called");
    assert_eq!(none.ask(&json!(["end"]))[0], 2);
}

/// A program on a terminal, told by `terminal.py`.
struct Terminal {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Terminal {
    fn start(net: &Net, args: &[&str]) -> Terminal {
        let mut child = net
            .command("relay", "/usr/bin/python3")
            .args(["-c", include_str!("terminal.py"), "24", "80", &program()])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Terminal { child, out }
    }

    fn ask(&mut self, step: &Value) -> Value {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{step}").expect("it reads");
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The lines of the screen, once a text is on it.
    fn wait(&mut self, text: &str) -> Vec<String> {
        let answer = self.ask(&json!(["wait", text]));
        let screen: Vec<String> = serde_json::from_value(answer["screen"].clone()).expect("lines");
        assert!(
            answer["found"] == true,
            "no {text:?} on\n{}",
            screen.join("\n")
        );
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
