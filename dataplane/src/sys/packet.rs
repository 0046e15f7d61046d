//! AF_PACKET sockets. Called by the `packet` back end.
//!
//! Kernel sources meant here: `net/packet/af_packet.c`, `include/uapi/linux/if_packet.h`.

use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::{c_int, c_void, socklen_t};

use super::ring::{Layout, RxRing, Slots, TxRing};
use crate::{memory::Offload, stage::tap::bpf::Instruction};

/// A socket on one interface.
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    index: i32,
}

/// Which frames a socket's filter rejects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reject {
    /// Every frame.
    All,
    /// What this host sends by the interface.
    Outgoing,
}

/// Which frames a socket receives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    /// Every protocol.
    All,
    /// None: a socket for sending.
    Nothing,
}

// if_packet.h and virtio_net.h, where the libc crate lacks them.
const PACKET_COPY_THRESH: c_int = 7;

impl PacketSocket {
    /// Opens a socket, not yet bound, in the calling thread's network namespace.
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        // SAFETY: no memory is passed. Protocol 0: nothing is received until `bind`.
        let fd = check(unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)
        })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            index: index.try_into().map_err(io::Error::other)?,
        })
    }

    /// Binds to the interface. Binding again with [`Receive::Nothing`] stops reception and keeps what was received.
    pub(crate) fn bind(&self, receive: Receive) -> io::Result<()> {
        let protocol = if receive == Receive::All {
            libc::ETH_P_ALL as u16
        } else {
            0
        };
        // SAFETY: sockaddr_ll is plain data; all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.index;
        // SAFETY: the address is valid for the length given.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as socklen_t,
            )
        };
        check(result).map(drop)
    }

    /// Frames carry a virtio header with their checksum and segmentation state, both ways.
    pub(crate) fn set_vnet_hdr(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)
    }

    /// Does not receive what this host sends by the interface. Linux 4.20.
    pub(crate) fn ignore_outgoing(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
    }

    /// Hands frames to the device directly, past the qdisc.
    pub(crate) fn bypass_qdisc(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)
    }

    /// Frames too long for their ring slot are also queued whole, to be fetched by [`PacketSocket::recv`].
    pub(crate) fn copy_long_frames(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, PACKET_COPY_THRESH, &1)
    }

    /// Receives frames for every address for as long as the socket is open.
    pub(crate) fn promiscuous(&self) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Rejects every frame from now on, or only those that this host sends by the interface.
    pub(crate) fn reject(&self, what: Reject) -> io::Result<()> {
        let statement = |code: u32, k: u32, jt: u8| libc::sock_filter {
            code: code as u16,
            jt,
            jf: 0,
            k,
        };
        // Classic BPF: return 0 keeps nothing, return ~0 everything.
        let nothing = statement(libc::BPF_RET | libc::BPF_K, 0, 0);
        let mut program = match what {
            Reject::All => vec![nothing],
            Reject::Outgoing => {
                let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
                let outgoing = u32::from(libc::PACKET_OUTGOING);
                vec![
                    statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, packet_type, 0),
                    statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, outgoing, 1),
                    statement(libc::BPF_RET | libc::BPF_K, u32::MAX, 0),
                    nothing,
                ]
            }
        };
        self.attach(&mut program)
    }

    /// Filters what it receives by classic BPF from now on. The kernel checks it.
    pub(crate) fn filter_classic(&self, code: &[Instruction]) -> io::Result<()> {
        let statement = |&Instruction { code, jt, jf, k }| libc::sock_filter { code, jt, jf, k };
        let mut program: Vec<_> = code.iter().map(statement).collect();
        self.attach(&mut program)
    }

    fn attach(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let filter = libc::sock_fprog {
            len: program.len().try_into().map_err(io::Error::other)?,
            filter: program.as_mut_ptr(),
        };
        // The kernel copies the program, which lives through the call.
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
    }

    /// Filters what it receives by a program from now on.
    pub(crate) fn filter(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let program: c_int = program.as_raw_fd();
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
    }

    /// Takes its filter away.
    pub(crate) fn unfilter(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// A second handle of it.
    pub(crate) fn share(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            index: self.index,
        })
    }

    /// Joins a group of sockets that share the interface's frames by flow hash. With `None` the kernel finds a new id,
    /// which is returned.
    pub(crate) fn fanout_hash(&self, group: Option<u16>) -> io::Result<u16> {
        const UNIQUE_ID: u32 = 0x2000; // PACKET_FANOUT_FLAG_UNIQUEID
        // The group does not take it over from its sockets (fanout_add), and then what one port sends past its ring comes
        // back by the group and goes round for ever. Kernels before 6.2 ignore the flag: see `Reject::Outgoing`.
        const IGNORE_OUTGOING: u32 = 0x4000; // PACKET_FANOUT_FLAG_IGNORE_OUTGOING
        let unique = if group.is_none() { UNIQUE_ID } else { 0 };
        let flags = unique | IGNORE_OUTGOING;
        let request: u32 = u32::from(group.unwrap_or(0)) | (libc::PACKET_FANOUT_HASH | flags) << 16;
        self.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &request)?;
        // With the id in the low half. (fanout_add, PACKET_FANOUT_FLAG_UNIQUEID.)
        Ok(self.get::<u32>(libc::SOL_PACKET, libc::PACKET_FANOUT)? as u16)
    }

    /// Asks for a receive buffer of that many bytes; returns what the kernel gave (it doubles for its own use).
    pub(crate) fn receive_buffer(&self, bytes: c_int) -> io::Result<usize> {
        self.buffer(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// Asks for a send buffer of that many bytes; returns what the kernel gave.
    pub(crate) fn send_buffer(&self, bytes: c_int) -> io::Result<usize> {
        self.buffer(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    /// The forced option goes beyond rmem_max but needs CAP_NET_ADMIN; the plain one is capped silently.
    fn buffer(&self, bytes: c_int, forced: c_int, plain: c_int) -> io::Result<usize> {
        self.set(libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, plain, &bytes))?;
        Ok(self.get::<c_int>(libc::SOL_SOCKET, plain)? as usize)
    }

    /// Packets dropped since the last call, because the ring was full.
    pub(crate) fn drops(&self) -> io::Result<u32> {
        let stats: libc::tpacket_stats = self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(stats.tp_drops)
    }

    /// Takes the pending error off the socket: `ENETDOWN` after the link went down, or `None`.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        match self.get::<c_int>(libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => None,
            Ok(errno) => Some(io::Error::from_raw_os_error(errno)),
            Err(error) => Some(error),
        }
    }

    /// Fetches a frame that was too long for its slot, with its header. Never blocks. Returns the frame's length.
    pub(crate) fn recv(
        &self,
        header: &mut [u8; Offload::LEN],
        frame: &mut [u8],
    ) -> io::Result<usize> {
        let parts = [
            io_slice(header.as_mut_ptr(), header.len()),
            io_slice(frame.as_mut_ptr(), frame.len()),
        ];
        // SAFETY: msghdr is plain data; zero means "none" for name and control.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len();
        // SAFETY: both slices are writable for the lengths given and outlive the call.
        let len =
            unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        Ok((len as usize).saturating_sub(Offload::LEN))
    }

    /// Sends frames with their headers, in order, until one is refused. A frame may lie in pieces. Returns how many were
    /// taken, and why it stopped.
    pub(crate) fn send<'a, P: Iterator<Item = &'a [u8]>>(
        &self,
        batch: &mut SendBatch,
        frames: impl Iterator<Item = (Offload, P)>,
    ) -> (usize, Option<io::Error>) {
        batch.clear();
        frames
            .take(SendBatch::MAX)
            .for_each(|(offload, parts)| batch.push(offload, parts));
        let messages = batch.messages();
        let (count, fd) = (messages.len(), self.fd.as_raw_fd());
        let mut sent = 0;
        while sent < count {
            // SAFETY: every message points into `batch` and into frames that the iterator borrowed for `'a`.
            let result = unsafe {
                libc::sendmmsg(
                    fd,
                    messages.as_mut_ptr().add(sent),
                    (count - sent) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            match result {
                1.. => sent += result as usize,
                _ => return (sent, Some(io::Error::last_os_error())),
            }
        }
        (sent, None)
    }

    /// Has the kernel send what lies in the transmit ring. Never blocks.
    pub(crate) fn kick(&self) -> io::Result<()> {
        // SAFETY: no memory is passed; the ring is the kernel's.
        let result = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Adds a ring for receiving. Once a socket, before `bind`.
    pub(crate) fn rx_ring(&self, slots: usize, slot_size: usize) -> io::Result<RxRing> {
        self.ring(libc::PACKET_RX_RING, slots, slot_size)
            .map(RxRing::new)
    }

    /// Adds a ring for sending. Once a socket, before `bind`.
    pub(crate) fn tx_ring(&self, slots: usize, slot_size: usize) -> io::Result<TxRing> {
        self.ring(libc::PACKET_TX_RING, slots, slot_size)
            .map(TxRing::new)
    }

    fn ring(&self, direction: c_int, slots: usize, slot_size: usize) -> io::Result<Slots> {
        self.set(
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as c_int),
        )?;
        let layout = Layout::new(slots, slot_size);
        let request = libc::tpacket_req {
            tp_block_size: layout.block_size as u32,
            tp_block_nr: layout.blocks as u32,
            tp_frame_size: layout.slot_size as u32,
            tp_frame_nr: layout.slots() as u32,
        };
        self.set(libc::SOL_PACKET, direction, &request)?;
        Slots::map(layout, self.fd.as_fd())
    }

    fn set<T>(&self, level: c_int, name: c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is plain data, valid for its own size.
        let result = unsafe {
            let value = (&raw const *value).cast();
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                value,
                size_of::<T>() as socklen_t,
            )
        };
        check(result).map(drop)
    }

    fn get<T: Copy>(&self, level: c_int, name: c_int) -> io::Result<T> {
        // SAFETY: T is an integer or a C struct of integers: all zeroes is a valid value.
        let mut value: T = unsafe { std::mem::zeroed() };
        let mut len = size_of::<T>() as socklen_t;
        // SAFETY: `value` is writable for `len` bytes.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        check(result).map(|_| value)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The messages of a `sendmmsg`, kept so that nothing is allocated per burst.
pub(crate) struct SendBatch {
    headers: Vec<[u8; Offload::LEN]>,
    /// Of all messages, one after the other: the header and the pieces of the frame.
    parts: Vec<libc::iovec>,
    /// How many of them each message has.
    counts: Vec<usize>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers inside are written and used within one call of `PacketSocket::send`; between calls they are
// never followed.
unsafe impl Send for SendBatch {}

impl SendBatch {
    const MAX: usize = 64;

    pub(crate) fn new() -> Self {
        Self {
            headers: Vec::with_capacity(Self::MAX),
            parts: Vec::with_capacity(2 * Self::MAX),
            counts: Vec::with_capacity(Self::MAX),
            messages: Vec::with_capacity(Self::MAX),
        }
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.counts.clear();
        self.messages.clear();
    }

    fn push<'a>(&mut self, offload: Offload, parts: impl Iterator<Item = &'a [u8]>) {
        let before = self.parts.len();
        self.headers.push(offload.to_bytes());
        self.parts
            .push(io_slice(std::ptr::null_mut(), Offload::LEN));
        self.parts
            .extend(parts.map(|part| io_slice(part.as_ptr().cast_mut(), part.len())));
        self.counts.push(self.parts.len() - before);
    }

    /// Points everything at everything, once the vectors no longer grow.
    fn messages(&mut self) -> &mut [libc::mmsghdr] {
        let mut rest = &mut self.parts[..];
        for (header, &count) in self.headers.iter_mut().zip(&self.counts) {
            let (parts, others) = rest.split_at_mut(count);
            rest = others;
            parts[0].iov_base = header.as_mut_ptr().cast();
            // SAFETY: mmsghdr is plain data; zero means "none" for name and control.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = parts.len();
            self.messages.push(message);
        }
        &mut self.messages
    }
}

fn io_slice(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast::<c_void>(),
        iov_len: len,
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
