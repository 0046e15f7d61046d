//! Frames that are held for long, in memory of their own.
//!
//! Holding 100 ms of a fast link must not empty the lane's pool: so the bytes move here and the buffer is free at once.
//! Memory is cells of one size in chunks that are taken as they are needed and kept; their number is bounded. A frame
//! that does not fit is refused, and whoever brought it counts it.

use crate::memory::Offload;

/// Bytes of a cell.
pub(super) const CELL: usize = 256;
/// Cells of a chunk: 1 MiB.
const CHUNK: usize = 4096;
/// What a cell costs: its bytes, its link, and the place of a packet in a queue (every packet has a cell of its own).
pub(super) const COST: usize = CELL + size_of::<u32>() + 64;
const NONE: u32 = u32::MAX;

/// Memory for packets.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<Box<[u8]>>,
    /// The cell after each: of the same packet, or in the free list.
    next: Vec<u32>,
    free: u32,
    used: usize,
    limit: usize,
    packets: u64,
}

/// The move-only right to one packet in an arena.
#[derive(Debug)]
#[must_use = "a packet that is dropped leaks its cells: give it back"]
pub(super) struct Packet {
    first: u32,
    len: u32,
    /// What is left to do for the checksum.
    pub(super) offload: Offload,
}

impl Packet {
    /// Bytes, without FCS.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }
}

impl Arena {
    /// Room for `limit` bytes, bookkeeping included.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            chunks: Vec::new(),
            next: Vec::new(),
            free: NONE,
            used: 0,
            limit: cells(limit),
            packets: 0,
        }
    }

    /// Changes the limit. What is held stays.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = cells(limit);
    }

    /// Copies a packet in. `None` if there is no room.
    pub(super) fn push(&mut self, bytes: &[u8], offload: Offload) -> Option<Packet> {
        let count = bytes.len().div_ceil(CELL).max(1);
        if self.used + count > self.limit {
            return None;
        }
        let mut first = NONE;
        // From the last to the first, so that each cell knows the next.
        for at in (0..count).rev() {
            let cell = self.take();
            let from = at * CELL;
            let piece = &bytes[from..bytes.len().min(from + CELL)];
            self.cell_mut(cell)[..piece.len()].copy_from_slice(piece);
            self.next[cell as usize] = first;
            first = cell;
        }
        self.used += count;
        self.packets += 1;
        Some(Packet {
            first,
            len: bytes.len() as u32,
            offload,
        })
    }

    /// Copies a packet out. `out` is as long as it.
    pub(super) fn read(&self, packet: &Packet, out: &mut [u8]) {
        let mut cell = packet.first;
        for piece in out.chunks_mut(CELL) {
            piece.copy_from_slice(&self.cell(cell)[..piece.len()]);
            cell = self.next[cell as usize];
        }
    }

    /// Writes a packet's bytes anew. `bytes` is as long as it.
    pub(super) fn write(&mut self, packet: &Packet, bytes: &[u8]) {
        let mut cell = packet.first;
        for piece in bytes.chunks(CELL) {
            self.cell_mut(cell)[..piece.len()].copy_from_slice(piece);
            cell = self.next[cell as usize];
        }
    }

    /// The beginning of a packet: at least its headers up to IP.
    pub(super) fn head(&self, packet: &Packet) -> &[u8] {
        &self.cell(packet.first)[..packet.len().min(CELL)]
    }

    /// The beginning of a packet, to be edited.
    pub(super) fn head_mut(&mut self, packet: &Packet) -> &mut [u8] {
        let len = packet.len().min(CELL);
        &mut self.cell_mut(packet.first)[..len]
    }

    /// Gives a packet's cells back.
    pub(super) fn free(&mut self, packet: Packet) {
        let (mut last, mut count) = (packet.first, 1);
        while self.next[last as usize] != NONE {
            last = self.next[last as usize];
            count += 1;
        }
        self.next[last as usize] = self.free;
        self.free = packet.first;
        self.used -= count;
        self.packets -= 1;
    }

    /// Packets held.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes that what is held takes, bookkeeping included.
    pub(super) fn bytes(&self) -> u64 {
        (self.used * COST) as u64
    }

    /// Forgets every packet; returns how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let packets = self.packets;
        *self = Self {
            limit: self.limit,
            ..Self::new(0)
        };
        packets
    }

    fn take(&mut self) -> u32 {
        if self.free == NONE {
            let first = self.next.len() as u32;
            self.chunks.push(vec![0; CHUNK * CELL].into_boxed_slice());
            self.next.extend(first + 1..=first + CHUNK as u32);
            self.free = first;
            let last = self.next.len() - 1;
            self.next[last] = NONE;
        }
        let cell = self.free;
        self.free = self.next[cell as usize];
        cell
    }

    fn cell(&self, cell: u32) -> &[u8] {
        let at = cell as usize % CHUNK * CELL;
        &self.chunks[cell as usize / CHUNK][at..at + CELL]
    }

    fn cell_mut(&mut self, cell: u32) -> &mut [u8] {
        let at = cell as usize % CHUNK * CELL;
        &mut self.chunks[cell as usize / CHUNK][at..at + CELL]
    }
}

/// How many cells a limit in bytes allows. Their numbers fit 32 bits.
fn cells(limit: u64) -> usize {
    usize::try_from(limit / COST as u64)
        .unwrap_or(usize::MAX)
        .min(NONE as usize - CHUNK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any order of coming and going: what is read is what was written, and the limit holds.
        #[test]
        fn packets_keep_their_bytes(steps in prop::collection::vec((0usize..2000, any::<u8>(), 0usize..8), 1..200)) {
            const LIMIT: u64 = 60 * COST as u64;
            let mut arena = Arena::new(LIMIT);
            let mut held: Vec<(Packet, Vec<u8>)> = Vec::new();
            for (len, byte, gone) in steps {
                let bytes: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
                let used: usize = held.iter().map(|(_, bytes)| bytes.len().div_ceil(CELL).max(1)).sum();
                match arena.push(&bytes, Offload::default()) {
                    Some(packet) => held.push((packet, bytes)),
                    None => prop_assert!(used + len.div_ceil(CELL).max(1) > 60),
                }
                prop_assert!(arena.bytes() <= LIMIT);
                if gone < held.len() {
                    let (packet, bytes) = held.swap_remove(gone);
                    let mut out = vec![0; packet.len()];
                    arena.read(&packet, &mut out);
                    prop_assert_eq!(out, bytes);
                    arena.free(packet);
                }
                prop_assert_eq!(arena.packets(), held.len() as u64);
            }
            let left = held.len() as u64;
            prop_assert_eq!(arena.clear(), left);
            prop_assert_eq!((arena.packets(), arena.bytes()), (0, 0));
        }
    }
}
