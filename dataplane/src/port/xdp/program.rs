//! Attaching the program in the mode that is wanted, and saying what is in the way.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    config::{self, XdpSettings},
    error::{Error, Result},
    interface::{Interface, Xdp, XdpMode},
    sys::{
        xdp::{Attached, Other, Program},
        xsk::Copying,
    },
};

/// How long a program that is there may take to go, because its relay has just died.
const LEAVING: Duration = Duration::from_millis(200);

/// Attaches the program to an interface, in the calling thread's namespace. Returns it, its mode, and why that is not
/// native although it was to be tried.
pub(super) fn attach(
    interface: &Interface,
    settings: &XdpSettings,
) -> Result<(Attached, XdpMode, Option<String>)> {
    make_way(interface, settings.replace)?;
    let program = Program::load(interface.rx_queues).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "run as root or give it CAP_BPF and CAP_NET_ADMIN: setcap cap_bpf,cap_net_admin,cap_net_raw+ep l2relay"
            }
            _ => "use --backend packet if this kernel has no BPF (CONFIG_BPF_SYSCALL)",
        };
        Error::system("load the XDP program for", &interface.name, error, remedy)
    })?;
    let attach = |mode| program.attach(interface.index, mode);
    let result = match settings.mode {
        config::XdpMode::Native => {
            attach(XdpMode::Native).map(|link| (link, XdpMode::Native, None))
        }
        config::XdpMode::Generic => {
            attach(XdpMode::Generic).map(|link| (link, XdpMode::Generic, None))
        }
        config::XdpMode::Auto => match attach(XdpMode::Native) {
            Ok(link) => Ok((link, XdpMode::Native, None)),
            Err(error) if is_final(&error) => Err(error),
            Err(error) => {
                let reason = why_not_native(&error, interface);
                attach(XdpMode::Generic).map(|link| (link, XdpMode::Generic, Some(reason)))
            }
        },
    };
    result.map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_ADMIN".into(),
            Some(libc::EBUSY | libc::EEXIST) => {
                "another program was attached meanwhile: look with `ip link show`".into()
            }
            _ if settings.mode == config::XdpMode::Native => {
                format!(
                    "{}: use --xdp-mode generic",
                    why_not_native(&error, interface)
                )
            }
            _ => "use --backend packet".into(),
        };
        Error::system("attach the XDP program to", &interface.name, error, remedy)
    })
}

/// Whether another mode would be refused as well.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::EBUSY | libc::EEXIST | libc::ENODEV)
    )
}

/// What a driver means by its refusal. (For veth: `veth_xdp_set`, drivers/net/veth.c.)
pub(crate) fn why_not_native(error: &io::Error, interface: &Interface) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => "its driver runs no XDP programs".into(),
        Some(libc::ERANGE) => format!("mtu {} is too large for it", interface.mtu),
        Some(libc::ENOSPC) => "it has fewer receive queues than its peer transmit queues".into(),
        _ => error.to_string(),
    }
}

/// Sees to it that no other program is on the interface.
pub(crate) fn make_way(interface: &Interface, replace: bool) -> Result<()> {
    let deadline = Instant::now() + LEAVING;
    loop {
        let now = Interface::with_index(interface.index)
            .map_err(|error| refused("look at", interface, error))?;
        let Some(&there) = now.as_ref().and_then(|interface| interface.xdp.first()) else {
            return Ok(());
        };
        let other = Other::find(there.id);
        if replace && other.link.is_none() {
            return Other::detach(interface.index, there.mode).map_err(|error| {
                let remedy = "it may be held by a link, which only its owner can end";
                Error::system(
                    "take the place of",
                    name(&other, there, interface),
                    error,
                    remedy,
                )
            });
        }
        if Instant::now() >= deadline {
            return Err(in_the_way(&other, there, interface));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn in_the_way(other: &Other, there: Xdp, interface: &Interface) -> Error {
    let remedy = match other.link {
        Some(link) => format!(
            "it is held by link {link}, which only its owner can end: stop that program (`bpftool link show id {link}`)"
        ),
        None => format!("--replace-xdp, or ip link set {} xdp off", interface.name),
    };
    Error::system(
        "attach an XDP program beside",
        name(other, there, interface),
        io::Error::from_raw_os_error(libc::EBUSY),
        remedy,
    )
}

fn name(other: &Other, there: Xdp, interface: &Interface) -> String {
    let Other { id, name, .. } = other;
    let (mode, name) = (there.mode, name.as_deref().unwrap_or("of unknown name"));
    format!(
        "program {id} ({name}), which runs on {} in {mode} mode",
        interface.name
    )
}

/// A refusal that needs no more words than the kernel's.
pub(super) fn refused(operation: &'static str, interface: &Interface, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_RAW",
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again",
        _ => "",
    };
    Error::system(operation, &interface.name, error, remedy)
}

/// Why a socket can't be bound to a queue.
pub(super) fn unbound(
    interface: &Interface,
    queue: u32,
    copying: Copying,
    error: io::Error,
) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) if copying == Copying::ZeroCopy => {
            "its driver can't do without copies: use --xdp-copy auto"
        }
        Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_RAW",
        Some(libc::EINVAL) => "it has no such queue: lower --queues",
        Some(libc::EBUSY) => "another AF_XDP socket has this queue: stop its owner",
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again",
        _ => memory_remedy(&error),
    };
    let queue = format!("queue {queue} of {}", interface.name);
    Error::system("bind an AF_XDP socket to", queue, error, remedy)
}

/// Why memory can't be had.
pub(super) fn memory_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run as root or give it CAP_NET_RAW",
        Some(libc::ENOBUFS) => {
            "raise the limit on locked memory (ulimit -l), or give it CAP_IPC_LOCK"
        }
        Some(libc::EAFNOSUPPORT) => {
            "this kernel lacks AF_XDP (CONFIG_XDP_SOCKETS): use --backend packet"
        }
        Some(libc::ENOMEM) => "lower --ring or the number of pairs, or raise the memory limit",
        _ => "",
    }
}
