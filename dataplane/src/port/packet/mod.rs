//! The `packet` back end: AF_PACKET.
//!
//! Frames travel with their virtio header, which says what is left to do for their checksum and segmentation: so TCP
//! super-frames of 64 KiB cross whole, and nobody runs `ethtool`. Reception is by a TPACKET_V2 ring; transmission by a
//! ring for plain frames and a second socket for the others (see docs/decisions). CAP_NET_RAW is all it needs.

mod refusal;
mod rx;
mod stamps;
mod tx;
mod watch;

use std::{io, os::fd::BorrowedFd, sync::Arc};

pub(crate) use rx::Gate;
pub use rx::PacketRx;
pub use tx::PacketTx;
pub(crate) use watch::watch;

use super::Link;
use crate::{
    error::{Error, Result},
    interface::Interface,
    memory::SMALL_FRAME,
    sys::packet::PacketSocket,
};

/// How to open a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Slots of each ring.
    pub ring: usize,
    /// Receive frames for every address, not just the interface's own.
    pub promiscuous: bool,
    /// Send through the interface's qdisc, so that shaping and netem on it act.
    pub qdisc: bool,
    /// Receive and transmit queues, each for one lane; frames are spread over them by flow.
    pub queues: usize,
}

/// Opens the queues of a port, in the calling thread's network namespace.
///
/// # Errors
/// No permission, the interface is gone, or memory for the rings is short.
pub fn open(
    interface: &Interface,
    link: &Arc<Link>,
    settings: &Settings,
) -> Result<Vec<(PacketRx, PacketTx)>> {
    let rx = open_rx(interface, settings)?;
    Ok(rx
        .into_iter()
        .zip(open_tx(interface, link, settings)?)
        .collect())
}

/// Opens the receive queues only. As [`open`].
///
/// # Errors
/// As [`open`].
pub fn open_rx(interface: &Interface, settings: &Settings) -> Result<Vec<PacketRx>> {
    open_rx_gated(interface, settings, None)
}

/// As [`open_rx`], with a program that decides from the first frame on which are received.
pub(crate) fn open_rx_gated(
    interface: &Interface,
    settings: &Settings,
    gate: Option<BorrowedFd<'_>>,
) -> Result<Vec<PacketRx>> {
    let open = || {
        let mut group = None;
        let queues = (0..settings.queues)
            .map(|_| PacketRx::open(interface.index, settings, &mut group, gate))
            .collect::<io::Result<Vec<_>>>()?;
        if settings.queues > 1 {
            queues.iter().try_for_each(|queue| queue.start(gate))?;
        }
        Ok(queues)
    };
    open().map_err(|error| refused(interface, error))
}

/// Opens the transmit queues only. As [`open`].
///
/// # Errors
/// As [`open`].
pub fn open_tx(
    interface: &Interface,
    link: &Arc<Link>,
    settings: &Settings,
) -> Result<Vec<PacketTx>> {
    let one_path = settings.qdisc || one_path(interface);
    (0..settings.queues)
        .map(|_| PacketTx::open(interface.index, settings, one_path, Arc::clone(link)))
        .collect::<io::Result<_>>()
        .map_err(|error| refused(interface, error))
}

/// Whether everything must take one path, because the interface has a qdisc: frames that pass it can be overtaken by those
/// that go past it.
pub(crate) fn one_path(interface: &Interface) -> bool {
    // noop: the interface was never up, and gets its qdisc when it comes up.
    !matches!(interface.qdisc.as_deref(), None | Some("noqueue" | "noop"))
}

fn refused(interface: &Interface, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run as root or give it CAP_NET_RAW: setcap cap_net_raw+ep l2relay"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => "lower --ring, or give the kernel more memory",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files: ulimit -n",
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again",
        Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => {
            "this kernel lacks AF_PACKET (CONFIG_PACKET)"
        }
        _ => "",
    };
    Error::system("open a packet socket on", &interface.name, error, remedy)
}

/// Bytes of socket buffer to ask for: a few hundred super-frames.
pub(crate) const SOCKET_BUFFER: i32 = 16 << 20;
/// Below this many bytes a burst of super-frames does not fit the queue: one takes up to 100 KiB of it.
pub(crate) const ENOUGH_BUFFER: usize = 4 << 20;
/// The first Linux whose packet sockets take and give UDP super-frames: "linux/virtio_net.h: Support USO offload in vnet header"
/// (`virtio_net_hdr_to_skb`). Devices have had `tx-udp-segmentation` since 4.18.
pub(crate) const UDP_SUPER_FRAMES: (u32, u32) = (6, 2);
/// Bytes of a slot, for frames of up to [`SMALL_FRAME`] bytes and the kernel's headers before them.
const SLOT: usize = 2048 + 128;
const _: () = assert!(SLOT.is_multiple_of(16) && SLOT >= SMALL_FRAME + 128);
