//! A relay is watched and stopped by its control socket; whoever misuses that harms nobody.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, attempt, eventually, plain, send_raw,
};

const RUN: &[&str] = &["--pair", "r0,r1"];

/// A chain with a relay of this test's own name.
pub(crate) fn named_relay() -> Option<(Chain, Relay, String)> {
    let chain = Chain::open(1500).map(Chain::without_arp)?;
    let name = chain.net.ns("relay");
    let relay = Relay::start(&chain.net, "relay", &[RUN, &["--name", &name]].concat());
    Some((chain, relay, name))
}

fn socket(name: &str) -> PathBuf {
    PathBuf::from(format!("/run/l2relay/{name}.sock"))
}

/// A connection that gives up after a while.
fn connect(name: &str) -> UnixStream {
    let stream = UnixStream::connect(socket(name)).expect("it listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    stream
}

/// One line there, one line back.
pub(crate) fn ask(name: &str, line: &str) -> Value {
    let mut stream = connect(name);
    writeln!(stream, "{line}").expect("it reads");
    answer(&mut BufReader::new(stream))
}

fn answer(stream: &mut impl BufRead) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).expect("it answers in time");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Runs `l2relay ARGS --name NAME`; its exit status, standard output and standard error.
pub(crate) fn tell(net: &Net, name: &str, args: &[&str]) -> (i32, String, String) {
    let output = attempt(net, "relay", &[], &[args, &["--name", name]].concat());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (
        output.status.code().expect("it ends by itself"),
        text(output.stdout),
        text(output.stderr),
    )
}

fn listed(net: &Net) -> Vec<String> {
    let output = attempt(net, "relay", &[], &["ps", "--json"]);
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).expect("ps prints JSON");
    let name = |relay: Value| relay["name"].as_str().expect("it has a name").to_owned();
    list.into_iter().map(name).collect()
}

/// These frames cross, and nothing else.
pub(crate) fn assert_crosses(net: &Net, sizes: std::ops::Range<usize>) {
    let frames: Vec<Vec<u8>> = sizes.map(|size| plain(size, size as u32)).collect();
    let capture = Capture::start(net, "server", "s0", "");
    send_raw(net, "client", "c0", &frames);
    assert_eq!(capture.frames(frames.len()), frames);
}

#[test]
fn a_relay_is_found_asked_and_stopped() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    assert!(listed(net).contains(&name));
    assert_crosses(net, 60..65);

    let (status, table, _) = tell(net, &name, &["stats"]);
    assert!(status == 0 && table.contains("r0>r1"), "{table}");
    let (status, line, _) = tell(net, &name, &["stats", "--json", "--reset"]);
    let counted: Value = serde_json::from_str(&line).expect("one object");
    assert_eq!((status, &counted["lanes"][0]["rx_packets"]), (0, &json!(5)));
    let (_, line, _) = tell(net, &name, &["stats", "--json"]);
    let anew: Value = serde_json::from_str(&line).expect("one object");
    assert_eq!(anew["lanes"][0]["rx_packets"], 0);
    assert!(anew["counted_s"].as_f64() < counted["counted_s"].as_f64());

    assert_eq!(tell(net, &name, &["health"]).0, 0);
    net.sh("relay", "ip link set r1 down");
    let down = || tell(net, &name, &["health"]);
    assert!(eventually(PATIENCE, || down().0 == 1));
    let (_, said, _) = down();
    assert!(
        said.contains("not ready") && said.contains("r1 is down"),
        "{said}"
    );
    assert_eq!(tell(net, &name, &["health", "--live"]).0, 0);

    let (status, _, said) = tell(net, &name, &["stop"]);
    assert_eq!(status, 0, "{said}");
    let last = relay.end();
    assert_eq!(last.way("r0", "r1").rx_packets, 0);
    assert!(!socket(&name).exists() && !listed(net).contains(&name));
    let (status, _, said) = tell(net, &name, &["stats"]);
    assert!(status == 2 && said.contains("no relay called"), "{said}");
}

/// `stats --watch` prints what happened in between, and ends with the relay.
#[test]
fn watching_shows_rates_until_the_relay_ends() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let mut command = chain.net.command("relay", crate::common::program());
    let mut watch = command
        .args(["stats", "--json", "--watch", "0.2", "--name", &name])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("stdout is piped")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).expect("one object")
    };
    assert_eq!(next()["lanes"][0]["rates"]["rx_pps"], 0.0);
    send_raw(&chain.net, "client", "c0", &vec![plain(100, 1); 20]);
    let moved = (0..50).map(|_| next()).find(|snapshot| {
        let pps = snapshot["lanes"][0]["rates"]["rx_pps"].as_f64();
        pps.expect("a rate") > 0.0
    });
    let moved = moved.expect("a rate above 0");
    assert!(moved["uptime_s"].as_f64() > Some(0.2));
    relay.stop(Signal::Term);
    assert!(eventually(PATIENCE, || {
        watch.try_wait().expect("it is our child").is_some()
    }));
}

#[test]
fn names_are_taken_once_and_default_names_step_aside() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let before = net.sh("relay", "ip -d address | grep -v valid_lft");
    let (status, _, said) = tell(net, &name, &["run", "--pair", "r0,r1"]);
    let pid = format!("process {}", relay.pid());
    assert!(
        status == 2 && said.contains("give another --name") && said.contains(&pid),
        "{said}"
    );
    assert_eq!(net.sh("relay", "ip -d address | grep -v valid_lft"), before);
    let (status, _, said) = tell(net, "a/b", &["run", "--pair", "r0,r1"]);
    assert!(status == 2 && said.contains("letters, digits"), "{said}");
    assert_eq!(tell(net, &name, &["health"]).0, 0);

    // The same ports in two namespaces.
    let Some(other) = Chain::open(1500) else {
        return;
    };
    let relays = [net, &other.net].map(|net| Relay::start(net, "relay", RUN));
    let names = relays.each_ref().map(|relay| {
        let said = relay.said();
        let name = said.lines().find_map(|line| line.strip_prefix("name "));
        name.expect("it says its name").to_owned()
    });
    assert_ne!(names[0], names[1]);
    let all = listed(net);
    for name in &names {
        assert!(
            name.starts_with("r0-r1") && all.contains(name),
            "{name} in {all:?}"
        );
    }
    for relay in relays {
        relay.stop(Signal::Int);
    }
    relay.stop(Signal::Term);
}

#[test]
fn the_socket_of_a_killed_relay_is_taken_over() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    relay.kill();
    assert!(socket(&name).exists());
    let relay = Relay::start(net, "relay", &[RUN, &["--name", &name]].concat());
    assert_eq!(tell(net, &name, &["health"]).0, 0);
    relay.kill();
    // Nobody is there: it is not listed, and looking cleans up.
    assert!(!listed(net).contains(&name));
    assert!(!socket(&name).exists());
}

/// One that is stopped does not hang those who ask.
#[test]
fn a_frozen_relay_is_told_from_a_running_one() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    relay.signal(Signal::Freeze);
    let mut command = chain.net.command("relay", crate::common::program());
    let output = command
        .args(["health", "--name", &name])
        .output()
        .expect("it runs");
    relay.signal(Signal::Thaw);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("did not answer"),
        "{said}"
    );
    relay.stop(Signal::Term);
}

#[test]
fn without_a_place_to_write_the_relay_runs_and_says_so() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let mount = "mount -t tmpfs -o ro none /run && exec \"$0\" \"$@\"";
    let wrapper = [
        "env",
        "-u",
        "XDG_RUNTIME_DIR",
        "unshare",
        "-m",
        "sh",
        "-c",
        mount,
    ];
    for args in [RUN, &["--pair", "r0,r1", "--name", "x"]] {
        let mut relay = Relay::launch(net, "relay", &wrapper, args);
        relay.wait_ready();
        assert!(relay.says("no control socket") && relay.says("remedy"));
        assert_crosses(net, 100..103);
        relay.stop(Signal::Term);
    }
    let relay = Relay::start(net, "relay", &[RUN, &["--no-control"]].concat());
    assert!(!relay.said().contains("name ") && !relay.said().contains("control"));
    relay.stop(Signal::Term);
}

/// Clients that send rubbish, too much, nothing, or never read; a thousand of them: the relay forwards and answers others.
#[test]
fn bad_clients_harm_nobody() {
    let Some((chain, mut relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let used = relay.descriptors_and_threads();
    let code = |line: &str| ask(&name, line)["error"]["code"].clone();
    for line in [
        "x",
        "[]",
        "{}",
        "{\"v\":1}",
        "\u{1}\u{2}",
        "{\"v\":1,\"cmd\":\"stats\"",
    ] {
        assert_eq!(code(line), "malformed", "{line}");
    }
    assert_eq!(code(r#"{"v":2,"cmd":"stats"}"#), "unknown_version");
    assert_eq!(code(r#"{"v":1,"cmd":"fly"}"#), "unknown_command");
    assert_eq!(code(r#"{"v":1,"cmd":"stats","what":1}"#), "invalid");
    assert_eq!(code(r#"{"v":1,"v":1,"cmd":"stats"}"#), "malformed");
    for field in [
        r#""count":0"#,
        r#""buffer_bytes":268435457"#,
        r#""buffer_bytes":18446744073709551615"#,
    ] {
        let line = format!(r#"{{"v":1,"cmd":"capture",{field}}}"#);
        assert_eq!(code(&line), "refused", "{line}");
    }
    // What was asked for is not told at full length; a device and a pipe are not opened.
    let pipe = net.file("pipe");
    net.sh("relay", &format!("mkfifo {}", pipe.display()));
    let long = "x".repeat(60_000);
    for (port, told) in [
        (long.as_str(), "write an interface's name"),
        (&format!("/{long}:x"), ""),
        (&format!("{}:x", pipe.display()), "is no network namespace"),
        ("/dev/watchdog:x", ""),
    ] {
        let line = json!({"v": 1, "cmd": "set", "add": [format!("{port},r9")]}).to_string();
        let answer = ask(&name, &line);
        let message = answer["error"]["message"].as_str().expect("it is refused");
        assert!(message.contains(told) && message.len() < 3000, "{message}");
    }

    // A line without an end, and one that is too long: the answer comes, and then the end.
    let mut stream = connect(&name);
    // The relay may close before all of it is written.
    let _ = stream.write_all(&vec![b'x'; 1 << 20]);
    let mut stream = BufReader::new(stream);
    assert_eq!(answer(&mut stream)["error"]["code"], "too_long");
    // What it had not read is reset.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());

    // Half closed: whole and broken lines before the end are answered.
    let mut stream = connect(&name);
    stream
        .write_all(b"{\"v\":1,\"cmd\":\"info\"}\n\n{\"v\":1,\"cmd\":\"health\"}")
        .expect("it reads");
    stream.shutdown(Shutdown::Write).expect("half of it closes");
    let mut stream = BufReader::new(stream);
    assert_eq!(answer(&mut stream)["info"]["name"], *name);
    assert_eq!(answer(&mut stream)["health"]["ready"], true);
    assert_eq!(stream.read_to_end(&mut rest).expect("it ends"), 0);

    // One that asks and asks and never reads is asked no more.
    let deaf = connect(&name);
    deaf.set_nonblocking(true).expect("it can be set");
    let requests = b"{\"v\":1,\"cmd\":\"stats\"}\n".repeat(100);
    let stuffed = eventually(PATIENCE, || {
        let full = (0..1000).any(|_| (&deaf).write(&requests).is_err());
        std::thread::sleep(Duration::from_millis(50));
        full && (&deaf).write(&requests).is_err()
    });
    assert!(stuffed, "what nobody reads piles up in the relay");

    // Slow ones, byte by byte.
    let mut slow = connect(&name);
    for byte in b"{\"v\":1,\"cmd\":\"info\"}\n" {
        slow.write_all(&[*byte]).expect("it reads");
        std::thread::sleep(Duration::from_millis(2));
    }
    let start = Instant::now();
    let mut crowd = VecDeque::new();
    for _ in 0..1000 {
        let mut one = connect(&name);
        one.write_all(b"{\"v\":1,").expect("it reads");
        crowd.push_back(one);
        if crowd.len() > 256 {
            crowd.pop_front();
        }
    }
    assert_eq!(
        ask(&name, r#"{"v":1,"cmd":"health"}"#)["health"]["ready"],
        true
    );
    assert!(start.elapsed() < PATIENCE);
    assert!(relay.descriptors_and_threads().0 < used.0 + 100);
    assert_crosses(net, 200..230);
    drop((crowd, slow, deaf));
    // Not more than before: another test's `ps` may have been there then.
    assert!(eventually(PATIENCE, || {
        let (descriptors, threads) = relay.descriptors_and_threads();
        descriptors <= used.0 && threads <= used.1
    }));
    assert_eq!(relay.snapshot().way("r0", "r1").rx_packets, 30);
    relay.stop(Signal::Term);
}

/// Statistics asked for as often as they are answered, under load: the account stays exact.
#[test]
fn statistics_under_load_stay_exact() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let line = format!(
        "flood --address {} --count 30000 --size 200 --flows 4 --pause 0.0005",
        Chain::SERVER
    );
    let mut load = Peer::listen(net, "client", &line);
    let mut stream = BufReader::new(connect(&name));
    let (mut before, mut asked) = (0, 0);
    while !load.has_ended() {
        stream
            .get_mut()
            .write_all(b"{\"v\":1,\"cmd\":\"stats\"}\n")
            .expect("it reads");
        let snapshot = &answer(&mut stream)["stats"];
        for lane in snapshot["lanes"].as_array().expect("a list") {
            let count = |what: &str| lane[what].as_u64().expect("a count");
            let dropped = lane["dropped"].as_object().expect("an object");
            let dropped: u64 = dropped.values().filter_map(Value::as_u64).sum();
            assert_eq!(
                count("rx_packets") + count("created"),
                count("tx_packets") + dropped + count("held"),
                "{lane}"
            );
        }
        let now = snapshot["lanes"][0]["rx_packets"]
            .as_u64()
            .expect("a count");
        assert!(now >= before);
        (before, asked) = (now, asked + 1);
    }
    assert!(asked > 10, "{asked} answers");
    chain.settle();
    let arrived = net.counters("relay", "r0").rx_packets;
    let last = relay.stop(Signal::Term);
    let port = last.port("r0");
    assert_eq!(port.rx_packets + port.kernel_drops, arrived, "{port:?}");
}

/// Requests and answers are what the schema says, and nothing more; it does reject others.
#[test]
fn answers_are_what_the_schema_says() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let name = chain.net.ns("relay");
    let link = ["--name", &name, "--link", "r0>r1 delay 1ms"];
    let relay = Relay::start(&chain.net, "relay", &[RUN, &link].concat());
    assert_crosses(&chain.net, 60..65);
    let lane = ask(&name, r#"{"v":1,"cmd":"stats"}"#)["stats"]["lanes"][0].take();
    assert_eq!(lane["link"]["lateness"]["count"], 5, "{lane}");
    let requests = [
        r#"{"v":1,"cmd":"info"}"#,
        r#"{"v":1,"cmd":"health"}"#,
        r#"{"v":1,"cmd":"stats"}"#,
        r#"{"v":1,"cmd":"set","link":["r0>r1 rate 5mbit delay 2ms","r1>r0 delay 1ms"]}"#,
        r#"{"v":1,"cmd":"stats","reset":true}"#,
        r#"{"v":1,"cmd":"capture","port":"r0","before":true,"count":1,"snaplen":64,"buffer_bytes":65536,"filter":[[6,0,0,64]],"expression":"all"}"#,
        // The program does not end.
        r#"{"v":1,"cmd":"capture","filter":[[0,0,0,1]]}"#,
        r#"{"v":1,"cmd":"capture","lane":"r0>nope"}"#,
        r#"{"v":1,"cmd":"set","idle":"sleep","down":["r0,r1"]}"#,
        r#"{"v":1,"cmd":"info"}"#,
        r#"{"v":1,"cmd":"set","add":["r0,nope"]}"#,
        r#"{"v":1,"cmd":"config"}"#,
        r#"{"v":1,"cmd":"reload"}"#,
        r#"{"v":1,"cmd":"stop"}"#,
    ];
    let mut lines = Vec::new();
    for request in requests {
        let value: Value = serde_json::from_str(request).expect("JSON");
        lines.push(json!({"is": "request", "value": value, "fits": true}));
        lines.push(json!({"is": "response", "value": ask(&name, request), "fits": true}));
    }
    let refused = |line: &&Value| line["value"]["error"]["code"] == "refused";
    let started = |line: &&Value| line["value"]["capture"]["ports"] == json!(["r0"]);
    assert_eq!(lines.iter().filter(started).count(), 1, "{lines:?}");
    assert!(lines.iter().filter(refused).count() >= 2, "{lines:?}");
    relay.end();
    for (is, value) in [
        ("request", json!({"v": 1, "cmd": "fly"})),
        ("request", json!({"v": 2, "cmd": "info"})),
        (
            "request",
            json!({"v": 1, "cmd": "capture", "filter": [[6, 0, 0]]}),
        ),
        ("response", json!({"v": 1, "info": {}})),
        ("response", json!({"v": 1, "done": ["x"], "more": 1})),
    ] {
        lines.push(json!({"is": is, "value": value, "fits": false}));
    }
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/control.schema.json");
    let mut check = Command::new("/usr/bin/python3")
        .args(["-c", include_str!("schema.py"), schema])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut stdin = check.stdin.take().expect("stdin is piped");
    for line in &lines {
        writeln!(stdin, "{line}").expect("it reads");
    }
    drop(stdin);
    let output = check.wait_with_output().expect("it ends");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// Whoever asks it to stop while somebody else has, is told that it has ended; and a relay that was killed is not listed.
#[test]
fn two_stop_it_at_once_and_both_are_well() {
    let Some((chain, relay, name)) = named_relay() else {
        return;
    };
    let net = &chain.net;
    let order = |signal: &str| net.sh("relay", &format!("kill -s {signal} {}", relay.pid()));
    order("STOP");
    std::thread::scope(|scope| {
        let stops = [(); 3].map(|()| scope.spawn(|| tell(net, &name, &["stop"])));
        std::thread::sleep(Duration::from_millis(500));
        order("CONT");
        for stop in stops {
            let (status, out, said) = stop.join().expect("it ends");
            assert!(status == 0 && said.is_empty(), "{said}");
            assert!(
                out.is_empty() || out == format!("relay {name} has ended\n"),
                "{out}"
            );
        }
    });
    relay.end();
    let other = Relay::start(net, "relay", &[RUN, &["--name", &name]].concat());
    let list = std::thread::scope(|scope| {
        let kill = |signal: &str| net.sh("relay", &format!("kill -s {signal} {}", other.pid()));
        kill("STOP");
        let list = scope.spawn(|| attempt(net, "relay", &[], &["ps"]).stdout);
        std::thread::sleep(Duration::from_millis(500));
        kill("KILL");
        list.join().expect("it ends")
    });
    let list = String::from_utf8_lossy(&list);
    assert!(list.starts_with("name") && !list.contains(&name), "{list}");
}

/// An interface is called by what would steer a terminal: no command lets that through, and JSON has the name as it is.
#[test]
fn names_do_not_steer_the_terminal() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let evil = "\u{1b}[31mEVIL";
    net.sh(
        "relay",
        "ip link add \"$(printf '\\033[31mEVIL')\" type veth peer name evil",
    );
    net.sh(
        "relay",
        "ip link set evil up; ip link set \"$(printf '\\033[31mEVIL')\" up",
    );
    let name = net.ns("relay");
    let pair = format!("r0,{evil}");
    let relay = Relay::start(net, "relay", &["--pair", &pair, "--name", &name]);
    assert!(
        relay.says(r"\x1b[31mEVIL") && !relay.said().contains('\u{1b}'),
        "{}",
        relay.said()
    );
    let ps = || attempt(net, "relay", &[], &["ps"]).stdout;
    let check = || attempt(net, "relay", &[], &["check", evil]).stdout;
    let tell = |args: &[&str]| {
        let (_, out, err) = tell(net, &name, args);
        (out + &err).into_bytes()
    };
    for (what, said) in [
        ("ps", ps()),
        ("check", check()),
        ("stats", tell(&["stats"])),
        ("set", tell(&["set", "--down", &pair])),
        ("health", tell(&["health"])),
        ("capture", tell(&["capture", "--port", evil])),
        ("capture", tell(&["capture", "--port", &format!("{evil}x")])),
    ] {
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains('\u{1b}'), "{what}: {said:?}");
        assert!(
            said.contains(r"\x1b[31mEVIL") || what == "health",
            "{what}: {said:?}"
        );
    }
    // The columns stand below each other.
    let table = String::from_utf8_lossy(&tell(&["stats"])).into_owned();
    let ports: Vec<usize> = table.lines().skip(1).take(3).map(str::len).collect();
    assert!(ports.iter().all(|len| *len == ports[0]), "{table}");
    let (_, json, _) = self::tell(net, &name, &["stats", "--json"]);
    let stats: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(stats["ports"][1]["name"], evil);
    relay.stop(Signal::Term);
}
