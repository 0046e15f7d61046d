//! `traffic.py` in a namespace: the senders and receivers at the ends of the path.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use serde::Deserialize;
use serde_json::Value;

use super::Net;

const SCRIPT: &str = include_str!("traffic.py");

/// One end of a conversation; killed on drop.
pub(crate) struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
    what: String,
}

impl Peer {
    /// Starts a command of `traffic.py` that needs nobody to be ready first.
    pub(crate) fn start(net: &Net, space: &str, line: &str) -> Peer {
        let mut command = net.command(space, "/usr/bin/python3");
        command.args(["-c", SCRIPT]).args(line.split_whitespace());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Peer {
            child,
            out,
            what: line.to_owned(),
        }
    }

    /// Starts one that says when it listens, and waits for that.
    pub(crate) fn listen(net: &Net, space: &str, line: &str) -> Peer {
        let mut peer = Self::start(net, space, line);
        assert_eq!(peer.line(), "listening", "{}", peer.what);
        peer
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Its result, when it has ended well.
    pub(crate) fn result(mut self) -> Value {
        drop(self.child.stdin.take());
        let line = loop {
            let line = self.line();
            if line != "listening" {
                break line;
            }
        };
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "`{}` failed: {line}", self.what);
        serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("`{}` printed {line:?}: {error}", self.what))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it prints text");
        line.trim().to_owned()
    }

    /// Gives it frames, in hexadecimal digits.
    pub(crate) fn feed_hex<F: AsRef<[u8]>>(&mut self, frames: &[F]) {
        self.feed(frames.iter().map(|frame| hex(frame.as_ref())));
    }

    fn feed(&mut self, lines: impl Iterator<Item = String>) {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        for line in lines {
            writeln!(stdin, "{line}").expect("it reads its input");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A frame as a packet socket with a virtio header saw it: the tag, if the kernel took one out, apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) vnet: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
    /// (tag control information, protocol identifier)
    pub(crate) tag: Option<(u16, u16)>,
}

#[derive(Deserialize)]
struct RawLine {
    vnet: String,
    frame: String,
    tag: Option<(u16, u16)>,
}

/// Client and server send each other that many bytes by TCP at the same time; what each gets is what the other sent.
pub(crate) fn tcp_both_ways(net: &Net, address: &str, size: u64) {
    let line = format!("--address {address} --size {size} --seed");
    let serve = Peer::listen(net, "server", &format!("tcp-serve {line} 1"));
    let client = Peer::start(net, "client", &format!("tcp-connect {line} 2")).result();
    let server = serve.result();
    assert_eq!(
        (&client["received_sha"], &server["received_sha"]),
        (&server["sent_sha"], &client["sent_sha"])
    );
}

/// Sends frames exactly as given out of an interface, from a raw socket.
pub(crate) fn send_raw<F: AsRef<[u8]>>(net: &Net, space: &str, interface: &str, frames: &[F]) {
    let mut peer = Peer::start(
        net,
        space,
        &format!("raw-send --interface {interface} --pause 0.002"),
    );
    peer.feed(frames.iter().map(|frame| hex(frame.as_ref())));
    assert_eq!(peer.result()["sent"], frames.len());
}

/// Sends frames with virtio headers before them (checksum and segmentation left to whoever is next).
pub(crate) fn send_vnet(net: &Net, space: &str, interface: &str, frames: &[(Vec<u8>, Vec<u8>)]) {
    let mut peer = Peer::start(
        net,
        space,
        &format!("raw-send --vnet --interface {interface}"),
    );
    peer.feed(frames.iter().map(|(vnet, frame)| hex(vnet) + &hex(frame)));
    assert_eq!(peer.result()["sent"], frames.len());
}

/// Starts to collect `count` frames with their virtio headers; [`frames`](RawReceiver::frames) has them.
pub(crate) fn receive_raw(net: &Net, space: &str, interface: &str, count: usize) -> RawReceiver {
    RawReceiver(Peer::listen(
        net,
        space,
        &format!("raw-receive --interface {interface} --count {count} --limit 4"),
    ))
}

/// A running [`receive_raw`].
pub(crate) struct RawReceiver(Peer);

impl RawReceiver {
    /// What came, when `count` have come or nothing more does.
    pub(crate) fn frames(self) -> Vec<RawFrame> {
        let mut result = self.0.result();
        let lines: Vec<RawLine> =
            serde_json::from_value(result["frames"].take()).expect("a list of frames");
        let parse = |line: RawLine| RawFrame {
            vnet: unhex(&line.vnet),
            bytes: unhex(&line.frame),
            tag: line.tag,
        };
        lines.into_iter().map(parse).collect()
    }
}

/// A TAP interface with a program behind it that writes frames, as a virtual machine would; gone with the guard.
pub(crate) struct Tap(Peer);

impl Tap {
    /// Makes it, up.
    pub(crate) fn open(net: &Net, space: &str, interface: &str) -> Tap {
        let tap = Tap(Peer::listen(
            net,
            space,
            &format!("tap --interface {interface}"),
        ));
        net.sh(space, &format!("ip link set {interface} up"));
        tap
    }

    /// Ends it; what had gone out of the interface, as its program read it.
    pub(crate) fn close(self) -> Vec<RawFrame> {
        RawReceiver(self.0).frames()
    }

    /// Lets frames, each with its virtio header, come in on the interface.
    pub(crate) fn send(&mut self, frames: &[(Vec<u8>, Vec<u8>)]) {
        self.0
            .feed(frames.iter().map(|(vnet, frame)| hex(vnet) + &hex(frame)));
    }
}

/// A TAP `t0` and a chain's server side `r1`–`s0`, for frames that the kernel refuses from a packet socket.
pub(crate) fn tap_and_server() -> Option<(Net, Tap)> {
    let net = Net::open(&["relay", "server"])?;
    net.veth(("server", "s0"), ("relay", "r1"));
    let tap = Tap::open(&net, "relay", "t0");
    Some((net, tap))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digit).collect()
}
