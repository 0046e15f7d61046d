//! Attaching the program where tc runs it, and saying what is in the way.

use std::{
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use crate::{
    config::KernelHook,
    error::{Error, Result},
    interface::{Interface, filter::Filter},
    sys::{
        forward::TC_PROGRAM,
        tcx::{Attached, Clsact, Tcx, There},
        xdp,
    },
};

/// How long a program that is there may take to go, because its relay has just died.
const LEAVING: Duration = Duration::from_millis(200);

/// Attaches a program to the ingress of an interface, in the calling thread's namespace.
pub(super) fn attach(
    interface: &Interface,
    program: BorrowedFd<'_>,
    hook: KernelHook,
) -> Result<Attached> {
    let deadline = Instant::now() + LEAVING;
    loop {
        match try_attach(interface, program, hook) {
            Err(error)
                if matches!(error.os_error(), Some(libc::EBUSY | libc::ESTALE))
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn try_attach(
    interface: &Interface,
    program: BorrowedFd<'_>,
    hook: KernelHook,
) -> Result<Attached> {
    let look = |error| refused("look at the programs of", interface, error);
    let tcx = Tcx::of(interface.index).map_err(look)?;
    if let Some(there) = tcx.as_ref().and_then(|tcx| tcx.programs.first()) {
        return Err(beside_program(there, interface));
    }
    let filters = interface.ingress_filters().map_err(look)?;
    if let Some(filter) = filters.iter().find(|filter| !is_ours(filter)) {
        return Err(beside_filter(filter, interface));
    }
    let lock = || {
        Clsact::lock(interface.index).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => another(interface),
            _ => refused("lock", interface, error),
        })
    };
    let attached = match tcx.filter(|_| hook != KernelHook::Clsact) {
        Some(tcx) => {
            if !filters.is_empty() {
                Clsact::clean(interface.index, lock()?)
                    .map_err(|error| refused("remove the old filter of", interface, error))?;
            }
            tcx.attach(interface.index, program)
        }
        None => Clsact::attach(interface.index, program, !filters.is_empty(), lock()?),
    };
    attached.map_err(|error| refused("attach the program to", interface, error))
}

/// Whether it is a relay's, alive or left behind. libbpf names filters `PROGRAM:[ID]`.
fn is_ours(filter: &Filter) -> bool {
    let name = filter.program.as_deref().unwrap_or_default();
    name.starts_with(TC_PROGRAM)
}

fn another(interface: &Interface) -> Error {
    Error::system(
        "forward from",
        format!("{}, from which another l2relay forwards", interface.name),
        io::Error::from_raw_os_error(libc::EBUSY),
        "stop that one, or name another port",
    )
}

fn beside_program(there: &There, interface: &Interface) -> Error {
    let other = xdp::Other::find(there.id);
    if other.name.as_deref() == Some(TC_PROGRAM) {
        return another(interface);
    }
    let name = other.name.as_deref().unwrap_or("of unknown name");
    let remedy = match there.link {
        Some(link) => format!(
            "it is held by link {link}, which its owner can end: stop that program (`bpftool link show id {link}`), or use --backend packet"
        ),
        None => format!(
            "bpftool net detach tcx_ingress dev {}, or use --backend packet",
            interface.name
        ),
    };
    in_the_way(
        format!(
            "program {} ({name}), which runs on tcx of {}",
            there.id, interface.name
        ),
        remedy,
    )
}

fn beside_filter(filter: &Filter, interface: &Interface) -> Error {
    let Filter { kind, program } = filter;
    let name = program
        .as_ref()
        .map_or_else(String::new, |name| format!(" ({name})"));
    let dev = &interface.name;
    in_the_way(
        format!("a {kind} filter{name}, which tc runs on {dev}"),
        format!("tc filter del dev {dev} ingress, or use --backend packet"),
    )
}

fn in_the_way(what: String, remedy: String) -> Error {
    let busy = io::Error::from_raw_os_error(libc::EBUSY);
    Error::system("attach a forwarding program beside", what, busy, remedy)
}

fn refused(operation: &'static str, interface: &Interface, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_ADMIN",
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again",
        Some(libc::ENOENT | libc::EOPNOTSUPP) => {
            "this kernel has neither tcx (Linux 6.6) nor clsact and its BPF filter (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF): \
             use --backend packet"
        }
        _ => "use --backend packet",
    };
    Error::system(operation, &interface.name, error, remedy)
}
