//! The control side: what happens beside the packet path, in threads of its own that never slow a worker.
//!
//! [`Control`] is the program's main thread: signals, timers and the control [socket](server). Links are followed in a thread that
//! [`Relay`](crate::relay::Relay) has for itself.

pub mod client;
#[cfg(feature = "program")]
pub mod http;
pub(crate) mod links;
pub mod place;
pub mod protocol;
pub mod server;

use std::{
    io,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use self::{
    protocol::Request,
    server::{Answer, Server},
};
use crate::{
    error::{Error, Result},
    sys::signal::{Signal, Signals},
};

/// What the program's main thread waits for: signals, the time to show statistics, and requests.
pub struct Control {
    poll: Poll,
    signals: Signals,
    server: Option<Server>,
    show: Option<Timer>,
    tick: Option<Timer>,
}

/// Something that is due at intervals.
struct Timer {
    interval: Duration,
    next: Instant,
}

impl Timer {
    fn new(interval: Duration) -> Self {
        let next = Instant::now() + interval;
        Self { interval, next }
    }

    /// Whether it is due; then it is due again an interval after that.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next <= now;
        if due {
            // From when it was due, so that lateness does not add up; but no burst after a long sleep.
            self.next = (self.next + self.interval).max(now);
        }
        due
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Show statistics: SIGUSR1 came, or it is time.
    Show,
    /// It is time for what [`Control::tick_every`] was for.
    Tick,
    /// Read the configuration again: SIGHUP came.
    Reload,
    /// Stop: SIGINT or SIGTERM, whose number it carries, or a request came.
    Stop(Option<i32>),
}

/// How often to try to accept clients when there are no descriptors for them.
const STUCK: Duration = Duration::from_millis(200);
const SIGNALS: Token = Token(0);
/// The first of the server's tokens.
const SERVER: usize = 1;

impl Control {
    /// Takes the signals over, from this thread and all that it starts; SIGHUP only if there is something to `reload`.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new(reload: bool) -> Result<Self> {
        let failed = |source| {
            Error::system(
                "wait for",
                "signals",
                source,
                "raise the limit on open files (ulimit -n)",
            )
        };
        let signals = Signals::block(reload).map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry()
            .register(&mut source, SIGNALS, Interest::READABLE)
            .map_err(failed)?;
        Ok(Self {
            poll,
            signals,
            server: None,
            show: None,
            tick: None,
        })
    }

    /// From now on it is time to show statistics every so many seconds, or never.
    pub fn show_every(&mut self, seconds: Option<f64>) {
        self.show = seconds.map(|seconds| Timer::new(Duration::from_secs_f64(seconds)));
    }

    /// From now on a wait ends at least that often.
    pub fn tick_every(&mut self, interval: Option<Duration>) {
        self.tick = interval.map(Timer::new);
    }

    /// From now on requests are answered.
    ///
    /// # Errors
    /// The kernel does not let us wait for them.
    pub fn serve(&mut self, mut server: Server) -> Result<()> {
        server
            .register(self.poll.registry(), SERVER)
            .map_err(|source| Error::system("wait for", "control requests", source, ""))?;
        self.server = Some(server);
        Ok(())
    }

    /// Blocks until there is something to do; has requests answered meanwhile. After [`Request::Stop`] it is time to stop.
    ///
    /// # Errors
    /// Waiting itself fails.
    pub fn wait(&mut self, mut answer: impl FnMut(Request) -> Answer) -> Result<Wait> {
        let failed = |source| Error::system("wait for", "signals", source, "");
        let mut events = Events::with_capacity(64);
        loop {
            match self.signals.next().map_err(failed)? {
                Some(Signal::User1) => return Ok(Wait::Show),
                Some(Signal::HangUp) => return Ok(Wait::Reload),
                Some(Signal::Interrupt) => return Ok(Wait::Stop(Some(libc::SIGINT))),
                Some(Signal::Terminate) => return Ok(Wait::Stop(Some(libc::SIGTERM))),
                None => {}
            }
            let mut busy = false;
            if let Some(server) = &mut self.server {
                let mut stop = false;
                busy = server.turn(self.poll.registry(), &mut |request| {
                    stop |= request == Request::Stop {};
                    answer(request)
                });
                if stop {
                    return Ok(Wait::Stop(None));
                }
            }
            let now = Instant::now();
            let timers = [(&mut self.show, Wait::Show), (&mut self.tick, Wait::Tick)];
            for (timer, wait) in timers {
                if timer.as_mut().is_some_and(|timer| timer.is_due(now)) {
                    return Ok(wait);
                }
            }
            let timers = self.show.iter().chain(&self.tick);
            let server = self.server.as_ref().and_then(Server::deadline);
            let next = timers.map(|timer| timer.next).chain(server).min();
            let mut timeout = next.map(|next| next.saturating_duration_since(now));
            if busy {
                timeout = Some(Duration::ZERO);
            } else if self.server.as_ref().is_some_and(Server::is_stuck) {
                timeout = Some(timeout.map_or(STUCK, |timeout| timeout.min(STUCK)));
            }
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(failed)?,
            }
            if let Some(server) = &mut self.server {
                let news = events.iter().map(|event| event.token());
                news.filter(|token| *token != SIGNALS)
                    .for_each(|token| server.news(token));
            }
        }
    }
}
