//! Follows the links of a relay's ports by netlink: down and up, renamed, removed and created anew, with their namespaces.
//!
//! One thread, started and stopped by [`Relay`](crate::relay::Relay). It blocks until the kernel has news, a pair is to be tried
//! again, or it is time to see whether the namespaces with names are still the same.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};

use crate::{
    error::{Error, Result},
    interface::{Event, Interface, Watch},
    relay::{Inner, lock},
    sys::netns,
};

/// The thread that follows them.
pub(crate) struct LinkThread {
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

const WAKE: Token = Token(usize::MAX);
/// How often to see whether namespaces with names have been removed or made anew: the kernel does not tell.
const NAMESPACES: Duration = Duration::from_millis(250);

/// News of one namespace.
struct Followed {
    netns: Option<String>,
    /// Which namespace that was when it was opened.
    identity: (u64, u64),
    watch: Watch,
}

/// The thread's side.
struct Follower {
    inner: Arc<Mutex<Inner>>,
    poll: Poll,
    followed: Vec<Followed>,
    next_token: usize,
}

impl LinkThread {
    /// Starts to follow the links of all ports. The first thing told is their state now.
    pub(crate) fn start(inner: Arc<Mutex<Inner>>) -> Result<Self> {
        let poll = Poll::new().map_err(failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(failed)?);
        let mut follower = Follower {
            inner,
            poll,
            followed: Vec::new(),
            next_token: 0,
        };
        // What can't be followed is an error now, and no news later.
        let namespaces = lock(&follower.inner).namespaces();
        for netns in namespaces {
            follower.open(netns).map_err(failed)?;
        }
        let thread = thread::Builder::new()
            .name("l2relay-links".into())
            .spawn(move || follower.run())
            .map_err(failed)?;
        Ok(Self { waker, thread })
    }

    /// Has it look again which namespaces there are to follow.
    pub(crate) fn wake(&self) {
        // It fails only if the thread is gone already.
        let _ = self.waker.wake();
    }

    /// Ends the thread. The relay must have said that it stops.
    pub(crate) fn stop(self) {
        self.wake();
        let _ = self.thread.join();
    }
}

impl Follower {
    fn run(mut self) {
        for at in 0..self.followed.len() {
            self.list(at);
        }
        let mut events = Events::with_capacity(16);
        while !lock(&self.inner).is_stopping() {
            self.sync();
            let retry = lock(&self.inner).next_retry();
            let retry = retry.map(|at| at.saturating_duration_since(Instant::now()));
            let named = self.followed.iter().any(|one| one.netns.is_some());
            let missing = self.followed.len() < lock(&self.inner).namespaces().len();
            let look = (named || missing).then_some(NAMESPACES);
            let timeout = retry.into_iter().chain(look).min();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return tracing::error!("links are no longer followed: {error}");
                }
                _ => {}
            }
            for at in 0..self.followed.len() {
                self.read(at);
            }
            lock(&self.inner).retry(Instant::now());
        }
    }

    /// Follows the namespaces that have ports, and no others. One that was removed lets go of everything in it: only so can the
    /// kernel remove it.
    fn sync(&mut self) {
        let wanted = lock(&self.inner).namespaces();
        let inner = &self.inner;
        self.followed.retain(|one| {
            let same = netns::identity(one.netns.as_deref()).is_ok_and(|now| now == one.identity);
            if !same {
                lock(inner).namespace_gone(one.netns.as_deref());
            }
            same && wanted.contains(&one.netns)
        });
        for netns in wanted {
            let known = self.followed.iter().any(|one| one.netns == netns);
            if known {
                continue;
            }
            // It may be absent for a while.
            if self.open(netns).is_ok() {
                self.list(self.followed.len() - 1);
            }
        }
    }

    fn open(&mut self, netns: Option<String>) -> io::Result<()> {
        let identity = netns::identity(netns.as_deref())?;
        let watch = netns::within(netns.as_deref(), Watch::open)??;
        let token = Token(self.next_token);
        self.next_token += 1;
        let mut source = SourceFd(&watch.as_raw_fd());
        let registry = self.poll.registry();
        registry.register(&mut source, token, Interest::READABLE)?;
        self.followed.push(Followed {
            netns,
            identity,
            watch,
        });
        Ok(())
    }

    fn read(&mut self, at: usize) {
        let Followed { netns, watch, .. } = &mut self.followed[at];
        let netns = netns.as_deref();
        match watch.events() {
            Ok(events) => {
                for event in events {
                    match event {
                        Event::Changed(interface) => {
                            lock(&self.inner).interface_changed(netns, &interface);
                        }
                        Event::Removed { index, .. } => {
                            lock(&self.inner).interface_removed(netns, index);
                        }
                        Event::Lost => list(netns, &self.inner),
                    }
                }
            }
            Err(error) => tracing::error!("reading link events: {error}"),
        }
    }

    fn list(&self, at: usize) {
        list(self.followed[at].netns.as_deref(), &self.inner);
    }
}

fn list(netns: Option<&str>, inner: &Mutex<Inner>) {
    match netns::within(netns, Interface::list).and_then(|listed| listed) {
        Ok(all) => lock(inner).interfaces_are(netns, &all),
        Err(error) => tracing::error!("listing interfaces: {error}"),
    }
}

fn failed(source: io::Error) -> Error {
    Error::system("follow", "the links", source, "")
}
