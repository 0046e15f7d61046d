//! Link emulation: a stage that makes a lane behave like a line.
//!
//! ```text
//! settings  what a link does, typed       grammar   the same in words: 'rate 2mbit delay 100ms loss 5%'
//! mod       the stage; in: cut and copied to the arena, out: copied to the pool when due
//! path      effects in their order, on logical times
//! bottleneck + queue/   rate, trace, AQM     slot     batches       delay + jitter   time on the way
//! chance    loss, duplicates, corruption     schedule steps, ramps, outages
//! arena     memory, bounded                  seed     random numbers, the same everywhere
//! lateness  actual - due, as a histogram
//! ```

mod arena;
mod bottleneck;
mod chance;
mod context;
mod delay;
mod ecn;
mod grammar;
mod jitter;
mod lateness;
mod path;
mod queue;
mod schedule;
mod seed;
mod settings;
mod slot;
mod trace;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use serde::{Deserialize, Serialize};

pub use jitter::Table;
pub use lateness::LatenessSnapshot;
pub use schedule::{Change, Schedule, Target};
pub use settings::{
    Chance, CoDel, Count, Delay, Discipline, Effect, Jitter, Limit, Loss, LossModel, Pattern, Pie,
    Probability, Queue, Rate, Red, Reorder, Server, Settings, Shape, Slot,
};
pub use trace::Trace;

use crate::{
    burst::Burst,
    lane::Turn,
    memory::{Frame, Offload},
    stage::Stage,
    stats::Reason,
    wire::segment::Segmenter,
};
use arena::Arena;
use context::{Context, Gauges};
use path::Path;

/// Most by which a frame's arrival is believed to be after the beginning of its turn.
const AHEAD_NS: u64 = 100_000_000;

/// A line in one direction.
///
/// Super-frames are cut into the packets they stand for before anything else. A packet is due at its arrival plus what the
/// effects add, so a late wake-up delays that packet and no other.
#[derive(Debug)]
pub struct Link {
    name: String,
    seed: u64,
    arena: Arena,
    /// Made at the first turn: time begins then.
    path: Option<Path>,
    settings: Arc<Settings>,
    last_arrival_ns: u64,
    scratch: Vec<u8>,
    /// When the frames of this turn were due.
    released: Vec<u64>,
    shared: Arc<Shared>,
}

/// To change a link while it runs, and to look at it. Any thread may hold one.
#[derive(Clone, Debug)]
pub struct LinkHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Looked at once a turn, so it is one relaxed load there.
    is_changed: AtomicBool,
    settings: Mutex<Arc<Settings>>,
    seed: u64,
    gauges: Gauges,
}

/// What a link has done, and what is in it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LinkSnapshot {
    /// The settings, in words.
    pub settings: String,
    /// What its random decisions derive from.
    pub seed: u64,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// Packets in which a bit was turned over.
    pub corrupted: u64,
    /// Packets that overtook another.
    pub reordered: u64,
    /// Packets that wait for the rate.
    pub queue_packets: u64,
    /// Their bytes, as the rate counts them.
    pub queue_bytes: u64,
    /// Memory that frames held take, bookkeeping included.
    pub memory_bytes: u64,
    /// How late packets left.
    pub lateness: LatenessSnapshot,
}

impl Link {
    /// A link. `name` (`a>b`) makes its random decisions its own; its seed is that of the settings, or another at every
    /// call.
    pub fn new(settings: Settings, name: &str) -> Self {
        let seed = settings.seed.unwrap_or_else(seed::any);
        let settings = Arc::new(settings);
        Self {
            name: name.to_owned(),
            seed,
            arena: Arena::new(settings.memory),
            path: None,
            last_arrival_ns: 0,
            scratch: Vec::new(),
            released: Vec::new(),
            shared: Arc::new(Shared {
                is_changed: AtomicBool::new(false),
                settings: Mutex::new(Arc::clone(&settings)),
                seed,
                gauges: Gauges::default(),
            }),
            settings,
        }
    }

    /// The link of a handle once more, for a lane that is opened anew: it goes on with the seed and the counts of the one before,
    /// which must be [abandoned](Stage::abandon). Its random decisions begin anew.
    pub(crate) fn resume(handle: &LinkHandle, settings: Settings, name: &str) -> Self {
        handle.replace(settings);
        let shared = Arc::clone(&handle.shared);
        shared.is_changed.store(false, Ordering::Relaxed);
        let settings = shared.settings();
        Self {
            seed: settings.seed.unwrap_or(shared.seed),
            arena: Arena::new(settings.memory),
            settings,
            shared,
            ..Self::new(Settings::default(), name)
        }
    }

    /// To change it and to look at it, later and from elsewhere.
    pub fn handle(&self) -> LinkHandle {
        LinkHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes over settings that have come. What is held goes on.
    #[cold]
    fn change(&mut self, turn: &mut Turn) {
        self.shared.is_changed.store(false, Ordering::Relaxed);
        let new = self.shared.settings();
        let old = std::mem::replace(&mut self.settings, Arc::clone(&new));
        let seed = new.seed.unwrap_or(self.shared.seed);
        let reseed = (seed != self.seed) || (new.seed.is_some() && new.seed != old.seed);
        self.seed = seed;
        self.arena.set_limit(new.memory);
        if let Some(path) = &mut self.path {
            let mut cx = Context {
                arena: &mut self.arena,
                tally: turn.tally,
                gauges: &self.shared.gauges,
            };
            path.run(turn.now_ns, &mut cx);
            path.set(&new, &self.name, (seed, reseed), turn.now_ns, &mut cx);
        }
    }

    /// Takes a frame in: cuts it if it is a super-frame, and copies it out of the pool.
    fn take(&mut self, frame: Frame, turn: &mut Turn) {
        let meta = *turn.pool.meta(&frame);
        // Stamps of the kernel, in order. A frame may have come a little after the turn's beginning.
        let at_ns = meta.arrival_ns.min(turn.now_ns + AHEAD_NS);
        let at_ns = at_ns.max(self.last_arrival_ns);
        self.last_arrival_ns = at_ns;
        let Some(path) = &mut self.path else {
            // Not reached: the turn made it.
            return turn.discard(frame, Reason::Stopped);
        };
        let mut cx = Context {
            arena: &mut self.arena,
            tally: turn.tally,
            gauges: &self.shared.gauges,
        };
        let bytes = turn.pool.bytes(&frame);
        if meta.offload.is_gso() {
            let gso = meta.offload.gso();
            let segments = gso.and_then(|gso| Segmenter::new(bytes, gso).ok());
            // What was counted on arrival must be what leaves.
            let Some(segments) =
                segments.filter(|segments| segments.count() == meta.segments as usize)
            else {
                return turn.discard(frame, Reason::GsoUnsupported);
            };
            self.scratch.resize(segments.largest(), 0);
            for index in 0..segments.count() {
                match segments.write(index, &mut self.scratch) {
                    Some(len) => {
                        let segment = &self.scratch[..len];
                        match cx.arena.push(segment, Offload::default()) {
                            Some(packet) => path.offer(packet, at_ns, &mut cx),
                            None => cx.tally.dropped[Reason::LinkMemory as usize] += 1,
                        }
                    }
                    None => cx.tally.dropped[Reason::GsoUnsupported as usize] += 1,
                }
            }
        } else {
            match cx.arena.push(bytes, meta.offload) {
                Some(packet) => path.offer(packet, at_ns, &mut cx),
                None => cx.tally.dropped[Reason::LinkMemory as usize] += 1,
            }
        }
        turn.pool.free(frame);
    }

    /// Copies what has arrived into the burst, as much as can leave.
    fn release(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let Some(path) = &mut self.path else { return };
        let mut cx = Context {
            arena: &mut self.arena,
            tally: turn.tally,
            gauges: &self.shared.gauges,
        };
        path.run(turn.now_ns, &mut cx);
        for _ in 0..turn.room.min(Burst::MIN) {
            let Some((packet, due_ns)) = path.pop() else {
                break;
            };
            let Some(frame) = turn.pool.alloc(packet.len()) else {
                path.unpop(packet, due_ns);
                break;
            };
            self.arena.read(&packet, turn.pool.bytes_mut(&frame));
            let meta = turn.pool.meta_mut(&frame);
            // A link behind this one counts from when it should have had the packet, however late this turn is.
            (meta.offload, meta.arrival_ns) = (packet.offload, due_ns);
            self.arena.free(packet);
            self.released.push(due_ns);
            burst.push(frame);
        }
        let gauges = &self.shared.gauges;
        let (packets, bytes) = path.backlog();
        gauges.queue_packets.store(packets, Ordering::Relaxed);
        gauges.queue_bytes.store(bytes, Ordering::Relaxed);
        let memory = self.arena.bytes();
        gauges.memory_bytes.store(memory, Ordering::Relaxed);
    }
}

impl Stage for Link {
    fn process(&mut self, burst: &mut Burst, turn: &mut Turn) {
        // Who turns lanes and stamps none of them gets what can be known without.
        self.departed(turn.now_ns);
        if self.shared.is_changed.load(Ordering::Relaxed) {
            self.change(turn);
        }
        if self.path.is_none() {
            let path = Path::new(&self.settings, &self.name, self.seed, turn.now_ns);
            self.path = Some(path);
        }
        for frame in burst.drain() {
            self.take(frame, turn);
        }
        self.release(burst, turn);
    }

    fn is_queue(&self) -> bool {
        true
    }

    fn held(&self) -> u64 {
        self.arena.packets()
    }

    fn due_ns(&self) -> Option<u64> {
        self.path.as_ref().and_then(Path::due_ns)
    }

    fn departed(&mut self, now_ns: u64) {
        for due_ns in self.released.drain(..) {
            let late_ns = now_ns.saturating_sub(due_ns);
            self.shared.gauges.lateness.record(late_ns);
        }
    }

    fn link(&self) -> Option<LinkHandle> {
        Some(self.handle())
    }

    fn abandon(&mut self, turn: &mut Turn) {
        turn.tally.dropped[Reason::Stopped as usize] += self.arena.clear();
        self.path = None;
        self.shared.gauges.empty();
    }
}

impl LinkHandle {
    /// Gives the link other settings: they hold from its next turn on, and what is held goes on.
    ///
    /// # Errors
    /// What can't be, one sentence each; nothing changes then.
    pub fn set(&self, settings: Settings) -> Result<(), Vec<String>> {
        let mistakes = settings.mistakes();
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        self.replace(settings);
        Ok(())
    }

    /// The same for settings that have been checked.
    pub(crate) fn replace(&self, settings: Settings) {
        // A panic of another thread leaves a whole value.
        let place = self.shared.settings.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.shared.is_changed.store(true, Ordering::Release);
    }

    /// The settings now.
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings()
    }

    /// What it has done, and what is in it.
    pub fn snapshot(&self) -> LinkSnapshot {
        let gauges = &self.shared.gauges;
        let settings = self.settings();
        LinkSnapshot {
            settings: settings.to_string(),
            seed: settings.seed.unwrap_or(self.shared.seed),
            marked: gauges.marked.load(Ordering::Relaxed),
            corrupted: gauges.corrupted.load(Ordering::Relaxed),
            reordered: gauges.reordered.load(Ordering::Relaxed),
            queue_packets: gauges.queue_packets.load(Ordering::Relaxed),
            queue_bytes: gauges.queue_bytes.load(Ordering::Relaxed),
            memory_bytes: gauges.memory_bytes.load(Ordering::Relaxed),
            lateness: gauges.lateness.snapshot(),
        }
    }
}

impl LinkSnapshot {
    /// What has come since an earlier one.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        Self {
            marked: self.marked.saturating_sub(earlier.marked),
            corrupted: self.corrupted.saturating_sub(earlier.corrupted),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            lateness: self.lateness.since(&earlier.lateness),
            ..self
        }
    }
}

impl Shared {
    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
