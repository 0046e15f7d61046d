//! What each interface of a namespace has dropped instead of sending it: the same count as [`Interface::tx_dropped`](super::Interface::tx_dropped).
//!
//! Read by the relay for each snapshot, from the text that the kernel makes for all interfaces at once (`dev_seq_printf_stats`,
//! `net/core/net-procfs.c`). Opened once in a namespace, then read from any thread, without waiting for whoever changes interfaces
//! (`rtnl_lock`, which a question by netlink takes). The kernel keeps the namespace for as long as it is open.

use std::{fs::File, io, os::unix::fs::FileExt, str};

/// The drops of all interfaces of a namespace.
#[derive(Debug)]
pub(crate) struct TxDrops {
    file: File,
    /// Kept: to make it anew for each reading would cost more than to go through it.
    text: Vec<u8>,
}

impl TxDrops {
    /// Of the namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Self> {
        // The namespace is settled by the opening, not by who reads (`seq_open_net`, `fs/proc/proc_net.c`).
        let file = File::open("/proc/thread-self/net/dev")?;
        let text = vec![0; 4 << 10];
        Ok(Self { file, text })
    }

    /// The interfaces there are now, each with its name and its count.
    pub(crate) fn read(&mut self) -> io::Result<impl Iterator<Item = (&str, u64)>> {
        let mut length = 0;
        loop {
            if length == self.text.len() {
                self.text.resize(2 * length, 0);
            }
            match self.file.read_at(&mut self.text[length..], length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let lines = self.text[..length].split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| of_line(str::from_utf8(line).ok()?)))
    }
}

/// The interface, and the twelfth of its numbers.
fn of_line(line: &str) -> Option<(&str, u64)> {
    let (name, numbers) = line.split_once(':')?;
    let drops = numbers.split_ascii_whitespace().nth(11)?.parse().ok()?;
    Some((name.trim_ascii(), drops))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        interface::Interface,
        sys::netns::{self, testing::Namespace},
    };

    fn all(drops: &mut TxDrops) -> HashMap<String, u64> {
        let read = drops.read().unwrap();
        read.map(|(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn lines_are_taken_apart() {
        let line = "  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(of_line(line), Some(("eth0", 12)));
        // The head of the table, and what is cut short.
        for line in [
            "Inter-|   Receive  |  Transmit",
            " face |bytes    packets errs drop|bytes packets",
            "  eth0: 1 2 3 4 5 6 7 8 9 10 11",
            "",
        ] {
            assert_eq!(of_line(line), None, "{line}");
        }
    }

    /// Opened once, it tells what is there at each reading: of its own namespace, also from outside, and of more interfaces than fit
    /// into the memory that it began with.
    #[test]
    fn drops_are_told_by_name_and_namespace() {
        let mut own = TxDrops::open().unwrap();
        assert!(all(&mut own).contains_key("lo"));

        let Some(namespace) = Namespace::make("drops") else {
            return;
        };
        let within = |name: &str| {
            let find = || Interface::find(name);
            netns::within(Some(&namespace.name), find).unwrap().unwrap()
        };
        let mut drops = netns::within(Some(&namespace.name), TxDrops::open)
            .unwrap()
            .unwrap();
        assert_eq!(all(&mut drops).len(), 1);
        namespace.ip("link add here type veth peer name there");
        namespace.ip("link set here up");
        let first = all(&mut drops);
        // What goes to a peer that is down is dropped.
        namespace.ip("address add 192.0.2.1/24 dev here");
        namespace.ip("neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev here nud permanent");
        let ping = ["-c1", "-W1", "192.0.2.2"];
        let ping = [&["netns", "exec", &namespace.name, "ping"][..], &ping[..]].concat();
        let pinged = std::process::Command::new("ip")
            .args(ping)
            .output()
            .unwrap();
        assert!(!pinged.status.success());
        let then = all(&mut drops);
        assert!(then["here"] > first["here"], "{first:?} {then:?}");
        assert_eq!(
            Some(then["here"]),
            within("here").map(|here| here.tx_dropped)
        );
        assert!(!all(&mut own).contains_key("here"));

        namespace.ip("link set here down");
        namespace.ip("link set here name moved");
        for at in 0..20 {
            namespace.ip(&format!("link add many{at} type veth peer name more{at}"));
        }
        let then = all(&mut drops);
        assert!(then.contains_key("moved") && !then.contains_key("here"));
        assert_eq!(then.len(), 3 + 40);
        namespace.ip("link delete moved");
        assert_eq!(all(&mut drops).len(), 1 + 40);
    }
}
