//! In the place of DPDK's l2fwd: its command lines, its forwarding, its words.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    Capture, Chain, Net, PATIENCE, attempt, cpus, eventually, mac, program, send_raw, udp_frame,
};

/// An l2fwd in a namespace, and what it has written.
struct L2fwd {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
}

impl L2fwd {
    /// Starts it by the name of `l2fwd`, as a user does whose script starts DPDK's.
    fn start(net: &Net, space: &str, line: &str) -> Self {
        let mut l2fwd = Self::launch(net, space, line);
        let ready = eventually(PATIENCE, || l2fwd.err().contains("ready") || l2fwd.ended());
        assert!(ready && !l2fwd.ended(), "{}", l2fwd.err());
        l2fwd
    }

    fn launch(net: &Net, space: &str, line: &str) -> Self {
        // `exec -a` names the program as a copy or a link of it would be named.
        let mut command = net.command(space, "bash");
        command
            .args(["-c", "exec -a ./l2fwd \"$@\"", "bash", &program()])
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("bash runs");
        let out = gather(child.stdout.take().expect("piped"));
        let err = gather(child.stderr.take().expect("piped"));
        Self { child, out, err }
    }

    fn out(&self) -> String {
        self.out.lock().expect("reader lives").clone()
    }

    fn err(&self) -> String {
        self.err.lock().expect("reader lives").clone()
    }

    fn ended(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }

    /// SIGTERM; gives what it wrote on standard output.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .expect("kill runs")
                .success()
        );
        let ended = eventually(Duration::from_secs(5), || self.ended());
        assert!(ended, "it does not end: {}", self.err());
        assert_eq!(
            self.child.wait().expect("our child").code(),
            Some(0),
            "{}",
            self.err()
        );
        eventually(PATIENCE, || Arc::strong_count(&self.out) == 1);
        self.out()
    }
}

impl Drop for L2fwd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gather(stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&text);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut text = sink.lock().expect("no reader panics");
            *text += &line;
            *text += "\n";
        }
    });
    text
}

/// The numbers of l2fwd's table: (port, sent, received, dropped), and the three totals. Reads what follows the last
/// headline, by l2fwd's own words and columns.
fn table(text: &str) -> (Vec<[u64; 4]>, [u64; 3]) {
    let at = text
        .rfind("\nPort statistics ====================================\n")
        .expect("a table");
    let lines: Vec<&str> = text[at + 1..].lines().skip(1).collect();
    let number = |line: &str, label: &str, width: usize| -> u64 {
        let value = line
            .strip_prefix(label)
            .unwrap_or_else(|| panic!("{line:?} is not {label:?}"));
        assert_eq!(value.len(), width, "{line:?}");
        value.trim_start().parse().expect("a number")
    };
    let (mut ports, mut at) = (Vec::new(), 0);
    while let Some(rest) = lines[at].strip_prefix("Statistics for port ") {
        let id = rest
            .strip_suffix(" ------------------------------")
            .expect("l2fwd's rule");
        ports.push([
            id.parse().expect("a port"),
            number(lines[at + 1], "Packets sent: ", 24),
            number(lines[at + 2], "Packets received: ", 20),
            number(lines[at + 3], "Packets dropped: ", 21),
        ]);
        at += 4;
    }
    assert_eq!(
        lines[at],
        "Aggregate statistics ==============================="
    );
    let totals = [
        number(lines[at + 1], "Total packets sent: ", 18),
        number(lines[at + 2], "Total packets received: ", 14),
        number(lines[at + 3], "Total packets dropped: ", 15),
    ];
    assert_eq!(
        lines[at + 4],
        "===================================================="
    );
    (ports, totals)
}

/// A host with an interface `h0`, `h1` … to each of the ports `p0`, `p1` … of the relay.
fn star(ports: usize) -> Option<Net> {
    let net = Net::open(&["host", "relay"])?;
    for port in 0..ports {
        net.veth(
            ("host", &format!("h{port}")),
            ("relay", &format!("p{port}")),
        );
    }
    Some(net)
}

fn vdevs(ports: usize) -> String {
    (0..ports)
        .map(|port| format!(" --vdev=net_af_packet{port},iface=p{port}"))
        .collect()
}

/// The command of ComNetsEmu's example, word for word; the core must be one that is there.
#[test]
fn the_command_of_comnetsemu_runs_verbatim() {
    let Some(net) = Net::open(&["host", "relay"]) else {
        return;
    };
    net.veth(("host", "h0"), ("relay", "relay-s1"));
    let core = if cpus().contains(&1) { 1 } else { cpus()[0] };
    let line = format!(
        "-l {core} -m 256 --vdev=eth_af_packet0,iface=relay-s1 --no-pci --single-file-segments -- -p 1 --no-mac-updating"
    );
    let l2fwd = L2fwd::start(&net, "relay", &line);
    let frames: Vec<Vec<u8>> = (0..20).map(|n| udp_frame(200 + n, n as u32)).collect();
    let capture = Capture::start(&net, "host", "h0", "udp");
    send_raw(&net, "host", "h0", &frames);
    assert_eq!(capture.frames(20), frames, "each comes back as it went");
    let said = l2fwd.err();
    let out = l2fwd.stop();
    for words in [
        "MAC updating disabled",
        "Notice: odd number of ports in portmask.",
        &format!("Lcore {core}: RX port 0 TX port 0"),
        "Initializing port 0... done: ",
        &format!(
            "Port 0, MAC address: {}",
            crate::common::mac_text("relay-s1").to_uppercase()
        ),
        "Port 0 Link up",
    ] {
        assert!(out.contains(words), "no {words:?} in\n{out}");
    }
    for words in [
        &format!("L2FWD: entering main loop on lcore {core}")[..],
        "hairpin relay-s1",
        "frames on",
    ] {
        assert!(said.contains(words), "no {words:?} in\n{said}");
    }
    assert_eq!(table(&out), (vec![[0, 20, 20, 0]], [20, 20, 0]));
    assert!(
        out.contains("\n\nSignal 15 received, preparing to exit...\n"),
        "{out}"
    );
    assert!(out.ends_with("\nClosing port 0... Done\nBye...\n"), "{out}");
}

/// The CPUs each thread of a process may use.
fn thread_cpus(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let allowed = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(line.trim().to_owned())
    };
    tasks.flatten().filter_map(allowed).collect()
}

/// One flow's datagrams of one length, come together, leave one by one; merged only if that is asked for, which l2fwd can't.
#[test]
fn frames_are_not_merged() {
    for (more, merged) in [("", false), ("--coalesce auto", true)] {
        let Some(net) = star(2) else { return };
        let line = format!(
            "-l {}{} -- -p 3 -q 2 -T 0 --no-mac-updating {more}",
            cpus()[0],
            vdevs(2)
        );
        let l2fwd = L2fwd::start(&net, "relay", &line);
        let signal = |name: &str| {
            let sent = Command::new("kill")
                .args(["-s", name, &l2fwd.child.id().to_string()])
                .status();
            assert!(sent.expect("kill runs").success());
        };
        let frames: Vec<Vec<u8>> = (0..40).map(|n| udp_frame(500, n)).collect();
        let capture = Capture::start(&net, "host", "h1", "udp");
        signal("STOP");
        send_raw(&net, "host", "h0", &frames);
        signal("CONT");
        if merged {
            let lengths = capture.lengths(2);
            assert!(lengths.iter().any(|length| *length > 500), "{lengths:?}");
        } else {
            assert_eq!(capture.frames(frames.len()), frames);
        }
        let (ports, _) = table(&l2fwd.stop());
        assert_eq!((ports[0][2], ports[1][3]), (40, 0), "{ports:?}");
    }
}

/// Promiscuous mode comes with -P alone, ordinary pages with --no-huge, and workers run on the CPUs that lcores stand for.
#[test]
fn promiscuity_pages_and_cpus_are_as_asked() {
    let Some(net) = star(2) else { return };
    let all = cpus();
    let cpu = all[all.len() - 1];
    let promiscuity = || net.link("relay", "p0")["promiscuity"].as_u64();
    let l2fwd = L2fwd::start(
        &net,
        "relay",
        &format!("--lcores 7@{cpu}{} -- -p 3 -q 2", vdevs(2)),
    );
    assert_eq!(promiscuity(), Some(0));
    let (said, cores) = (l2fwd.err(), thread_cpus(l2fwd.child.id()));
    assert!(said.contains("entering main loop on lcore 7"), "{said}");
    assert!(cores.contains(&cpu.to_string()), "{cores:?}");
    // Where none are free, that is followed by how to get some.
    assert!(!said.contains("frames on ordinary pages\n"), "{said}");
    l2fwd.stop();
    let l2fwd = L2fwd::start(
        &net,
        "relay",
        &format!("-l {}{} --no-huge -- -p 3 -q 2 -P", all[0], vdevs(2)),
    );
    assert_eq!(promiscuity(), Some(1));
    let (said, cores) = (l2fwd.err(), thread_cpus(l2fwd.child.id()));
    assert!(cores.contains(&all[0].to_string()), "{cores:?}");
    assert!(said.contains("frames on ordinary pages\n"), "{said}");
    l2fwd.stop();
    assert_eq!(promiscuity(), Some(0), "it ends with the sockets");
}

/// The first and the last CPU there is; says so if that is one.
fn two_cpus() -> Option<[usize; 2]> {
    let all = cpus();
    let (first, last) = (all[0], all[all.len() - 1]);
    if first == last {
        eprintln!("skipped: needs two CPUs");
        return None;
    }
    Some([first, last])
}

/// Ports and cores that are given nothing to do are told as l2fwd tells them.
#[test]
fn what_does_nothing_is_said() {
    let Some(net) = star(3) else { return };
    let Some([first, last]) = two_cpus() else {
        return;
    };
    let line = format!("-l {first},{last}{} -- -p 5 -q 2 -T 0", vdevs(3));
    let l2fwd = L2fwd::start(&net, "relay", &line);
    let said = l2fwd.err();
    assert!(
        said.contains(&format!("L2FWD: lcore {last} has nothing to do\n")),
        "{said}"
    );
    let out = l2fwd.stop();
    assert_eq!(
        out.matches("Skipping disabled port 1\n").count(),
        1,
        "{out}"
    );
    assert!(
        out.ends_with("\nClosing port 0... Done\nClosing port 2... Done\nBye...\n"),
        "{out}"
    );
}

/// What arrives at one host of a star when another sends a frame.
fn through(net: &Net, from: usize, to: usize, frame: &Vec<u8>) -> Vec<Vec<u8>> {
    let capture = Capture::start(net, "host", &format!("h{to}"), "udp");
    let frame = std::slice::from_ref(frame);
    send_raw(net, "host", &format!("h{from}"), frame);
    capture.frames(1)
}

/// Ports 1 to 4 of five, all on one core: neighbours are pairs, and addresses follow l2fwd's numbers.
#[test]
fn pairs_addresses_and_numbers_are_l2fwds() {
    let Some(net) = star(5) else { return };
    let core = cpus()[0];
    let l2fwd = L2fwd::start(
        &net,
        "relay",
        &format!("-l {core}{} -- -p 0x1e -q 4 -T 1", vdevs(5)),
    );
    let ways = [(1, 2), (2, 1), (3, 4), (4, 3)];
    for (from, to) in ways {
        let frame = udp_frame(300, from as u32);
        let arrived = through(&net, from, to, &frame);
        assert_eq!(arrived.len(), 1, "{from} to {to}");
        assert_eq!(arrived[0][..6], [2, 0, 0, 0, 0, to as u8], "{from} to {to}");
        assert_eq!(arrived[0][6..12], mac(&format!("p{to}")), "{from} to {to}");
        assert_eq!(arrived[0][12..], frame[12..]);
    }
    // Statistics come by themselves, after l2fwd's clearing of the screen.
    let periodic = || {
        l2fwd
            .out()
            .matches("\x1b[2J\x1b[1;1H\nPort statistics =")
            .count()
    };
    assert!(eventually(PATIENCE, || periodic() > 1), "{}", l2fwd.out());
    let out = l2fwd.stop();
    assert!(!out.contains("Notice: odd"), "{out}");
    let (ports, totals) = table(&out);
    assert_eq!(
        ports,
        [[1, 1, 1, 0], [2, 1, 1, 0], [3, 1, 1, 0], [4, 1, 1, 0]]
    );
    assert_eq!(totals, [4, 4, 0]);
}

/// Each core polls the ports that are its, whatever pairs they are in.
#[test]
fn a_port_map_and_its_cores() {
    let Some(net) = star(3) else { return };
    let Some([first, last]) = two_cpus() else {
        return;
    };
    let line = format!(
        "-l {first},{last}{} -- -p 7 -q 2 -T 0 --portmap=(0,2)(1,1) --no-mac-updating",
        vdevs(3)
    );
    let l2fwd = L2fwd::start(&net, "relay", &line);
    for (from, to) in [(0, 2), (2, 0), (1, 1)] {
        let frame = udp_frame(100, from as u32);
        assert_eq!(through(&net, from, to, &frame), [frame], "{from} to {to}");
    }
    let said = l2fwd.err();
    assert!(
        said.contains(&format!(
            "lcoreid={first} portid=0\nL2FWD:  -- lcoreid={first} portid=1\n"
        )),
        "{said}"
    );
    assert!(
        said.contains(&format!("lcoreid={last} portid=2\n")),
        "{said}"
    );
    let out = l2fwd.stop();
    assert_eq!(
        table(&out),
        (vec![[0, 1, 1, 0], [1, 1, 1, 0], [2, 1, 1, 0]], [3, 3, 0])
    );
    // -T 0: one table only, the last.
    assert_eq!(out.matches("Port statistics").count(), 1, "{out}");
}

/// What l2fwd drops for its output port is counted at that port.
#[test]
fn drops_count_at_the_port_they_were_for() {
    let Some(net) = star(2) else { return };
    let l2fwd = L2fwd::start(
        &net,
        "relay",
        &format!("-l {}{} -- -p 3 -q 2 -T 0", cpus()[0], vdevs(2)),
    );
    net.sh("relay", "ip link set p1 down");
    assert!(
        eventually(PATIENCE, || l2fwd.err().contains("p1 is down")),
        "{}",
        l2fwd.err()
    );
    send_raw(
        &net,
        "host",
        "h0",
        &(0..7).map(|n| udp_frame(100, n)).collect::<Vec<_>>(),
    );
    std::thread::sleep(Duration::from_millis(300));
    let (ports, totals) = table(&l2fwd.stop());
    assert_eq!(ports, [[0, 0, 7, 0], [1, 0, 0, 7]]);
    assert_eq!(totals, [0, 7, 7]);
}

/// AF_XDP by the name of DPDK's driver, and the same answers as with AF_PACKET.
#[cfg(feature = "xdp")]
#[test]
fn af_xdp_devices_are_ports_too() {
    let Some(net) = star(2) else { return };
    let line = format!(
        "-l {} --vdev=net_af_xdp0,iface=p0,mode=skb --vdev=net_af_xdp1,iface=p1,mode=skb -- -p 3 -q 2 -P",
        cpus()[0]
    );
    let l2fwd = L2fwd::start(&net, "relay", &line);
    let capture = Capture::start(&net, "host", "h1", "udp");
    let frame = udp_frame(300, 1);
    send_raw(&net, "host", "h0", std::slice::from_ref(&frame));
    let arrived = capture.frames(1);
    assert_eq!(arrived[0][12..], frame[12..]);
    let (ports, _) = table(&l2fwd.stop());
    assert_eq!(ports, [[0, 0, 1, 0], [1, 1, 0, 0]]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let (outside, core) = (cpus().last().expect("a CPU") + 1, cpus()[0]);
    let cases: [(String, &[&str]); 5] = [
        (
            "-l x --bogus --vdev=net_pcap0 -- -p 0 -q 16 -T 86400 --portmap 1".into(),
            &[
                "-l \"x\"",
                "--bogus",
                "net_pcap0",
                "invalid portmask",
                "invalid queue number",
                "invalid timer period",
                "Invalid config",
                "Invalid EAL arguments",
                "Invalid L2FWD arguments",
                "Usage: l2relay l2fwd",
            ],
        ),
        (
            format!(
                "-l {core},{outside} --vdev=net_af_packet0,iface=r0 --vdev=net_af_packet1,iface=gone -- -p 3"
            ),
            &["gone: no such interface", "is not allowed here"],
        ),
        (
            format!(
                "-l {core} --vdev=net_af_packet0,iface=r0 --vdev=net_af_packet1,iface=r1 -- -p 3"
            ),
            &["Not enough cores: 2 ports at 1 a core need 2"],
        ),
        (
            format!("-l {core} --vdev=net_af_packet0,iface=r0 -- -p 2"),
            &["Invalid portmask; possible (0x1)"],
        ),
        (format!("-l {core} -- -p 1"), &["No Ethernet ports - bye"]),
    ];
    for (line, parts) in cases {
        let args: Vec<&str> = ["l2fwd"]
            .into_iter()
            .chain(line.split_whitespace())
            .collect();
        let output = attempt(&chain.net, "relay", &[], &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        for part in parts {
            assert!(said.contains(part), "{line}: no {part:?} in\n{said}");
        }
        assert_eq!(
            said.lines().count(),
            parts.len(),
            "{line}: one line each:\n{said}"
        );
        assert!(
            output.stdout.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
}

fn quoted(line: &str) -> String {
    line.split_whitespace()
        .map(|word| format!("'{word}' "))
        .collect()
}

/// What testpmd, which is DPDK too, makes of EAL options must be what we make of them: both accept, or both refuse.
#[test]
fn eal_options_are_judged_as_dpdk_judges_them() {
    let Some(net) = star(1) else { return };
    let has_dpdk = Command::new("dpdk-testpmd")
        .arg("--version")
        .output()
        .is_ok();
    if !has_dpdk {
        assert!(
            std::env::var("L2RELAY_REQUIRE_ROOT").as_deref() != Ok("1"),
            "dpdk-testpmd is not installed (dpdk-dev)"
        );
        eprintln!("skipped: needs dpdk-testpmd");
        return;
    }
    let core = cpus()[0];
    let base = "--no-huge --no-pci --no-shconf --no-telemetry -m 128";
    for (options, accepted) in [
        (format!("-l {core}"), true),
        (format!("--lcores {core}@{core}"), true),
        (format!("--lcores ({core})@{core}"), true),
        (format!("-c {:x}", 1u64 << core), true),
        (format!("-l {core} --main-lcore {core} -n 4"), true),
        (
            format!("-l {core} --log-level=8 --file-prefix=x --single-file"),
            true,
        ),
        (format!("-l {core} --proc-type=auto --iova-mode=va"), true),
        ("-l x".into(), false),
        (format!("-l {core} --bogus"), false),
        (format!("-l {core} -n 0"), false),
        (format!("-l {core} -n 33 -r 3"), true),
        (format!("-l {core} -r 17"), false),
        (format!("-l {core} --log-level=zzz"), true),
        (format!("-l {core} --log-level=lib.eal:debug"), true),
        (format!("-l {core} --iova-mode=x"), false),
        (format!("-l {core} --socket-limit=x"), false),
        (format!("-l {core} --huge-unlink=zz"), false),
        (format!("-l {core} --file-prefix=a%b"), false),
        (format!("-l {core} --vfio-intr=zz"), false),
        (format!("-l {core} --force-max-simd-bitwidth=100"), false),
        (format!("-l {core} -c 1"), false),
        (format!("-l {core} --main-lcore 77"), false),
        ("--lcores (0".into(), false),
        (format!("-l {core} --vdev"), false),
    ] {
        let device = "--vdev=net_af_packet0,iface=p0";
        let line = if options.ends_with("--vdev") {
            format!("{base} {device} {options}")
        } else {
            format!("{base} {options} {device}")
        };
        let dpdk = net.try_sh(
            "relay",
            &format!("dpdk-testpmd {} -- --total-num-mbufs=2048 --nb-cores=1 --stats-period=0 </dev/null 2>&1 | head -c 20000", quoted(&line)),
        );
        // testpmd wants a second core to forward with; EAL is content when it gets so far.
        let text = String::from_utf8_lossy(&dpdk.stdout).into_owned();
        let by_dpdk = !text.contains("Invalid EAL arguments") && !text.contains("Cannot init EAL");
        assert_eq!(by_dpdk, accepted, "DPDK on {options}: {text}");
        let ours = net.try_sh(
            "relay",
            &format!(
                "timeout 0.5 {} l2fwd {} -- -p 1 -T 0",
                program(),
                quoted(&line)
            ),
        );
        // One that runs is ended by SIGTERM, which timeout says as 124.
        let by_us = ours.status.code() != Some(2);
        assert_eq!(
            by_us,
            accepted,
            "{options}: {}",
            String::from_utf8_lossy(&ours.stderr)
        );
    }
}
