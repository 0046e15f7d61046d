//! The memory of a pair and its sockets, bound in the best way that the kernel and the drivers take.
//!
//! Called by [`open`](super::open). What is best is tried first; what is tried next follows from the refusal ([`after`]). In whatever way, all
//! sockets of a pair are bound in the same.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{End, Plan, Settings, program, within};
use crate::{
    burst::Burst,
    config::XdpCopy,
    error::{Error, Result},
    memory::{HugePages, Region},
    sys::{
        mapping,
        xdp::Features,
        xsk::{self, Bound, Umem, Way},
    },
    wire::ethernet,
};

/// Chunks for what is in neither the kernel's hands nor the free list, and for the segments of super-frames.
const SPARE: usize = 4 * Burst::MIN;
/// The same where another back end receives, and super-frames with it: 45 segments of 1448 bytes are in one.
const CUT: usize = 46 * Burst::MIN;
/// A queue can't be bound again until the kernel has torn down the socket that was there (measured: 21 ms).
const REBIND: Duration = Duration::from_millis(500);

/// What is bound.
pub(super) struct Sockets {
    pub(super) umem: Umem,
    /// Every socket with its end and queue.
    pub(super) bound: Vec<(usize, u32, Bound)>,
    /// How.
    pub(super) way: Way,
}

impl Sockets {
    /// The longest frame that passes whatever way they are bound, in bytes.
    pub(super) fn longest_whole(&self) -> usize {
        self.umem.chunk() - xsk::HEADROOM
    }
}

/// Chunks of a lane: what it shall have to receive into in each queue, and in all.
pub(super) fn chunks(plan: &Plan, ring: usize) -> (usize, usize) {
    let rings = plan.rx.1.len() + usize::from(plan.tx.1.is_some() && !plan.shared);
    let spare = if plan.rx.1.is_empty() { CUT } else { SPARE };
    (ring, ring * rings + spare)
}

/// Maps memory for all lanes and binds their sockets to it.
pub(super) fn bind(ends: &[End], plans: &[Plan], settings: &Settings) -> Result<Sockets> {
    let can = |end: &End| {
        let features = within(end, || Ok(Features::of(end.interface.index).ok()));
        features.ok().flatten()?.zero_copy
    };
    let unable = ends.iter().any(|end| can(end) == Some(false));
    let zero_copy = match settings.xdp.copying {
        // A socket that only sends leaves the driver without buffers to receive into if the driver uses only ours.
        XdpCopy::Auto => !unable && !plans.iter().any(|plan| plan.rx.1.is_empty()),
        XdpCopy::Copy => false,
        XdpCopy::ZeroCopy => true,
    };
    let first = Way {
        zero_copy,
        pieces: true,
    };
    let (chunk, fits) = chunk(ends);
    let auto = settings.xdp.copying == XdpCopy::Auto;
    let deadline = Instant::now() + REBIND;
    let sockets = loop {
        let bound = in_some_way(first, auto, fits, |way| {
            bind_all(ends, plans, settings, chunk, way)
        });
        match bound {
            Err(error) if error.os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => break result?,
        }
    };
    if settings.whole && !sockets.way.pieces && !fits {
        let longest = sockets.longest_whole();
        return Err(Error::system(
            "carry all frames of",
            &ends[0].interface.name,
            io::Error::from_raw_os_error(libc::EMSGSIZE),
            format!(
                "lower the mtu of both ports so that frames have {longest} bytes at most: AF_XDP takes none in pieces here"
            ),
        ));
    }
    Ok(sockets)
}

/// Tries one way after the other until one is taken, or nothing else would do.
fn in_some_way<T>(
    first: Way,
    auto: bool,
    fits: bool,
    mut attempt: impl FnMut(Way) -> Result<T>,
) -> Result<T> {
    let mut way = first;
    loop {
        let error = match attempt(way) {
            Ok(bound) => return Ok(bound),
            Err(error) => error,
        };
        match error
            .os_error()
            .and_then(|errno| after(way, errno, auto, fits))
        {
            Some(next) => way = next,
            None => return Err(error),
        }
    }
}

/// What to try when a way was refused; `None`: nothing else would do. `auto`: copies are allowed. `fits`: frames of the ports' MTUs need
/// no pieces.
fn after(way: Way, errno: i32, auto: bool, fits: bool) -> Option<Way> {
    let whole = Way {
        pieces: false,
        ..way
    };
    match errno {
        // Before Linux 6.6 the flag is unknown (`xsk_bind`, net/xdp/xsk.c).
        libc::EINVAL if way.pieces => Some(whole),
        // The driver takes one piece a frame (`xdp_zc_max_segs`, `xp_assign_dev`, net/xdp/xsk_buff_pool.c), or has no zero-copy at all.
        libc::EOPNOTSUPP if way.pieces && way.zero_copy && fits => Some(whole),
        // These have nothing to do with copies.
        libc::EBUSY | libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENXIO | libc::ENOBUFS => {
            None
        }
        _ if way.zero_copy && auto => Some(Way::COPY),
        _ => None,
    }
}

/// Maps and binds in one way.
pub(super) fn bind_all(
    ends: &[End],
    plans: &[Plan],
    settings: &Settings,
    chunk: usize,
    way: Way,
) -> Result<Sockets> {
    let ring = settings.ring.next_power_of_two();
    let total = plans.iter().map(|plan| chunks(plan, ring).1).sum();
    let umem = within(&ends[0], || {
        map(total, chunk, ring as u32, settings.huge_pages)
    })?;
    let mut queues: Vec<(usize, u32)> = plans
        .iter()
        .flat_map(|plan| {
            let tx = plan.tx.1.map(|queue| (plan.tx.0, queue));
            plan.rx.1.iter().map(|&queue| (plan.rx.0, queue)).chain(tx)
        })
        .collect();
    queues.sort_unstable();
    queues.dedup();
    let mut bound = Vec::new();
    for (at, queue) in queues {
        let end = &ends[at];
        let socket = within(end, || {
            umem.bind(&end.interface.name, queue, ring as u32, way)
                .map_err(|error| program::unbound(end.interface, queue, way, error))
        })?;
        bound.push((at, queue, socket));
    }
    Ok(Sockets { umem, bound, way })
}

/// Bytes of a chunk: as few as hold a frame of any of the ports whole. Half the memory is half the caches' and the TLB's work. And whether it
/// does hold one. A port whose MTU grows afterwards has its frames in several pieces, or loses them where sockets take none.
fn chunk(ends: &[End]) -> (usize, bool) {
    let mtu = ends.iter().map(|end| end.interface.mtu as usize).max();
    let longest = mtu.unwrap_or(0) + ethernet::HEADER_LEN + 2 * ethernet::TAG_LEN;
    let [small, large] = xsk::CHUNKS;
    let holds = |chunk| longest + xsk::HEADROOM <= chunk;
    if holds(small) {
        (small, true)
    } else {
        (large, holds(large))
    }
}

/// Maps the UMEM, on huge pages if that is wanted and there are any.
fn map(chunks: usize, chunk: usize, ring: u32, huge_pages: HugePages) -> Result<Umem> {
    let bytes = chunks * chunk;
    let failed = |source: io::Error, remedy: String| {
        Error::system(
            "map a UMEM for frames:",
            format!("{bytes} bytes"),
            source,
            remedy,
        )
    };
    let enough = || {
        let (free, size) = (mapping::huge_pages_free()?, mapping::huge_page_size()?);
        Some(free * size >= bytes)
    };
    if huge_pages == HugePages::Require || (huge_pages == HugePages::Auto && enough() == Some(true))
    {
        match Umem::map(chunks, chunk, ring, true) {
            Err(error) if huge_pages == HugePages::Require => {
                let remedy = huge_remedy(&error, bytes);
                return Err(failed(error, remedy));
            }
            Err(_) => {}
            Ok(umem) => return Ok(umem),
        }
    }
    Umem::map(chunks, chunk, ring, false).map_err(|error| {
        let remedy = program::memory_remedy(&error);
        failed(error, remedy)
    })
}

/// Only where memory is short do more huge pages help.
fn huge_remedy(error: &io::Error, bytes: usize) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => Region::huge_page_remedy(bytes),
        _ => program::memory_remedy(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel and a driver take.
    #[derive(Clone, Copy)]
    struct Takes {
        /// Linux 6.6.
        pieces: bool,
        /// Pieces of a frame without copies; none: no zero-copy.
        zero_copy: Option<u32>,
    }

    impl Takes {
        /// What the kernel answers (`xsk_bind`, `xp_assign_dev`).
        fn bind(self, way: Way) -> Result<Way> {
            let errno = match self.zero_copy {
                _ if way.pieces && !self.pieces => libc::EINVAL,
                None if way.zero_copy => libc::EOPNOTSUPP,
                Some(1) if way.zero_copy && way.pieces => libc::EOPNOTSUPP,
                _ => return Ok(way),
            };
            Err(refused(errno))
        }
    }

    fn refused(errno: i32) -> Error {
        Error::system("bind", "q", io::Error::from_raw_os_error(errno), "")
    }

    fn way(zero_copy: bool, pieces: bool) -> Way {
        Way { zero_copy, pieces }
    }

    #[test]
    fn the_best_way_that_is_taken_is_found() {
        let old = |zero_copy| Takes {
            pieces: false,
            zero_copy,
        };
        let new = |zero_copy| Takes {
            pieces: true,
            zero_copy,
        };
        // Takes; auto, whether frames fit; found.
        for (takes, auto, fits, found) in [
            (new(None), true, true, Some(way(false, true))),
            (new(None), true, false, Some(way(false, true))),
            (new(None), false, true, None),
            (new(None), false, false, None),
            (new(Some(1)), true, true, Some(way(true, false))),
            (new(Some(1)), true, false, Some(way(false, true))),
            (new(Some(1)), false, true, Some(way(true, false))),
            (new(Some(1)), false, false, None),
            (new(Some(4)), true, true, Some(way(true, true))),
            (new(Some(4)), true, false, Some(way(true, true))),
            (old(None), true, true, Some(way(false, false))),
            (old(None), true, false, Some(way(false, false))),
            (old(None), false, true, None),
            (old(Some(1)), true, true, Some(way(true, false))),
            (old(Some(1)), false, true, Some(way(true, false))),
        ] {
            let result = in_some_way(way(true, true), auto, fits, |way| takes.bind(way));
            let (pieces, zero_copy) = (takes.pieces, takes.zero_copy);
            assert_eq!(result.ok(), found, "{pieces} {zero_copy:?} {auto} {fits}");
        }
        // `--xdp-copy copy`.
        for (takes, found) in [
            (new(None), way(false, true)),
            (old(None), way(false, false)),
        ] {
            let result = in_some_way(Way::COPY, false, true, |way| takes.bind(way));
            assert_eq!(result.ok(), Some(found));
        }
    }

    #[test]
    fn what_no_other_way_would_cure_is_returned_at_once() {
        for errno in [libc::EBUSY, libc::EPERM, libc::ENODEV, libc::ENOBUFS] {
            let mut tried = 0;
            let result = in_some_way(way(true, true), true, true, |_| {
                tried += 1;
                Err::<(), _>(refused(errno))
            });
            assert_eq!(result.unwrap_err().os_error(), Some(errno));
            assert_eq!(tried, 1);
        }
        // A queue that is not there, by every kernel.
        let mut tried = Vec::new();
        let result = in_some_way(way(true, true), true, true, |way| {
            tried.push(way);
            Err::<(), _>(refused(libc::EINVAL))
        });
        assert_eq!(result.unwrap_err().os_error(), Some(libc::EINVAL));
        assert_eq!(tried.len(), 4);
    }

    #[test]
    fn huge_pages_are_advised_only_where_they_are_short() {
        let remedy = |errno| huge_remedy(&io::Error::from_raw_os_error(errno), 1 << 22);
        assert!(remedy(libc::ENOMEM).contains("--hugepages off"));
        assert!(remedy(libc::ENOBUFS).contains("CAP_IPC_LOCK"));
        for errno in [libc::ENOBUFS, libc::EPERM, libc::EAFNOSUPPORT] {
            assert!(!remedy(errno).contains("--hugepages"), "{errno}");
        }
    }
}
