//! Questions to the kernel by netlink, and its answers, one datagram at a time.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::Message;

/// The kernel fills datagrams of a dump up to 32 KiB (`netlink_recvmsg`, `net/netlink/af_netlink.c`).
pub(super) const DATAGRAM_MAX: usize = 64 << 10;

/// How often a dump is begun anew because something changed under it.
const DUMP_ATTEMPTS: usize = 8;

/// Asks the kernel one question.
pub(super) fn ask(
    question: &RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    for _ in 0..DUMP_ATTEMPTS {
        if let Some(answer) = ask_once(question, flags)? {
            return Ok(answer);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::Interrupted,
        "the interfaces change faster than they can be listed",
    ))
}

/// The answer; `None` if something changed while the kernel put it together.
fn ask_once(
    question: &RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(question.clone()));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut buffer = Vec::with_capacity(DATAGRAM_MAX);
    let mut answers = Vec::new();
    let mut consistent = true;
    loop {
        for message in receive(&socket, &mut buffer)? {
            consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Done(done) if done.code < 0 => {
                    return Err(io::Error::from_raw_os_error(-done.code));
                }
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => {
                    return Ok(consistent.then_some(answers));
                }
                _ => {}
            }
        }
        // Only a dump ends with a message that says so.
        if flags & NLM_F_DUMP == 0 && !answers.is_empty() {
            return Ok(Some(answers));
        }
    }
}

/// Reads one datagram and takes it apart.
pub(super) fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Vec<Message>> {
    buffer.clear();
    let length = loop {
        match socket.recv(buffer, libc::MSG_TRUNC) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    let invalid =
        |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("netlink: {text}"));
    if length > buffer.len() {
        return Err(invalid(format!(
            "a datagram of {length} bytes, longer than any expected"
        )));
    }
    let mut messages = Vec::new();
    let mut rest = buffer.as_slice();
    while !rest.is_empty() {
        let message = Message::deserialize(rest).map_err(|error| invalid(error.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length.max(4)..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}
