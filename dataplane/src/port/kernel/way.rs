//! One direction: its program loaded, attached, told of links, read, and taken off again.

use std::{io, os::fd::BorrowedFd, time::Duration};

use super::{End, Options, Passage, devmap, hook};
use crate::{
    config::KernelHook,
    error::{Error, Result},
    interface::Interface,
    netns,
    rights::{Rights, capability},
    stage::mac::Rewrite,
    stats::Tally,
    sys::{
        forward::{Forward, Mac, Place, Settings, State},
        packet::PacketSocket,
        tcx::{self, Attached},
    },
    wire::ethernet::MacAddress,
};

/// One direction of a pair that the kernel carries.
pub(crate) struct Way {
    forward: Forward,
    /// `None` once it is closed.
    attached: Option<Attached>,
    /// Of the port it comes from.
    netns: Option<String>,
    state: State,
    /// At XDP: what the port it goes to was given.
    handed: Option<devmap::Handed>,
    _promiscuous: Option<PacketSocket>,
}

impl Way {
    /// Loads the program and attaches it to `from`. Until [`Way::set`] says otherwise, `passage` becomes of frames.
    ///
    /// # Errors
    /// No permission, no such hook in this kernel, or somebody else's program is on it.
    pub(crate) fn open(
        from: &End,
        to: &End,
        options: &Options,
        passage: Option<Passage>,
    ) -> Result<Self> {
        let interface = from.interface;
        let settings = Settings {
            target: to.interface.index,
            mac: match options.rewrite {
                None => Mac::Keep,
                Some(Rewrite::Swap) => Mac::Swap,
                Some(Rewrite::Update { .. }) => Mac::Update,
            },
            unicast_only: options.unicast_only,
            // Of hardware, what comes was on a wire.
            complete: interface.kind.is_some(),
        };
        let place = match options.hook {
            KernelHook::Xdp => Place::Xdp,
            KernelHook::Auto | KernelHook::Tc | KernelHook::Clsact => Place::Tc,
        };
        let state = state(to, options.rewrite, passage);
        let forward = within(from, || {
            Forward::load(place, &settings, &state)
                .map_err(|error| unloaded(place, interface, error))
        })?;
        let (attached, promiscuous, handed) = within(from, || {
            let promiscuous = options.promiscuous.then(|| promiscuous(interface));
            let promiscuous = promiscuous.transpose()?;
            let program = forward.program();
            if place == Place::Tc {
                let attached = hook::attach(interface, program, options.hook)?;
                return Ok((attached, promiscuous, None));
            }
            let handed = devmap::Handed::to(to.interface);
            let attached = devmap::attach(interface, program, options.replace_xdp)?;
            Ok((attached, promiscuous, handed))
        })?;
        Ok(Self {
            forward,
            attached: Some(attached),
            netns: from.netns.map(str::to_owned),
            state,
            handed,
            _promiscuous: promiscuous,
        })
    }

    /// Tells the program of its target: whether it is up, its MTU, the addresses to write. `passage` goes before the link's state.
    pub(crate) fn set(
        &mut self,
        to: &End,
        rewrite: Option<Rewrite>,
        passage: Option<Passage>,
    ) -> Result<()> {
        let state = state(to, rewrite, passage);
        if state == self.state {
            return Ok(());
        }
        self.state = state;
        self.forward
            .set(&state)
            .map_err(|error| Error::system("tell the program about", &to.interface.name, error, ""))
    }

    /// What was counted since it was opened.
    pub(crate) fn read(&self) -> io::Result<Tally> {
        self.forward.read()
    }

    /// The filter for the packet sockets of lanes that share the port for a moment. At XDP none is needed: what the program has taken
    /// no socket sees.
    pub(crate) fn gate(&self) -> Option<BorrowedFd<'_>> {
        self.forward.gate()
    }

    /// Frames that were sent, and that the port they were sent to was not given: those found since this was last asked.
    pub(crate) fn vanished(&mut self) -> u64 {
        let Some(handed) = &mut self.handed else {
            return 0;
        };
        let Ok(tally) = self.forward.read() else {
            return 0;
        };
        netns::within(self.netns.as_deref(), || handed.vanished(tally.tx_packets))
            .unwrap_or_default()
    }

    /// Whether [`Way::vanished`] has to be asked now and then.
    pub(crate) fn is_watched(&self) -> bool {
        self.handed.is_some()
    }

    /// Takes the program off the port. When this returns, everything is counted; with it what had [vanished](Way::vanished).
    pub(crate) fn close(mut self) -> (io::Result<Tally>, u64) {
        self.detach();
        let vanished = self.vanished();
        (self.forward.read(), vanished)
    }

    fn detach(&mut self) {
        let Some(attached) = self.attached.take() else {
            return;
        };
        let result = netns::within(self.netns.as_deref(), || attached.detach());
        // A namespace that is gone has taken its interfaces along.
        if let Ok(Err(error)) = result
            && error.raw_os_error() != Some(libc::ENODEV)
        {
            tracing::warn!("detaching a forwarding program: {error}");
        }
    }

    /// Whether the program runs at XDP.
    pub(crate) fn is_at_xdp(&self) -> bool {
        matches!(self.attached, Some(Attached::Driver(_)))
    }

    /// Where the program runs, in a word.
    pub(crate) fn place(&self) -> &'static str {
        match self.attached {
            Some(Attached::Link(_)) => "tcx",
            Some(Attached::Filter(_)) => "clsact",
            Some(Attached::Driver(_)) => "xdp",
            None => "closed",
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Why a port would take no frames from a program at XDP, if it would not.
pub(crate) fn takes_none(to: &End) -> Option<String> {
    netns::within(to.netns, || devmap::takes_none(to.interface)).ok()?
}

/// Waits until the frames that programs had in hand, or lanes have sent, are past the other end's queue: what is sent now, perhaps from
/// another CPU, does not overtake them.
pub(crate) fn settle() {
    /// For the softirq of a CPU that is busy.
    const QUEUED: Duration = Duration::from_millis(5);
    tcx::grace();
    std::thread::sleep(QUEUED);
    tcx::grace();
}

fn state(to: &End, rewrite: Option<Rewrite>, passage: Option<Passage>) -> State {
    let link = if to.up {
        Passage::Open
    } else {
        Passage::LinkDown
    };
    let mut macs = [0; 12];
    if let Some(Rewrite::Update { src, dst }) = rewrite {
        let (MacAddress(src), MacAddress(dst)) = (src, dst);
        macs[..6].copy_from_slice(&dst);
        macs[6..].copy_from_slice(&src);
    }
    State {
        passage: passage.unwrap_or(link),
        mtu: to.interface.mtu,
        macs,
    }
}

/// What loading takes; the last for a program that is attached by XDP only, where the verifier else refuses the length of a frame.
const RIGHTS: [(u32, &str); 3] = [
    (capability::BPF, "BPF"),
    (capability::NET_ADMIN, "NET_ADMIN"),
    (capability::PERFMON, "PERFMON"),
];

fn unloaded(place: Place, interface: &Interface, error: io::Error) -> Error {
    let needed = match place {
        Place::Tc => &RIGHTS[..2],
        Place::Xdp => &RIGHTS[..],
    };
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let raw = (capability::NET_RAW, "NET_RAW");
            Rights::own().remedy(needed, &[needed, &[raw]].concat())
        }
        _ => "use --backend packet if this kernel has no BPF (CONFIG_BPF_SYSCALL)".into(),
    };
    Error::system(
        "load the forwarding program for",
        &interface.name,
        error,
        remedy,
    )
}

fn promiscuous(interface: &Interface) -> Result<PacketSocket> {
    PacketSocket::open(interface.index)
        .and_then(|socket| socket.promiscuous().map(|()| socket))
        .map_err(|error| {
            let remedy = "run as root or give it CAP_NET_RAW, or use --no-promisc";
            Error::system("make promiscuous", &interface.name, error, remedy)
        })
}

fn within<T: Send>(end: &End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    netns::within(end.netns, work)
        .map_err(|error| Error::system("enter the namespace of", &end.interface.name, error, ""))?
}
