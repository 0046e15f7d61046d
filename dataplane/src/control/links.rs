//! Follows the links of a relay's ports by netlink: down and up, removed and created anew.
//!
//! One thread, started and stopped by [`Relay`](crate::relay::Relay). It blocks until the kernel has news.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};

use crate::{
    error::{Error, Result},
    interface::{Event, Interface, Watch},
    relay::{Inner, lock},
    sys::netns,
};

/// Watches that are open but not yet followed: one for each namespace.
pub(crate) struct LinkWatch(Vec<(Option<String>, Watch)>);

/// The thread that follows them.
pub(crate) struct LinkThread {
    waker: Waker,
    thread: JoinHandle<()>,
}

const STOP: Token = Token(usize::MAX);

impl LinkWatch {
    /// Opens a watch for each namespace named.
    pub(crate) fn open(namespaces: impl Iterator<Item = Option<String>>) -> Result<Self> {
        let mut watches: Vec<(Option<String>, Watch)> = Vec::new();
        for netns in namespaces {
            if watches.iter().all(|(known, _)| *known != netns) {
                let watch = netns::within(netns.as_deref(), Watch::open).and_then(|opened| opened);
                watches.push((netns, watch.map_err(failed)?));
            }
        }
        Ok(Self(watches))
    }

    /// Starts to follow the links. The first thing told is their state now.
    pub(crate) fn start(self, inner: Arc<Mutex<Inner>>) -> Result<LinkThread> {
        let mut poll = Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), STOP).map_err(failed)?;
        let mut watches = self.0;
        for (at, (_, watch)) in watches.iter().enumerate() {
            let mut source = SourceFd(&watch.as_raw_fd());
            poll.registry()
                .register(&mut source, Token(at), Interest::READABLE)
                .map_err(failed)?;
        }
        let follow = move || {
            watches
                .iter()
                .for_each(|(netns, _)| list(netns.as_deref(), &inner));
            let mut events = Events::with_capacity(16);
            loop {
                match poll.poll(&mut events, None) {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                        return tracing::error!("links are no longer followed: {error}");
                    }
                    _ => {}
                }
                if events.iter().any(|event| event.token() == STOP) {
                    return;
                }
                for (netns, watch) in &mut watches {
                    read(netns.as_deref(), watch, &inner);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("l2relay-links".into())
            .spawn(follow)
            .map_err(failed)?;
        Ok(LinkThread { waker, thread })
    }
}

impl LinkThread {
    /// Ends the thread.
    pub(crate) fn stop(self) {
        // It fails only if the thread is gone already.
        let _ = self.waker.wake();
        let _ = self.thread.join();
    }
}

fn read(netns: Option<&str>, watch: &mut Watch, inner: &Mutex<Inner>) {
    match watch.events() {
        Ok(events) => {
            for event in events {
                match event {
                    Event::Changed(interface) => lock(inner).interface_changed(netns, &interface),
                    Event::Removed { index, .. } => lock(inner).interface_removed(netns, index),
                    Event::Lost => list(netns, inner),
                }
            }
        }
        Err(error) => tracing::error!("reading link events: {error}"),
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
