//! The limit: how fast the kernel takes frames from an AF_XDP socket, when nothing else is done.
//!
//! A [`Sender`] stands where a relay would: on the relay's CPU it sends prepared frames out of the relay's second port, as fast as the
//! kernel takes them. No relay that sends frame by frame through AF_XDP can be faster. Called by the floods of `peers`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};

use crate::flood::frame::{Ends, Template};
use crate::sys::{place, xsk};

/// What to send, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Name of the relay's namespace.
    pub(crate) namespace: String,
    /// The interface the frames leave by.
    pub(crate) interface: String,
    /// Addresses and ports.
    pub(crate) ends: Ends,
    /// Bytes from the Ethernet header to the end of the payload.
    pub(crate) size: usize,
    /// Number of flows, frames taking turns.
    pub(crate) flows: u32,
    /// CPU of the sending thread.
    pub(crate) cpu: usize,
}

/// A running sender. Dropping it stops it.
pub(crate) struct Sender {
    thread: Option<JoinHandle<Result<()>>>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl Sender {
    /// Opens the socket and starts to send.
    pub(crate) fn start(spec: &Spec) -> Result<Sender> {
        let template = Template::new(&spec.ends, spec.size)?;
        let frames: Vec<_> = (0..spec.flows)
            .map(|flow| template.frame(spec.ends.first_port, flow, 0))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new().name("limit".into()).spawn({
            let (stop, sent, spec) = (Arc::clone(&stop), Arc::clone(&sent), spec.clone());
            move || send(&spec, &frames, &stop, &sent, &ready)
        })?;
        let mut sender = Sender {
            thread: Some(thread),
            stop,
            sent,
        };
        if started.recv().is_err() {
            sender.halt()?;
            bail!("the sending thread ended at once");
        }
        Ok(sender)
    }

    /// Frames that the kernel has sent up to now.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Ends it; an error if it ended by itself.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread
            .join()
            .map_err(|_| anyhow!("the sending thread panicked"))?
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Who cares for the result calls `stop`.
        let _ = self.halt();
    }
}

fn send(
    spec: &Spec,
    frames: &[Vec<u8>],
    stop: &AtomicBool,
    sent: &AtomicU64,
    ready: &mpsc::Sender<()>,
) -> Result<()> {
    place::settle(&spec.namespace)?;
    place::pin(spec.cpu)?;
    let mut socket = xsk::Sender::open(&spec.interface, frames).with_context(|| {
        format!(
            "no AF_XDP socket to send from {} (root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_IPC_LOCK, is needed)",
            spec.interface
        )
    })?;
    let _ = ready.send(());
    while !stop.load(Ordering::Relaxed) {
        let count = socket.turn().context("sending by AF_XDP")?;
        sent.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}
