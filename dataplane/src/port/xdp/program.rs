//! Attaching the program in the mode that is wanted, and saying what is in the way.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    config::{self, XdpSettings},
    error::{Error, Result},
    interface::{Interface, Xdp, XdpMode},
    rights::{Rights, capability},
    sys::{
        xdp::{Attached, Features, Holder, Other, Program},
        xsk::Way,
    },
};

/// How long a program that is there may take to go, because its relay has just died.
const LEAVING: Duration = Duration::from_millis(200);
/// What AF_XDP takes where little memory may be locked.
const RIGHTS: [(u32, &str); 4] = [
    (capability::BPF, "BPF"),
    (capability::NET_ADMIN, "NET_ADMIN"),
    (capability::NET_RAW, "NET_RAW"),
    (capability::IPC_LOCK, "IPC_LOCK"),
];

/// Of [`RIGHTS`], those that are missing of the first `count` from `first` on, with the remedy.
fn rights(first: usize, count: usize) -> String {
    Rights::own().remedy(&RIGHTS[first..first + count], &RIGHTS)
}

/// What sockets and their memory take.
fn raw() -> String {
    rights(2, 1)
}

/// Attaches the program to an interface, in the calling thread's namespace. Returns it, its mode, and why that is not
/// native although it was to be tried.
pub(super) fn attach(
    interface: &Interface,
    settings: &XdpSettings,
) -> Result<(Attached, XdpMode, Option<String>)> {
    make_way(interface, settings.replace)?;
    let program = Program::load(interface.rx_queues).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => rights(0, 2),
            _ => "use --backend packet if this kernel has no BPF (CONFIG_BPF_SYSCALL)".into(),
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
            Some(libc::EPERM | libc::EACCES) => rights(1, 1),
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

/// What the driver of an interface means by its refusal. Asked in its namespace.
pub(crate) fn why_not_native(error: &io::Error, interface: &Interface) -> String {
    let native = Features::of(interface.index).ok();
    refusal(
        error,
        interface.mtu,
        native.and_then(|features| features.native),
    )
}

/// What a refusal means of a driver that says of itself whether it runs programs, or does not. (For veth: `veth_xdp_set`,
/// drivers/net/veth.c. With EINVAL, where veth says ERANGE, many refuse an MTU whose frames they can't hand over in one piece, for example
/// `ixgbe_xdp_setup`, `igb_xdp_setup`, `virtnet_xdp_set`.)
fn refusal(error: &io::Error, mtu: u32, native: Option<bool>) -> String {
    match (error.raw_os_error(), native) {
        (Some(libc::EINVAL), Some(true)) => {
            format!("its driver refused it at mtu {mtu}, which a lower one may cure")
        }
        (Some(libc::EOPNOTSUPP | libc::EINVAL), _) => "its driver runs no XDP programs".into(),
        (Some(libc::ERANGE), _) => format!("mtu {mtu} is too large for it"),
        (Some(libc::ENOSPC), _) => {
            "it has fewer receive queues than its peer transmit queues".into()
        }
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
        let mut other = Other::find(there.id);
        if replace && other.holder.may_be_replaced() {
            match Other::detach(interface.index, there.mode) {
                Ok(()) => return Ok(()),
                // A link holds it, whose number we may not ask for (`dev_xdp_attach`, net/core/dev.c). It goes by itself if its relay has
                // just died.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    other.holder = Holder::Link(None);
                }
                Err(error) => {
                    let remedy = match error.raw_os_error() {
                        Some(libc::EPERM | libc::EACCES) => rights(1, 1),
                        _ => format!("ip link set {} xdp off", interface.name),
                    };
                    let name = name(&other, there, interface);
                    return Err(Error::system("take the place of", name, error, remedy));
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(in_the_way(&other, there, interface));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn in_the_way(other: &Other, there: Xdp, interface: &Interface) -> Error {
    let off = format!("--replace-xdp, or ip link set {} xdp off", interface.name);
    let remedy = match other.holder {
        Holder::Link(Some(link)) => format!(
            "it is held by link {link}, which only its owner can end: stop that program (`bpftool link show id {link}`)"
        ),
        Holder::Link(None) => {
            "it is held by a link, which only its owner can end: stop that program (which link and whose, CAP_SYS_ADMIN would tell:              `bpftool link show`)"
                .into()
        }
        Holder::Netlink => off,
        Holder::Unknown => format!(
            "{off}; unless it is held by a link, which only its owner can end (CAP_SYS_ADMIN would tell: `bpftool link show`)"
        ),
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
        Some(libc::EPERM | libc::EACCES) => raw(),
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again".into(),
        _ => String::new(),
    };
    Error::system(operation, &interface.name, error, remedy)
}

/// Why a socket can't be bound to a queue.
pub(super) fn unbound(interface: &Interface, queue: u32, way: Way, error: io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) if way.zero_copy && way.pieces => format!(
            "its driver can't do without copies, or not for frames of several pieces, which mtu {} takes: lower that, or use --xdp-copy auto",
            interface.mtu
        ),
        Some(libc::EOPNOTSUPP) if way.zero_copy => {
            "its driver can't do without copies: use --xdp-copy auto".into()
        }
        Some(libc::EINVAL) if way.zero_copy => {
            "it has no such queue, or its driver can't do without copies here: lower --queues, or use --xdp-copy auto".into()
        }
        Some(libc::EINVAL) => "it has no such queue: lower --queues".into(),
        Some(libc::EBUSY) => "another AF_XDP socket has this queue: stop its owner".into(),
        Some(libc::ENODEV | libc::ENXIO) => "the interface went away: create it again".into(),
        _ => memory_remedy(&error),
    };
    let queue = format!("queue {queue} of {}", interface.name);
    Error::system("bind an AF_XDP socket to", queue, error, remedy)
}

/// Why memory can't be had.
pub(super) fn memory_remedy(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => raw(),
        Some(libc::ENOBUFS) => format!(
            "raise the limit on locked memory (ulimit -l); {}",
            rights(3, 1)
        ),
        Some(libc::EAFNOSUPPORT) => {
            "this kernel lacks AF_XDP (CONFIG_XDP_SOCKETS): use --backend packet".into()
        }
        Some(libc::ENOMEM) => {
            "lower --ring or the number of pairs, or raise the memory limit".into()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_runs_programs_is_not_said_to_run_none() {
        let why = |errno, native| refusal(&io::Error::from_raw_os_error(errno), 9000, native);
        let none = "its driver runs no XDP programs";
        assert_eq!(why(libc::EOPNOTSUPP, Some(true)), none);
        for native in [Some(false), None] {
            assert_eq!(why(libc::EINVAL, native), none);
        }
        assert!(why(libc::EINVAL, Some(true)).contains("mtu 9000"));
        assert!(why(libc::ERANGE, Some(true)).contains("mtu 9000 is too large"));
        assert!(why(libc::ENOSPC, None).contains("fewer receive queues"));
    }

    #[test]
    fn only_what_may_help_is_advised_against_another_program() {
        let interface = Interface::find("lo").unwrap().unwrap();
        let there = Xdp {
            mode: XdpMode::Native,
            id: 7,
        };
        let said = |holder| {
            let other = Other {
                id: 7,
                name: None,
                holder,
            };
            in_the_way(&other, there, &interface).to_string()
        };
        for (holder, replace, texts) in [
            (Holder::Netlink, true, &["xdp off"][..]),
            (Holder::Unknown, true, &["unless", "CAP_SYS_ADMIN"]),
            (
                Holder::Link(None),
                false,
                &["held by a link", "CAP_SYS_ADMIN"],
            ),
            (Holder::Link(Some(3)), false, &["held by link 3"]),
        ] {
            let said = said(holder);
            assert_eq!(said.contains("--replace-xdp"), replace, "{said}");
            for text in texts {
                assert!(said.contains(text), "{said}");
            }
        }
    }
}
