//! Where the kernel runs forwarding programs: attaching one to an interface's ingress, and saying who is there already.
//!
//! Called by the `kernel` back end, in the network namespace of the interface. On tcx (Linux 6.6) a link holds the program: nothing
//! stays attached when the process dies. Before, a filter on clsact holds it, which stays: [`Clsact`] takes over what a relay that has
//! died left there, and knows it from one that lives.

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

use libbpf_sys::{bpf_tc_hook, bpf_tc_opts};

/// A program on tcx that somebody has attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct There {
    /// The number that `bpftool prog` shows.
    pub(crate) id: u32,
    /// The link that holds it; `None` if it was attached without.
    pub(crate) link: Option<u32>,
}

/// What is on tcx ingress of an interface, and when that was.
pub(crate) struct Tcx {
    /// In the order in which they run.
    pub(crate) programs: Vec<There>,
    revision: u64,
}

/// A program, attached. Dropping it detaches it.
pub(crate) enum Attached {
    /// By a link on tcx.
    Link(OwnedFd),
    /// By a filter on clsact.
    Filter(Clsact),
    /// By a link on XDP, in the driver.
    Driver(OwnedFd),
}

/// A filter on clsact.
pub(crate) struct Clsact {
    index: u32,
    /// Nothing else was on the qdisc, so it goes with the filter.
    whole: bool,
    /// Tells others that the filter's owner lives: its name is of the interface, in the namespace, and goes with the process.
    _lock: UnixDatagram,
}

/// The most programs a hook can have (`BPF_MPROG_MAX`, `include/linux/bpf_mprog.h`).
const MOST: usize = 64;
/// Of our filter. Only one of the same priority and handle is replaced.
const HANDLE: u32 = 1;
/// Behind what an administrator has put there with numbers of his own, before those without.
const PRIORITY: u32 = 0x6c32;

impl Tcx {
    /// Asks; `None` if this kernel has no tcx.
    pub(crate) fn of(index: u32) -> io::Result<Option<Self>> {
        let (mut programs, mut links) = ([0u32; MOST], [0u32; MOST]);
        let mut answer = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
            prog_ids: programs.as_mut_ptr(),
            link_ids: links.as_mut_ptr(),
            ..Default::default()
        };
        answer.__bindgen_anon_1.count = MOST as u32;
        // SAFETY: both arrays hold as many numbers as `count` says, and live through the call, as the options do, which tell their size.
        let result = unsafe {
            libbpf_sys::bpf_prog_query_opts(
                index.cast_signed(),
                libbpf_sys::BPF_TCX_INGRESS,
                &raw mut answer,
            )
        };
        match -result {
            0 => {}
            // An attach type that the kernel does not know (bpf_prog_query, kernel/bpf/syscall.c).
            libc::EINVAL => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        // SAFETY: both members of the union are the same number.
        let count = unsafe { answer.__bindgen_anon_1.count } as usize;
        let there = programs.iter().zip(links).take(count);
        let programs = there
            .map(|(&id, link)| There {
                id,
                link: (link != 0).then_some(link),
            })
            .collect();
        Ok(Some(Self {
            programs,
            revision: answer.revision,
        }))
    }

    /// Attaches a program behind those that are there. `ESTALE`: meanwhile others have come or gone.
    pub(crate) fn attach(&self, index: u32, program: BorrowedFd<'_>) -> io::Result<Attached> {
        link(index, program, libbpf_sys::BPF_TCX_INGRESS, |options| {
            options.__bindgen_anon_1.tcx.expected_revision = self.revision;
        })
        .map(Attached::Link)
    }
}

impl Attached {
    /// Attaches a program to XDP of an interface, in the driver.
    pub(crate) fn in_driver(index: u32, program: BorrowedFd<'_>) -> io::Result<Self> {
        link(index, program, libbpf_sys::BPF_XDP, |options| {
            options.flags = libbpf_sys::XDP_FLAGS_DRV_MODE;
        })
        .map(Self::Driver)
    }

    /// Detaches it. When this returns, it has seen its last frame.
    pub(crate) fn detach(&self) -> io::Result<()> {
        let done = match self {
            Self::Link(link) | Self::Driver(link) => {
                // SAFETY: the link's descriptor is open.
                match unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) } {
                    // The interface is gone, and took it along.
                    result if -result == libc::ENOLINK => Ok(()),
                    result => check(result),
                }
            }
            Self::Filter(filter) => filter.detach(),
        };
        grace();
        done
    }
}

impl Clsact {
    /// Whether nobody alive has attached a filter of this kind. Then the result is the right to do it.
    pub(crate) fn lock(index: u32) -> io::Result<UnixDatagram> {
        let name = SocketAddr::from_abstract_name(format!("l2relay/forward/{index}"))?;
        UnixDatagram::bind_addr(&name)
    }

    /// Attaches a program, in the place of one that was left behind. `alone`: no filter is there but such a one.
    pub(crate) fn attach(
        index: u32,
        program: BorrowedFd<'_>,
        alone: bool,
        lock: UnixDatagram,
    ) -> io::Result<Attached> {
        let mut hook = hook(index, libbpf_sys::BPF_TC_INGRESS);
        // SAFETY: the hook lives through the call and tells its size.
        let made = match -unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) } {
            0 => true,
            libc::EEXIST => false,
            error => return Err(io::Error::from_raw_os_error(error)),
        };
        let mut options = bpf_tc_opts {
            prog_fd: program.as_raw_fd(),
            flags: libbpf_sys::BPF_TC_F_REPLACE,
            ..options()
        };
        // SAFETY: the program's descriptor is open; hook and options live through the call and tell their sizes.
        let result = unsafe { libbpf_sys::bpf_tc_attach(&raw const hook, &raw mut options) };
        let filter = Self {
            index,
            whole: made || alone,
            _lock: lock,
        };
        check(result)?;
        Ok(Attached::Filter(filter))
    }

    /// Removes what a relay that has died left behind.
    pub(crate) fn clean(index: u32, lock: UnixDatagram) -> io::Result<()> {
        let left = Self {
            index,
            whole: true,
            _lock: lock,
        };
        left.detach()
    }

    fn detach(&self) -> io::Result<()> {
        let ingress = hook(self.index, libbpf_sys::BPF_TC_INGRESS);
        let options = options();
        // SAFETY: hook and options live through the call and tell their sizes.
        let result = unsafe { libbpf_sys::bpf_tc_detach(&raw const ingress, &raw const options) };
        if self.whole {
            let both = libbpf_sys::BPF_TC_INGRESS | libbpf_sys::BPF_TC_EGRESS;
            let mut both = hook(self.index, both);
            // SAFETY: as above.
            unsafe { libbpf_sys::bpf_tc_hook_destroy(&raw mut both) };
        }
        check(result)
    }
}

/// Waits until every frame that was on its way through the kernel's receive path is out of it.
pub(crate) fn grace() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // It waits for a grace period of RCU (kernel/sched/membarrier.c), and programs run within its read side.
    // SAFETY: no memory is passed.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // Not on kernels with nohz_full: long enough for any softirq.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Links a program to an interface.
fn link(
    index: u32,
    program: BorrowedFd<'_>,
    place: libbpf_sys::bpf_attach_type,
    set: impl FnOnce(&mut libbpf_sys::bpf_link_create_opts),
) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    set(&mut options);
    // SAFETY: the program's descriptor is open, and the options live through the call and tell their size.
    let result = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            index.cast_signed(),
            place,
            &raw const options,
        )
    };
    check(result)?;
    // SAFETY: a result that is no error is a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn hook(index: u32, attach_point: u32) -> bpf_tc_hook {
    bpf_tc_hook {
        sz: size_of::<bpf_tc_hook>() as libbpf_sys::size_t,
        ifindex: index.cast_signed(),
        attach_point,
        ..Default::default()
    }
}

fn options() -> bpf_tc_opts {
    bpf_tc_opts {
        sz: size_of::<bpf_tc_opts>() as libbpf_sys::size_t,
        handle: HANDLE,
        priority: PRIORITY,
        ..Default::default()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}
