//! The image, in containers: rights, limits, interfaces that come and go, ends. Needs a Docker engine and the images
//! (`make test-containers` sees to both).

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Capture, Net, PATIENCE, Snapshot, cpus, eventually, mac_text, plain, send_raw, udp_frame,
};

/// What a relay by AF_PACKET is given, and nothing else. The control socket, which the health check asks, lies in /run.
const LEAST: &[&str] = &[
    "--cap-drop=ALL",
    "--cap-add=NET_RAW",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--tmpfs=/run",
];

fn image() -> String {
    std::env::var("L2RELAY_TEST_IMAGE").unwrap_or_else(|_| "l2relay".into())
}

fn docker(args: &[&str]) -> Output {
    Command::new("docker")
        .args(args)
        .output()
        .expect("docker is installed")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A container without a network; removed on drop.
struct Container {
    name: String,
    pid: u32,
    began: Instant,
}

impl Container {
    fn new_name() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!(
            "l2t-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Starts one with these options of `docker run`, and this command.
    fn run(options: &[&str], command: &[&str]) -> Self {
        Self::run_image(&image(), options, command)
    }

    fn run_image(image: &str, options: &[&str], command: &[&str]) -> Self {
        let (name, began) = (Self::new_name(), Instant::now());
        let made = docker(
            &[
                &["run", "--detach", "--network=none", "--name", &name][..],
                options,
                &[image],
                command,
            ]
            .concat(),
        );
        let mut container = Self {
            name,
            pid: 0,
            began,
        };
        assert!(made.status.success(), "{}", text(&made));
        container.pid = container
            .inspect("{{.State.Pid}}")
            .parse()
            .expect("a process id");
        container
    }

    /// Runs one to its end: exit status, and what it said.
    fn attempt(options: &[&str], command: &[&str]) -> (i32, String) {
        Self::attempt_image(&image(), options, command)
    }

    fn attempt_image(image: &str, options: &[&str], command: &[&str]) -> (i32, String) {
        let name = Self::new_name();
        let arguments = [
            &[
                "-k1",
                "20",
                "docker",
                "run",
                "--rm",
                "--network=none",
                "--name",
                &name,
            ][..],
            options,
            &[image],
            command,
        ];
        let output = Command::new("timeout")
            .args(arguments.concat())
            .output()
            .expect("timeout runs");
        docker(&["rm", "--force", &name]);
        (output.status.code().expect("an exit status"), text(&output))
    }

    fn inspect(&self, format: &str) -> String {
        let output = docker(&["inspect", "--format", format, &self.name]);
        assert!(output.status.success(), "{}", text(&output));
        text(&output).trim().to_owned()
    }

    /// Everything it wrote.
    fn logs(&self) -> String {
        text(&docker(&["logs", &self.name]))
    }

    fn says(&self, words: &str) -> bool {
        eventually(PATIENCE, || self.logs().contains(words))
    }

    /// A cable from an interface of a test's namespace to a new one of the container. One that led to a container before may
    /// still be there: the kernel removes it when it comes to it.
    fn plug(&self, net: &Net, space: &str, far: &str, near: &str) {
        let line = format!(
            "ip link del {far} 2>/dev/null; ip link add {near} address {} netns {} type veth peer name {far} address {} && ip link set {far} up",
            mac_text(near),
            self.pid,
            mac_text(far),
        );
        net.sh(space, &line);
        // One that can't use its ports may have ended by now, and its network with it.
        let up = format!("ip link set {near} up");
        let _ = Command::new("nsenter")
            .args(["-t", &self.pid.to_string(), "-n", "sh", "-c", &up])
            .output()
            .expect("nsenter (util-linux) runs");
    }

    /// A relay of `r0` and `r1`, plugged in and ready.
    fn relay(net: &Net, options: &[&str], more: &[&str]) -> Self {
        Self::relay_of(&image(), net, options, more)
    }

    fn relay_of(image: &str, net: &Net, options: &[&str], more: &[&str]) -> Self {
        let command = [&["run", "--pair=r0,r1", "--wait-ports=30", "--json"], more].concat();
        let relay = Self::run_image(image, options, &command);
        relay.plug(net, "client", "c0", "r0");
        relay.plug(net, "server", "s0", "r1");
        assert!(relay.says("ready\n"), "{}", relay.logs());
        relay
    }

    /// SIGTERM, as `docker stop` sends it, but without the engine's own time: status and last statistics.
    fn stop(&self) -> Snapshot {
        let process = format!("/proc/{}", self.pid);
        let begun = Instant::now();
        let told = Command::new("kill")
            .args(["-TERM", &self.pid.to_string()])
            .status();
        assert!(told.expect("kill runs").success());
        assert!(eventually(PATIENCE, || !std::path::Path::new(&process).exists()));
        // A second is promised; as much again is for a machine that is busy.
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(eventually(PATIENCE, || self.inspect("{{.State.Status}}") == "exited"));
        assert_eq!(self.inspect("{{.State.ExitCode}}"), "0", "{}", self.logs());
        let logs = String::from_utf8(docker(&["logs", &self.name]).stdout).expect("JSON is UTF-8");
        let last: Snapshot =
            serde_json::from_str(logs.lines().last().expect("statistics")).expect("a snapshot");
        assert!(last.last);
        last.check();
        last
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the container said:\n{}", self.logs());
        }
        docker(&["rm", "--force", &self.name]);
    }
}

/// Client and server, and an engine that answers.
fn ends() -> Option<Net> {
    let engine = docker(&["version"]);
    assert!(
        engine.status.success(),
        "no Docker engine: {}",
        text(&engine)
    );
    Net::open(&["client", "server"])
}

/// One frame each way, as it was.
fn crosses(net: &Net) {
    for (seed, (from, out), (to, at)) in [
        (1, ("client", "c0"), ("server", "s0")),
        (2, ("server", "s0"), ("client", "c0")),
    ] {
        let frame = udp_frame(200, seed);
        let capture = Capture::start(net, to, at, "udp");
        send_raw(net, from, out, std::slice::from_ref(&frame));
        assert_eq!(capture.frames(1), [frame], "{from} to {to}");
    }
}

#[test]
#[ignore = "needs Docker: make test-containers"]
fn the_image_is_small_and_holds_one_program() {
    let size = docker(&["image", "inspect", "--format", "{{.Size}}", &image()]);
    let bytes: u64 = text(&size)
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{}", text(&size)));
    assert!(bytes <= 5_000_000, "{bytes} bytes");
    let container = Container::run(LEAST, &["run", "--pair=r0,r1", "--wait-ports=30"]);
    let listed = Command::new("sh")
        .args(["-c", &format!("docker export {} | tar -t", container.name)])
        .output()
        .expect("tar runs");
    let mut files: Vec<String> = text(&listed).lines().map(Into::into).collect();
    // What the engine puts into every container.
    files.retain(|file| {
        !["dev/", "etc/", "proc/", "sys/", ".dockerenv"]
            .iter()
            .any(|own| file.starts_with(own))
    });
    files.sort();
    assert_eq!(files, ["l2fwd", "l2relay", "run/"]);
}

/// NET_RAW alone, nothing writable, no new privileges, interfaces that come after the start: it forwards, and ends in order.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn one_right_suffices() {
    let Some(net) = ends() else { return };
    let command = ["run", "--pair=r0,r1", "--wait-ports=30", "--json"];
    // Nor a place for the control socket, which only those need who ask the relay.
    let nothing: Vec<&str> = LEAST
        .iter()
        .copied()
        .filter(|option| *option != "--tmpfs=/run")
        .collect();
    let relay = Container::run(&nothing, &command);
    assert!(relay.says("waiting for r0, r1"), "{}", relay.logs());
    relay.plug(&net, "client", "c0", "r0");
    assert!(relay.says("waiting for r1 ("), "{}", relay.logs());
    relay.plug(&net, "server", "s0", "r1");
    assert!(relay.says("ready\n"), "{}", relay.logs());
    eprintln!("ready {:?} after docker run", relay.began.elapsed());
    crosses(&net);
    let last = relay.stop();
    assert_eq!(
        (
            last.way("r0", "r1").tx_packets,
            last.way("r1", "r0").tx_packets
        ),
        (1, 1)
    );
}

/// With another user than root the right is the file's.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn nobody_can_run_it_too() {
    let Some(net) = ends() else { return };
    let image = format!("{}:nonroot", image());
    let options = [
        "--cap-drop=ALL",
        "--cap-add=NET_RAW",
        "--read-only",
        "--tmpfs=/run",
    ];
    let relay = Container::relay_of(&image, &net, &options, &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid)).expect("it runs");
    assert!(status.contains("Uid:\t65534\t65534"), "{status}");
    assert!(
        status.contains("CapEff:\t0000000000002000"),
        "NET_RAW and no other: {status}"
    );
    crosses(&net);
    let healthy = || {
        docker(&["exec", &relay.name, "/l2relay", "health"])
            .status
            .success()
    };
    assert!(
        eventually(PATIENCE, healthy),
        "{}",
        text(&docker(&["exec", &relay.name, "/l2relay", "health"]))
    );
    relay.stop();
    // Without new privileges the file's right is not given; that is said.
    let blocked = [&options[..], &["--security-opt=no-new-privileges"]].concat();
    let (_, said) = Container::attempt_image(&image, &blocked, &["check"]);
    assert!(
        said.contains("CAP_NET_RAW is missing") && said.contains("no new privileges"),
        "{said}"
    );
}

#[test]
#[ignore = "needs Docker: make test-containers"]
fn a_missing_right_is_named() {
    let Some(net) = ends() else { return };
    let (status, said) = Container::attempt(&["--cap-drop=ALL"], &["check"]);
    assert_eq!(status, 1, "{said}");
    assert!(
        said.contains("CAP_NET_RAW is missing") && said.contains("--cap-add NET_RAW"),
        "{said}"
    );
    let relay = Container::run(
        &["--cap-drop=ALL"],
        &["run", "--pair=r0,r1", "--wait-ports=30"],
    );
    relay.plug(&net, "client", "c0", "r0");
    relay.plug(&net, "server", "s0", "r1");
    assert!(relay.says("CAP_NET_RAW"), "{}", relay.logs());
    assert!(eventually(PATIENCE, || relay.inspect("{{.State.Status}}") == "exited"));
    assert_eq!(relay.inspect("{{.State.ExitCode}}"), "2");
}

/// A core outside of the container's set, huge pages that aren't there, a quota: each is told with its remedy.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn limits_of_the_container_are_told() {
    let Some(net) = ends() else { return };
    let all = cpus();
    let (first, last) = (all[0].to_string(), all[all.len() - 1].to_string());
    let set = format!("--cpuset-cpus={first}");
    let command = ["run", "--pair=r0,r1", "--cores", &last, "--wait-ports=30"];
    let (status, said) = Container::attempt(&[LEAST, &[&set]].concat(), &command);
    assert_eq!(status, 2, "{said}");
    assert!(
        said.contains(&format!("core {last} is not allowed here: use {first}")),
        "{said}"
    );

    let (_, said) = Container::attempt(&[LEAST, &[&set, "--cpus=1"]].concat(), &["check"]);
    for part in [
        format!("only {first}"),
        "1.00 CPUs (100000 us in each 100000 us)".into(),
        "--cpus".into(),
    ] {
        assert!(said.contains(&part), "no {part:?} in\n{said}");
    }

    let relay = Container::run(
        LEAST,
        &[
            "run",
            "--pair=r0,r1",
            "--wait-ports=30",
            "--hugepages=require",
            "--ring=4096",
            "--queues=64",
        ],
    );
    relay.plug(&net, "client", "c0", "r0");
    relay.plug(&net, "server", "s0", "r1");
    assert!(relay.says("nr_hugepages"), "{}", relay.logs());
    assert!(
        eventually(PATIENCE, || relay.inspect("{{.State.ExitCode}}") == "2"),
        "{}",
        relay.logs()
    );
}

/// Stopped while it waits for interfaces: it ends in order, and says what it has counted.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn a_container_that_waits_stops() {
    let relay = Container::run(
        LEAST,
        &["run", "--pair=r0,r1", "--wait-ports=600", "--json"],
    );
    assert!(relay.says("waiting for"), "{}", relay.logs());
    // It lives, so nobody is to start it anew; but it is not ready.
    let health = |more: &[&str]| {
        let asked = docker(&[&["exec", &relay.name, "/l2relay", "health"], more].concat());
        asked.status.code()
    };
    assert_eq!((health(&["--live"]), health(&[])), (Some(0), Some(1)));
    let last = relay.stop();
    assert!(
        last.ports.iter().all(|port| port.state == "gone"),
        "{last:?}"
    );
    let began = Instant::now();
    let (status, said) = Container::attempt(LEAST, &["run", "--pair=r0,r1", "--wait-ports=0.2"]);
    assert_eq!(status, 2, "{said}");
    assert!(said.contains("r0: no such interface after 0.2 s"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// The engine takes an end away, and brings another of the same name: the relay says both, and forwards again.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn ends_of_cables_may_go_and_come() {
    let Some(net) = ends() else { return };
    let relay = Container::relay(&net, LEAST, &[]);
    crosses(&net);
    net.sh("server", "ip link del s0");
    assert!(relay.says("port r1 is gone"), "{}", relay.logs());
    relay.plug(&net, "server", "s0", "r1");
    assert!(relay.says("is open again"), "{}", relay.logs());
    crosses(&net);
    let last = relay.stop();
    assert_eq!(last.way("r0", "r1").tx_packets, 2);
}

/// What SIGKILL leaves: nothing. The cable's other end goes with the container, and a new one takes its place.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn a_killed_container_leaves_nothing() {
    let Some(net) = ends() else { return };
    let links = || {
        text(
            &Command::new("ip")
                .args(["-o", "link"])
                .output()
                .expect("ip runs"),
        )
    };
    let before = links();
    for _ in 0..2 {
        let relay = Container::relay(&net, LEAST, &[]);
        crosses(&net);
        let killed = docker(&["kill", "--signal=KILL", &relay.name]);
        assert!(killed.status.success(), "{}", text(&killed));
        assert!(eventually(PATIENCE, || relay.inspect("{{.State.Status}}") == "exited"));
        drop(relay);
        let gone = || {
            ["client", "server"]
                .iter()
                .all(|space| net.sh(space, "ip -o link | wc -l").trim() == "1")
        };
        assert!(eventually(PATIENCE, gone), "the cables are still there");
    }
    assert_eq!(links(), before, "interfaces on the host");
}

/// Two of them with ports of the same names share nothing.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn two_relays_side_by_side() {
    let (Some(one), Some(two)) = (ends(), ends()) else {
        return;
    };
    let (first, second) = (
        Container::relay(&one, LEAST, &[]),
        Container::relay(&two, LEAST, &[]),
    );
    crosses(&one);
    crosses(&two);
    crosses(&one);
    for relay in [&first, &second] {
        let health = docker(&["exec", &relay.name, "/l2relay", "health"]);
        assert!(health.status.success(), "{}", text(&health));
    }
    assert_eq!(first.stop().way("r0", "r1").tx_packets, 2);
    crosses(&two);
    assert_eq!(second.stop().way("r0", "r1").tx_packets, 2);
}

/// The engine asks the relay how it is (HEALTHCHECK).
#[test]
#[ignore = "needs Docker: make test-containers"]
fn the_engine_sees_its_health() {
    let Some(net) = ends() else { return };
    let options = [LEAST, &["--health-interval=1s", "--health-start-period=0s"]].concat();
    let relay = Container::relay(&net, &options, &[]);
    let health = || relay.inspect("{{.State.Health.Status}}");
    assert!(
        eventually(PATIENCE, || health() == "healthy"),
        "{}",
        relay.inspect("{{json .State.Health}}")
    );
    docker(&["pause", &relay.name]);
    docker(&["unpause", &relay.name]);
    relay.stop();
}

/// The image as l2fwd, with the command of ComNetsEmu's example.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn the_image_is_an_l2fwd() {
    let Some(net) = Net::open(&["client"]) else {
        return;
    };
    let core = if cpus().contains(&1) { "1" } else { "0" };
    let set = format!("--cpuset-cpus={core}");
    let options = [LEAST, &["--entrypoint=/l2fwd", &set, "--cpus=1"]].concat();
    let line = format!(
        "-l {core} -m 256 --vdev=eth_af_packet0,iface=relay-s1 --no-pci --single-file-segments -- -p 1 --no-mac-updating --wait-ports 30"
    );
    let relay = Container::run(&options, &line.split(' ').collect::<Vec<_>>());
    assert!(relay.says("waiting for relay-s1"), "{}", relay.logs());
    relay.plug(&net, "client", "c0", "relay-s1");
    assert!(relay.says("ready\n"), "{}", relay.logs());
    // As ComNetsEmu's relay has it.
    assert!(
        relay.logs().contains("CPU quota of 1.00"),
        "{}",
        relay.logs()
    );
    let frames: Vec<Vec<u8>> = (0..5).map(|n| plain(100, n)).collect();
    let capture = Capture::start(&net, "client", "c0", "");
    send_raw(&net, "client", "c0", &frames);
    assert_eq!(capture.frames(5), frames);
    assert!(docker(&["stop", &relay.name]).status.success());
    let logs = relay.logs();
    assert!(
        logs.contains(
            "Packets received:                    5\nPackets dropped:                     0\n"
        ),
        "{logs}"
    );
}

/// Which rights a back end needs: with all of them it forwards, without any one it says what is missing; so does `check`.
fn needs_these_rights_and_no_other(backend: &str, item: &str, rights: &[&str]) {
    let Some(net) = ends() else { return };
    let backend = format!("--backend={backend}");
    let options = |rights: &[&str]| -> Vec<String> {
        let base = [
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--read-only",
        ];
        let rights = rights.iter().map(|right| format!("--cap-add={right}"));
        base.into_iter().map(Into::into).chain(rights).collect()
    };
    let checked = |options: &[&str]| {
        let (_, said) = Container::attempt(options, &["check"]);
        let line = said.lines().find(|line| line.contains(item));
        line.unwrap_or_else(|| panic!("nothing on {item}: {said}"))
            .to_owned()
    };
    let all = options(rights);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(checked(&all).contains("the rights are there"));
    let relay = Container::relay(&net, &all, &[&backend]);
    crosses(&net);
    relay.stop();
    drop(relay);
    for missing in rights {
        let rest: Vec<&str> = rights
            .iter()
            .copied()
            .filter(|right| right != missing)
            .collect();
        let rest = options(&rest);
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let line = checked(&rest);
        assert!(
            line.starts_with("note") && line.contains("CAP_"),
            "without {missing}: {line}"
        );
        let relay = Container::run(&rest, &["run", "--pair=r0,r1", "--wait-ports=30", &backend]);
        relay.plug(&net, "client", "c0", "r0");
        relay.plug(&net, "server", "s0", "r1");
        assert!(
            eventually(PATIENCE, || relay.inspect("{{.State.Status}}") == "exited"),
            "without {missing}: {}",
            relay.logs()
        );
        assert_eq!(
            relay.inspect("{{.State.ExitCode}}"),
            "2",
            "without {missing}: {}",
            relay.logs()
        );
        let logs = relay.logs();
        for right in rights {
            // It is named by what CAP_SYS_ADMIN stands for here.
            let name = match *right {
                "SYS_ADMIN" => "CAP_BPF".into(),
                right => format!("CAP_{right}"),
            };
            assert_eq!(
                logs.contains(&name),
                right == missing,
                "without {missing}: {logs}"
            );
        }
    }
}

// Engines before 20.10.25 or so don't know CAP_BPF, so CAP_SYS_ADMIN, which includes it, stands for it here; that BPF and NET_ADMIN
// do as well is tested without an engine (check.rs, kernel.rs, xdp.rs).

#[cfg(feature = "xdp")]
#[test]
#[ignore = "needs Docker: make test-containers"]
fn af_xdp_needs_these_rights_and_no_other() {
    needs_these_rights_and_no_other("xdp", "for AF_XDP", &["NET_RAW", "SYS_ADMIN", "IPC_LOCK"]);
}

#[test]
#[ignore = "needs Docker: make test-containers"]
fn the_kernel_needs_these_rights_and_no_other() {
    needs_these_rights_and_no_other("kernel", "for kernel", &["NET_RAW", "SYS_ADMIN"]);
}

/// The recipe for compose: Docker's own networks are the cables.
#[test]
#[ignore = "needs Docker: make test-containers"]
fn the_compose_file_works() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docker/compose");
    let test = directory.join("try");
    let tried = Command::new("sh").arg(&test).output().expect("sh runs");
    assert!(tried.status.success(), "{}", text(&tried));
}
