//! `l2relay capture`: what it writes is read by tshark and tcpdump, and forwarding never waits for it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{
    Chain, Net, PATIENCE, Relay, Signal, Tag, attempt, eventually, mac_text, plain, program,
    send_raw, tagged, tcp_both_ways, udp_frame,
};

/// A capture that runs; killed on drop.
struct Capture {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Capture {
    /// Starts `l2relay capture ARGS`, and waits until it captures.
    fn start(net: &Net, relay: &str, args: &[&str]) -> Capture {
        let mut child = net
            .command("relay", program())
            .args([&["capture", "--name", relay], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut capture = Capture { child, said };
        let line = capture.says();
        assert!(line.starts_with("capturing at"), "{line}");
        capture
    }

    /// Asks it to end.
    fn interrupt(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "INT", &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// The next line on standard error.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("text");
        line
    }

    /// Its exit status, standard output and standard error, when it has ended.
    fn result(mut self) -> (i32, Vec<u8>, String) {
        let (mut out, mut said) = (Vec::new(), String::new());
        if let Some(stdout) = &mut self.child.stdout {
            stdout.read_to_end(&mut out).expect("it can be read");
        }
        self.said.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("it is our child");
        (status.code().expect("it ends by itself"), out, said)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that is removed with the guard.
struct Scratch(PathBuf);

impl Scratch {
    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A chain, a relay of this test's own name, and a name for a file.
fn scene(args: &[&str]) -> Option<(Chain, Relay, String, Scratch)> {
    let chain = Chain::open(1500).map(Chain::without_arp)?;
    let name = chain.net.ns("relay");
    let all = [&["--pair", "r0,r1", "--name", &name], args].concat();
    let relay = Relay::start(&chain.net, "relay", &all);
    let file = Scratch(chain.net.file("capture.pcapng"));
    Some((chain, relay, name, file))
}

/// What tshark makes of a file: the fields of each frame. It must be satisfied with the file.
fn tshark(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-r"]).arg(file);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().expect("tshark runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let complaint = text(&output.stderr);
    assert!(
        output.status.success() && !complaint.contains("cut short"),
        "{complaint}"
    );
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    text(&output.stdout).lines().map(row).collect()
}

/// How many frames `tcpdump -r` finds.
fn tcpdump(file: &Path) -> usize {
    let output = Command::new("tcpdump")
        .args(["-n", "-r"])
        .arg(file)
        .output();
    let output = output.expect("tcpdump runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// Numbers of the line that a capture ends with: captured, passed, matched, lost.
fn figures(said: &str) -> [u64; 4] {
    let line = said.lines().find(|line| line.contains("frames captured"));
    let line = line.unwrap_or_else(|| panic!("no figures: {said}"));
    let numbers = line.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

const FIELDS: &[&str] = &[
    "frame.interface_name",
    "frame.packet_flags_direction",
    "eth.src",
    "eth.dst",
    "frame.len",
];

/// A pair that the kernel carries is looked at by sockets at its ports, which is not to be noticed.
const BACKENDS: [&[&str]; 2] = [
    &["--backend", "packet"],
    #[cfg(feature = "xdp")]
    &["--backend", "kernel"],
    #[cfg(not(feature = "xdp"))]
    &["--backend", "packet", "--queues", "2"],
];

#[test]
fn before_and_after_show_what_the_stages_did() {
    for backend in BACKENDS {
        before_and_after(backend);
    }
}

fn before_and_after(backend: &[&str]) {
    let Some((chain, relay, name, file)) = scene(&[backend, &["--mac", "swap"]].concat()) else {
        return;
    };
    let net = &chain.net;
    let other = Scratch(net.file("other.pcapng"));
    let capture = Capture::start(net, &name, &["--lane", "r0>r1", "-w", file.path()]);
    // Two at once, in the same lane.
    let after = Capture::start(net, &name, &["--port", "r1", "--after", "-w", other.path()]);
    let frames: Vec<Vec<u8>> = (0..5).map(|at| udp_frame(100 + at, at as u32)).collect();
    send_raw(net, "client", "c0", &frames);
    let mut relay = relay;
    relay.snapshot_when("all forwarded", |snapshot| {
        snapshot.way("r0", "r1").tx_packets == 5
    });
    for capture in [&capture, &after] {
        capture.interrupt();
    }
    let (status, out, said) = capture.result();
    assert_eq!(
        (status, &out[..], figures(&said)),
        (0, &[][..], [10, 10, 10, 0]),
        "{said}"
    );
    assert_eq!(figures(&after.result().2), [5, 5, 5, 0]);

    let (c0, s0) = (mac_text("c0"), mac_text("s0"));
    for (file, points) in [(&file, &["r0", "r1"][..]), (&other, &["r1"])] {
        let mut rows = tshark(&file.0, FIELDS);
        rows.sort();
        let expected: Vec<Vec<String>> = points
            .iter()
            .flat_map(|port| {
                let (way, from, to) = match *port {
                    "r0" => ("0x00000001", &c0, &s0),
                    _ => ("0x00000002", &s0, &c0),
                };
                (100..105).map(move |len| {
                    [port, way, from, to, &len.to_string()].map(|text: &str| text.to_owned())
                })
            })
            .map(Vec::from)
            .collect();
        assert_eq!(rows, expected);
        assert_eq!(tcpdump(&file.0), expected.len());
    }
    relay.stop(Signal::Term);
}

#[test]
fn filter_count_and_snaplen_choose() {
    for backend in BACKENDS {
        choose(backend);
    }
}

fn choose(backend: &[&str]) {
    let Some((chain, relay, name, file)) = scene(backend) else {
        return;
    };
    let net = &chain.net;
    let tag = Tag {
        tpid: 0x8100,
        tci: 7,
    };
    let frames = |sizes: std::ops::Range<usize>| -> Vec<Vec<u8>> {
        let frame = |size: usize| match size % 3 {
            0 => plain(size, 1),
            1 => udp_frame(size, 2),
            _ => tagged(&udp_frame(size, 3), &[tag]),
        };
        sizes.map(frame).collect()
    };
    let choose = |args: &[&str]| {
        let args = [&["--port", "r0", "--before", "-w", file.path()], args].concat();
        let capture = Capture::start(net, &name, &args);
        send_raw(net, "client", "c0", &frames(100..130));
        // -c ends it.
        let (status, _, said) = capture.result();
        assert_eq!(status, 0, "{said}");
        let rows = tshark(&file.0, &["frame.len", "frame.cap_len", "vlan.id"]);
        (rows, figures(&said))
    };
    let (rows, [captured, _, matched, lost]) = choose(&["-c", "3", "-s", "64", "udp"]);
    let row = |len: usize, copied: usize, vlan: &str| {
        vec![len.to_string(), copied.to_string(), vlan.to_owned()]
    };
    assert_eq!(rows, [row(100, 64, ""), row(103, 64, ""), row(106, 64, "")]);
    assert_eq!((captured, matched, lost), (3, 3, 0));
    // The tag is in the frame: four bytes more.
    let (rows, _) = choose(&["-c", "2", "vlan 7 and udp"]);
    assert_eq!(rows, [row(105, 105, "7"), row(108, 108, "7")]);
    let (rows, _) = choose(&["-c", "1", "greater", "120", "and", "not", "vlan"]);
    assert_eq!(rows, [row(120, 120, "")]);

    // And as lines.
    let capture = Capture::start(
        net,
        &name,
        &["--lane", "r0>r1", "--before", "-c", "1", "udp"],
    );
    send_raw(net, "client", "c0", &frames(100..101));
    let line = String::from_utf8(capture.result().1).expect("text");
    for part in [" r0 in ", " udp", "100 bytes", &mac_text("c0")] {
        assert!(line.contains(part), "{line}");
    }
    relay.stop(Signal::Term);
}

/// Nobody reads the capture while TCP runs at full speed: everything is forwarded, and what was not copied is counted.
#[test]
fn a_slow_reader_loses_copies_and_nothing_else() {
    for backend in BACKENDS {
        slow_reader(backend);
    }
}

fn slow_reader(backend: &[&str]) {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    let pair = ["--pair", "r0,r1", "--name", &name];
    let relay = Relay::start(net, "relay", &[&pair, backend].concat());
    let capture = Capture::start(net, &name, &["-B", "1", "-w", "-"]);
    tcp_both_ways(net, Chain::SERVER, 8 << 20);
    capture.interrupt();
    let (status, out, said) = capture.result();
    let [captured, passed, matched, lost] = figures(&said);
    assert_eq!(status, 0, "{said}");
    assert!(lost > 0, "{said}");
    assert_eq!(
        (passed, matched),
        (captured + lost, captured + lost),
        "{said}"
    );
    let file = Scratch(net.file("slow.pcapng"));
    std::fs::write(&file.0, out).expect("it can be written");
    let rows = tshark(&file.0, &["frame.len", "frame.cap_len", "frame.comment"]);
    assert_eq!(rows.len() as u64, captured);
    // Super-frames are written as they are, and say so.
    assert!(rows.iter().all(|row| row[0] == row[1]));
    let long = rows
        .iter()
        .find(|row| row[0].parse::<usize>().expect("a number") > 1514);
    assert!(
        long.is_none_or(|row| row[2].contains("super-frame")),
        "{long:?}"
    );
    relay.stop(Signal::Term);
}

/// An interface that a capture looks at is deleted and made anew: the capture goes on, and each frame is in it once.
#[test]
fn a_capture_outlives_its_interface() {
    let Some((chain, mut relay, name, file)) = scene(&["--backend", "packet"]) else {
        return;
    };
    let net = &chain.net;
    let frames: Vec<Vec<u8>> = (0..40).map(|at| plain(100 + at, at as u32)).collect();
    let capture = Capture::start(net, &name, &["-w", file.path()]);
    // All captures share what there is: 16 MiB of 256 are taken.
    let greedy = ["capture", "--name", &name, "-B", "256", "-c", "1"];
    let greedy = attempt(net, "relay", &[], &greedy);
    let said = String::from_utf8_lossy(&greedy.stderr).into_owned();
    assert!(
        greedy.status.code() == Some(2) && said.contains("240 MiB are left"),
        "{said}"
    );
    let sent = |relay: &mut Relay, all: u64| {
        relay.snapshot_when("all forwarded", |snapshot| {
            snapshot.way("r0", "r1").tx_packets == all
        });
    };
    send_raw(net, "client", "c0", &frames);
    sent(&mut relay, 40);
    for round in 2..4 {
        net.sh("relay", "ip link delete r0");
        relay.snapshot_when("seen r0 gone", |snapshot| {
            snapshot.port("r0").state == "gone"
        });
        net.veth(("client", "c0"), ("relay", "r0"));
        relay.snapshot_when("seen r0 up", |snapshot| snapshot.port("r0").state == "up");
        send_raw(net, "client", "c0", &frames);
        sent(&mut relay, 40 * round);
    }
    capture.interrupt();
    let (status, _, said) = capture.result();
    assert_eq!((status, figures(&said)), (0, [240, 240, 240, 0]), "{said}");
    let rows = tshark(&file.0, &["frame.interface_name", "frame.len"]);
    for port in ["r0", "r1"] {
        let lengths = rows.iter().filter(|row| row[0] == port);
        let lengths: Vec<usize> = lengths
            .map(|row| row[1].parse().expect("a length"))
            .collect();
        assert_eq!(lengths, Vec::from_iter(100..140).repeat(3), "{port}");
    }
    relay.stop(Signal::Term);
}

/// Stamps are of the time at which frames passed, to the nanosecond, and in order at each port.
#[test]
fn stamps_are_of_the_time() {
    for backend in BACKENDS {
        let Some((chain, relay, name, file)) = scene(backend) else {
            return;
        };
        let net = &chain.net;
        let now = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.expect("after 1970").as_nanos()
        };
        let capture = Capture::start(net, &name, &["-c", "100", "-w", file.path()]);
        let begin = now();
        for at in 0..5u32 {
            let frames: Vec<Vec<u8>> = (0..10).map(|size| plain(100 + size, at)).collect();
            send_raw(net, "client", "c0", &frames);
        }
        let (status, _, said) = capture.result();
        let end = now();
        assert_eq!(status, 0, "{said}");
        let rows = tshark(&file.0, &["frame.time_epoch", "frame.interface_name"]);
        assert_eq!(rows.len(), 100);
        for port in ["r0", "r1"] {
            let stamps: Vec<u128> = rows
                .iter()
                .filter(|row| row[1] == port)
                .map(|row| {
                    let (seconds, fraction) = row[0].split_once('.').expect("a fraction");
                    assert_eq!(fraction.len(), 9, "{row:?}");
                    format!("{seconds}{fraction}").parse().expect("digits")
                })
                .collect();
            assert_eq!(stamps.len(), 50);
            assert!(stamps.is_sorted(), "{stamps:?}");
            // The relay's clock and the system's are set against each other when the capture begins.
            let slack = 1_000_000;
            assert!(
                begin < stamps[0] + slack && stamps[49] < end + slack,
                "{begin} {stamps:?} {end}"
            );
            assert!(stamps.iter().any(|stamp| stamp % 1000 != 0), "{stamps:?}");
        }
        relay.stop(Signal::Term);
    }
}

/// Both directions of a pair that the kernel carries, through the return of a port, until lanes carry it.
#[cfg(feature = "xdp")]
#[test]
fn a_port_in_the_kernel_is_looked_at_while_the_kernel_carries() {
    let Some((chain, mut relay, name, file)) = scene(&["--backend", "kernel"]) else {
        return;
    };
    let net = &chain.net;
    let before = relay.descriptors_and_threads();
    let tag = Tag {
        tpid: 0x88a8,
        tci: 7,
    };
    let there: Vec<Vec<u8>> = (0..400)
        .map(|at| match at % 3 {
            0 => tagged(&plain(900 + at, at as u32), &[tag]),
            _ => plain(60 + 2 * at, at as u32),
        })
        .collect();
    let back: Vec<Vec<u8>> = (0..300).map(|at| plain(200 + at, at as u32)).collect();
    let capture = Capture::start(net, &name, &["--port", "r0", "-w", file.path()]);
    let matching = Scratch(net.file("matching.pcapng"));
    let args = [
        "--lane",
        "r1>r0",
        "--after",
        "-w",
        matching.path(),
        "greater",
        "400",
    ];
    let filtered = Capture::start(net, &name, &args);
    send_raw(net, "client", "c0", &there);
    send_raw(net, "server", "s0", &back);
    relay.snapshot_when("all forwarded", |snapshot| {
        (
            snapshot.way("r0", "r1").tx_packets,
            snapshot.way("r1", "r0").tx_packets,
        ) == (400, 300)
    });
    filtered.interrupt();
    assert_eq!(figures(&filtered.result().2), [100, 100, 100, 0]);
    assert_eq!(tshark(&matching.0, &["frame.len"]).len(), 100);

    // The interface goes and comes back.
    net.sh("relay", "ip link delete r0");
    relay.snapshot_when("seen r0 gone", |snapshot| {
        snapshot.port("r0").state == "gone"
    });
    net.veth(("client", "c0"), ("relay", "r0"));
    relay.snapshot_when("seen r0 up", |snapshot| snapshot.port("r0").state == "up");
    send_raw(net, "client", "c0", &there[..50]);
    relay.snapshot_when("all forwarded", |snapshot| {
        snapshot.way("r0", "r1").tx_packets == 450
    });
    let words = ["set", "--name", &name, "--carry", "r0,r1=packet"];
    assert!(attempt(net, "relay", &[], &words).status.success());
    let (status, _, said) = capture.result();
    assert!(status == 0 && said.contains("another back end"), "{said}");
    assert_eq!(figures(&said), [750, 750, 750, 0]);
    let rows = tshark(&file.0, &["frame.packet_flags_direction", "frame.len"]);
    let expected = |way: &str, frames: &[Vec<u8>]| -> Vec<Vec<String>> {
        let row = |frame: &Vec<u8>| vec![way.to_owned(), frame.len().to_string()];
        frames.iter().map(row).collect()
    };
    let mut all = expected("0x00000001", &there);
    all.extend(expected("0x00000001", &there[..50]));
    let (inbound, outbound): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row[0] == "0x00000001");
    assert!(inbound == all && outbound == expected("0x00000002", &back));

    let words = ["set", "--name", &name, "--carry", "r0,r1=kernel"];
    assert!(attempt(net, "relay", &[], &words).status.success());
    // A pair that is closed carries nothing, whatever comes to its ports.
    let capture = Capture::start(net, &name, &["--port", "r0", "-w", file.path()]);
    for state in ["--down", "--up"] {
        let words = ["set", "--name", &name, state, "r0,r1"];
        assert!(attempt(net, "relay", &[], &words).status.success());
    }
    let (status, _, said) = capture.result();
    assert!(status == 0 && said.contains("frames captured"), "{said}");
    assert!(eventually(PATIENCE, || relay.descriptors_and_threads() == before));
    relay.stop(Signal::Term);
}

#[test]
fn whoever_breaks_off_leaves_a_file_that_can_be_read() {
    let Some((chain, relay, name, file)) = scene(&[]) else {
        return;
    };
    let net = &chain.net;
    let frames: Vec<Vec<u8>> = (0..50).map(|at| udp_frame(1000, at)).collect();

    // The disk is full. The file system is seen by this command alone, and goes with it.
    let line = format!(
        "mount -t tmpfs -o size=32k none /mnt && {} capture --name {name} --before -w /mnt/full; echo $?; tshark -r /mnt/full | wc -l",
        program()
    );
    let mut full = net.command("relay", "timeout");
    let full = full.args(["30", "sh", "-c", &line]).stdout(Stdio::piped());
    let mut full = full.stderr(Stdio::piped()).spawn().expect("sh runs");
    let mut said = BufReader::new(full.stderr.take().expect("stderr is piped"));
    let mut first = String::new();
    said.read_line(&mut first).expect("text");
    send_raw(net, "client", "c0", &frames);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    let Output { stdout, .. } = full.wait_with_output().expect("it is our child");
    let stdout = String::from_utf8_lossy(&stdout);
    let [status, read] = stdout.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{stdout} {rest}")
    };
    assert!(
        rest.contains("No space left") && rest.contains("/mnt/full"),
        "{rest}"
    );
    assert!(!rest.contains("cut short"), "{rest}");
    assert_eq!(status, "1", "{rest}");
    assert!(
        (1..50).contains(&read.parse().unwrap_or(0)),
        "{read} frames"
    );

    // It was full before: there is nothing to read, and no empty file is left behind; one that was there stays.
    for (before, left) in [("true", "0"), ("touch /mnt/x", "1")] {
        let line = format!(
            "mount -t tmpfs -o size=32k none /mnt && {before}; cat /dev/zero 2>/dev/null >/mnt/zeros; \
             {} capture --name {name} -w /mnt/x; echo $?; ls /mnt | grep -c x",
            program()
        );
        let mut full = net.command("relay", "timeout");
        let full = full.args(["30", "sh", "-c", &line]).output();
        let full = full.expect("sh runs");
        let said = String::from_utf8_lossy(&full.stderr).into_owned();
        assert!(
            said.contains("No space left") && said.contains("nothing was written"),
            "{said}"
        );
        let told = String::from_utf8_lossy(&full.stdout).into_owned();
        assert_eq!(told.split_whitespace().collect::<Vec<_>>(), ["1", left]);
    }

    // The reader of standard output leaves.
    let mut capture = Capture::start(net, &name, &["-w", "-"]);
    drop(capture.child.stdout.take());
    send_raw(net, "client", "c0", &frames[..2]);
    let (status, _, said) = capture.result();
    assert!(
        status == 1 && said.contains("its reader has left"),
        "{said}"
    );

    // The client is killed: the relay goes on without its taps.
    let killed = Capture::start(net, &name, &["-w", file.path()]);
    drop(killed);
    // The relay stops, or is killed.
    let stopped = Capture::start(net, &name, &["--before", "-w", file.path(), "udp"]);
    send_raw(net, "client", "c0", &frames[..3]);
    let mut relay = relay;
    relay.snapshot_when("all forwarded", |snapshot| {
        snapshot.way("r0", "r1").tx_packets >= 55
    });
    relay.stop(Signal::Term);
    let (status, _, said) = stopped.result();
    assert!(
        status == 0 && said.contains("the relay was stopped"),
        "{said}"
    );
    // A host may have said something of its own meanwhile.
    let [captured, _, matched, lost] = figures(&said);
    assert_eq!([captured, matched, lost], [3, 3, 0]);
    assert_eq!(tshark(&file.0, &["frame.len"]).len(), 3);

    let relay = Relay::start(net, "relay", &["--pair", "r0,r1", "--name", &name]);
    let bereft = Capture::start(
        net,
        &name,
        &["--before", "-c", "100", "-w", file.path(), "udp"],
    );
    send_raw(net, "client", "c0", &frames[..3]);
    let written = || std::fs::metadata(&file.0).map_or(0, |file| file.len());
    assert!(eventually(PATIENCE, || written() > 3000));
    relay.kill();
    let (status, _, said) = bereft.result();
    assert!(status == 1 && said.contains("it was killed"), "{said}");
    assert_eq!(tshark(&file.0, &["frame.len"]).len(), 3);
}

/// A pair is closed by order, moved to the kernel, removed: its captures end and say why, and those that see more go on.
#[test]
fn a_capture_is_told_that_its_pair_was_closed() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    let name = net.ns("relay");
    net.veth(("client", "c2"), ("relay", "r2"));
    net.veth(("server", "s3"), ("relay", "r3"));
    let pairs = ["--pair", "r0,r1", "--pair", "r2,r3", "--name", &name];
    let (mut relay, mut sent) = (Relay::start(net, "relay", &pairs), 0);
    let set = |what: &str, pair: &str| {
        let output = attempt(net, "relay", &[], &["set", "--name", &name, what, pair]);
        assert!(output.status.success(), "{output:?}");
    };
    let (file, other) = (
        Scratch(net.file("closed.pcapng")),
        Scratch(net.file("goes-on.pcapng")),
    );
    let frames: Vec<Vec<u8>> = (0..3).map(|at| udp_frame(300, at)).collect();
    for (what, pair, why) in [
        ("--down", "r0,r1", "the pair was closed"),
        ("--carry", "r0,r1=kernel", "carried by another back end"),
        ("--remove", "r0,r1", "the pair was removed"),
    ] {
        let at_port = Capture::start(net, &name, &["--port", "r0", "-w", file.path(), "udp"]);
        let mut everywhere = Capture::start(net, &name, &["--before", "-w", other.path(), "udp"]);
        send_raw(net, "client", "c0", &frames);
        sent += 3;
        relay.snapshot_when("all forwarded", |snapshot| {
            snapshot.way("r0", "r1").tx_packets == sent
        });
        set(what, pair);
        let (status, _, said) = at_port.result();
        assert!(status == 0 && said.contains(why), "{what}: {said}");
        assert_eq!(figures(&said)[0], 3, "{what}: {said}");
        assert_eq!(tshark(&file.0, &["frame.len"]).len(), 3);
        for port in ["r0", "r1"] {
            let line = everywhere.says();
            let told = line.starts_with(port) && line.contains(why) && line.contains("goes on");
            assert!(told, "{what}: {line}");
        }
        // The other pair is looked at all the same.
        send_raw(net, "client", "c2", &frames[..2]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        everywhere.interrupt();
        let (status, _, said) = everywhere.result();
        assert!(status == 0 && said.contains("by the reader"), "{said}");
        // A host may have said something of its own meanwhile, which no filter matched.
        let [captured, _, matched, lost] = figures(&said);
        assert_eq!([captured, matched, lost], [5, 5, 0], "{what}: {said}");
        assert_eq!(tshark(&other.0, &["frame.len"]).len(), 5);
        if what == "--down" {
            // Nothing passes there: to look would be to wait for nothing.
            let late = attempt(
                net,
                "relay",
                &[],
                &["capture", "--name", &name, "--port", "r0"],
            );
            let said = String::from_utf8_lossy(&late.stderr).into_owned();
            let told = said.contains("closed") && said.contains("set --up r0,r1");
            assert!(late.status.code() == Some(2) && told, "{said}");
            set("--up", "r0,r1");
        } else if what == "--carry" {
            set("--carry", "r0,r1=packet");
        }
    }
    relay.stop(Signal::Term);
}

/// A filter that takes minutes to compile, a pipe that nobody reads: a signal ends the command, and the relay was asked for nothing.
#[test]
fn what_has_not_begun_can_be_ended() {
    let Some((chain, relay, name, file)) = scene(&[]) else {
        return;
    };
    let net = &chain.net;
    let pipe = net.file("pipe");
    net.sh("relay", &format!("mkfifo {}", pipe.display()));
    let pipe = pipe.display().to_string();
    let filter = vec!["port 1"; 3000].join(" or ");
    let (_, threads) = relay.descriptors_and_threads();
    for args in [&["-w", &pipe][..], &["-w", file.path(), &filter]] {
        for signal in ["INT", "TERM"] {
            let mut command = net.command("relay", program());
            let command = command.args([&["capture", "--name", &name], args].concat());
            let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
            // Well into what takes so long.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let pid = child.id().to_string();
            let sent = Command::new("kill").args(["-s", signal, &pid]).status();
            assert!(sent.expect("kill runs").success());
            let mut status = None;
            let ended = eventually(PATIENCE, || {
                status = child.try_wait().expect("it is our child");
                status.is_some()
            });
            let _ = child.kill();
            assert!(ended, "{signal} does not end {args:.40?}");
            assert_eq!(status.and_then(|status| status.code()), None, "{args:.40?}");
        }
    }
    assert!(relay.descriptors_and_threads().1 <= threads);
    assert!(!file.0.exists());

    // What is refused leaves a file as it was, or none.
    for content in [None, Some("precious")] {
        if let Some(content) = content {
            std::fs::write(&file.0, content).expect("it can be written");
        }
        let args = [
            "capture",
            "--name",
            &name,
            "--port",
            "r9",
            "-w",
            file.path(),
        ];
        assert_eq!(attempt(net, "relay", &[], &args).status.code(), Some(2));
        let left = std::fs::read_to_string(&file.0).ok();
        assert_eq!(left.as_deref(), content);
    }
    relay.stop(Signal::Term);
}

#[test]
fn what_is_wrong_is_told_at_once() {
    let Some((chain, relay, name, _)) = scene(&[]) else {
        return;
    };
    let ask = |args: &[&str]| {
        let all = [&["capture", "--name", &name], args].concat();
        let output = attempt(&chain.net, "relay", &[], &all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let wrong: &[(&[&str], &[&str])] = &[
        (
            &["-c", "0", "-s", "x", "-B", "0", "tcp prt 80"],
            &["-c", "-s", "-B", "tcp prt 80"],
        ),
        (&["ip6 protochain 6"], &["protochain"]),
        (&["--port", "r9"], &["no port r9", "r0, r1"]),
        (&["--lane", "r1>r9"], &["no lane r1>r9", "r0>r1"]),
        (&["-w", "/nowhere/x"], &["/nowhere/x"]),
        (&["--port", "r0", "--lane", "r0>r1"], &["--lane"]),
    ];
    for (args, parts) in wrong {
        let (status, said) = ask(args);
        assert_eq!(status, Some(2), "{args:?}: {said}");
        for part in *parts {
            assert!(said.contains(part), "{args:?}: {said}");
        }
    }
    relay.stop(Signal::Term);
}
