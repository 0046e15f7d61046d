//! What becomes of frames that the kernel does not take. Called by the transmit half.
//!
//! Nothing is dropped that could still arrive: a full queue is waited for, but not for ever, and a super-frame of a kind that the
//! kernel does not know leaves as the frames it stands for.

use std::io;

use crate::{
    coalesce::Kinds, cut::Cutter, lane::Turn, port::queue::Queue, stats::Reason, wire::segment::Gso,
};

/// What a refusal means for the frames that wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Try again later.
    Wait,
    /// Never this frame; the next may do.
    Frame(Reason),
    /// Never this super-frame; the frames that it stands for will do.
    Cut,
    /// None of them: the link is down.
    All,
}

/// How long to go on offering a frame that the device drops.
///
/// `ENOBUFS` means that the device dropped a copy: because its peer's queue is full (then a later try succeeds), or
/// because this frame never goes (the peer's MTU is smaller). So: a while for the first. If that was in vain, others are
/// not waited for until some time has passed.
#[derive(Default)]
pub(super) struct Patience {
    refused_since_ns: Option<u64>,
    spent_until_ns: u64,
    /// Kinds of super-frames of which the kernel has taken one.
    taken: Kinds,
    /// Those of which it has refused one before it took any: it does not know them.
    pub(super) refused: Kinds,
}

impl Patience {
    const LASTS_NS: u64 = 1_000_000;
    const RETURNS_NS: u64 = 1_000_000_000;

    /// Something was sent.
    pub(super) fn reward(&mut self) {
        self.refused_since_ns = None;
    }

    /// The kernel has taken a frame of that kind.
    #[inline]
    pub(super) fn took(&mut self, gso: Option<Gso>) {
        if let Some(gso) = gso {
            *self.taken.of_gso(gso.kind) = true;
        }
    }

    /// What an error means for the first frame of those offered; `gso`, if that is a super-frame.
    pub(super) fn judge(&mut self, error: &io::Error, gso: Option<Gso>, now_ns: u64) -> Refusal {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Refusal::Wait,
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Refusal::All,
            Some(libc::ENOBUFS) => {
                let since = *self.refused_since_ns.get_or_insert(now_ns);
                if now_ns >= self.spent_until_ns && now_ns - since < Self::LASTS_NS {
                    return Refusal::Wait;
                }
                if now_ns >= self.spent_until_ns {
                    self.spent_until_ns = now_ns + Self::RETURNS_NS;
                }
                Refusal::Frame(Reason::Refused)
            }
            // Of a kind that this kernel does not know, or with a header that it does not like (virtio_net_hdr_to_skb).
            Some(libc::EINVAL) if let Some(gso) = gso => {
                let known = *self.taken.of_gso(gso.kind);
                *self.refused.of_gso(gso.kind) |= !known;
                Refusal::Cut
            }
            Some(libc::EMSGSIZE) => Refusal::Frame(Reason::Oversize),
            _ => Refusal::Frame(Reason::Refused),
        }
    }
}

/// Puts the frames that the queue's first stands for in its place.
pub(super) fn cut_first(queue: &mut Queue, cutter: &mut Cutter, turn: &mut Turn) {
    let Some(frame) = queue.pop(turn.pool) else {
        return;
    };
    let mut cut = Vec::new();
    cutter.cut(frame, turn, |frame, _| cut.push(frame));
    for frame in cut.into_iter().rev() {
        queue.unpop(frame, turn.pool);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        burst::Burst,
        coalesce::Coalescer,
        memory::{FramePool, PoolSize},
        port::Link,
        stats::Tally,
        wire::segment::GsoKind,
    };

    const UDP: Gso = Gso {
        kind: GsoKind::Udp,
        size: 20,
        csum_start: 34,
        csum_offset: 6,
    };

    fn error(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn a_kind_that_was_never_taken_is_refused_for_good() {
        let mut patience = Patience::default();
        let invalid = error(libc::EINVAL);
        let tcp = Gso {
            kind: GsoKind::Tcp4,
            ..UDP
        };
        patience.took(Some(tcp));
        assert_eq!(patience.judge(&invalid, Some(tcp), 0), Refusal::Cut);
        assert_eq!(patience.refused, Kinds::default());
        assert_eq!(patience.judge(&invalid, Some(UDP), 0), Refusal::Cut);
        let udp = Kinds {
            udp: true,
            ..Kinds::default()
        };
        assert_eq!(patience.refused, udp);
        let refused = Refusal::Frame(Reason::Refused);
        assert_eq!(patience.judge(&invalid, None, 0), refused);
        assert_eq!(
            patience.judge(&error(libc::ENETDOWN), Some(UDP), 0),
            Refusal::All
        );
    }

    #[test]
    fn a_full_queue_is_waited_for_a_while() {
        let mut patience = Patience::default();
        let full = error(libc::ENOBUFS);
        let given_up = Refusal::Frame(Reason::Refused);
        assert_eq!(patience.judge(&full, None, 5), Refusal::Wait);
        assert_eq!(
            patience.judge(&full, Some(UDP), 5 + Patience::LASTS_NS),
            given_up
        );
        // In vain, so the next is not waited for.
        patience.reward();
        assert_eq!(
            patience.judge(&full, None, 6 + Patience::LASTS_NS),
            given_up
        );
    }

    fn datagram(payload: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(7, 9)
            .write(&mut bytes, &[payload; 20])
            .unwrap();
        bytes
    }

    /// From the merge to the refusal, in a pool that has not one buffer to spare.
    #[test]
    fn what_was_merged_and_refused_leaves_as_it_came() {
        const COUNT: u8 = 64;
        let size = PoolSize {
            small: usize::from(COUNT) + 1,
            large: 0,
        };
        let mut pool = FramePool::ordinary(size).unwrap();
        let mut tally = Tally::default();
        let mut coalescer = Coalescer::new(Kinds::ALL, Arc::new(Link::new(true, 1500)));
        let mut burst = Burst::new();
        for payload in 0..COUNT {
            burst.push(pool.alloc_copy(&datagram(payload)).unwrap());
        }
        let last = pool.alloc_copy(&[9; 60]).unwrap();
        burst.push(last);
        let mut turn = Turn {
            pool: &mut pool,
            tally: &mut tally,
            now_ns: 0,
            room: 0,
        };
        coalescer.merge(&mut burst, &mut turn);
        assert_eq!(burst.len(), 2);
        let (mut queue, mut patience) = (Queue::default(), Patience::default());
        burst.drain().for_each(|frame| queue.push(frame, turn.pool));
        let gso = turn.pool.meta(&queue.frames[0]).offload.gso();
        assert_eq!(gso, Some(UDP));
        assert_eq!(patience.judge(&error(libc::EINVAL), gso, 0), Refusal::Cut);
        cut_first(&mut queue, &mut Cutter::default(), &mut turn);
        assert_eq!(queue.packets(), u64::from(COUNT) + 1);
        for payload in 0..COUNT {
            let frame = queue.pop(turn.pool).unwrap();
            let (bytes, meta) = (turn.pool.bytes(&frame), turn.pool.meta(&frame));
            assert!(!meta.offload.is_gso() && !meta.offload.needs_csum());
            // The identification counts up: they must not be fragmented.
            let mut expected = datagram(payload);
            expected[18..20].copy_from_slice(&u16::from(payload).to_be_bytes());
            expected[24..26].copy_from_slice(&bytes[24..26]);
            assert_eq!(bytes, expected);
            turn.pool.free(frame);
        }
        let other = queue.pop(turn.pool).unwrap();
        assert_eq!(turn.pool.bytes(&other), [9; 60]);
        turn.pool.free(other);
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(tally.dropped, Tally::default().dropped);

        // And the lane merges no more of them.
        coalescer.forgo(patience.refused);
        let mut turn = Turn {
            pool: &mut pool,
            tally: &mut tally,
            now_ns: 0,
            room: 0,
        };
        for _ in 0..2 {
            burst.push(turn.pool.alloc_copy(&datagram(1)).unwrap());
        }
        coalescer.merge(&mut burst, &mut turn);
        assert_eq!(burst.len(), 2);
        burst.drain().for_each(|frame| turn.pool.free(frame));
    }
}
