//! One direction between two ports. **Start reading here.**
//!
//! A [`Lane`] owns the receive half of one port, the transmit half of another, the stages between, and the frames that
//! circulate in it. A [worker](crate::worker) turns its lanes, over and over.

use std::{mem, os::fd::BorrowedFd, sync::Arc};

use crate::{
    burst::Burst,
    coalesce::Coalescer,
    memory::{Frame, FramePool},
    port::{Nowhere, RxQueue, TxQueue},
    stage::{
        Stage,
        link::LinkHandle,
        tap::{Point, Tap},
    },
    stats::{Counters, Levels, Reason, Tally},
};

/// One direction between two ports.
pub struct Lane {
    rx: Box<dyn RxQueue>,
    stages: Vec<Box<dyn Stage>>,
    coalescer: Option<Coalescer>,
    tx: Box<dyn TxQueue>,
    /// Before the stages and behind them: captures that run.
    taps: [Vec<Tap>; 2],
    pool: FramePool,
    /// Whether it has let go of its ports.
    vacant: bool,
    burst: Burst,
    /// Most frames that the next turn takes in.
    depth: usize,
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
        let mut lane = Self {
            rx,
            stages,
            coalescer: None,
            tx,
            taps: Default::default(),
            pool,
            vacant: false,
            burst,
            depth: Burst::MIN,
            tally,
            counters: Arc::default(),
        };
        lane.heed_time();
        lane
    }

    /// The same lane, in which frames of a flow that arrive together leave as one. Not behind an emulated link, whose frames
    /// leave one by one.
    pub fn with_coalescer(mut self, coalescer: Coalescer) -> Self {
        let coalescer = coalescer.beside(self.tx.has_plain_way());
        self.coalescer = (!self.is_timed()).then_some(coalescer);
        self
    }

    /// **The hot loop**: one burst in, through, out. Returns how many frames moved.
    ///
    /// Frames are sent at the end of the turn that received them; none waits for a fuller burst. Under overload the
    /// turn takes in what the transmit side accepts and leaves the rest in the kernel, which drops it at no cost to us.
    pub fn turn(&mut self, now_ns: u64) -> usize {
        self.turn_by::<true>(now_ns)
    }

    /// That loop, with or without a place for taps: only the bench that tells what the place costs does without.
    #[doc(hidden)]
    #[inline]
    pub fn turn_by<const TAPS: bool>(&mut self, now_ns: u64) -> usize {
        let room = self.tx.room();
        let is_timed = self.is_timed();
        let mut turn = Turn {
            pool: &mut self.pool,
            tally: &mut self.tally,
            now_ns,
            room,
        };

        // A stage that holds frames is a queue of its own: it is fed always, and decides itself what it drops.
        let limit = if is_timed {
            self.depth
        } else {
            room.min(self.depth)
        };
        self.rx.rx_burst(&mut self.burst, limit, &mut turn);
        let received = self.burst.len();
        let [before, after] = &mut self.taps;
        if TAPS {
            before
                .iter_mut()
                .for_each(|tap| tap.copy(&self.burst, &turn));
        }

        for stage in &mut self.stages {
            stage.process(&mut self.burst, &mut turn);
        }
        if TAPS {
            after
                .iter_mut()
                .for_each(|tap| tap.copy(&self.burst, &turn));
        }

        let offered = self.burst.len();
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.merge(&mut self.burst, &mut turn);
            self.depth = coalescer.depth(self.depth, limit, received);
        }
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

    /// Whether the lane sends at times of its own choice: then its worker says by [`Lane::departed`] when it has.
    pub fn is_timed(&self) -> bool {
        self.stages.iter().any(|stage| stage.is_queue())
    }

    /// What the last turn sent has left, and it is `now_ns`: so a stage learns how late it was.
    pub fn departed(&mut self, now_ns: u64) {
        for stage in &mut self.stages {
            stage.departed(now_ns);
        }
    }

    /// The emulated links in the lane.
    pub fn links(&self) -> Vec<LinkHandle> {
        self.stages
            .iter()
            .filter_map(|stage| stage.link())
            .collect()
    }

    /// Adds a stage behind the others. Behind an emulated link nothing is merged.
    pub fn push_stage(&mut self, stage: Box<dyn Stage>) {
        self.stages.push(stage);
        if self.is_timed() {
            (self.coalescer, self.depth) = (None, Burst::MIN);
        }
        self.heed_time();
    }

    /// Where a stage counts time from the arrival of a frame, that is when the kernel had it.
    fn heed_time(&mut self) {
        if self.is_timed() {
            self.rx.stamp_arrivals();
        }
    }

    /// When a frame that a stage holds is due, in ns of the lane's clock. `None`: none is held.
    pub fn appointment_ns(&self) -> Option<u64> {
        self.stages.iter().filter_map(|stage| stage.due_ns()).min()
    }

    /// When to try again to send what the transmit side did not take. `None`: it took all, or its link is down.
    pub fn retry_ns(&self, now_ns: u64) -> Option<u64> {
        /// How long to leave it alone.
        const RETRY_NS: u64 = 50_000;
        self.tx.wants_retry().then_some(now_ns + RETRY_NS)
    }

    /// Whether it has let go of its ports: nothing comes until it is [renewed](Lane::renew).
    pub fn is_vacant(&self) -> bool {
        self.vacant
    }

    /// What an idle worker waits on until a frame comes; `None`: it must look from time to time, unless the lane is vacant.
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
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.forgo(self.tx.refuses());
        }
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

    /// Takes all taps out: their observers find them gone.
    pub fn remove_taps(&mut self) {
        self.taps.iter_mut().for_each(Vec::clear);
    }

    /// Lets go of its ports and frames, because an interface was created anew, and hands them out. Only for a lane that is finished.
    pub fn vacate(&mut self) -> (Box<dyn RxQueue>, Box<dyn TxQueue>, FramePool) {
        self.stages.clear();
        self.vacant = true;
        (
            mem::replace(&mut self.rx, Box::new(Nowhere)),
            mem::replace(&mut self.tx, Box::new(Nowhere)),
            mem::replace(&mut self.pool, FramePool::none()),
        )
    }

    /// Exchanges everything but the counts and the taps for what a new lane has. Only for a lane that is finished.
    pub fn renew(&mut self, new: Self) {
        let (tally, counters) = (self.tally, Arc::clone(&self.counters));
        let taps = mem::take(&mut self.taps);
        *self = Self {
            tally,
            counters,
            taps,
            ..new
        };
        self.heed_time();
    }

    /// Exchanges the stages that hold no frames. Those that do stay behind them.
    pub fn edit(&mut self, edits: Vec<Box<dyn Stage>>) {
        let stages = mem::replace(&mut self.stages, edits);
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
