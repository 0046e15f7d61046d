//! The control side: what happens beside the packet path, in threads of its own that never slow a worker.

pub(crate) mod links;

use std::{
    io,
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

use crate::{
    error::{Error, Result},
    sys::signal::{Signal, Signals},
};

/// What the program's main thread waits for: signals, and the time to show statistics.
pub struct Control {
    poll: Poll,
    signals: Signals,
    interval: Option<Duration>,
    next: Option<Instant>,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Show statistics: SIGUSR1 came, or it is time.
    Show,
    /// Stop: SIGINT or SIGTERM came.
    Stop,
}

impl Control {
    /// Takes the signals over, from this thread and all that it starts.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new() -> Result<Self> {
        let failed = |source| {
            Error::system(
                "wait for",
                "signals",
                source,
                "raise the limit on open files (ulimit -n)",
            )
        };
        let signals = Signals::block().map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry()
            .register(&mut source, Token(0), Interest::READABLE)
            .map_err(failed)?;
        Ok(Self {
            poll,
            signals,
            interval: None,
            next: None,
        })
    }

    /// From now on it is time to show statistics every so many seconds.
    pub fn show_every(&mut self, seconds: f64) {
        let interval = Duration::from_secs_f64(seconds);
        self.interval = Some(interval);
        self.next = Some(Instant::now() + interval);
    }

    /// Whether SIGINT or SIGTERM comes within that time. Nothing else is heeded meanwhile.
    ///
    /// # Errors
    /// Waiting itself fails.
    pub fn stops_within(&mut self, limit: Duration) -> Result<bool> {
        let failed = |source| Error::system("wait for", "signals", source, "");
        let mut events = Events::with_capacity(4);
        match self.poll.poll(&mut events, Some(limit)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(failed(error)),
            _ => {}
        }
        while let Some(signal) = self.signals.next().map_err(failed)? {
            if signal != Signal::User1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Blocks until there is something to do.
    ///
    /// # Errors
    /// Waiting itself fails.
    pub fn wait(&mut self) -> Result<Wait> {
        let failed = |source| Error::system("wait for", "signals", source, "");
        let mut events = Events::with_capacity(4);
        loop {
            match self.signals.next().map_err(failed)? {
                Some(Signal::User1) => return Ok(Wait::Show),
                Some(Signal::Interrupt | Signal::Terminate) => return Ok(Wait::Stop),
                None => {}
            }
            let now = Instant::now();
            let timeout = self.next.map(|next| next.saturating_duration_since(now));
            if let (Some(Duration::ZERO), Some(interval), Some(next)) =
                (timeout, self.interval, self.next)
            {
                // From when it was due, so that lateness does not add up; but no burst after a long sleep.
                self.next = Some((next + interval).max(now));
                return Ok(Wait::Show);
            }
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
    }
}
