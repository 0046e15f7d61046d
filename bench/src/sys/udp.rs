//! UDP sockets: many datagrams in one call, and the options that std has no word for.

#![expect(unsafe_code, reason = "calls into libc")]

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Longest datagram that is read whole.
const LONGEST: usize = 2048;

/// Room for datagrams that are read in one call.
pub(crate) struct Batch {
    buffers: Vec<[u8; LONGEST]>,
    /// What was received: source port and length, in the order of `buffers`.
    received: Vec<(u16, usize)>,
}

impl Batch {
    /// Room for so many.
    pub(crate) fn new(datagrams: usize) -> Batch {
        Batch {
            buffers: vec![[0; LONGEST]; datagrams],
            received: Vec::with_capacity(datagrams),
        }
    }

    /// Waits for one datagram (as long as the socket's time limit) and takes what else is there, IPv4 only. What was read before is gone.
    pub(crate) fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.received.clear();
        let count = self.buffers.len();
        // SAFETY: both are plain C structures for which all zeros are valid.
        let mut froms: Vec<libc::sockaddr_in> = vec![unsafe { mem::zeroed() }; count];
        let mut parts: Vec<libc::iovec> = self
            .buffers
            .iter_mut()
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: LONGEST,
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = Vec::with_capacity(count);
        for (from, part) in froms.iter_mut().zip(&mut parts) {
            // SAFETY: as above.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_name = std::ptr::from_mut(from).cast();
            message.msg_hdr.msg_namelen = mem::size_of_val(from) as libc::socklen_t;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            messages.push(message);
        }
        // SAFETY: every message points to an address and a vector that live through the call, and each vector to a buffer of its length.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        let Ok(result) = usize::try_from(result) else {
            return Err(io::Error::last_os_error());
        };
        let lens = messages[..result]
            .iter()
            .map(|message| message.msg_len as usize);
        let ports = froms.iter().map(|from| u16::from_be(from.sin_port));
        self.received.extend(ports.zip(lens));
        Ok(())
    }

    /// Source port and payload of what was read last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let received = self.buffers.iter().zip(&self.received);
        received.map(|(buffer, &(port, len))| (port, &buffer[..len.min(LONGEST)]))
    }
}

/// Gives a socket a receive buffer of this size, beyond what the system allows to ordinary users (`SO_RCVBUFFORCE`). The kernel doubles
/// it, for its own overhead.
pub(crate) fn force_receive_buffer(socket: &UdpSocket, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Makes a UDP socket's sends super-frames of segments this long (`UDP_SEGMENT`).
pub(crate) fn segment(socket: &UdpSocket, len: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, len.into())
}

fn set(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the socket is open for the call, and the option's value is an `int` that lives through it, of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_there_is_read_at_once() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (to, port) = (
            receiver.local_addr().unwrap(),
            sender.local_addr().unwrap().port(),
        );
        for payload in [&b"one"[..], b"", b"three"] {
            sender.send_to(payload, to).unwrap();
        }
        let mut batch = Batch::new(2);
        batch.receive(&receiver).unwrap();
        let read: Vec<_> = batch.iter().collect();
        assert_eq!(read, [(port, &b"one"[..]), (port, &b""[..])]);
        batch.receive(&receiver).unwrap();
        assert_eq!(batch.iter().collect::<Vec<_>>(), [(port, &b"three"[..])]);

        receiver
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let error = batch.receive(&receiver).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(batch.iter().count(), 0);
    }
}
