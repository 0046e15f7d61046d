//! Attaching the program in the driver, by XDP, and finding what is lost after its redirect.
//!
//! Called by [`Way`](super::Way), in the namespace of its ports. An XDP frame that is redirected is handed to the driver of the other
//! port, or it is not, and nobody is told (`bq_xmit_all`, `kernel/bpf/devmap.c`). So it is looked at the start whether the driver
//! would take frames, and later how many it was handed.

use std::os::fd::BorrowedFd;

use crate::{
    error::{Error, Result},
    interface::Interface,
    port::xdp::program::{make_way, why_not_native},
    sys::{
        ethtool::Ethtool,
        tcx::{Attached, grace},
        xdp::Features,
    },
};

/// How many frames the driver of a port was handed by redirects.
pub(super) struct Handed {
    index: u32,
    first: u64,
    /// How many are known to have vanished.
    known: u64,
}

impl Handed {
    /// Begins to count; `None` if the driver does not tell. (Of those that do, only veth needs it, and has been tried.)
    pub(super) fn to(interface: &Interface) -> Option<Self> {
        let first = handed(interface.index)?;
        Some(Self {
            index: interface.index,
            first,
            known: 0,
        })
    }

    /// Of so many frames that were sent: those that have vanished, and were not known to have.
    pub(super) fn vanished(&mut self, sent: u64) -> u64 {
        let missing =
            |first| handed(self.index).map(|now| sent.saturating_sub(now - now.min(first)));
        let is_more = |missing: &u64| *missing > self.known;
        // They may just be under way. After a grace period each has been handed over or lost.
        let Some(missing) = missing(self.first).filter(is_more).and_then(|_| {
            grace();
            missing(self.first).filter(is_more)
        }) else {
            return 0;
        };
        missing - std::mem::replace(&mut self.known, missing)
    }
}

/// Attaches a program to an interface, in its driver.
pub(super) fn attach(
    interface: &Interface,
    program: BorrowedFd<'_>,
    replace: bool,
) -> Result<Attached> {
    make_way(interface, replace)?;
    Attached::in_driver(interface.index, program).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_ADMIN".into(),
            Some(libc::EBUSY | libc::EEXIST) => {
                "another program was attached meanwhile: look with `ip link show`".into()
            }
            _ => format!(
                "{}: use --kernel-hook tc",
                why_not_native(&error, interface)
            ),
        };
        Error::system("attach the XDP program to", &interface.name, error, remedy)
    })
}

/// Why a port takes no frames that are redirected to it, if it does not: of veth, whether its other end, which may be in a namespace that we can't look
/// into, polls for them.
pub(super) fn takes_none(interface: &Interface) -> Option<String> {
    // Kernels before 6.3 don't tell. What vanishes there is counted, and said aloud.
    let features = Features::of(interface.index).ok()?;
    let name = &interface.name;
    (!features.transmit).then(|| match interface.kind.as_deref() {
        Some("veth") => format!(
            "{name}: its other end polls for no XDP frames, so all that is redirected to {name} would be lost: \
             `ethtool -K PEER gro on` there, or --kernel-hook tc"
        ),
        _ => format!("{name}: its driver takes no redirected XDP frames: use --kernel-hook tc"),
    })
}

/// As veth counts: frames that its ring took, and those it did not, which it counts as dropped (`veth_xdp_xmit`).
fn handed(index: u32) -> Option<u64> {
    let interface = Interface::with_index(index).ok()??;
    let ethtool = Ethtool::open(&interface.name).ok()?;
    if ethtool.driver().ok()? != "veth" {
        return None;
    }
    let counts = ethtool.statistics().ok()?;
    let ours = counts
        .iter()
        .filter(|(name, _)| name.ends_with("_xdp_xmit") || name.ends_with("_xdp_xmit_errors"));
    Some(ours.map(|(_, count)| count).sum())
}
