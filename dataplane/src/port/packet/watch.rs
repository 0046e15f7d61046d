//! Looking on at a port whose frames the kernel carries, as tcpdump does: at what comes in by it, or at what leaves.
//!
//! Called for captures and observers. What is rejected never leaves the kernel.

use super::{ENOUGH_BUFFER, PacketRx, SLOT, SOCKET_BUFFER, refused};
use crate::{
    error::Result,
    interface::Interface,
    memory::LARGE_FRAME,
    stage::tap::{
        Point,
        bpf::{Instruction, Program},
    },
    sys::packet::PacketSocket,
};

/// Slots of a ring: some milliseconds of a fast flood.
const SLOTS: usize = 4096;
/// As above for super-frames, where the socket's queue is too short for them.
const LARGE_SLOTS: usize = 128;

/// Opens a receive queue that gets a copy of each frame that comes in by an interface ([`Point::Before`]), or of each that leaves by it
/// ([`Point::After`]), as far as the filter may match it. In the calling thread's network namespace.
///
/// # Errors
/// No permission, the interface is gone, or memory for the ring is short.
pub(crate) fn watch(
    interface: &Interface,
    point: Point,
    filter: Option<&Program>,
) -> Result<PacketRx> {
    let open = || {
        let socket = PacketSocket::open(interface.index)?;
        socket.set_vnet_hdr()?;
        if point == Point::Before {
            socket.ignore_outgoing()?;
        }
        socket.filter_classic(&prefilter(point, filter))?;
        let ring = if socket.receive_buffer(SOCKET_BUFFER)? >= ENOUGH_BUFFER {
            socket.copy_long_frames()?;
            socket.rx_ring(SLOTS, SLOT)?
        } else {
            socket.rx_ring(LARGE_SLOTS, (LARGE_FRAME + 128).next_multiple_of(16))?
        };
        PacketRx::look_on(socket, ring)
    };
    open().map_err(|error| refused(interface, error))
}

/// What the kernel need not hand over. A frame whose VLAN tag it has taken off passes: for it the filter was not written.
fn prefilter(point: Point, filter: Option<&Program>) -> Vec<Instruction> {
    const EVERYTHING: u32 = u32::MAX;
    let load = |ancillary: i32| {
        (
            LOAD_WORD,
            0,
            0,
            (libc::SKF_AD_OFF + ancillary).cast_unsigned(),
        )
    };
    let verdict = |bytes| (RETURN, 0, 0, bytes);
    let mut code = Vec::new();
    if point == Point::After {
        let outgoing = u32::from(libc::PACKET_OUTGOING);
        code.extend([
            load(libc::SKF_AD_PKTTYPE),
            (JUMP_IF_EQUAL, 1, 0, outgoing),
            verdict(0),
        ]);
    }
    let tagged = [
        load(libc::SKF_AD_VLAN_TAG_PRESENT),
        (JUMP_IF_EQUAL, 1, 0, 0),
        verdict(EVERYTHING),
    ];
    let mut code: Vec<_> = code
        .into_iter()
        .chain(tagged)
        .map(Instruction::from)
        .collect();
    // Copies are cut later: of a frame that is cut here nobody would know what it was.
    let whole = |&instruction: &Instruction| match instruction {
        Instruction {
            code: RETURN, k, ..
        } if k > 0 => Instruction {
            k: EVERYTHING,
            ..instruction
        },
        other => other,
    };
    let ours = filter.map(Program::code).filter(|filter| {
        filter.len() + code.len() <= Program::MAX
            && filter
                .iter()
                .all(|instruction| instruction.code != RETURN_A)
    });
    match ours {
        Some(filter) => code.extend(filter.iter().map(whole)),
        None => code.push(verdict(EVERYTHING).into()),
    }
    code
}

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
