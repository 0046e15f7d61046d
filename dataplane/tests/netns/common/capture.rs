//! tcpdump at the far end of the path. A capture on the relay's own port would not see frames that bypass the qdisc.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pcap_file::pcap::PcapReader;

use super::{Net, eventually};

/// A running capture of the frames that come in on an interface; killed on drop.
pub(crate) struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    /// Starts it, and returns when it captures.
    pub(crate) fn start(net: &Net, space: &str, interface: &str, filter: &str) -> Capture {
        let file = net.file(&format!("{space}-{interface}.pcap"));
        let mut command = net.command(space, "tcpdump");
        command.args(["-i", interface, "-Q", "in", "-s", "0", "-B", "16384", "-U", "--immediate-mode", "-n", "-Z", "root"]);
        command.arg("-w").arg(&file).arg(filter).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("tcpdump runs");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("listening on")), "tcpdump does not start");
        // Its closing figures go nowhere, but to a reader: a closed pipe would end it before the file is complete.
        std::thread::spawn(move || lines.for_each(drop));
        Capture { child, file }
    }

    /// The frames, when at least `count` have come, or after a while without them.
    pub(crate) fn frames(self, count: usize) -> Vec<Vec<u8>> {
        self.frames_within(count, Duration::from_secs(3))
    }

    /// The same with a limit of one's own: for a capture that should stay empty.
    pub(crate) fn frames_within(mut self, count: usize, limit: Duration) -> Vec<Vec<u8>> {
        eventually(limit, || read(&self.file).len() >= count);
        let _ = Command::new("kill").args(["-s", "INT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
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

/// The whole frames of a capture file that may still grow.
fn read(file: &PathBuf) -> Vec<Vec<u8>> {
    let Ok(mut reader) = File::open(file).map_err(drop).and_then(|file| PcapReader::new(file).map_err(drop)) else {
        return Vec::new();
    };
    let mut frames = Vec::new();
    while let Some(Ok(packet)) = reader.next_packet() {
        frames.push(packet.data.into_owned());
    }
    frames
}
