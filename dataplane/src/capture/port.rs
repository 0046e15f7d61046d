//! A tap at a port whose frames the kernel carries: a thread that takes what a packet socket sees and gives it to the tap.
//!
//! Started by [`Relay::observe`](crate::relay::Relay::observe), ended when its observation is, or the kernel no longer carries the pair.
//! Forwarding does not wait for it: what the thread is too slow for is lost to the tap, and counted there.

use std::{
    io,
    os::fd::AsFd,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};

use crate::{
    burst::Burst,
    error::{Error, Result},
    lane::Turn,
    memory::{FramePool, PoolSize},
    port::{RxQueue, packet::PacketRx},
    stage::tap::Tap,
    stats::Tally,
    sys::event::{Poller, Wake},
};

/// Buffers for the frames of a burst. Few super-frames are in one.
const POOL: PoolSize = PoolSize {
    small: 2 * Burst::MIN,
    large: 16,
};

/// A thread with a tap. Dropping it ends both.
pub(crate) struct PortTap {
    tap: u64,
    /// Another socket, after its interface was created anew. Gone: the end.
    sockets: Option<Sender<PacketRx>>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl PortTap {
    /// Starts to take frames. `epoch`: when the clock of the relay's lanes was 0.
    pub(crate) fn start(rx: PacketRx, tap: Tap, epoch: Instant) -> Result<Self> {
        let failed = |error| Error::system("start", "a thread for the capture", error, "");
        let pool = FramePool::ordinary(POOL)?;
        let wake = Arc::new(Wake::new().map_err(failed)?);
        let (send, sockets) = unbounded();
        let id = tap.id();
        let looker = Looker {
            rx,
            tap: tap.at_arrival(),
            pool,
            epoch,
            sockets,
            wake: Arc::clone(&wake),
        };
        let thread = thread::Builder::new().name("l2relay-tap".into());
        let thread = thread.spawn(move || looker.run()).map_err(failed)?;
        Ok(Self {
            tap: id,
            sockets: Some(send),
            wake,
            thread: Some(thread),
        })
    }

    /// The [id](Tap::id) of its tap.
    pub(crate) fn tap(&self) -> u64 {
        self.tap
    }

    /// Goes on with another socket.
    pub(crate) fn follow(&self, rx: PacketRx) {
        // Fails only when nobody looks any more.
        let _ = self.sockets.as_ref().map(|sockets| sockets.send(rx));
        self.wake.wake();
    }
}

impl Drop for PortTap {
    fn drop(&mut self) {
        self.sockets = None;
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Looker {
    rx: PacketRx,
    tap: Tap,
    pool: FramePool,
    epoch: Instant,
    sockets: Receiver<PacketRx>,
    wake: Arc<Wake>,
}

impl Looker {
    fn run(mut self) {
        let (mut burst, mut tally) = (Burst::new(), Tally::default());
        let mut poller = Poller::default();
        let mut closing = false;
        while !self.tap.is_abandoned() {
            let mut turn = Turn {
                pool: &mut self.pool,
                tally: &mut tally,
                now_ns: self.epoch.elapsed().as_nanos() as u64,
                room: Burst::MIN,
            };
            self.rx.rx_burst(&mut burst, Burst::MIN, &mut turn);
            self.tap.copy(&burst, &turn);
            let idle = burst.is_empty();
            burst.drain().for_each(|frame| turn.pool.free(frame));
            let unseen =
                self.rx.kernel_drops() + std::mem::take(&mut tally).dropped.iter().sum::<u64>();
            self.tap.miss(unseen);
            if !idle {
                continue;
            }
            match self.sockets.try_recv() {
                Ok(rx) => self.rx = rx,
                Err(TryRecvError::Disconnected) if closing => return,
                Err(TryRecvError::Disconnected) => {
                    // What the socket has seen until now is still taken.
                    self.rx.close();
                    closing = true;
                }
                Err(TryRecvError::Empty) => {
                    if let Err(error) = self.wait(&mut poller) {
                        return tracing::error!("a capture has ended: {error}");
                    }
                }
            }
        }
    }

    fn wait(&mut self, poller: &mut Poller) -> io::Result<()> {
        let fds: Vec<_> = self
            .rx
            .wait_fd()
            .into_iter()
            .chain([self.wake.as_fd()])
            .collect();
        let ready = poller.wait(&fds, None)?;
        let failed = ready.first().is_some_and(|first| first.error());
        self.wake.clear();
        if failed {
            self.rx.clear_error();
        }
        Ok(())
    }
}
