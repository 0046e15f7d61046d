//! Workers: pinned threads that turn their lanes.
//!
//! A [`Worker`] is the handle that the control thread holds. It talks to the thread (`turner.rs`) by commands, which the thread takes
//! between two turns: so lanes need no lock.

mod turner;

use std::{
    io,
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
    idle::{IdlePolicy, Patience},
    lane::Lane,
    stage::{Stage, tap::Tap},
    sys::event::Wake,
};

use self::turner::Turner;

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
            patience: Patience::new(idle),
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
