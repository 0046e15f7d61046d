//! A stream of stamped datagrams through a link, and when each arrived.
//!
//! The sender's stamp is taken just before the send, which on veth hands the frame to the relay's interface before it returns; the
//! receiver's is the kernel's (`SO_TIMESTAMPNS`), so it does not matter when the receiver gets to run.

use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};

use crate::run::Run;
use crate::topology::{Topology, enter};

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// Datagrams.
    pub(super) count: usize,
    /// Their distance; 0: as fast as it goes.
    pub(super) gap: Duration,
    /// Bytes of a frame, from the Ethernet header on.
    pub(super) frame: usize,
    /// How long to wait for the last.
    pub(super) patience: Duration,
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) serial: u32,
    /// By the kernel's real-time clock, in ns.
    pub(super) sent_ns: u64,
    pub(super) received_ns: u64,
}

impl Arrival {
    /// How long it took, in us.
    pub(super) fn took_us(&self) -> f64 {
        self.received_ns as f64 / 1e3 - self.sent_ns as f64 / 1e3
    }
}

/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 42;
/// Number (eight bytes, by which [`Stamps`](crate::transit::Stamps) know a datagram too) and time of sending.
const MARK: usize = 16;
pub(super) const PORT: u16 = 4000;

/// Sends from client to server; gives what arrived, in order of arrival.
pub(super) fn stream(run: &Run, topology: &Topology, spec: Spec) -> Result<Vec<Arrival>> {
    let server = SocketAddr::from((topology.server.address, PORT));
    let receiver = enter(&topology.server.namespace, || UdpSocket::bind(server))?
        .context("binding the receiver")?;
    receiver.set_read_timeout(Some(Duration::from_millis(20)))?;
    // Root may: a receiver that is not scheduled for half a second must lose nothing.
    setsockopt(&receiver, sockopt::RcvBufForce, &(32 << 20))?;
    setsockopt(&receiver, sockopt::ReceiveTimestampns, &true)?;
    let client = SocketAddr::from((topology.client.address, 0));
    let sender = enter(&topology.client.namespace, || UdpSocket::bind(client))?
        .context("binding the sender")?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, spec.count, &over));
        let sent = send(run, &sender, server, spec);
        if sent.is_ok() {
            let end = Instant::now() + spec.patience;
            while Instant::now() < end && !receiving.is_finished() && run.check().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        over.store(true, Ordering::Relaxed);
        let arrivals = receiving
            .join()
            .map_err(|_| anyhow!("the receiver panicked"))?;
        sent.and(arrivals)
    })
}

fn send(run: &Run, sender: &UdpSocket, to: SocketAddr, spec: Spec) -> Result<()> {
    let mut bytes = vec![0; spec.frame.saturating_sub(HEADERS).max(MARK)];
    let start = Instant::now();
    for serial in 0..spec.count {
        let due = spec.gap * serial as u32;
        while start.elapsed() < due {
            std::hint::spin_loop();
        }
        if serial % 256 == 0 {
            run.check()?;
        }
        bytes[..8].copy_from_slice(&(serial as u64).to_be_bytes());
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        bytes[8..MARK].copy_from_slice(&now.to_be_bytes());
        sender.send_to(&bytes, to).context("sending")?;
    }
    Ok(())
}

fn receive(receiver: &UdpSocket, count: usize, over: &AtomicBool) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::with_capacity(count);
    let (mut bytes, mut control) = ([0; 2048], nix::cmsg_space!(nix::sys::time::TimeSpec));
    while arrivals.len() < count && !over.load(Ordering::Relaxed) {
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let message = match recvmsg::<()>(
            receiver.as_raw_fd(),
            &mut buffer,
            Some(&mut control),
            MsgFlags::empty(),
        ) {
            Ok(message) => message,
            Err(error) if std::io::Error::from(error).kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error).context("receiving"),
        };
        let stamp = message.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => {
                Some(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
            }
            _ => None,
        });
        let len = message.bytes;
        let (Some(received_ns), true) = (stamp, len >= MARK) else {
            continue;
        };
        let (serial, time) = (bytes[..8].try_into()?, bytes[8..MARK].try_into()?);
        arrivals.push(Arrival {
            serial: u64::from_be_bytes(serial) as u32,
            sent_ns: u64::from_be_bytes(time),
            received_ns,
        });
    }
    Ok(arrivals)
}
