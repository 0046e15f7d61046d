//! Coalescing: frames of one flow that are in a burst together leave as one super-frame, and the receiver's stack cuts it again.
//!
//! Called by a lane once a burst, behind all stages. On veth nearly all of a relay's time is the kernel's cost of each frame
//! handed to it, and a super-frame is one. Nothing waits for a merge: what is merged has arrived already. It knows no sockets.
//!
//! What it promises: every frame leaves once, alone or as a segment, with the bytes it came with, but for the IPv4 identification of
//! merged frames that must not be fragmented (DF; RFC 6864 lets it change). Frames of a flow keep their order. A frame whose checksum is wrong
//! leaves alone, as it came. The rules are those of the kernel's own GRO: `tcp_gro_receive` (`net/ipv4/tcp_offload.c`),
//! `udp_gro_receive_segment` (`net/ipv4/udp_offload.c`), `inet_gro_receive` (`net/ipv4/af_inet.c`), `ipv6_gro_receive`
//! (`net/ipv6/ip6_offload.c`); where it allows more, the comment says so.

mod read;
mod table;

use std::sync::Arc;

use self::{
    read::{Flow, Seen, Segment},
    table::{Found, Table},
};
use crate::{
    burst::Burst,
    lane::Turn,
    memory::{Frame, FramePool, Offload},
    port::Link,
    wire::{ethernet, segment::GsoKind},
};

/// What is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// UDP, over IPv4 and IPv6.
    pub udp: bool,
    /// TCP over IPv4.
    pub tcp4: bool,
    /// TCP over IPv6.
    pub tcp6: bool,
}

impl Kinds {
    /// All there are.
    pub const ALL: Self = Self {
        udp: true,
        tcp4: true,
        tcp6: true,
    };

    /// All but those of `others`.
    pub(crate) fn without(self, others: Self) -> Self {
        Self {
            udp: self.udp && !others.udp,
            tcp4: self.tcp4 && !others.tcp4,
            tcp6: self.tcp6 && !others.tcp6,
        }
    }

    /// Those of super-frames.
    pub(crate) fn of_gso(&mut self, kind: GsoKind) -> &mut bool {
        match kind {
            GsoKind::Udp => &mut self.udp,
            GsoKind::Tcp4 => &mut self.tcp4,
            GsoKind::Tcp6 => &mut self.tcp6,
        }
    }

    #[inline]
    fn has(self, segment: &Segment) -> bool {
        match (segment.tcp, segment.is_v6()) {
            (false, _) => self.udp,
            (true, false) => self.tcp4,
            (true, true) => self.tcp6,
        }
    }
}

/// Merges the frames of a burst.
pub struct Coalescer {
    kinds: Kinds,
    table: Table,
    groups: Vec<Group>,
    /// What leaves, in order.
    out: Vec<Frame>,
    /// Counts frames behind which no earlier group may grow.
    barrier: u32,
    /// Most frames of a burst whose bytes stay in the cache from being summed up to being sent: by the last burst's mean length.
    deepest: usize,
    /// Of [`PAYS_TWICE`].
    pays_twice: usize,
    /// Frames to let pass as they are, because merging did not pay; and how many it was last time.
    pause: usize,
    paused: usize,
    /// Frames that came in the last burst, and those that left: not judged yet.
    last: Option<[usize; 2]>,
    /// The port that frames leave by: what it can't send alone is not merged either.
    link: Arc<Link>,
}

/// Frames of a flow on their way into one super-frame; or one frame of it that nothing can join.
struct Group {
    flow: Flow,
    /// The first frame, by its place in `out`.
    head: usize,
    first: Segment,
    frames: u32,
    /// Payload bytes of all.
    payload: usize,
    /// PSH and FIN, of the last.
    ends: u8,
    /// Whether another frame may join, if no barrier came since.
    open: bool,
    barrier: u32,
}

/// Most datagrams of a super-frame: receivers size their buffers by what the kernel's GRO makes (`UDP_GRO_CNT_MAX`).
pub const MAX_DATAGRAMS: u32 = 64;
/// While merging rests, bursts of at least so many frames pass as they are; shorter ones are merged always.
const RESTS: usize = 32;
/// Bursts of at least so many frames tell whether merging pays, and shorter ones where [`MOST_BYTES`] bound them: fewer of a few
/// hundred flows may be one of each.
const FAIR: usize = 256;
/// From so many frames for each that leaves merging pays, twice over: where all leave by an AF_PACKET socket, and where single ones leave
/// by AF_XDP. By that they cost the kernel so much less that two or three are as dear as one super-frame (docs/performance.md).
const PAYS_TWICE: [usize; 2] = [3, 6];
/// Frames between two trials where it does not pay: at first, and at most. At the most, the trials are one frame in sixty, and come every fifth
/// of a second under a flood.
const PAUSE: [usize; 2] = [Burst::MAX, 64 * Burst::MAX];
/// Most bytes of a deep burst. They are read twice, to be summed up and to be sent; of more than this too much has left the cache by then.
const MOST_BYTES: usize = 1536 << 10;
/// Most frames of a deep burst whose mean length is above [`SHORT`] bytes.
const MOST_LONG: usize = 1024;
/// Frames up to this mean length fill one or two lines of the cache each.
const SHORT: usize = 128;
/// How many frames ahead memory is asked for: of a deep burst, the first frames have left the cache before they are read again, and the rest of
/// each may be in the sender's.
const AHEAD: usize = 4;
/// Most bytes of an IP packet, and most of an IPv6 payload.
const MAX_PACKET: usize = 0xffff;

impl Coalescer {
    /// For frames that leave by the port with this link.
    pub fn new(kinds: Kinds, link: Arc<Link>) -> Self {
        Self {
            kinds,
            table: Table::new(),
            groups: Vec::new(),
            out: Vec::new(),
            barrier: 0,
            deepest: Burst::MAX,
            pays_twice: PAYS_TWICE[0],
            pause: 0,
            paused: 0,
            last: None,
            link,
        }
    }

    /// The same where what is not merged leaves by a cheaper way, if `plain`.
    pub(crate) fn beside(mut self, plain: bool) -> Self {
        self.pays_twice = PAYS_TWICE[usize::from(plain)];
        self
    }

    /// Merges these no more.
    pub(crate) fn forgo(&mut self, kinds: Kinds) {
        self.kinds = self.kinds.without(kinds);
    }

    /// Most frames that the lane's next turn takes in, when the last could take up to `depth`, was let take `limit` and took
    /// `received`: more when more was waiting, fewer when the backlog is gone.
    pub fn depth(&mut self, depth: usize, limit: usize, received: usize) -> usize {
        // If bursts are about to be deeper, this one says little of those.
        let grows = received >= limit && limit >= depth && depth < self.deepest;
        if let Some([came, left]) = self.last.take()
            && came >= FAIR.min(self.deepest)
            && !grows
        {
            self.judge(came, left);
        }
        if self.pause > 0 {
            // Deep bursts only cost the cache then.
            Burst::MIN
        } else if self.paused > 0 {
            // A trial is due, and only a deep burst is a fair one.
            self.deepest
        } else if received >= limit {
            // If it was the transmit side that set the limit, nothing is known of what waits.
            if limit < depth {
                depth
            } else {
                (2 * depth).min(self.deepest)
            }
        } else if received < depth / 4 {
            (depth / 2).max(Burst::MIN)
        } else {
            depth
        }
    }

    /// Merges what can be merged.
    pub fn merge(&mut self, burst: &mut Burst, turn: &mut Turn) {
        let came = burst.len();
        if came >= RESTS && self.pause > 0 {
            self.pause = self.pause.saturating_sub(came);
            return;
        }
        // More groups than the table can name can't come from a lane.
        if !(2..=usize::from(u16::MAX)).contains(&came) {
            return;
        }
        let max_frame = self.link.mtu() + ethernet::HEADER_LEN;
        self.table.begin(burst.len());
        let mut bytes = 0;
        let mut frames = burst.drain();
        while let Some(frame) = frames.next() {
            if let Some(later) = frames.as_slice().get(AHEAD) {
                turn.pool.fetch(later);
            }
            bytes += turn.pool.len(&frame);
            self.add(frame, max_frame, turn);
        }
        drop(frames);
        self.deepest = Self::deepest(bytes / came);
        for group in self.groups.drain(..) {
            group.close(&self.out, turn);
        }
        burst.swap(&mut self.out);
        self.last = Some([came, burst.len()]);
    }

    /// Most frames of a burst, by their mean length in bytes.
    #[inline]
    fn deepest(len: usize) -> usize {
        let most = if len > SHORT { MOST_LONG } else { Burst::MAX };
        (MOST_BYTES / len.max(1)).clamp(Burst::MIN, most)
    }

    /// Where `came` frames became `left`: whether to go on merging, or to try again only after some frames.
    #[inline]
    fn judge(&mut self, came: usize, left: usize) {
        if 2 * came >= self.pays_twice * left {
            self.paused = 0;
        } else {
            self.paused = (2 * self.paused).clamp(PAUSE[0], PAUSE[1]);
            self.pause = self.paused;
        }
    }

    /// Has a frame join its group, or puts it behind all others.
    #[inline]
    fn add(&mut self, frame: Frame, max_frame: usize, turn: &mut Turn) {
        let pool = &mut *turn.pool;
        let (bytes, offload) = (pool.bytes(&frame), pool.meta(&frame).offload);
        let (flow, segment) = match read::read(bytes) {
            Seen::Other => return self.out.push(frame),
            Seen::Unclear => {
                self.barrier = self.barrier.wrapping_add(1);
                return self.out.push(frame);
            }
            Seen::Flow(flow, segment) => (flow, segment),
        };
        let tags = |segment: &Segment| usize::from(segment.network) - ethernet::HEADER_LEN;
        let segment = segment.filter(|segment| {
            !offload.is_gso()
                && self.kinds.has(segment)
                && segment.may_be_left(offload)
                && bytes.len() <= max_frame + tags(segment)
        });
        match self.table.find(&flow, |group| &self.groups[group].flow) {
            Found::Group(at) => {
                let group = &mut self.groups[at];
                let sound = match segment {
                    Some(segment)
                        if group.open
                            && group.barrier == self.barrier
                            && group.flow.manner == flow.manner
                            && group.fits(&segment) =>
                    {
                        let head = &self.out[group.head];
                        if group.is_head_sound(head, pool)
                            && group.is_next(&segment, pool.bytes(head), bytes)
                        {
                            if segment.is_sound(bytes, offload.needs_csum()) {
                                pool.append(head, frame, segment.header_len.into());
                                return group.grow(&segment);
                            }
                            false
                        } else {
                            true
                        }
                    }
                    _ => true,
                };
                // Its order is kept by starting anew behind this frame.
                group.close(&self.out, turn);
                let segment = segment.filter(|_| sound);
                *group = Group::new(flow, segment, self.out.len(), self.barrier);
            }
            Found::Free(place) => {
                if segment.is_some() {
                    self.table.set(place, self.groups.len());
                    let group = Group::new(flow, segment, self.out.len(), self.barrier);
                    self.groups.push(group);
                }
            }
            Found::Full => {}
        }
        self.out.push(frame);
    }
}

impl Group {
    /// A group of one frame; `None`: nothing can join it.
    #[inline]
    fn new(flow: Flow, first: Option<Segment>, head: usize, barrier: u32) -> Self {
        let open = first.is_some_and(|first| first.ends == 0);
        let first = first.unwrap_or_default();
        Self {
            flow,
            head,
            first,
            frames: 1,
            payload: first.payload.into(),
            ends: 0,
            open,
            barrier,
        }
    }

    /// Whether a frame is next by its numbers: no longer than those before, and where they end.
    #[inline]
    fn fits(&self, segment: &Segment) -> bool {
        let first = &self.first;
        let headers = usize::from(first.header_len - first.network);
        segment.payload <= first.payload
            && headers + self.payload + usize::from(segment.payload) <= MAX_PACKET
            && segment.id == first.id.map(|id| id.wrapping_add(self.frames as u16))
            && (!first.tcp || segment.sequence == first.sequence.wrapping_add(self.payload as u32))
    }

    /// Whether a frame has the same TCP options.
    #[inline]
    fn is_next(&self, segment: &Segment, head: &[u8], bytes: &[u8]) -> bool {
        let options = usize::from(self.first.transport) + 20..self.first.header_len.into();
        !self.first.tcp
            || segment.header_len == self.first.header_len
                && head.get(options.clone()) == bytes.get(options)
    }

    /// Whether the first frame's checksums are right. Those of a frame that nobody joins are not looked at.
    #[inline]
    fn is_head_sound(&self, head: &Frame, pool: &FramePool) -> bool {
        self.frames > 1
            || self
                .first
                .is_sound(pool.bytes(head), pool.meta(head).offload.needs_csum())
    }

    /// Notes a frame that has joined.
    #[inline]
    fn grow(&mut self, segment: &Segment) {
        self.frames += 1;
        self.payload += usize::from(segment.payload);
        self.ends = segment.ends;
        self.open = segment.payload == self.first.payload
            && segment.ends == 0
            && (self.first.tcp || self.frames < MAX_DATAGRAMS);
    }

    /// Makes the first frame's headers those of the super-frame.
    #[inline]
    fn close(&self, out: &[Frame], turn: &mut Turn) {
        if self.frames < 2 {
            return;
        }
        let (head, first) = (&out[self.head], &self.first);
        let gso = first.write(turn.pool.bytes_mut(head), self.payload, self.ends);
        let meta = turn.pool.meta_mut(head);
        meta.segments = self.frames;
        meta.offload = Offload::of_super_frame(gso, first.header_len);
        turn.tally.merged_packets += u64::from(self.frames);
        turn.tally.super_frames += 1;
    }
}

#[cfg(test)]
mod tests;
