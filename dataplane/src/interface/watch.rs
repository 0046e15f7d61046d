//! News of the interfaces of one network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_packet_core::NetlinkPayload;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use super::Interface;
use super::netlink::{DATAGRAM_MAX, Message, receive};

/// Something that happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is new, or something about it changed: here is how it is now.
    Changed(Interface),
    /// It was removed, or moved to another namespace.
    Removed {
        /// Its number.
        index: u32,
        /// Its last name.
        name: String,
    },
    /// Events were lost, or could not be understood: list the interfaces again.
    Lost,
}

/// News of the interfaces of one namespace, the one that the opening thread was in.
///
/// Open it before listing the interfaces, so that nothing is missed in between.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Watch {
    /// Starts to watch.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.bind_auto()?;
        socket.add_membership(libc::RTNLGRP_LINK)?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(DATAGRAM_MAX),
        })
    }

    /// Takes what has happened since the last call; empty if nothing did. Never waits.
    pub fn events(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(messages) => {
                    for message in messages {
                        if let NetlinkPayload::InnerMessage(message) = message.payload {
                            events.extend(Event::from_message(&message));
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(events),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    events.push(Event::Lost)
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    events.push(Event::Lost)
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Event {
    fn from_message(message: &Message) -> Option<Self> {
        if message.kind == libc::RTM_DELLINK {
            let Interface { index, name, .. } = Interface::from_link(message)?;
            return Some(Self::Removed { index, name });
        }
        Interface::from_message(message).map(Self::Changed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sys::netns::{self, testing::Namespace};

    fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> io::Result<T> + Send) -> T {
        netns::within(Some(&namespace.name), work).unwrap().unwrap()
    }

    /// Collects events until one is as wanted, for at most two seconds.
    fn wait_for(watch: &mut Watch, wanted: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut seen = Vec::new();
        while Instant::now() < deadline {
            for event in watch.events().unwrap() {
                if wanted(&event) {
                    return event;
                }
                seen.push(event);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("not among {seen:#?}");
    }

    #[test]
    fn a_watch_sees_what_happens_in_its_namespace() {
        let Some(namespace) = Namespace::make("watch") else {
            return;
        };
        let mut watch = inside(&namespace, Watch::open);
        assert_eq!(watch.events().unwrap(), []);
        namespace.ip("link add name va type veth peer name vb");
        let made = wait_for(
            &mut watch,
            |event| matches!(event, Event::Changed(a) if a.name == "va"),
        );
        let Event::Changed(made) = made else {
            unreachable!()
        };
        namespace.ip("link set va up");
        namespace.ip("link set vb up");
        wait_for(
            &mut watch,
            |event| matches!(event, Event::Changed(a) if a.name == "va" && a.up && a.carrier),
        );
        namespace.ip("link set vb down");
        wait_for(
            &mut watch,
            |event| matches!(event, Event::Changed(a) if a.name == "va" && a.up && !a.carrier),
        );
        namespace.ip("link del va");
        let gone = Event::Removed {
            index: made.index,
            name: "va".into(),
        };
        assert_eq!(wait_for(&mut watch, |event| *event == gone), gone);
    }

    #[test]
    fn moving_away_is_removal() {
        let Some(namespace) = Namespace::make("from") else {
            return;
        };
        let Some(other) = Namespace::make("to") else {
            return;
        };
        namespace.ip("link add name va type veth peer name vb");
        let mut watch = inside(&namespace, Watch::open);
        namespace.ip(&format!("link set va netns {}", other.name));
        wait_for(
            &mut watch,
            |event| matches!(event, Event::Removed { name, .. } if name == "va"),
        );
    }

    #[test]
    fn an_overrun_is_reported() {
        let Some(namespace) = Namespace::make("lost") else {
            return;
        };
        let mut watch = inside(&namespace, Watch::open);
        watch.socket.set_rx_buf_sz(1_u32).unwrap();
        for mtu in 1300..1320 {
            namespace.ip(&format!("link set lo mtu {mtu}"));
        }
        let events = watch.events().unwrap();
        assert!(events.contains(&Event::Lost), "{events:?}");
        // It goes on afterwards.
        namespace.ip("link set lo mtu 1400");
        wait_for(
            &mut watch,
            |event| matches!(event, Event::Changed(lo) if lo.mtu == 1400),
        );
    }

    /// A bridge says something like it of a port that leaves it.
    #[test]
    fn leaving_a_bridge_is_no_removal() {
        let Some(namespace) = Namespace::make("leave") else {
            return;
        };
        namespace.ip("link add name va type veth peer name vb");
        namespace.ip("link add name br type bridge");
        namespace.ip("link set va master br");
        let mut watch = inside(&namespace, Watch::open);
        namespace.ip("link set va nomaster");
        namespace.ip("link set va mtu 1400");
        wait_for(&mut watch, |event| {
            assert!(!matches!(event, Event::Removed { .. }), "{event:?}");
            matches!(event, Event::Changed(a) if a.name == "va" && a.mtu == 1400 && a.master.is_none())
        });
    }
}
