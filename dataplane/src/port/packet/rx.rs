//! Receiving: a ring of small slots, and the socket's own queue for frames that don't fit one.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use super::{
    ENOUGH_BUFFER, PacketSocket, SLOT, SOCKET_BUFFER, Settings,
    stamps::{Stamps, realtime_ns},
};
use crate::{
    burst::Burst,
    lane::Turn,
    memory::{LARGE_FRAME, Offload},
    port::RxQueue,
    stats::Reason,
    sys::{
        packet::{Receive, Reject},
        ring::{Received, RxRing},
    },
    wire::ethernet,
};

/// The receive half of a port.
pub struct PacketRx {
    socket: PacketSocket,
    ring: RxRing,
    /// If the kernel's stamps are wanted.
    stamps: Option<Stamps>,
    /// When the ring was last seen empty, in ns of the lane's clock.
    empty_ns: u64,
}

/// Slots for whole super-frames, where the socket's queue is too short for them.
const LARGE_SLOT: usize = LARGE_FRAME + 128;
const LARGE_SLOTS: usize = 128;
const _: () = assert!(LARGE_SLOT.is_multiple_of(16));

impl PacketRx {
    pub(super) fn open(
        index: u32,
        settings: &Settings,
        group: &mut Option<u16>,
        gate: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let socket = PacketSocket::open(index)?;
        socket.set_vnet_hdr()?;
        socket.ignore_outgoing()?;
        if settings.promiscuous {
            socket.promiscuous()?;
        }
        // Small slots and a queue for long frames carry more TCP than large slots (measured: 9.6 against 8.4 Gbit/s), but
        // without CAP_NET_ADMIN the queue may be limited to rmem_max. Ring memory is not.
        let ring = if socket.receive_buffer(SOCKET_BUFFER)? >= ENOUGH_BUFFER {
            socket.copy_long_frames()?;
            socket.rx_ring(settings.ring, SLOT)?
        } else {
            socket.rx_ring(settings.ring.min(LARGE_SLOTS), LARGE_SLOT)?
        };
        if settings.queues > 1 {
            // Only a bound socket can join, and until it has, it gets every flow: see `start`.
            socket.reject(Reject::All)?;
            socket.bind(Receive::All)?;
            *group = Some(socket.fanout_hash(*group)?);
        } else {
            if let Some(gate) = gate {
                socket.filter(gate)?;
            }
            socket.bind(Receive::All)?;
        }
        Ok(Self {
            socket,
            ring,
            stamps: None,
            empty_ns: 0,
        })
    }
}

impl PacketRx {
    /// Of a socket that may be filtered, and is to look on as others do.
    pub(super) fn look_on(socket: PacketSocket, ring: RxRing) -> io::Result<Self> {
        socket.bind(Receive::All)?;
        Ok(Self {
            socket,
            ring,
            stamps: Some(Stamps::new()),
            empty_ns: 0,
        })
    }

    /// Begins to receive, once all queues share the frames: from the first on, each flow has its queue.
    pub(super) fn start(&self, gate: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match gate {
            Some(gate) => self.socket.filter(gate),
            None => self.socket.reject(Reject::Outgoing),
        }
    }

    /// The place of its gate. `shared`: other queues share the frames.
    pub(crate) fn gate(&self, shared: bool) -> io::Result<Gate> {
        let socket = self.socket.share()?;
        Ok(Gate { socket, shared })
    }
}

/// Where a program decides which frames a receive queue gets, while its pair moves to the kernel or from it.
pub(crate) struct Gate {
    socket: PacketSocket,
    shared: bool,
}

impl Gate {
    /// From now on the program decides.
    pub(crate) fn close(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        self.socket.filter(program)
    }

    /// The queue gets every frame again.
    pub(crate) fn open(&self) -> io::Result<()> {
        if self.shared {
            self.socket.reject(Reject::Outgoing)
        } else {
            self.socket.unfilter()
        }
    }
}

impl RxQueue for PacketRx {
    fn rx_burst(&mut self, burst: &mut Burst, limit: usize, turn: &mut Turn) {
        if let Some(stamps) = &mut self.stamps {
            stamps.compare(turn.now_ns, realtime_ns());
        }
        for _ in 0..limit {
            let Some(received) = self.ring.peek() else {
                self.empty_ns = turn.now_ns;
                return;
            };
            // Not before the ring was empty: so a clock that is set does no harm.
            let stamps = self.stamps.as_ref();
            let arrival_ns = stamps.map_or(turn.now_ns, |stamps| {
                let arrival_ns = stamps.arrival_ns(received.realtime_ns, turn.now_ns);
                arrival_ns.max(self.empty_ns)
            });
            if !take(&self.socket, &received, arrival_ns, burst, turn) {
                return;
            }
            self.ring.release();
        }
    }

    fn stamp_arrivals(&mut self) {
        self.stamps.get_or_insert_with(Stamps::new);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn clear_error(&mut self) {
        // ENETDOWN: the transmit side and the link's state tell of it; here it must only not end the next wait at once.
        let _ = self.socket.take_error();
    }

    fn kernel_drops(&mut self) -> u64 {
        self.socket.drops().map_or(0, u64::from)
    }

    fn close(&mut self) {
        // An interface that is gone delivers nothing anyway.
        let _ = self.socket.bind(Receive::Nothing);
    }
}

/// Moves one frame from the kernel into the burst, or counts why not. `false`: no buffer is free, so it stays.
#[inline]
fn take(
    socket: &PacketSocket,
    received: &Received<'_>,
    arrival_ns: u64,
    burst: &mut Burst,
    turn: &mut Turn,
) -> bool {
    let offload = received.offload;
    let segments = offload.segments(received.bytes, received.len);
    if received.len > LARGE_FRAME {
        if received.queued {
            // Its copy must leave the queue, or the next long frame would get it.
            let _ = socket.recv(&mut [0; Offload::LEN], &mut []);
        }
        return lose(received, segments, Reason::Oversize, turn);
    }
    let Some(frame) = turn.pool.alloc(received.len) else {
        return false;
    };
    if received.bytes.len() == received.len {
        turn.pool.bytes_mut(&frame).copy_from_slice(received.bytes);
    } else if !received.queued || !fetch(socket, turn.pool.bytes_mut(&frame)) {
        turn.pool.free(frame);
        return lose(received, segments, Reason::Truncated, turn);
    }
    let meta = turn.pool.meta_mut(&frame);
    (meta.segments, meta.offload, meta.arrival_ns) = (segments, offload, arrival_ns);
    if let Some((tpid, tci)) = received.vlan {
        // The kernel took the tag off; the frame goes on as it came.
        if turn.pool.insert(&frame, 12, &ethernet::vlan_tag(tpid, tci)) {
            turn.pool
                .meta_mut(&frame)
                .offload
                .shift(ethernet::TAG_LEN as u16);
        }
    }
    turn.tally.received(segments, turn.pool.len(&frame));
    burst.push(frame);
    true
}

/// Fetches a whole frame from the socket's queue. `false` if it is not the one that was announced.
#[inline]
fn fetch(socket: &PacketSocket, bytes: &mut [u8]) -> bool {
    socket
        .recv(&mut [0; Offload::LEN], bytes)
        .is_ok_and(|len| len == bytes.len())
}

/// Counts a frame that could not be taken whole.
#[cold]
fn lose(received: &Received<'_>, segments: u32, reason: Reason, turn: &mut Turn) -> bool {
    turn.tally.received(segments, received.len);
    turn.tally.dropped[reason as usize] += u64::from(segments);
    true
}
