//! Emulated links on the memory back end, with a virtual clock: what happens when, to the nanosecond, and how often.
//! Needs no root. Every bed checks conservation at every turn.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod aqm;
mod change;
mod effects;
mod frames;
mod rate;
mod repeat;

use l2relay::{
    lane::Lane,
    memory::{FramePool, PoolSize},
    port::memory::{self, Packet, Wire},
    stage::link::{Link, LinkHandle, Settings},
    stats::{Reason, Tally},
};

/// A second, in ns.
const S: u64 = 1_000_000_000;
/// A millisecond, in ns.
const MS: u64 = 1_000_000;

/// A lane with one link, and a clock.
struct Bed {
    lane: Lane,
    sender: Wire,
    receiver: Wire,
    link: LinkHandle,
    now_ns: u64,
    /// What came out, and when.
    out: Vec<(u64, Packet)>,
}

fn settings(words: &str) -> Settings {
    Settings::parse(words).unwrap_or_else(|mistakes| panic!("{words}: {mistakes:?}"))
}

impl Bed {
    fn new(words: &str) -> Self {
        Self::with_pool(
            words,
            PoolSize {
                small: 128,
                large: 16,
            },
        )
    }

    fn with_pool(words: &str, size: PoolSize) -> Self {
        Self::with_links(&[words], size)
    }

    /// Links one behind the other; the handle is that of the last.
    fn with_links(links: &[&str], size: PoolSize) -> Self {
        let (rx, _, sender) = memory::port(1 << 16, 0);
        let (_, tx, receiver) = memory::port(1 << 16, 70_000);
        let links = links.iter().map(|words| Link::new(settings(words), "a>b"));
        let mut stages: Vec<Box<dyn l2relay::stage::Stage>> = Vec::new();
        let mut handle = None;
        for link in links {
            handle = Some(link.handle());
            stages.push(Box::new(link));
        }
        let handle = handle.expect("a link at least");
        let pool = FramePool::ordinary(size).unwrap();
        let mut bed = Self {
            lane: Lane::new(Box::new(rx), stages, Box::new(tx), pool),
            sender,
            receiver,
            link: handle,
            now_ns: 0,
            out: Vec::new(),
        };
        bed.turn();
        bed
    }

    /// Frames of `len` bytes, numbered from `first` on, that come at one time.
    fn burst(&mut self, len: usize, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.send(Packet::new(&numbered(len, number)));
        }
    }

    fn send(&mut self, packet: Packet) {
        self.sender.send(packet).unwrap();
        // A lane takes a burst a turn; here all come at once.
        self.turn();
    }

    fn turn(&mut self) {
        self.lane.turn(self.now_ns);
        self.lane.departed(self.now_ns);
        while let Some(packet) = self.receiver.receive() {
            self.out.push((self.now_ns, packet));
        }
        assert!(self.tally().is_conserved(), "{:?}", self.tally());
        // What the pool has lent is nowhere else: held frames are in the link's own memory.
        assert_eq!(self.lane.pool().outstanding(), 0);
    }

    /// Other settings, from now on.
    fn set(&mut self, words: &str) {
        self.link.set(settings(words)).unwrap();
        self.turn();
    }

    /// Turns whenever something is due, until `until_ns`.
    fn run_until(&mut self, until_ns: u64) {
        while let Some(due_ns) = self.lane.appointment_ns().filter(|due| *due <= until_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.turn();
        }
        self.now_ns = self.now_ns.max(until_ns);
        self.turn();
    }

    /// Until nothing is held.
    fn run_out(&mut self) {
        while let Some(due_ns) = self.lane.appointment_ns() {
            self.run_until(due_ns);
        }
        assert_eq!(self.tally().held, 0);
    }

    fn tally(&self) -> Tally {
        self.lane.counters().read()
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.tally().dropped_for(reason)
    }

    /// Numbers of the frames that came out.
    fn numbers(&self) -> Vec<u32> {
        self.out.iter().map(|(_, packet)| number(packet)).collect()
    }

    fn times(&self) -> Vec<u64> {
        self.out.iter().map(|(time, _)| *time).collect()
    }
}

/// A frame of no protocol with a number in it.
fn numbered(len: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(packet: &Packet) -> u32 {
    u32::from_be_bytes(packet.bytes[14..18].try_into().unwrap())
}
