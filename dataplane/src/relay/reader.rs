//! Reads a relay from other threads. Made by [`Relay::reader`]; the HTTP server has one.

use std::sync::{Arc, Mutex, Weak};

use super::{Inner, Relay, lock};
use crate::{control::protocol::Health, snapshot::Snapshot};

/// Reads what a relay has counted and how it is, from any thread. It does not keep the relay alive.
#[derive(Clone, Debug)]
pub struct Reader(Weak<Mutex<Inner>>);

impl Relay {
    /// A reader for another thread.
    pub fn reader(&self) -> Reader {
        Reader(Arc::downgrade(&self.inner))
    }
}

impl Reader {
    /// The counters now; `None` when the relay is gone.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let inner = self.0.upgrade()?;
        let snapshot = lock(&inner).snapshot(false);
        Some(snapshot)
    }

    /// Whether it works; `None` when it is gone.
    pub fn health(&self) -> Option<Health> {
        let inner = self.0.upgrade()?;
        let health = lock(&inner).health();
        Some(health)
    }
}
