//! tcpdump at the far end of the path. A capture on the relay's own port would not see frames that bypass the qdisc.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use pcap_file::pcap::PcapReader;

use super::{Net, eventually};

/// Frames longer than this are cut in the capture; [`Capture::lengths`] still knows how long they were.
const SNAP: usize = 9100;

/// A running capture of the frames that come in on an interface; killed on drop.
pub(crate) struct Capture {
    child: Child,
    file: PathBuf,
    closing: JoinHandle<String>,
}

impl Capture {
    /// Starts it, and returns when it captures.
    pub(crate) fn start(net: &Net, space: &str, interface: &str, filter: &str) -> Capture {
        let file = net.file(&format!("{space}-{interface}.pcap"));
        let mut command = net.command(space, "tcpdump");
        // 32 MiB of slots of this size: as many frames as any test expects, even if tcpdump gets no CPU meanwhile.
        command.args([
            "-i",
            interface,
            "-Q",
            "in",
            "-s",
            &SNAP.to_string(),
            "-B",
            "32768",
        ]);
        command
            .args(["-U", "--immediate-mode", "-n", "-Z", "root", "-w"])
            .arg(&file)
            .arg(filter);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump runs");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"))
            .lines()
            .map_while(Result::ok);
        assert!(
            lines.any(|line| line.contains("listening on")),
            "tcpdump does not start"
        );
        let closing = std::thread::spawn(move || lines.collect::<Vec<_>>().join("; "));
        Capture {
            child,
            file,
            closing,
        }
    }

    /// Whether a frame has come.
    pub(crate) fn has_any(&self) -> bool {
        !read(&self.file).is_empty()
    }

    /// The frames, when at least `count` have come, or after a while without them.
    pub(crate) fn frames(self, count: usize) -> Vec<Vec<u8>> {
        self.frames_within(count, Duration::from_secs(5))
    }

    /// The same with a limit of one's own: for a capture that should stay empty.
    pub(crate) fn frames_within(self, count: usize, limit: Duration) -> Vec<Vec<u8>> {
        let whole = |(frame, length): (Vec<u8>, usize)| {
            assert_eq!(frame.len(), length, "the capture has cut a frame");
            frame
        };
        self.finish(count, limit).into_iter().map(whole).collect()
    }

    /// The lengths alone, of frames of any size.
    pub(crate) fn lengths(self, count: usize) -> Vec<usize> {
        self.finish(count, Duration::from_secs(5))
            .into_iter()
            .map(|(_, length)| length)
            .collect()
    }

    fn finish(mut self, count: usize, limit: Duration) -> Vec<(Vec<u8>, usize)> {
        eventually(limit, || read(&self.file).len() >= count);
        let _ = Command::new("kill")
            .args(["-s", "INT", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
        let closing = std::mem::replace(&mut self.closing, std::thread::spawn(String::new));
        let figures = closing.join().expect("it only reads");
        assert!(
            figures.contains("; 0 packets dropped by kernel"),
            "the capture itself has lost frames: {figures}"
        );
        read(&self.file)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// The frames of a capture file that may still grow, with their lengths on the wire.
fn read(file: &PathBuf) -> Vec<(Vec<u8>, usize)> {
    let Ok(mut reader) = File::open(file)
        .map_err(drop)
        .and_then(|file| PcapReader::new(file).map_err(drop))
    else {
        return Vec::new();
    };
    let mut frames = Vec::new();
    // Raw: the checked variant refuses what was longer than the capture's limit.
    while let Some(Ok(packet)) = reader.next_raw_packet() {
        frames.push((packet.data.into_owned(), packet.orig_len as usize));
    }
    frames
}
