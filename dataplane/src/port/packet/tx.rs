//! Sending: a ring for plain frames, and a second socket for super-frames and frames too long for a slot.
//!
//! The ring is the cheaper way, but takes no super-frames safely (past the qdisc nobody splits them for a device that
//! can't), and a socket that owns a ring can't send any other way. Frames never overtake each other: one path is used
//! only when the other is empty.

use std::{io, sync::Arc};

use super::{
    PacketSocket, SLOT, SOCKET_BUFFER, Settings,
    refusal::{Patience, Refusal, cut_first},
};
use crate::{
    burst::Burst,
    coalesce::Kinds,
    cut::Cutter,
    lane::Turn,
    memory::{Frame, FramePool, Offload},
    port::{Link, TxQueue, exceeds, queue::Queue},
    stats::Reason,
    sys::{
        packet::{Receive, SendBatch},
        ring::TxRing,
    },
    wire::{ethernet, segment},
};

/// The transmit half of a port.
pub struct PacketTx {
    /// Frames that are in neither path yet.
    queue: Queue,
    cutter: Cutter,
    ring: Option<(PacketSocket, TxRing)>,
    plain: PacketSocket,
    batch: SendBatch,
    link: Arc<Link>,
    patience: Patience,
}

impl PacketTx {
    pub(super) fn open(
        index: u32,
        settings: &Settings,
        one_path: bool,
        link: Arc<Link>,
    ) -> io::Result<Self> {
        let plain = PacketSocket::open(index)?;
        plain.set_vnet_hdr()?;
        plain.send_buffer(SOCKET_BUFFER)?;
        plain.bind(Receive::Nothing)?;
        let ring = if one_path {
            None
        } else {
            Some(Self::open_ring(index, settings)?)
        };
        let (queue, cutter, batch) = (Queue::default(), Cutter::default(), SendBatch::new());
        Ok(Self {
            queue,
            cutter,
            ring,
            plain,
            batch,
            link,
            patience: Patience::default(),
        })
    }

    fn open_ring(index: u32, settings: &Settings) -> io::Result<(PacketSocket, TxRing)> {
        let socket = PacketSocket::open(index)?;
        socket.set_vnet_hdr()?;
        socket.bypass_qdisc()?;
        socket.send_buffer(SOCKET_BUFFER)?;
        let ring = socket.tx_ring(settings.ring, SLOT)?;
        socket.bind(Receive::Nothing)?;
        Ok((socket, ring))
    }

    /// Takes a burst into the queue: less what can never be sent, and with those super-frames cut that the kernel would
    /// cut wrongly, because the virtio header has no words for tunnels.
    fn accept(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let max_frame = self.link.mtu() + ethernet::HEADER_LEN;
        for frame in burst.drain() {
            let (bytes, offload) = (turn.pool.bytes(&frame), turn.pool.meta(&frame).offload);
            if offload.is_gso() {
                match offload.gso() {
                    Some(gso) if !segment::needs_software_gso(bytes, gso) => {
                        self.queue.push(frame, turn.pool)
                    }
                    _ => self
                        .cutter
                        .cut(frame, turn, |frame, pool| self.queue.push(frame, pool)),
                }
            } else if exceeds(bytes, max_frame) {
                turn.discard(frame, Reason::Oversize);
            } else {
                self.queue.push(frame, turn.pool);
            }
        }
    }

    /// Moves frames from the queue to the ring, if all are `plain`, and has the kernel send what lies there.
    fn send_by_ring(&mut self, plain: bool, turn: &mut Turn) {
        let Some((socket, ring)) = &mut self.ring else {
            return;
        };
        while let Some(frame) = self.queue.frames.front().filter(|_| plain) {
            let bytes = turn.pool.bytes(frame);
            // With the whole frame counted as header, the kernel copies it into one piece. Otherwise the payload would be
            // page fragments, which veth must copy again (382 -> 506 kpps), and which we could overwrite too soon.
            let offload = Offload {
                hdr_len: bytes.len() as u16,
                ..turn.pool.meta(frame).offload
            };
            if !ring.push(offload, bytes) {
                break;
            }
            if let Some(frame) = self.queue.pop(turn.pool) {
                turn.pool.free(frame);
            }
        }
        while ring.pending() > 0 {
            let before = ring.pending();
            let result = socket.kick();
            ring.settle(|len| turn.tally.sent(1, len));
            if ring.pending() < before {
                self.patience.reward();
            }
            match result.map_err(|error| self.patience.judge(&error, None, turn.now_ns)) {
                Ok(()) | Err(Refusal::Wait) => return,
                // None here is a super-frame.
                Err(Refusal::Cut) => return,
                Err(Refusal::Frame(reason)) => {
                    if ring.drop_first() {
                        turn.tally.dropped[reason as usize] += 1;
                    }
                }
                Err(Refusal::All) => return self.drop_all(turn, Reason::LinkDown),
            }
        }
    }

    /// Whether the ring can take all that is in the queue. If not, it takes none: a system call for every change of the way
    /// costs more than it saves.
    fn is_all_plain(&self, pool: &FramePool) -> bool {
        let max_frame = self.ring.as_ref().map_or(0, |(_, ring)| ring.max_frame());
        let mut frames = self.queue.frames.iter();
        frames.all(|frame| is_plain(pool, frame, max_frame))
    }

    /// Sends the frames in the queue by the plain socket.
    fn send_by_socket(&mut self, turn: &mut Turn) {
        loop {
            let pool = &*turn.pool;
            let frames = self.queue.frames.iter();
            let (sent, error) = self.plain.send(
                &mut self.batch,
                frames.map(|frame| {
                    let offload = with_header_len(pool.meta(frame).offload, pool.bytes(frame));
                    (offload, pool.parts(frame))
                }),
            );
            if sent == 0 && error.is_none() {
                return;
            }
            for _ in 0..sent {
                let Some(frame) = self.queue.pop(turn.pool) else {
                    break;
                };
                let meta = turn.pool.meta(&frame);
                self.patience.reward();
                self.patience.took(meta.offload.gso());
                turn.tally.sent(meta.segments, turn.pool.len(&frame));
                turn.pool.free(frame);
            }
            let first = self.queue.frames.front();
            let gso = first.and_then(|frame| turn.pool.meta(frame).offload.gso());
            match error.map(|error| self.patience.judge(&error, gso, turn.now_ns)) {
                None => {}
                Some(Refusal::Wait) => return,
                Some(Refusal::Cut) => cut_first(&mut self.queue, &mut self.cutter, turn),
                Some(Refusal::Frame(reason)) => {
                    if let Some(frame) = self.queue.pop(turn.pool) {
                        turn.discard(frame, reason);
                    }
                }
                Some(Refusal::All) => return self.drop_all(turn, Reason::LinkDown),
            }
        }
    }

    fn drop_all(&mut self, turn: &mut Turn, reason: Reason) {
        if let Some((_, ring)) = &mut self.ring {
            turn.tally.dropped[reason as usize] += ring.reclaim() as u64;
        }
        self.queue.discard_all(turn, reason);
    }

    fn pending(&self) -> usize {
        self.ring.as_ref().map_or(0, |(_, ring)| ring.pending())
    }
}

impl TxQueue for PacketTx {
    fn room(&mut self) -> usize {
        Burst::MAX.saturating_sub(self.queue.frames.len() + self.pending())
    }

    fn tx_burst(&mut self, burst: &mut Burst, turn: &mut Turn) {
        self.accept(burst, turn);
        if !self.link.is_up() {
            return self.drop_all(turn, Reason::LinkDown);
        }
        loop {
            let before = self.queue.frames.len();
            let plain = self.is_all_plain(turn.pool);
            self.send_by_ring(plain, turn);
            if self.pending() == 0 && !plain {
                self.send_by_socket(turn);
            }
            if self.queue.frames.is_empty() || self.queue.frames.len() == before {
                return;
            }
        }
    }

    fn refuses(&self) -> Kinds {
        self.patience.refused
    }

    fn held(&self) -> u64 {
        self.pending() as u64 + self.queue.packets()
    }

    fn abandon(&mut self, turn: &mut Turn) {
        self.drop_all(turn, Reason::Stopped);
    }
}

/// Says where a super-frame's payload begins. The kernel puts what is before it into one piece, and the payload into pages
/// of its own; in one piece it would need a run of 16 free pages for each.
fn with_header_len(mut offload: Offload, frame: &[u8]) -> Offload {
    if let Some(gso) = offload.gso() {
        offload.hdr_len = segment::header_len(frame, gso).min(frame.len()) as u16;
    }
    offload
}

fn is_plain(pool: &FramePool, frame: &Frame, max_frame: usize) -> bool {
    !pool.meta(frame).offload.is_gso() && pool.len(frame) <= max_frame
}
