//! TPACKET_V2 rings: fixed slots that we share with the kernel, each with a status word that says whose it is.
//!
//! Made by [`PacketSocket`](super::packet::PacketSocket), used by the `packet` back end. All rules of who may touch a slot
//! when are kept here, so that both ring types are safe to use. Kernel source: `net/packet/af_packet.c`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use libc::{
    TP_STATUS_AVAILABLE, TP_STATUS_COPY, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST,
    TP_STATUS_SENDING, TP_STATUS_USER, TP_STATUS_VLAN_TPID_VALID, TP_STATUS_VLAN_VALID,
    TP_STATUS_WRONG_FORMAT, tpacket2_hdr,
};

use crate::memory::Offload;

/// A ring to receive from.
pub(crate) struct RxRing {
    slots: Slots,
    next: usize,
}

/// A frame in a receive ring, ours until it is released.
pub(crate) struct Received<'a> {
    /// Length of the frame as it was on the wire, in bytes. `bytes` is shorter if the slot was too small.
    pub(crate) len: usize,
    /// The frame is also queued whole on the socket, because its slot is too small.
    pub(crate) queued: bool,
    /// The tag that the kernel took off: TPID and TCI.
    pub(crate) vlan: Option<(u16, u16)>,
    /// When the kernel received it, in ns since the Unix epoch.
    pub(crate) realtime_ns: u64,
    /// Checksum and segmentation state, for the frame without that tag.
    pub(crate) offload: Offload,
    /// The frame.
    pub(crate) bytes: &'a [u8],
}

impl RxRing {
    pub(super) fn new(slots: Slots) -> Self {
        Self { slots, next: 0 }
    }

    /// The oldest frame that has not been released.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Received<'_>> {
        let status = self.slots.status(self.next);
        if status & TP_STATUS_USER == 0 {
            return None;
        }
        let header = self.slots.header(self.next);
        let (start, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let offload = self
            .slots
            .bytes(self.next, start.saturating_sub(Offload::LEN), Offload::LEN);
        let vlan = (status & TP_STATUS_VLAN_VALID != 0).then(|| {
            let known = status & TP_STATUS_VLAN_TPID_VALID != 0;
            (
                if known {
                    header.tp_vlan_tpid
                } else {
                    libc::ETH_P_8021Q as u16
                },
                header.tp_vlan_tci,
            )
        });
        Some(Received {
            len: header.tp_len as usize,
            queued: status & TP_STATUS_COPY != 0,
            vlan,
            realtime_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            offload: offload
                .try_into()
                .map(Offload::from_bytes)
                .unwrap_or_default(),
            bytes: self.slots.bytes(self.next, start, len),
        })
    }

    /// Gives the slot of the oldest frame back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.slots.set_status(self.next, TP_STATUS_KERNEL);
        self.next = self.slots.after(self.next);
    }
}

/// A ring to send from. Frames lie in it in order: those that the kernel has taken, then those pending.
pub(crate) struct TxRing {
    slots: Slots,
    /// The slot for the next frame.
    next: usize,
    /// Frames before it that the kernel has not taken yet.
    pending: usize,
}

impl TxRing {
    /// Where the virtio header begins in a slot; the frame follows it. (tpacket_parse_header.)
    const DATA: usize = size_of::<tpacket2_hdr>();

    pub(super) fn new(slots: Slots) -> Self {
        Self {
            slots,
            next: 0,
            pending: 0,
        }
    }

    /// The longest frame that fits a slot, in bytes.
    pub(crate) fn max_frame(&self) -> usize {
        self.slots.layout.slot_size - Self::DATA - Offload::LEN
    }

    /// Frames that the kernel has not taken.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// Adds a frame, to be sent at the next kick. `false` if the ring is full or the frame too long.
    #[inline]
    pub(crate) fn push(&mut self, offload: Offload, frame: &[u8]) -> bool {
        // A free slot may carry a timestamp flag, so it is not compared with AVAILABLE (which is 0).
        const BUSY: u32 = TP_STATUS_SEND_REQUEST | TP_STATUS_SENDING | TP_STATUS_WRONG_FORMAT;
        if self.slots.status(self.next) & BUSY != 0 || frame.len() > self.max_frame() {
            return false;
        }
        let (header, body) = self
            .slots
            .bytes_mut(self.next, Self::DATA, Offload::LEN + frame.len())
            .split_at_mut(Offload::LEN);
        header.copy_from_slice(&offload.to_bytes());
        body.copy_from_slice(frame);
        self.slots.set_len(self.next, Offload::LEN + frame.len());
        self.slots.set_status(self.next, TP_STATUS_SEND_REQUEST);
        self.next = self.slots.after(self.next);
        self.pending += 1;
        true
    }

    /// Tells `taken` the length of each frame that the kernel has taken since the last call.
    #[inline]
    pub(crate) fn settle(&mut self, mut taken: impl FnMut(usize)) {
        while self.pending > 0 {
            let first = self.first_pending();
            if self.slots.status(first) & (TP_STATUS_SEND_REQUEST | TP_STATUS_WRONG_FORMAT) != 0 {
                return;
            }
            taken(self.slots.header(first).tp_len as usize - Offload::LEN);
            self.pending -= 1;
        }
    }

    /// Takes back the oldest pending frame, which the kernel refuses. Returns whether there was one.
    ///
    /// The kernel takes slots strictly in order and would refuse this one for ever, so those behind it move down.
    pub(crate) fn drop_first(&mut self) -> bool {
        if self.pending == 0 {
            return false;
        }
        let mut slot = self.first_pending();
        for _ in 1..self.pending {
            let from = self.slots.after(slot);
            let len = self.slots.header(from).tp_len as usize;
            self.slots.copy(from, slot, Self::DATA, len);
            self.slots.set_len(slot, len);
            self.slots.set_status(slot, TP_STATUS_SEND_REQUEST);
            slot = from;
        }
        self.slots.set_status(slot, TP_STATUS_AVAILABLE);
        self.next = slot;
        self.pending -= 1;
        true
    }

    /// Takes back every pending frame; returns how many.
    pub(crate) fn reclaim(&mut self) -> usize {
        let count = std::mem::take(&mut self.pending);
        for _ in 0..count {
            self.next = self.slots.before(self.next);
            self.slots.set_status(self.next, TP_STATUS_AVAILABLE);
        }
        count
    }

    fn first_pending(&self) -> usize {
        let slots = self.slots.layout.slots();
        (self.next + slots - self.pending) % slots
    }
}

/// How slots lie in a ring.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) slot_size: usize,
    slots_per_block: usize,
    pub(super) block_size: usize,
    pub(super) blocks: usize,
}

impl Layout {
    /// At least `slots` slots of `slot_size` bytes, a multiple of 16 (TPACKET_ALIGNMENT).
    pub(super) fn new(slots: usize, slot_size: usize) -> Self {
        const PAGE: usize = 4096;
        // Small slots share blocks of 16 pages. A large one has a block of its own: longer runs of pages are rare.
        let block_size = (16 * PAGE).max(slot_size.next_multiple_of(PAGE));
        let slots_per_block = block_size / slot_size;
        Self {
            slot_size,
            slots_per_block,
            block_size,
            blocks: slots.div_ceil(slots_per_block),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.blocks * self.slots_per_block
    }
}

/// The slots of a ring, mapped.
pub(super) struct Slots {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: invariant SLOT (docs/architecture.md): the mapping has no tie to a thread, and one owner.
unsafe impl Send for Slots {}

impl Slots {
    /// Maps the ring that a socket has been given, or anonymous memory when there is no socket (in tests).
    pub(super) fn map(layout: Layout, socket: BorrowedFd<'_>) -> io::Result<Self> {
        Self::map_fd(
            layout,
            socket.as_raw_fd(),
            libc::MAP_SHARED | libc::MAP_POPULATE,
        )
    }

    fn map_fd(layout: Layout, fd: i32, flags: i32) -> io::Result<Self> {
        let (len, prot) = (
            layout.block_size * layout.blocks,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, layout })
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.layout.slots() {
            0
        } else {
            slot + 1
        }
    }

    #[inline]
    fn before(&self, slot: usize) -> usize {
        if slot == 0 {
            self.layout.slots() - 1
        } else {
            slot - 1
        }
    }

    /// The status of a slot. What the other side wrote before it is visible after it.
    #[inline]
    fn status(&self, slot: usize) -> u32 {
        self.status_word(slot).load(Ordering::Acquire)
    }

    /// Hands a slot over. What we wrote before it is visible to the other side after it.
    #[inline]
    fn set_status(&mut self, slot: usize, status: u32) {
        self.status_word(slot).store(status, Ordering::Release);
    }

    #[inline]
    fn status_word(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: invariant SLOT: `tp_status` is the first word of a slot, aligned, mapped as long as `self` lives; both
        // sides access it as one word.
        unsafe { AtomicU32::from_ptr(self.at(slot).cast()) }
    }

    /// The header of a slot that is ours.
    #[inline]
    fn header(&self, slot: usize) -> tpacket2_hdr {
        // SAFETY: invariant SLOT: inside the mapping and aligned; a copy of plain data.
        unsafe { self.at(slot).cast::<tpacket2_hdr>().read_volatile() }
    }

    #[inline]
    fn set_len(&mut self, slot: usize, len: usize) {
        // SAFETY: invariant SLOT: inside the mapping and aligned, and the slot is ours.
        unsafe {
            (&raw mut (*self.at(slot).cast::<tpacket2_hdr>()).tp_len).write_volatile(len as u32)
        };
    }

    /// Bytes of a slot that is ours, cut to the slot.
    #[inline]
    fn bytes(&self, slot: usize, from: usize, len: usize) -> &[u8] {
        let (from, len) = self.clamp(from, len);
        // SAFETY: invariant SLOT: inside the slot, which is ours and can't be handed over while the ring is borrowed.
        unsafe { std::slice::from_raw_parts(self.at(slot).add(from), len) }
    }

    /// Bytes of a slot that is ours, to be written, cut to the slot.
    #[inline]
    fn bytes_mut(&mut self, slot: usize, from: usize, len: usize) -> &mut [u8] {
        let (from, len) = self.clamp(from, len);
        // SAFETY: invariant SLOT, as in `bytes`; `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.at(slot).add(from), len) }
    }

    /// Copies bytes from one slot of ours to another.
    fn copy(&mut self, from: usize, to: usize, at: usize, len: usize) {
        let (at, len) = self.clamp(at, len);
        assert_ne!(from, to);
        // SAFETY: invariant SLOT: both ranges lie inside slots that are ours, and different slots don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.at(from).add(at), self.at(to).add(at), len) };
    }

    #[inline]
    fn clamp(&self, from: usize, len: usize) -> (usize, usize) {
        let from = from.min(self.layout.slot_size);
        (from, len.min(self.layout.slot_size - from))
    }

    /// Where a slot begins. Slots never straddle blocks. (packet_lookup_frame.)
    #[inline]
    fn at(&self, slot: usize) -> *mut u8 {
        let layout = &self.layout;
        assert!(slot < layout.slots());
        let (block, in_block) = (slot / layout.slots_per_block, slot % layout.slots_per_block);
        // SAFETY: slot < slots, so the sum is inside the mapping.
        unsafe {
            self.start
                .as_ptr()
                .add(block * layout.block_size + in_block * layout.slot_size)
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no reference into it outlives its owner.
        unsafe {
            libc::munmap(
                self.start.as_ptr().cast(),
                self.layout.block_size * self.layout.blocks,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn slots(count: usize, size: usize) -> Slots {
        Slots::map_fd(
            Layout::new(count, size),
            -1,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        )
        .unwrap()
    }

    /// The kernel's side of a transmit ring, from tpacket_snd: takes requested slots in order.
    struct Kernel {
        head: usize,
        in_flight: VecDeque<usize>,
        sent: Vec<Vec<u8>>,
    }

    impl Kernel {
        fn take(&mut self, ring: &mut TxRing, count: usize) {
            for _ in 0..count {
                if ring.slots.status(self.head) != TP_STATUS_SEND_REQUEST {
                    return;
                }
                let len = ring.slots.header(self.head).tp_len as usize;
                self.sent
                    .push(ring.slots.bytes(self.head, TxRing::DATA, len)[Offload::LEN..].to_vec());
                ring.slots.set_status(self.head, TP_STATUS_SENDING);
                self.in_flight.push_back(self.head);
                self.head = ring.slots.after(self.head);
            }
        }

        fn complete(&mut self, ring: &mut TxRing, count: usize) {
            for slot in self.in_flight.drain(..count.min(self.in_flight.len())) {
                ring.slots.set_status(slot, TP_STATUS_AVAILABLE | 1 << 29);
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Take(usize),
        Complete(usize),
        Settle,
        DropFirst,
        Reclaim,
    }

    proptest! {
        /// Whatever the order of events, the kernel sees the frames that were pushed and not taken back, in order.
        #[test]
        fn transmit_ring_keeps_order_and_count(steps in prop::collection::vec(prop_oneof![
            4 => (1usize..600).prop_map(Step::Push),
            2 => (0usize..6).prop_map(Step::Take),
            2 => (0usize..6).prop_map(Step::Complete),
            2 => Just(Step::Settle),
            1 => Just(Step::DropFirst),
            1 => Just(Step::Reclaim),
        ], 1..200)) {
            let mut ring = TxRing::new(slots(32, 2048));
            let mut kernel = Kernel { head: 0, in_flight: VecDeque::new(), sent: Vec::new() };
            let (mut expected, mut waiting, mut settled) = (Vec::new(), VecDeque::<Vec<u8>>::new(), 0);
            let mut serial = 0u8;
            for step in steps {
                match step {
                    Step::Push(len) => {
                        serial = serial.wrapping_add(1);
                        if ring.push(Offload::default(), &vec![serial; len]) {
                            waiting.push_back(vec![serial; len]);
                        }
                    }
                    Step::Take(n) => {
                        kernel.take(&mut ring, n);
                        while expected.len() < kernel.sent.len() {
                            expected.push(waiting.pop_front().unwrap());
                        }
                    }
                    Step::Complete(n) => kernel.complete(&mut ring, n),
                    Step::Settle => ring.settle(|_| settled += 1),
                    Step::DropFirst => {
                        ring.settle(|_| settled += 1);
                        prop_assert_eq!(ring.drop_first(), waiting.pop_front().is_some());
                    }
                    Step::Reclaim => {
                        ring.settle(|_| settled += 1);
                        prop_assert_eq!(ring.reclaim(), waiting.len());
                        waiting.clear();
                    }
                }
            }
            ring.settle(|_| settled += 1);
            prop_assert_eq!(ring.pending(), waiting.len());
            prop_assert_eq!(settled, kernel.sent.len());
            prop_assert_eq!(kernel.sent, expected);
        }
    }

    #[test]
    fn a_frame_is_read_with_its_tag_and_its_state() {
        let mut ring = RxRing::new(slots(4, 2048));
        assert!(ring.peek().is_none());
        let offload = Offload {
            flags: 1,
            csum_start: 34,
            csum_offset: 16,
            ..Offload::default()
        };
        ring.slots
            .bytes_mut(0, 86, 10)
            .copy_from_slice(&offload.to_bytes());
        ring.slots.bytes_mut(0, 96, 60).fill(7);
        // SAFETY: slot 0 of our own ring.
        unsafe {
            let header = ring.slots.at(0).cast::<tpacket2_hdr>();
            (*header).tp_len = 9000;
            (*header).tp_snaplen = 60;
            (*header).tp_mac = 96;
            (*header).tp_vlan_tci = 0x0123;
            (*header).tp_vlan_tpid = 0x88a8;
        }
        let flags =
            TP_STATUS_USER | TP_STATUS_COPY | TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID;
        ring.slots.set_status(0, flags);
        let received = ring.peek().unwrap();
        assert_eq!(
            (received.len, received.bytes, received.queued),
            (9000, &[7; 60][..], true)
        );
        assert_eq!(
            (received.vlan, received.offload),
            (Some((0x88a8, 0x0123)), offload)
        );
        ring.release();
        assert_eq!(ring.slots.status(0), TP_STATUS_KERNEL);
        assert!(ring.peek().is_none());
    }
}
