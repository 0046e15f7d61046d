//! One direction between two ports. **Start reading here.**
//!
//! A [`Lane`] owns the receive half of one port, the transmit half of another, the stages between, and the frames that
//! circulate in it. A [worker](crate::worker) turns its lanes, over and over.

use std::{os::fd::BorrowedFd, sync::Arc};

use crate::{
    burst::Burst,
    memory::{Frame, FramePool},
    port::{Nowhere, RxQueue, TxQueue},
    stage::{
        Stage,
        tap::{Point, Tap},
    },
    stats::{Counters, Levels, Reason, Tally},
};

/// One direction between two ports.
pub struct Lane {
    rx: Box<dyn RxQueue>,
    stages: Vec<Box<dyn Stage>>,
    tx: Box<dyn TxQueue>,
    /// Before the stages and behind them: captures that run.
    taps: [Vec<Tap>; 2],
    pool: FramePool,
    burst: Burst,
    tally: Tally,
    counters: Arc<Counters>,
}

/// What everybody who touches frames in a turn may use: the lane's pool and tally, and the time.
pub struct Turn<'a> {
    /// The lane's frames.
    pub pool: &'a mut FramePool,
    /// The lane's counters.
    pub tally: &'a mut Tally,
    /// The lane's clock, in ns. Stages take the time from here, so that tests can run on a virtual clock.
    pub now_ns: u64,
    /// Frames that the transmit side takes this turn.
    pub room: usize,
}

impl Turn<'_> {
    /// Frees a frame and counts it: nothing disappears uncounted.
    pub fn discard(&mut self, frame: Frame, reason: Reason) {
        self.tally.dropped[reason as usize] += u64::from(self.pool.meta(&frame).segments);
        self.pool.free(frame);
    }
}

impl Lane {
    /// A lane from `rx` through `stages` to `tx`, with `pool` for its frames.
    pub fn new(
        rx: Box<dyn RxQueue>,
        stages: Vec<Box<dyn Stage>>,
        tx: Box<dyn TxQueue>,
        pool: FramePool,
    ) -> Self {
        let (burst, tally) = (Burst::new(), Tally::default());
        Self {
            rx,
            stages,
            tx,
            taps: Default::default(),
            pool,
            burst,
            tally,
            counters: Arc::default(),
        }
    }

    /// **The hot loop**: one burst in, through, out. Returns how many frames moved.
    ///
    /// Frames are sent at the end of the turn that received them; none waits for a fuller burst. Under overload the
    /// turn takes in what the transmit side accepts and leaves the rest in the kernel, which drops it at no cost to us.
    pub fn turn(&mut self, now_ns: u64) -> usize {
        let room = self.tx.room();
        let mut turn = Turn {
            pool: &mut self.pool,
            tally: &mut self.tally,
            now_ns,
            room,
        };

        // A stage that holds frames is a queue of its own: it is fed always, and decides itself what it drops.
        let limit = if self.stages.iter().any(|stage| stage.is_queue()) {
            Burst::MAX
        } else {
            room.min(Burst::MAX)
        };
        self.rx.rx_burst(&mut self.burst, limit, &mut turn);
        let received = self.burst.len();
        let [before, after] = &mut self.taps;
        before
            .iter_mut()
            .for_each(|tap| tap.copy(&self.burst, &turn));

        for stage in &mut self.stages {
            stage.process(&mut self.burst, &mut turn);
        }
        after
            .iter_mut()
            .for_each(|tap| tap.copy(&self.burst, &turn));

        let offered = self.burst.len();
        self.tx.tx_burst(&mut self.burst, &mut turn);
        for frame in self.burst.drain() {
            turn.discard(frame, Reason::TxFull);
        }

        let moved = received.max(offered);
        if moved > 0 || self.tally.held > 0 {
            self.publish();
        }
        moved
    }

    /// When the lane wants its next turn even if no frame comes, in ns of its clock. `None`: no need.
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        /// How long to leave a transmit side alone that did not take a frame.
        const RETRY_NS: u64 = 50_000;
        let retry = (self.tx.held() > 0).then_some(now_ns + RETRY_NS);
        self.stages
            .iter()
            .filter_map(|stage| stage.due_ns())
            .chain(retry)
            .min()
    }

    /// What an idle worker waits on until a frame comes; `None`: it must look from time to time.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.rx.wait_fd()
    }

    /// Called when a wait ended with an error condition.
    pub fn clear_error(&mut self) {
        self.rx.clear_error();
    }

    /// Whether packets are inside.
    pub fn is_holding(&self) -> bool {
        self.tally.held > 0
    }

    /// Where the lane publishes what it counts.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The lane's frames, for tests: `pool().outstanding()` is [`Lane::lent`] when nothing is held.
    pub fn pool(&self) -> &FramePool {
        &self.pool
    }

    /// Buffers that the kernel has, to receive into and to send from.
    pub fn lent(&self) -> usize {
        self.rx.lent() + self.tx.lent()
    }

    /// Asks the kernel what it dropped and publishes all counters. Costs a system call: not for every turn.
    pub fn refresh(&mut self) {
        self.tally.kernel_drops += self.rx.kernel_drops();
        self.publish();
        let size = self.pool.size();
        self.counters.publish_levels(Levels {
            pool_used: self.pool.outstanding() as u64,
            pool_size: (size.small + size.large) as u64,
            tx_room: self.tx.room() as u64,
        });
    }

    /// Stops taking in; the turns after it forward what had arrived.
    pub fn close(&mut self) {
        self.rx.close();
    }

    /// Discards whatever is still held (`stopped`), and publishes for the last time.
    pub fn finish(&mut self, now_ns: u64) {
        let mut turn = Turn {
            pool: &mut self.pool,
            tally: &mut self.tally,
            now_ns,
            room: 0,
        };
        for stage in &mut self.stages {
            stage.abandon(&mut turn);
        }
        self.tx.abandon(&mut turn);
        self.refresh();
    }

    /// Has a tap copy what passes from now on. It stays when the lane is [renewed](Lane::renew).
    pub fn add_tap(&mut self, tap: Tap) {
        let [before, after] = &mut self.taps;
        match tap.point() {
            Point::Before => before.push(tap),
            Point::After => after.push(tap),
        }
    }

    /// Takes the tap of that [id](Tap::id) out, if it is there.
    pub fn remove_tap(&mut self, id: u64) -> Option<Tap> {
        self.taps.iter_mut().find_map(|taps| {
            let at = taps.iter().position(|tap| tap.id() == id)?;
            Some(taps.remove(at))
        })
    }

    /// Lets go of its ports and frames, because an interface was created anew. Only for a lane that is finished.
    pub fn vacate(&mut self) {
        (self.rx, self.tx) = (Box::new(Nowhere), Box::new(Nowhere));
        self.stages.clear();
        self.pool = FramePool::none();
    }

    /// Exchanges everything but the counts. Only for a lane that is finished.
    pub fn renew(
        &mut self,
        rx: Box<dyn RxQueue>,
        stages: Vec<Box<dyn Stage>>,
        tx: Box<dyn TxQueue>,
        pool: FramePool,
    ) {
        (self.rx, self.stages, self.tx, self.pool) = (rx, stages, tx, pool);
    }

    /// Exchanges the stages that hold no frames. Those that do stay behind them.
    pub fn edit(&mut self, edits: Vec<Box<dyn Stage>>) {
        let stages = std::mem::replace(&mut self.stages, edits);
        self.stages
            .extend(stages.into_iter().filter(|stage| stage.is_queue()));
    }

    fn publish(&mut self) {
        self.tally.held =
            self.tx.held() + self.stages.iter().map(|stage| stage.held()).sum::<u64>();
        debug_assert!(self.tally.is_conserved(), "{:?}", self.tally);
        self.counters.publish(&self.tally);
    }
}
