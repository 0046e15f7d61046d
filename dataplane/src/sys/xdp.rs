//! The XDP program on an interface: loading it, attaching it by a link, and saying who is there already.
//!
//! Called by the `xdp` back end, in the network namespace of the interface. The link goes with its last descriptor, so
//! nothing stays attached when the process dies, however it dies.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder,
    query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter},
};

use super::release;
use crate::interface::XdpMode;

/// Built from bpf/relay.bpf.c by bpf/Makefile.
pub(crate) static OBJECT: &[u8] = include_bytes!("../../../bpf/relay.bpf.o");

/// What a driver can do, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// Programs run in the driver and can redirect, which AF_XDP needs. `None`: this kernel does not tell.
    pub(crate) native: Option<bool>,
    /// AF_XDP without copies.
    pub(crate) zero_copy: Option<bool>,
    /// Frames can be redirected to it, or it does not say (before Linux 6.3): of veth, whether its other end would take them now
    /// (`veth_set_xdp_features`, `drivers/net/veth.c`).
    pub(crate) transmit: bool,
}

/// A program that somebody else has attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    /// The number that `bpftool prog` shows.
    pub(crate) id: u32,
    /// Its name; `None` if we may not ask.
    pub(crate) name: Option<String>,
    /// What keeps it there.
    pub(crate) holder: Holder,
}

/// What keeps a program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It was attached by netlink: anybody with the right can take it off.
    Netlink,
    /// A link, which only its owner can end; with its number unless we may not ask.
    Link(Option<u32>),
    /// We may not ask: numbers of programs and links are looked up with CAP_SYS_ADMIN only (`bpf_prog_get_fd_by_id`,
    /// `kernel/bpf/syscall.c`).
    Unknown,
}

impl Holder {
    /// Whether another program may take its place, for all we know.
    pub(crate) fn may_be_replaced(self) -> bool {
        !matches!(self, Self::Link(_))
    }
}

/// The program of one interface, loaded.
pub(crate) struct Program {
    object: Object,
}

/// The program, attached. Dropping it detaches it.
pub(crate) struct Attached {
    _link: OwnedFd,
    sockets: MapHandle,
}

impl Features {
    /// Asks the driver of an interface.
    pub(crate) fn of(index: u32) -> io::Result<Self> {
        let mut answer = libbpf_sys::bpf_xdp_query_opts {
            sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        // SAFETY: the answer lives through the call and tells its size.
        let result = unsafe { libbpf_sys::bpf_xdp_query(index.cast_signed(), 0, &raw mut answer) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(Self::said(answer.feature_flags, &release::name()))
    }

    /// What is said by flags of the kernel of that release. Since Linux 6.3 no flag means that the driver can nothing; before it,
    /// nothing.
    fn said(flags: u64, release: &str) -> Self {
        // enum netdev_xdp_act (include/uapi/linux/netdev.h): what runs programs, what redirects, what copies nothing.
        const BASIC_AND_REDIRECT: u64 = 1 | 2;
        const ZERO_COPY: u64 = 8;
        const TRANSMIT: u64 = 4;
        let told = flags != 0 || release::parse(release).is_some_and(|version| version >= (6, 3));
        let has = |wanted| told.then_some(flags & wanted == wanted);
        Self {
            native: has(BASIC_AND_REDIRECT),
            zero_copy: has(ZERO_COPY),
            transmit: flags == 0 || flags & TRANSMIT != 0,
        }
    }
}

impl Other {
    /// What can be learnt of the program with that number.
    pub(crate) fn find(id: u32) -> Self {
        let name = ProgInfoIter::default()
            .find(|program| program.id == id)
            .map(|program| program.name.to_string_lossy().into_owned());
        let link = LinkInfoIter::default()
            .find(|link| link.prog_id == id && matches!(link.info, LinkTypeInfo::Xdp(_)))
            .map(|link| link.id);
        let holder = match (link, &name) {
            (Some(link), _) => Holder::Link(Some(link)),
            (None, Some(_)) => Holder::Netlink,
            (None, None) => Holder::Unknown,
        };
        Self { id, name, holder }
    }

    /// Takes it off the interface, if it was attached by netlink in that mode.
    pub(crate) fn detach(index: u32, mode: XdpMode) -> io::Result<()> {
        let flags = flags(mode);
        // SAFETY: no memory is passed.
        let result =
            unsafe { libbpf_sys::bpf_xdp_detach(index.cast_signed(), flags, std::ptr::null()) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }
}

impl Program {
    /// Loads the program for an interface with that many receive queues.
    pub(crate) fn load(queues: u32) -> io::Result<Self> {
        // What libbpf would print is in the errors.
        libbpf_rs::set_print(None);
        let mut open = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(bpf_error)?;
        for mut map in open.maps_mut() {
            map.set_max_entries(queues.max(1)).map_err(bpf_error)?;
        }
        let object = open.load().map_err(bpf_error)?;
        Ok(Self { object })
    }

    /// The program's descriptor.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        let program = self.object.progs().next();
        // The descriptor is the object's, which `self` owns.
        let fd = program.ok_or(io::ErrorKind::NotFound)?.as_fd().as_raw_fd();
        // SAFETY: open for as long as the object, which the result borrows.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The map of the sockets.
    pub(crate) fn sockets(&self) -> io::Result<MapHandle> {
        let map = self.object.maps().find(|map| map.name() == "sockets");
        MapHandle::try_from(&map.ok_or(io::ErrorKind::NotFound)?).map_err(bpf_error)
    }

    /// Attaches it to an interface.
    pub(crate) fn attach(&self, index: u32, mode: XdpMode) -> io::Result<Attached> {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            flags: flags(mode),
            ..Default::default()
        };
        let program = self.fd()?.as_raw_fd();
        // SAFETY: the program's descriptor is open, and the options live through the call and tell their size.
        let result = unsafe {
            libbpf_sys::bpf_link_create(
                program,
                index.cast_signed(),
                libbpf_sys::BPF_XDP,
                &raw const options,
            )
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(Attached {
            // SAFETY: a result that is no error is a new descriptor, which nobody else owns.
            _link: unsafe { OwnedFd::from_raw_fd(result) },
            sockets: self.sockets()?,
        })
    }
}

impl Attached {
    /// Hands the frames of a receive queue to a socket that is bound to it.
    pub(crate) fn register(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = socket.as_raw_fd().to_ne_bytes();
        self.sockets
            .update(&queue.to_ne_bytes(), &socket, MapFlags::ANY)
            .map_err(bpf_error)
    }

    /// Leaves the frames of a receive queue to the stack again.
    pub(crate) fn unregister(&self, queue: u32) {
        // A socket that is closed has left the map by itself.
        let _ = self.sockets.delete(&queue.to_ne_bytes());
    }
}

fn flags(mode: XdpMode) -> u32 {
    match mode {
        XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
        XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        XdpMode::Offloaded => libbpf_sys::XDP_FLAGS_HW_MODE,
    }
}

/// libbpf-rs keeps the error number to itself, but not what it means.
pub(super) fn bpf_error(error: libbpf_rs::Error) -> io::Error {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::Error::from_raw_os_error(libc::EPERM),
        _ => io::Error::other(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{mem, slice};

    use libbpf_rs::ProgramInput;

    use super::*;
    use crate::{
        interface::Interface,
        sys::{
            netns::{self, testing::Namespace},
            xsk::{Umem, Way},
        },
    };

    /// What the program decides about a frame that came by that queue.
    fn verdict(program: &mut Program, index: u32, queue: u32) -> u32 {
        let frame = [0x42; 64];
        let mut context = libbpf_sys::xdp_md {
            data_end: frame.len() as u32,
            ingress_ifindex: index,
            rx_queue_index: queue,
            ..Default::default()
        };
        // SAFETY: plain data of that size, which lives to the end of this function.
        let context = unsafe {
            slice::from_raw_parts_mut((&raw mut context).cast::<u8>(), mem::size_of_val(&context))
        };
        let input = ProgramInput {
            context_in: Some(context),
            data_in: Some(&frame),
            ..Default::default()
        };
        let relay = program.object.progs_mut().next().unwrap();
        relay.test_run(input).unwrap().return_value
    }

    #[test]
    fn frames_go_to_the_socket_of_their_queue_and_else_to_the_stack() {
        const XDP_PASS: u32 = 2;
        const XDP_REDIRECT: u32 = 4;
        let Some(namespace) = Namespace::make("verdict") else {
            return;
        };
        let queues = "numtxqueues 2 numrxqueues 2";
        namespace.ip(&format!(
            "link add va {queues} type veth peer name vb {queues}"
        ));
        namespace.ip("link set va up");
        let verdicts = netns::within(Some(&namespace.name), || {
            let index = Interface::find("va").unwrap().unwrap().index;
            let mut program = Program::load(2).unwrap();
            let attached = program.attach(index, XdpMode::Native).unwrap();
            let umem = Umem::map(64, 2048, 64, false).unwrap();
            let bound = umem.bind("va", 1, 64, Way::COPY).unwrap();
            let (rx, _tx) = bound.divide(umem.share(0, 32), umem.share(32, 32));
            let mut all = || [0, 1].map(|queue| verdict(&mut program, index, queue));
            let before = all();
            attached.register(1, rx.fd()).unwrap();
            let with = all();
            attached.unregister(1);
            [before, with, all()]
        })
        .unwrap();
        let pass = [XDP_PASS; 2];
        assert_eq!(verdicts, [pass, [XDP_PASS, XDP_REDIRECT], pass]);
    }

    #[test]
    fn drivers_that_say_nothing_are_not_said_to_be_unable() {
        let said = |flags, release| {
            let features = Features::said(flags, release);
            (features.native, features.zero_copy, features.transmit)
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(said(0, "6.1.0-38-amd64"), (None, None, true));
        assert_eq!(said(0, "6.3.0"), (no, no, true));
        assert_eq!(said(1, "6.18.44"), (no, no, false));
        // veth (its other end may be unable to take frames), and a card.
        assert_eq!(said(0x23, "6.18.44"), (yes, no, false));
        assert_eq!(said(0x7f, "6.18.44"), (yes, yes, true));
        // Some distributions have it in older kernels.
        assert_eq!(said(0x0f, "5.14.0-427.el9"), (yes, yes, true));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let program = match Program::load(1) {
            Ok(program) => program,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
                return;
            }
        };
        assert!(program.attach(u32::MAX >> 1, XdpMode::Native).is_err());
    }
}
