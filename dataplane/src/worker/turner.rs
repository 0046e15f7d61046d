//! The thread of a worker: turns its lanes, obeys commands between two turns, and sleeps when nothing comes.

use std::{
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::Receiver;

use super::{Command, LaneId, Mail};
use crate::{
    activity::{Activity, ActivityCounters},
    idle::{IdlePolicy, Patience},
    lane::Lane,
    sys::event::{Poller, exact_timeouts},
};

/// How long a closed lane may take to send what it holds. What is left then is counted `stopped`.
const DRAIN: Duration = Duration::from_millis(100);
/// How long before a held frame is due a worker stops sleeping and looks at the clock instead.
///
/// A wake-up comes late by that much at times: tens to hundreds of us on a virtual machine.
const VIGIL: Duration = Duration::from_micros(200);
/// How often a busy worker asks the kernel what it dropped.
const REFRESH: Duration = Duration::from_millis(100);

/// The thread's side.
pub(super) struct Turner {
    pub(super) lanes: Vec<(LaneId, Box<Lane>)>,
    pub(super) inbox: Receiver<Command>,
    pub(super) mail: Arc<Mail>,
    pub(super) activity: Activity,
    pub(super) counters: Arc<ActivityCounters>,
    pub(super) patience: Patience,
    pub(super) epoch: Instant,
}

impl Turner {
    /// Turns until the handle is gone.
    pub(super) fn run(mut self) {
        exact_timeouts();
        let mut poller = Poller::default();
        let start_ns = self.now_ns();
        let mut last_refresh = start_ns;
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
                self.patience.moved(now_ns);
                if now_ns - last_refresh > REFRESH.as_nanos() as u64 {
                    last_refresh = now_ns;
                    self.refresh();
                }
            } else if self.may_sleep(now_ns) {
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

    /// Whether to sleep after a turn that found nothing.
    fn may_sleep(&mut self, now_ns: u64) -> bool {
        let over = self.patience.is_over(now_ns);
        let early = || self.awake_from_ns().is_none_or(|from_ns| now_ns < from_ns);
        self.lanes.iter().all(|(_, lane)| lane.is_vacant()) || (over && early())
    }

    /// From when on not to sleep, because the first of the held frames is due.
    fn awake_from_ns(&self) -> Option<u64> {
        let lanes = self.lanes.iter();
        let due_ns = lanes.filter_map(|(_, lane)| lane.appointment_ns()).min()?;
        Some(match self.patience.policy() {
            IdlePolicy::Sleep => due_ns,
            IdlePolicy::Adaptive | IdlePolicy::Spin => {
                due_ns.saturating_sub(VIGIL.as_nanos() as u64)
            }
        })
    }

    /// Blocks until a frame or a command comes, or the time of a held frame is near.
    fn sleep(&mut self, poller: &mut Poller, now_ns: u64) {
        /// A port without a descriptor to wait on is looked at this often.
        const LOOK: Duration = Duration::from_millis(1);
        let lanes = || self.lanes.iter().map(|(_, lane)| &**lane);
        let retry_ns = lanes().filter_map(|lane| lane.retry_ns(now_ns)).min();
        let due = self.awake_from_ns().into_iter().chain(retry_ns).min();
        let mut timeout = due.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        let mut fds = vec![self.mail.wake.as_fd()];
        for lane in lanes().filter(|lane| !lane.is_vacant()) {
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
                Ok(Command::Idle(idle)) => self.patience.set_policy(idle),
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
