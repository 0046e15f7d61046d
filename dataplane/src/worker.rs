//! Workers: pinned threads that turn their lanes.
//!
//! A [`Worker`] is the handle that the control thread holds. It talks to the thread by commands, which the thread takes
//! between two turns: so lanes need no lock.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};

use crate::{
    activity::{Activity, ActivityCounters},
    error::{Error, Result},
    idle::IdlePolicy,
    lane::Lane,
    stage::{Stage, tap::Tap},
    sys::event::{Poller, Wake, exact_timeouts},
};

/// Names a lane for as long as the relay runs.
pub type LaneId = usize;

/// A running worker thread.
#[derive(Debug)]
pub struct Worker {
    commands: Sender<Command>,
    mail: Arc<Mail>,
    thread: JoinHandle<()>,
    activity: Arc<ActivityCounters>,
}

/// How the control thread gets a worker's attention.
#[derive(Debug)]
struct Mail {
    /// A command waits. Looked at once a turn, so it is one relaxed load there.
    flag: AtomicBool,
    wake: Wake,
}

enum Command {
    Add(LaneId, Box<Lane>),
    /// Closes lanes, forwards what they hold, and hands them back.
    Remove(Vec<LaneId>, Sender<Vec<(LaneId, Box<Lane>)>>),
    /// Puts a tap into a lane, and says so.
    AddTap(LaneId, Tap, Sender<()>),
    /// Takes a tap out and hands it back, so that its memory is given back in the other thread.
    RemoveTap(LaneId, u64, Sender<Option<Tap>>),
    /// Hands lanes back as they are.
    Take(Vec<LaneId>, Sender<Vec<(LaneId, Box<Lane>)>>),
    /// Gives a lane other stages, where they hold no frames.
    Edit(LaneId, Vec<Box<dyn Stage>>),
    /// Waits in another way from now on.
    Idle(IdlePolicy),
    /// Adds a stage behind the others of a lane.
    PushStage(LaneId, Box<dyn Stage>),
    /// Publishes every counter, those of the kernel included, and says so.
    Refresh(Sender<()>),
}

/// How long a closed lane may take to send what it holds. What is left then is counted `stopped`.
const DRAIN: Duration = Duration::from_millis(100);
/// How long before a held frame is due a worker stops sleeping and looks at the clock instead.
///
/// A wake-up comes late by that much at times: tens to hundreds of us on a virtual machine.
const VIGIL: Duration = Duration::from_micros(200);
/// How often a busy worker asks the kernel what it dropped.
const REFRESH: Duration = Duration::from_millis(100);

impl Worker {
    /// Starts a thread on `core`, or wherever the kernel likes. It ends when the handle is dropped or stopped.
    ///
    /// # Errors
    /// The thread can't be made, or not be pinned.
    pub fn start(
        name: String,
        core: Option<usize>,
        idle: IdlePolicy,
        epoch: Instant,
    ) -> Result<Self> {
        let failed = |source| {
            Error::system(
                "start a worker",
                &name,
                source,
                "raise the limit on threads (ulimit -u)",
            )
        };
        let mail = Arc::new(Mail {
            flag: AtomicBool::new(false),
            wake: Wake::new().map_err(failed)?,
        });
        let activity = Arc::<ActivityCounters>::default();
        let (commands, inbox) = unbounded();
        let (pinned, is_pinned) = unbounded();
        let turner = Turner {
            lanes: Vec::new(),
            inbox,
            mail: Arc::clone(&mail),
            activity: Activity::default(),
            counters: Arc::clone(&activity),
            idle,
            epoch,
        };
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let ok = core
                    .is_none_or(|id| core_affinity::set_for_current(core_affinity::CoreId { id }));
                if pinned.send(ok).is_ok() && ok {
                    turner.run();
                }
            })
            .map_err(failed)?;
        if is_pinned.recv() != Ok(true) {
            let refused = io::Error::from_raw_os_error(libc::EINVAL);
            let core = format!("{name} to core {}", core.unwrap_or_default());
            return Err(Error::system(
                "pin",
                core,
                refused,
                "name another core with --cores",
            ));
        }
        Ok(Self {
            commands,
            mail,
            thread,
            activity,
        })
    }

    /// What it does with its time, as it was published last.
    pub fn activity(&self) -> Activity {
        self.activity.read()
    }

    /// Gives the worker a lane to turn.
    pub fn add(&self, id: LaneId, lane: Box<Lane>) {
        self.send(Command::Add(id, lane));
    }

    /// Takes lanes away. They take in nothing more, send what they hold, and come back finished.
    pub fn remove(&self, ids: Vec<LaneId>) -> Vec<(LaneId, Box<Lane>)> {
        let (reply, lanes) = unbounded();
        self.send(Command::Remove(ids, reply));
        lanes.recv().unwrap_or_default()
    }

    /// Puts a tap into a lane; what is returned says when it is there. If the worker does not have the lane, the tap's observer finds
    /// it gone.
    pub fn add_tap(&self, lane: LaneId, tap: Tap) -> Receiver<()> {
        let (reply, done) = bounded(1);
        self.send(Command::AddTap(lane, tap, reply));
        done
    }

    /// Takes the tap of that id out of a lane, and waits for it: it copies nothing any more.
    pub fn remove_tap(&self, lane: LaneId, tap: u64) {
        /// A worker that takes longer does not turn.
        const PATIENCE: Duration = Duration::from_secs(1);
        let (reply, removed) = bounded(1);
        self.send(Command::RemoveTap(lane, tap, reply));
        drop(removed.recv_timeout(PATIENCE));
    }

    /// Takes lanes away as they are, for another worker. Frames wait meanwhile.
    pub fn take(&self, ids: Vec<LaneId>) -> Vec<(LaneId, Box<Lane>)> {
        let (reply, lanes) = unbounded();
        self.send(Command::Take(ids, reply));
        lanes.recv().unwrap_or_default()
    }

    /// Exchanges a lane's stages between two turns; those that hold frames stay.
    pub fn edit(&self, id: LaneId, edits: Vec<Box<dyn Stage>>) {
        self.send(Command::Edit(id, edits));
    }

    /// Has it wait in another way from now on.
    pub fn set_idle(&self, idle: IdlePolicy) {
        self.send(Command::Idle(idle));
    }

    /// Adds a stage behind the others of a lane.
    pub fn push_stage(&self, id: LaneId, stage: Box<dyn Stage>) {
        self.send(Command::PushStage(id, stage));
    }

    /// Has it turn its lanes now, even if it sleeps.
    pub fn wake(&self) {
        self.mail.ring();
    }

    /// Has the counters of all lanes published, those of the kernel included. What is returned says when it is done.
    pub fn refresh(&self) -> Receiver<()> {
        let (reply, done) = bounded(1);
        self.send(Command::Refresh(reply));
        done
    }

    /// Ends threads, all at the same time. Lanes that they still have are finished first.
    pub fn stop(workers: impl IntoIterator<Item = Self>) {
        let order = |worker: Self| {
            // A closed channel is the order to stop.
            drop(worker.commands);
            worker.mail.ring();
            worker.thread
        };
        let threads: Vec<_> = workers.into_iter().map(order).collect();
        threads.into_iter().for_each(|thread| {
            let _ = thread.join();
        });
    }

    fn send(&self, command: Command) {
        // The thread ends only after this handle: somebody is listening.
        let _ = self.commands.send(command);
        self.mail.ring();
    }
}

impl Mail {
    fn ring(&self) {
        self.flag.store(true, Ordering::Release);
        self.wake.wake();
    }
}

/// The thread's side.
struct Turner {
    lanes: Vec<(LaneId, Box<Lane>)>,
    inbox: Receiver<Command>,
    mail: Arc<Mail>,
    activity: Activity,
    counters: Arc<ActivityCounters>,
    idle: IdlePolicy,
    epoch: Instant,
}

impl Turner {
    fn run(mut self) {
        exact_timeouts();
        let mut poller = Poller::default();
        let start_ns = self.now_ns();
        let (mut last_frame, mut last_refresh) = (start_ns, start_ns);
        // When the turn before began, and whether it moved anything: how long it took is known when the next one begins.
        let (mut began_ns, mut moved) = (start_ns, 0);
        loop {
            if self.mail.flag.load(Ordering::Relaxed) && !self.read_mail() {
                return;
            }

            let now_ns = self.now_ns();
            self.activity.turn(now_ns - began_ns, moved > 0);
            (began_ns, moved) = (now_ns, self.turn_all(now_ns));

            if moved > 0 {
                last_frame = now_ns;
                if now_ns - last_refresh > REFRESH.as_nanos() as u64 {
                    last_refresh = now_ns;
                    self.refresh();
                }
            } else if self.lanes.is_empty()
                || self
                    .idle
                    .patience()
                    .is_some_and(|patience| now_ns - last_frame >= patience.as_nanos() as u64)
            {
                self.sleep(&mut poller, now_ns);
                began_ns = self.now_ns();
                self.activity.asleep_ns += began_ns - now_ns;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Turns every lane once. Returns how many frames moved.
    fn turn_all(&mut self, mut now_ns: u64) -> usize {
        let mut moved = 0;
        for (_, lane) in &mut self.lanes {
            let frames = lane.turn(now_ns);
            if frames > 0 {
                self.activity.burst(frames);
                moved += frames;
            }
            if lane.is_timed() {
                // The others need not be late because this one took its time.
                now_ns = self.epoch.elapsed().as_nanos() as u64;
                lane.departed(now_ns);
            }
        }
        moved
    }

    /// Blocks until a frame, a command or a held frame's time comes. Just before that time it does not block.
    fn sleep(&mut self, poller: &mut Poller, now_ns: u64) {
        /// A port without a descriptor to wait on is looked at this often.
        const LOOK: Duration = Duration::from_millis(1);
        let lanes = || self.lanes.iter().map(|(_, lane)| &**lane);
        let vigil_ns = match self.idle {
            IdlePolicy::Sleep => 0,
            IdlePolicy::Adaptive | IdlePolicy::Spin => VIGIL.as_nanos() as u64,
        };
        let appointment = lanes().filter_map(Lane::appointment_ns).min();
        let appointment = appointment.map(|due_ns| due_ns.saturating_sub(vigil_ns));
        if vigil_ns > 0 && appointment.is_some_and(|from_ns| from_ns <= now_ns) {
            return std::hint::spin_loop();
        }
        let retry = lanes().filter_map(|lane| lane.retry_ns(now_ns)).min();
        let due = appointment.into_iter().chain(retry).min();
        let mut timeout = due.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        let mut fds = vec![self.mail.wake.as_fd()];
        for (_, lane) in &self.lanes {
            match lane.wait_fd() {
                Some(fd) => fds.push(fd),
                None => timeout = Some(timeout.map_or(LOOK, |timeout| timeout.min(LOOK))),
            }
        }
        // A wait that fails ends at once: the next turn sees what there is.
        let failed = poller
            .wait(&fds, timeout)
            .is_ok_and(|ready| ready.iter().any(|fd| fd.error()));
        if failed {
            self.lanes
                .iter_mut()
                .for_each(|(_, lane)| lane.clear_error());
        }
    }

    /// Obeys every command. `false`: the handle is gone, stop.
    #[cold]
    fn read_mail(&mut self) -> bool {
        self.mail.wake.clear();
        // Cleared before the inbox is read: a command that comes later sets it again.
        self.mail.flag.store(false, Ordering::Release);
        loop {
            match self.inbox.try_recv() {
                Ok(Command::Add(id, lane)) => self.lanes.push((id, lane)),
                Ok(Command::Remove(ids, reply)) => {
                    let taken = self.take(&ids);
                    let _ = reply.send(self.finish(taken));
                }
                Ok(Command::PushStage(id, stage)) => {
                    let lane = self.lanes.iter_mut().find(|(other, _)| *other == id);
                    if let Some((_, lane)) = lane {
                        lane.push_stage(stage);
                    }
                }
                Ok(Command::AddTap(id, tap, reply)) => {
                    if let Some(lane) = self.lane(id) {
                        lane.add_tap(tap);
                    }
                    let _ = reply.send(());
                }
                Ok(Command::RemoveTap(id, tap, reply)) => {
                    let removed = self.lane(id).and_then(|lane| lane.remove_tap(tap));
                    let _ = reply.send(removed);
                }
                Ok(Command::Take(ids, reply)) => {
                    let _ = reply.send(self.take(&ids));
                }
                Ok(Command::Edit(id, edits)) => {
                    if let Some((_, lane)) = self.lanes.iter_mut().find(|(of, _)| *of == id) {
                        lane.edit(edits);
                    }
                }
                Ok(Command::Idle(idle)) => self.idle = idle,
                Ok(Command::Refresh(reply)) => {
                    self.refresh();
                    let _ = reply.send(());
                }
                Err(error) if error.is_empty() => return true,
                Err(_) => {
                    let lanes = std::mem::take(&mut self.lanes);
                    close(self.finish(lanes));
                    return false;
                }
            }
        }
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane> {
        let lane = self.lanes.iter_mut().find(|(there, _)| *there == id);
        lane.map(|(_, lane)| &mut **lane)
    }

    fn refresh(&mut self) {
        self.lanes.iter_mut().for_each(|(_, lane)| lane.refresh());
        self.counters.publish(&self.activity);
    }

    fn take(&mut self, ids: &[LaneId]) -> Vec<(LaneId, Box<Lane>)> {
        let taken = self.lanes.extract_if(.., |(id, _)| ids.contains(id));
        taken.collect()
    }

    /// Closes lanes and turns them until they are empty; the others go on meanwhile.
    fn finish(&mut self, mut lanes: Vec<(LaneId, Box<Lane>)>) -> Vec<(LaneId, Box<Lane>)> {
        lanes.iter_mut().for_each(|(_, lane)| lane.close());
        let deadline = self.now_ns() + DRAIN.as_nanos() as u64;
        loop {
            let now_ns = self.now_ns();
            let moved: usize = lanes.iter_mut().map(|(_, lane)| lane.turn(now_ns)).sum();
            self.turn_all(now_ns);
            if (moved == 0 && lanes.iter().all(|(_, lane)| !lane.is_holding())) || now_ns > deadline
            {
                lanes.iter_mut().for_each(|(_, lane)| lane.finish(now_ns));
                return lanes;
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// Closes lanes side by side. For each packet socket the kernel waits until no CPU can still be in it (net/packet/af_packet.c,
/// packet_release: synchronize_net), which takes tens of milliseconds, however many wait: 64 lanes each way would take
/// 11 s one after the other.
fn close(lanes: Vec<(LaneId, Box<Lane>)>) {
    thread::scope(|scope| {
        for lane in lanes {
            // Without a thread it is closed here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(lane));
        }
    });
}
