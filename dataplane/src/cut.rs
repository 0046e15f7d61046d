//! Cutting a super-frame into the frames it stands for, within a lane's pool.
//!
//! For what can't take one whole: a transmit side for those in tunnels, a link stage for all.

use crate::{
    lane::Turn,
    memory::{Frame, FramePool, Offload},
    stats::Reason,
    wire::segment::Segmenter,
};

/// Cuts super-frames. Keeps a scratch buffer between calls.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    scratch: Vec<u8>,
}

impl Cutter {
    /// Cuts a super-frame, and gives its segments to `out` in order: plain frames with whole checksums.
    ///
    /// It is discarded as a whole where it contradicts itself (`gso_unsupported`), or where the pool has too few buffers
    /// for its segments (`pool_empty`).
    pub(crate) fn cut(
        &mut self,
        frame: Frame,
        turn: &mut Turn,
        mut out: impl FnMut(Frame, &FramePool),
    ) {
        let meta = *turn.pool.meta(&frame);
        self.scratch.clear();
        turn.pool
            .parts(&frame)
            .for_each(|part| self.scratch.extend_from_slice(part));
        let segments = meta
            .offload
            .gso()
            .and_then(|gso| Segmenter::new(&self.scratch, gso).ok());
        // What was counted on arrival must be what leaves.
        let Some(segments) = segments.filter(|segments| segments.count() == meta.segments as usize)
        else {
            return turn.discard(frame, Reason::GsoUnsupported);
        };
        // Its own buffers first: those of what was merged here are enough for that.
        turn.pool.free(frame);
        if turn.pool.available(segments.largest()) < segments.count() {
            turn.tally.dropped[Reason::PoolEmpty as usize] += u64::from(meta.segments);
            return;
        }
        for index in 0..segments.count() {
            let Some(segment) = turn.pool.alloc(segments.largest()) else {
                // Not reached: availability was checked.
                turn.tally.dropped[Reason::PoolEmpty as usize] += 1;
                continue;
            };
            match segments.write(index, turn.pool.bytes_mut(&segment)) {
                Some(len) => {
                    turn.pool.truncate(&segment, len);
                    let new = turn.pool.meta_mut(&segment);
                    (new.arrival_ns, new.offload) = (meta.arrival_ns, Offload::default());
                    out(segment, turn.pool);
                }
                None => turn.discard(segment, Reason::GsoUnsupported),
            }
        }
    }
}
