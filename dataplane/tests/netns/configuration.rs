//! Configuration files: read, checked, printed, read again; and what a service manager is told.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common::{
    Capture, Chain, Net, PATIENCE, Peer, Relay, Signal, Worker, attempt, eventually, mac, plain,
    program, receive_raw, send_raw,
};
use crate::control::{assert_crosses, tell};

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(net: &Net, text: &str) -> Self {
        let file = Self(net.file("relay.toml"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).expect("it can be written");
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a name of ours")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn source_seen(chain: &Chain, way: (&str, &str), end: (&str, &str)) -> Vec<u8> {
    let receiver = receive_raw(&chain.net, end.0, end.1, 1);
    send_raw(&chain.net, way.0, way.1, &[plain(100, 3)]);
    receiver.frames()[0].bytes[6..12].to_vec()
}

#[test]
fn a_file_is_run_and_read_again() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.veth(("client", "c2"), ("relay", "r2"));
    net.veth(("server", "s3"), ("relay", "r3"));
    let name = net.ns("relay");
    let file = File::new(net, &format!("pair = ['r0,r1']\nname = '{name}'\n"));
    let relay = Relay::start(net, "relay", &["-c", file.path()]);
    assert_crosses(net, 60..65);

    let one =
        format!("pair = ['r0,r1', 'r2,r3']\nmac = 'update'\nidle = 'sleep'\nname = '{name}'\n");
    file.write(&one);
    relay.signal(Signal::HangUp);
    assert!(relay.says("r2 <-> r3 is open") && relay.says("idle is sleep"));
    assert_eq!(
        source_seen(&chain, ("client", "c0"), ("server", "s0")),
        mac("r1")
    );
    assert_eq!(
        source_seen(&chain, ("client", "c2"), ("server", "s3")),
        mac("r3")
    );

    // What is in force is what the file says, and can be read again.
    let (status, printed, said) = tell(net, &name, &["config", "--running", "--print"]);
    assert_eq!(status, 0, "{said}");
    file.write(&printed);
    let (status, said, _) = tell(net, &name, &["reload"]);
    assert_eq!((status, said.trim()), (0, "nothing has changed"));

    // A mistake changes nothing, and is told with its line.
    file.write("pair = [\n 'r0,r1',\n 'r2,nope',\n]\nmac = 'shuffle'\n");
    let (status, _, said) = tell(net, &name, &["reload"]);
    assert_eq!(status, 2);
    for text in [":5: ", "shuffle"] {
        assert!(said.contains(text), "no {text} in {said}");
    }
    file.write("pair = ['r0,r1', 'r2,nope']\n");
    let (status, _, said) = tell(net, &name, &["reload"]);
    assert!(
        status == 2 && said.contains("nope: no such interface"),
        "{said}"
    );
    assert_eq!(
        source_seen(&chain, ("client", "c2"), ("server", "s3")),
        mac("r3")
    );

    // Everything else too: a delay, then more lanes and a smaller ring.
    for more in ["link = ['r0>r1 delay 5ms']", "queues = 2\nring = 64"] {
        file.write(&format!("pair = ['r1,r0']\n{more}\nname = '{name}'\n"));
        let (status, _, said) = tell(net, &name, &["reload"]);
        assert_eq!(status, 0, "{said}");
        if more.contains("delay") {
            let times = chain.ping(3, "", Chain::SERVER);
            assert!(times.iter().all(|ms| *ms >= 5.0), "{times:?}");
        }
    }
    assert_crosses(net, 60..65);
    let last = relay.stop(Signal::Term);
    assert_eq!((last.ports.len(), last.lanes.len()), (2, 4));
}

#[test]
fn a_file_is_checked_before_anything_is_touched() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let file = File::new(net, "pair = 'r0,nope'\nspeed = 11\nring = 1\n");
    let output = attempt(net, "relay", &[], &["run", "-c", file.path()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for text in [":1: nope", ":2: speed: no such option", ":3: --ring 1"] {
        assert!(said.contains(text), "no {text} in {said}");
    }
    let output = attempt(net, "relay", &[], &["run", "-c", "/nowhere/x.toml"]);
    assert_eq!(output.status.code(), Some(2));
    file.write("pair = 'r0,r1'\nring = 64\n");
    let output = attempt(
        net,
        "relay",
        &[],
        &["config", "--print", "--ring", "128", "-c", file.path()],
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("ring = 128") && printed.contains("idle = \"adaptive\""),
        "{printed}"
    );
    // Without a file SIGHUP ends a program, as a terminal that is closed should.
    let mut relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
    relay.signal(Signal::HangUp);
    assert!(eventually(PATIENCE, || relay.exited()));
}

#[test]
fn ports_are_waited_for() {
    let Some(net) = Net::open(&["client", "relay", "server"]) else {
        return;
    };
    net.veth(("client", "c0"), ("relay", "r0"));
    let name = net.ns("relay");
    let args = ["--pair", "r0,r1", "--wait-ports", "30", "--name", &name];
    let mut relay = Relay::launch(&net, "relay", &[], &args);
    assert!(relay.says("waiting for r1"));
    let (status, said, _) = tell(&net, &name, &["health"]);
    assert!(status == 1 && said.contains("waiting for r1"), "{said}");
    net.veth(("server", "s0"), ("relay", "r1"));
    relay.wait_ready();
    assert_crosses(&net, 60..65);
    relay.stop(Signal::Term);
    let never = ["run", "--pair", "r0,nope", "--wait-ports", "0.3"];
    let output = attempt(&net, "relay", &[], &never);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("nope: no such interface"),
        "{said}"
    );
}

/// Other cores and another idle policy by a file that is read again, under a flood: every frame is counted, and shares stay shares.
#[test]
fn lanes_change_cores_under_a_flood() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let text =
        |settings: &str| format!("pair = 'r0,r1'\ncoalesce = 'off'\nname = '{name}'\n{settings}\n");
    let file = File::new(net, &text("cores = 0"));
    let args = ["-c", file.path(), "--stats-interval", "0.05"];
    let mut relay = Relay::start(net, "relay", &args);
    let _sink = Peer::listen(net, "server", &format!("sink --address {}", Chain::SERVER));
    let line = format!(
        "flood --address {} --count 60000 --size 200 --flows 4 --pause 0.001",
        Chain::SERVER
    );
    let load = Peer::listen(net, "client", &line);
    for settings in [
        "cores = 1",
        "cores = '0-1'\nidle = 'sleep'",
        "idle = 'spin'",
        "cores = 0",
    ] {
        file.write(&text(settings));
        let (status, _, said) = tell(net, &name, &["reload"]);
        assert_eq!(status, 0, "{said}");
        std::thread::sleep(Duration::from_millis(120));
    }
    load.result();
    chain.settle();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let mut workers = Vec::new();
    loop {
        let snapshot = relay.periodic_snapshot();
        let is_share = |worker: &Worker| (0.0..=1.0).contains(&worker.idle);
        assert!(snapshot.workers.iter().all(is_share), "{snapshot:?}");
        workers.push(snapshot.workers.len());
        if snapshot.time_s > now.as_secs_f64() {
            break;
        }
    }
    workers.dedup();
    assert_eq!(workers, [1, 2, 1]);
    let arrived = net.counters("relay", "r0").rx_packets;
    let last = relay.stop(Signal::Term);
    let (way, port) = (last.way("r0", "r1"), last.port("r0"));
    assert_eq!(port.rx_packets + port.kernel_drops, arrived, "{port:?}");
    let received = net.counters("server", "s0").rx_packets;
    assert_eq!(way.tx_packets, received, "{way:?}");
}

/// What cannot be started is told in the form that was asked for.
#[test]
fn a_failed_start_is_told_as_json_too() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    let file = File::new(&net, "pair = 'nope,nope2'\nlog-format = 'json'\n");
    let by_option: &[&str] = &["--pair", "nope,nope2", "--log-format", "json"];
    for args in [by_option, &["-c", file.path()]] {
        let output = attempt(&net, "relay", &[], &[&["run"], args].concat());
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        let messages: Vec<Value> = said
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect();
        for name in ["nope:", "nope2:"] {
            let told = |message: &Value| {
                let text = message["message"].as_str();
                message["level"] == "ERROR" && text.is_some_and(|text| text.contains(name))
            };
            assert!(messages.iter().any(told), "{name} in {said}");
        }
    }
}

/// The unit is one that systemd understands in every line, and gives little away.
#[test]
fn systemd_takes_the_unit() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/systemd/l2relay@.service"
    );
    let text = std::fs::read_to_string(unit).expect("it is there");
    let text = text.replace("/usr/local/bin/l2relay", &program());
    let directory = net.file("unit");
    std::fs::create_dir_all(&directory).expect("it can be made");
    let path = directory.join("l2relay@.service");
    std::fs::write(&path, text).expect("it can be written");
    let check = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command.args(args).arg(&path).output()
    };
    let verified = check(&["verify", "--man=no"]);
    let secure = check(&["security", "--offline=true", "--threshold=30"]);
    std::fs::remove_dir_all(&directory).expect("it is there");
    let (Ok(verified), Ok(secure)) = (verified, secure) else {
        let _ = writeln!(std::io::stderr(), "not checked: install systemd");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");
    assert!(
        secure.status.success(),
        "{}",
        String::from_utf8_lossy(&secure.stdout)
    );
}

/// What systemd is told, and messages as JSON.
#[test]
fn a_service_manager_is_kept_informed() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let path = net.file("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager
        .set_read_timeout(Some(PATIENCE))
        .expect("it can be set");
    let heard = |wanted: &str| {
        let mut buffer = [0; 4096];
        (0..50).any(|_| {
            let length = manager.recv(&mut buffer).unwrap_or_default();
            String::from_utf8_lossy(&buffer[..length])
                .lines()
                .any(|line| line == wanted)
        })
    };
    let name = net.ns("relay");
    let file = File::new(net, &format!("pair = 'r0,r1'\nname = '{name}'\n"));
    let mut command = net.command("relay", program());
    let relay = command
        .args(["run", "-c", file.path(), "--log-format", "json"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    assert!(heard("READY=1"));
    assert!(heard("WATCHDOG=1") && heard("WATCHDOG=1"));
    let pid = relay.id().to_string();
    // Each time that it reads its settings again, whoever asks for it: from when, by the clock that the manager has.
    let hung_up = || Command::new("kill").args(["-s", "HUP", &pid]).status();
    for by_signal in [true, false] {
        match by_signal {
            true => assert!(hung_up().expect("kill runs").success()),
            false => assert_eq!(tell(net, &name, &["reload"]).0, 0),
        }
        assert!(heard("RELOADING=1") && heard("READY=1"), "{by_signal}");
    }
    net.sh("relay", "ip link set r1 down");
    std::thread::sleep(Duration::from_millis(300));
    let killed = Command::new("kill").arg(&pid).status();
    assert!(killed.expect("kill runs").success());
    assert!(heard("STOPPING=1"));
    std::fs::remove_file(&path).expect("it is there");
    let output = relay.wait_with_output().expect("it ends");
    let messages: Vec<Value> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for text in ["ready", "port r1 is down"] {
        assert!(
            messages.iter().any(|message| message["message"] == text),
            "{messages:?}"
        );
    }
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let Some(net) = Net::open(&["relay"]) else {
        return;
    };
    for shell in ["bash", "zsh", "fish"] {
        let output = attempt(&net, "relay", &[], &["completions", shell]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("storm-guard") && text.contains("reload"),
            "{shell}"
        );
    }
    let directory = net.file("man");
    let path = directory.to_str().expect("a name of ours");
    assert!(attempt(&net, "relay", &[], &["man", path]).status.success());
    let page = std::fs::read_to_string(directory.join("l2relay-run.1")).expect("a page");
    assert!(page.contains("storm") && directory.join("l2relay.1").exists());
    std::fs::remove_dir_all(&directory).expect("it is there");
}

/// What is refused while it runs is taken back whole: running pairs go on as they were, with their counts, and what is in force is what is
/// shown.
#[test]
fn a_refused_reload_changes_nothing() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    for pair in ["2", "3", "4"] {
        net.veth(
            ("client", &format!("c{pair}")),
            ("relay", &format!("r{pair}")),
        );
        net.veth(
            ("server", &format!("s{pair}")),
            ("relay", &format!("q{pair}")),
        );
    }
    let name = net.ns("relay");
    let text = |settings: &str| format!("name = '{name}'\n{settings}\n");
    let first = "pair = ['r0,r1', 'r2,q2', 'r3,q3']\nbackend = 'packet'";
    let file = File::new(net, &text(first));
    let relay = Relay::start(net, "relay", &["-c", file.path()]);
    let crosses = |client: &str, server: &str| {
        let capture = Capture::start(net, "server", server, "");
        send_raw(net, "client", client, &[plain(100, 7)]);
        assert_eq!(capture.frames(1), [plain(100, 7)], "{client} {server}");
    };
    let print = || tell(net, &name, &["config", "--running", "--print"]).1;
    assert_crosses(net, 60..65);
    crosses("c2", "s2");
    crosses("c3", "s3");
    let before = print();
    let used = relay.descriptors_and_threads();
    // r2,q2 goes, r4,q4 comes, r3,q3 gets other lanes, frames would be edited and cores be others; and r0,r1 can't have it so.
    let mut refused = vec![(
        "pair = ['r0,r1', 'r3,q3', 'r4,q4']\nlink = 'r3>q3 delay 1ms'\nqueues = 2\nmac = 'swap'\ncores = 0\nidle = 'sleep'\n\
         backend = 'packet'\nhugepages = 'require'\nring = 32768",
        "huge",
    )];
    if cfg!(feature = "xdp") {
        refused.push((
            "pair = ['r0,r1', 'r2,q2', 'r3,q3', 'r4,q4']\nbackend = 'xdp'\nxdp-copy = 'zero-copy'\nmac = 'swap'",
            "without copies",
        ));
        refused.push((
            "pair = ['r0,r1', 'r2,q2', 'r3,q3']\nbackend = 'xdp'\nxdp-copy = 'zero-copy'\nmac = 'swap'",
            "without copies",
        ));
    }
    for (settings, reason) in refused {
        file.write(&text(settings));
        let (status, said, error) = tell(net, &name, &["reload"]);
        assert_eq!(status, 2, "{said}");
        for part in [reason, "can't be opened", "nothing has changed"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
        assert_eq!(print(), before, "{settings}");
        let (status, _, said) = tell(net, &name, &["health"]);
        assert_eq!(status, 0, "{said}");
        assert_crosses(net, 60..65);
        crosses("c2", "s2");
        crosses("c3", "s3");
        let (descriptors, threads) = relay.descriptors_and_threads();
        assert!(descriptors <= used.0 && threads == used.1, "{settings}");
    }
    let rounds = if cfg!(feature = "xdp") { 4 } else { 2 };
    let last = relay.stop(Signal::Term);
    assert_eq!((last.ports.len(), last.lanes.len()), (6, 6));
    assert_eq!(last.way("r0", "r1").rx_packets, 5 * rounds, "counts go on");
    assert_eq!(last.way("r2", "q2").rx_packets, rounds);
    assert_eq!(last.way("r3", "q3").rx_packets, rounds);
}

/// A file that is much too long is refused at once, and nothing waits for it.
#[test]
fn a_file_with_very_many_pairs_holds_up_nobody() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let file = File::new(net, &format!("pair = 'r0,r1'\nname = '{name}'\n"));
    let relay = Relay::start(net, "relay", &["-c", file.path()]);
    let pairs = (0..200_000).map(|at| format!("'a{at},b{at}',\n"));
    file.write(&format!("pair = [\n{}]\n", pairs.collect::<String>()));
    // It answers while the client waits, which is not for ever.
    let (status, _, said) = tell(net, &name, &["reload"]);
    assert!(
        status == 2 && said.contains(":1: pair: 200000 values: at most 1024"),
        "{said}"
    );
    assert_eq!(tell(net, &name, &["health"]).0, 0);
    assert_crosses(net, 60..65);
    relay.stop(Signal::Term);
}
