//! Questions to the kernel by netlink, and its answers, one datagram at a time.
//!
//! A message is taken as bytes, and its readers look for the few attributes that they want: a crate that knows them all is a tenth of
//! the program, and gives up a message for any one of them that a newer kernel has made longer.

use std::convert::Infallible;
use std::io;

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    NlasIterator, parse_u32,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The kernel fills datagrams of a dump up to 32 KiB (`netlink_recvmsg`, `net/netlink/af_netlink.c`).
pub(super) const DATAGRAM_MAX: usize = 64 << 10;

/// How often a dump is begun anew because something changed under it.
const DUMP_ATTEMPTS: usize = 8;

/// A message of rtnetlink: what it is (`RTM_…`), a header of fixed length, and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// One with that header and no attributes.
    pub(super) fn new(kind: u16, header: &[u8]) -> Self {
        Self {
            kind,
            body: header.to_vec(),
        }
    }

    /// The same with an attribute more.
    pub(super) fn with(mut self, attribute: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(attribute, value.to_vec());
        let start = self.body.len();
        self.body.resize(start + attribute.buffer_len(), 0);
        attribute.emit(&mut self.body[start..]);
        self
    }

    /// The attributes behind a header of so many bytes.
    pub(super) fn attributes(&self, header: usize) -> impl Iterator<Item = (u16, &[u8])> {
        attributes(self.body.get(header..).unwrap_or_default())
    }

    /// The number of four bytes at that place; zero beyond the end.
    pub(super) fn number(&self, offset: usize) -> u32 {
        let bytes = self.body.get(offset..offset + 4);
        number(bytes.unwrap_or_default()).unwrap_or(0)
    }
}

/// Attributes, each with its kind and value, up to the first that is cut short.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|attribute| {
        let attribute = attribute.ok()?;
        let value = NLA_HEADER_SIZE..attribute.length().into();
        Some((attribute.kind(), attribute.into_inner().get(value)?))
    })
}

/// An attribute's number of four bytes.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    parse_u32(value).ok()
}

/// An attribute's text, which ends with a zero.
pub(super) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next();
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, body: &[u8]) -> Result<Self, Infallible> {
        Ok(Self::new(header.message_type, body))
    }
}
/// Asks the kernel one question.
pub(super) fn ask(question: &Message, flags: u16) -> io::Result<Vec<Message>> {
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
fn ask_once(question: &Message, flags: u16) -> io::Result<Option<Vec<Message>>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question.clone()));
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
pub(super) fn receive(
    socket: &Socket,
    buffer: &mut Vec<u8>,
) -> io::Result<Vec<NetlinkMessage<Message>>> {
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
        let message = NetlinkMessage::<Message>::deserialize(rest)
            .map_err(|error| invalid(error.to_string()))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length.max(4)..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}
