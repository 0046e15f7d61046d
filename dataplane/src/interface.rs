//! What the kernel says about its network interfaces, by netlink.
//!
//! Called by whatever opens a port, by the event loop that waits for links to go up and down, and by `check`. Every
//! question is asked in the network namespace of the calling thread, a [`Watch`] keeps the one it was opened in.
//! `/sys/class/net` would not do: it shows the namespace in which it was mounted, whichever one asks.

mod drops;
#[cfg(feature = "xdp")]
pub(crate) mod filter;
mod netlink;
mod watch;

use std::net::IpAddr;
use std::{fmt, io};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, parse_ip, parse_u64};

use crate::wire::ethernet::MacAddress;
pub(crate) use drops::TxDrops;
use netlink::{Message, ask, attributes, number, text};
pub use watch::{Event, Watch};

/// Longest name of an interface in bytes (`IFNAMSIZ` less its final zero, `include/uapi/linux/if.h`).
pub const NAME_MAX: usize = 15;

/// Length of `struct ifinfomsg` (`include/uapi/linux/rtnetlink.h`).
const HEADER: usize = 16;

/// Attributes of an interface (`include/uapi/linux/if_link.h`).
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const IFNAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const QDISC: u16 = 6;
    pub(super) const MASTER: u16 = 10;
    pub(super) const WIRELESS: u16 = 11;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const STATS64: u16 = 23;
    pub(super) const PROMISCUITY: u16 = 30;
    pub(super) const NUM_TX_QUEUES: u16 = 31;
    pub(super) const NUM_RX_QUEUES: u16 = 32;
    pub(super) const XDP: u16 = 43;

    /// In `LINKINFO`.
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const INFO_SLAVE_KIND: u16 = 4;

    /// In `XDP`.
    pub(super) const XDP_ATTACHED: u16 = 2;
    pub(super) const XDP_PROG_ID: u16 = 4;
    pub(super) const XDP_DRV_PROG_ID: u16 = 5;
    pub(super) const XDP_SKB_PROG_ID: u16 = 6;
    pub(super) const XDP_HW_PROG_ID: u16 = 7;
}

/// One interface, as it was when the kernel was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, which may change.
    pub name: String,
    /// Its number, which it keeps until it is removed or leaves its namespace.
    pub index: u32,
    /// Its hardware address; zero if it has none of six bytes.
    pub mac: MacAddress,
    /// Largest payload of a frame in bytes, without the Ethernet header.
    pub mtu: u32,
    /// The kind of a virtual one: `veth`, `bridge`, `tun` …; `None` for hardware and the loopback.
    pub kind: Option<String>,
    /// The queueing discipline at its root, `noqueue` for none.
    pub qdisc: Option<String>,
    /// Whether it was set up (`IFF_UP`).
    pub up: bool,
    /// Whether it has a carrier (`IFF_LOWER_UP`): for veth, whether the peer is up too.
    pub carrier: bool,
    /// Whether it is the loopback.
    pub loopback: bool,
    /// Whether its frames begin with an Ethernet header; the loopback's do not count.
    pub ethernet: bool,
    /// Queues it can receive on.
    pub rx_queues: u32,
    /// Queues it can send on.
    pub tx_queues: u32,
    /// How many users have asked for promiscuous reception.
    pub promiscuity: u32,
    /// The index of the bridge, bond … it belongs to.
    pub master: Option<u32>,
    /// The kind of that: `bridge`, `bond` …
    pub master_kind: Option<String>,
    /// XDP programs that run on it.
    pub xdp: Vec<Xdp>,
    /// Frames that it has dropped instead of sending them, since it was made. A super-frame may be one.
    pub tx_dropped: u64,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    /// Where it runs.
    pub mode: XdpMode,
    /// The number that `bpftool prog` shows.
    pub id: u32,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's stack, after the driver.
    Generic,
    /// In the device.
    Offloaded,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
        })
    }
}

/// An IP address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's number.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Bits of it that name the network.
    pub prefix: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl Interface {
    /// All interfaces, in the order of their numbers.
    pub fn list() -> io::Result<Vec<Self>> {
        let question = Message::new(libc::RTM_GETLINK, &[0; HEADER]);
        let messages = ask(&question, NLM_F_DUMP)?;
        let mut interfaces: Vec<_> = messages.iter().filter_map(Self::from_message).collect();
        interfaces.sort_by_key(|interface| interface.index);
        Ok(interfaces)
    }

    /// The interface of that name, or with that alternative name.
    pub fn find(name: &str) -> io::Result<Option<Self>> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Ok(None);
        }
        let question = Message::new(libc::RTM_GETLINK, &[0; HEADER]);
        // A text with its zero.
        let name = [name.as_bytes(), &[0]].concat();
        Self::first(&question.with(attribute::IFNAME, &name))
    }

    /// The interface of that number.
    pub fn with_index(index: u32) -> io::Result<Option<Self>> {
        Self::first(&Message::new(libc::RTM_GETLINK, &header(index, 0, 0)))
    }

    /// Sets the interface of that number up or down.
    pub(crate) fn set_up(index: u32, up: bool) -> io::Result<()> {
        let flag = libc::IFF_UP.cast_unsigned();
        let header = header(index, if up { flag } else { 0 }, flag);
        ask(&Message::new(libc::RTM_SETLINK, &header), NLM_F_ACK).map(drop)
    }

    /// The addresses it has now.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let question = Message::new(libc::RTM_GETADDR, &[0; Address::HEADER]);
        let messages = ask(&question, NLM_F_DUMP)?;
        let addresses = messages.iter().filter_map(Address::from_message);
        Ok(addresses
            .filter(|address| address.index == self.index)
            .collect())
    }

    fn first(question: &Message) -> io::Result<Option<Self>> {
        match ask(question, 0) {
            Ok(messages) => Ok(messages.iter().find_map(Self::from_message)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn from_message(message: &Message) -> Option<Self> {
        (message.kind == libc::RTM_NEWLINK).then(|| Self::from_link(message))?
    }

    /// What a message tells of an interface as a whole. A bridge speaks of its ports in the same group, also when one leaves it (family
    /// `AF_BRIDGE`), and so do IPv6 (`AF_INET6`) and wireless drivers, whose messages lack the rest.
    fn from_link(message: &Message) -> Option<Self> {
        let [family, _, device_low, device_high, ..] = message.body[..] else {
            return None;
        };
        if i32::from(family) != libc::AF_UNSPEC {
            return None;
        }
        let flags = message.number(8).cast_signed();
        let mut interface = Self {
            name: String::new(),
            index: message.number(4),
            mac: MacAddress::default(),
            mtu: 0,
            kind: None,
            qdisc: None,
            up: flags & libc::IFF_UP != 0,
            carrier: flags & libc::IFF_LOWER_UP != 0,
            loopback: flags & libc::IFF_LOOPBACK != 0,
            ethernet: u16::from_ne_bytes([device_low, device_high]) == libc::ARPHRD_ETHER,
            rx_queues: 1,
            tx_queues: 1,
            promiscuity: 0,
            master: None,
            master_kind: None,
            xdp: Vec::new(),
            tx_dropped: 0,
        };
        for (kind, value) in message.attributes(HEADER) {
            match kind {
                attribute::WIRELESS => return None,
                attribute::IFNAME => interface.name = text(value),
                attribute::ADDRESS => {
                    interface.mac = value.try_into().map(MacAddress).unwrap_or_default();
                }
                attribute::MTU => interface.mtu = number(value)?,
                attribute::QDISC => interface.qdisc = Some(text(value)),
                attribute::NUM_RX_QUEUES => interface.rx_queues = number(value)?,
                attribute::NUM_TX_QUEUES => interface.tx_queues = number(value)?,
                attribute::PROMISCUITY => interface.promiscuity = number(value)?,
                attribute::MASTER => interface.master = number(value),
                attribute::STATS64 => interface.tx_dropped = tx_dropped_of(value)?,
                attribute::XDP => interface.xdp = Xdp::from_attributes(value),
                attribute::LINKINFO => {
                    for (kind, value) in attributes(value) {
                        match kind {
                            attribute::INFO_KIND => interface.kind = Some(text(value)),
                            attribute::INFO_SLAVE_KIND => interface.master_kind = Some(text(value)),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        (!interface.name.is_empty()).then_some(interface)
    }
}

/// `struct ifinfomsg`, of which these fields are used.
fn header(index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

/// The eighth number of `struct rtnl_link_stats64` (`include/uapi/linux/if_link.h`).
fn tx_dropped_of(stats: &[u8]) -> Option<u64> {
    parse_u64(stats.get(56..64)?).ok()
}

impl Xdp {
    /// The kernel names each program by its mode, and a lone one by `ProgId` as well (`rtnl_xdp_fill`,
    /// `net/core/rtnetlink.c`); before 4.20 only the latter.
    fn from_attributes(bytes: &[u8]) -> Vec<Self> {
        let by_mode = attributes(bytes).filter_map(|(kind, value)| {
            let mode = match kind {
                attribute::XDP_DRV_PROG_ID => XdpMode::Native,
                attribute::XDP_SKB_PROG_ID => XdpMode::Generic,
                attribute::XDP_HW_PROG_ID => XdpMode::Offloaded,
                _ => return None,
            };
            number(value).map(|id| Self { mode, id })
        });
        let mut programs: Vec<_> = by_mode.collect();
        if programs.is_empty() {
            let find = |wanted| {
                let mut found = attributes(bytes).filter(move |(kind, _)| *kind == wanted);
                found.next().map(|(_, value)| value)
            };
            // `XDP_ATTACHED_…` (`include/uapi/linux/if_link.h`).
            let mode = match find(attribute::XDP_ATTACHED) {
                Some([1]) => Some(XdpMode::Native),
                Some([2]) => Some(XdpMode::Generic),
                Some([3]) => Some(XdpMode::Offloaded),
                _ => None,
            };
            let id = find(attribute::XDP_PROG_ID).and_then(number);
            programs.extend(mode.zip(id).map(|(mode, id)| Self { mode, id }));
        }
        programs
    }
}

impl Address {
    /// Length of `struct ifaddrmsg` (`include/uapi/linux/if_addr.h`).
    const HEADER: usize = 8;

    fn from_message(message: &Message) -> Option<Self> {
        if message.kind != libc::RTM_NEWADDR {
            return None;
        }
        // On a point-to-point link `Address` is the other end, and `Local` is ours.
        let mut ip = None;
        for (kind, value) in message.attributes(Self::HEADER) {
            match kind {
                libc::IFA_LOCAL => ip = parse_ip(value).ok(),
                libc::IFA_ADDRESS => ip = ip.or(parse_ip(value).ok()),
                _ => {}
            }
        }
        Some(Self {
            index: message.number(4),
            ip: ip?,
            prefix: *message.body.get(1)?,
        })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sys::netns::{self, testing::Namespace};

    fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> io::Result<T> + Send) -> T {
        netns::within(Some(&namespace.name), work).unwrap().unwrap()
    }

    #[test]
    fn the_loopback_is_found_and_listed() {
        let found = Interface::find("lo").unwrap().unwrap();
        assert!(found.loopback && !found.ethernet);
        assert_eq!(found.index, 1);
        assert!(found.mtu >= 1280);
        assert_eq!(Interface::with_index(1).unwrap().unwrap().name, "lo");
        let listed = Interface::list().unwrap();
        assert!(listed.is_sorted_by_key(|interface| interface.index));
        assert_eq!(listed[0].name, "lo");
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for name in ["", "no-such-one", "a-name-much-too-long-for-one"] {
            assert_eq!(Interface::find(name).unwrap(), None, "{name}");
        }
        assert_eq!(Interface::with_index(1 << 30).unwrap(), None);
    }

    #[test]
    fn a_veth_is_described() {
        let Some(namespace) = Namespace::make("veth") else {
            return;
        };
        namespace.ip(
            "link add name va address 02:00:00:00:00:0a mtu 9000 numtxqueues 2 numrxqueues 3 type veth peer name vb",
        );
        namespace.ip("address add 192.0.2.1/24 dev va");
        namespace.ip("address add 2001:db8::1/64 dev va nodad");
        let (a, addresses) = inside(&namespace, || {
            let a = Interface::find("va")?.expect("just made");
            let addresses = a.addresses()?;
            Ok((a, addresses))
        });
        assert_eq!(a.name, "va");
        assert_eq!(a.mac, MacAddress([2, 0, 0, 0, 0, 0x0a]));
        assert_eq!((a.mtu, a.tx_queues, a.rx_queues), (9000, 2, 3));
        assert_eq!(a.kind.as_deref(), Some("veth"));
        assert!(a.ethernet && !a.loopback && !a.up && !a.carrier);
        assert_eq!((a.promiscuity, a.master, a.xdp.len()), (0, None, 0));
        let texts: Vec<_> = addresses.iter().map(Address::to_string).collect();
        assert!(
            texts.contains(&"192.0.2.1/24".into()) && texts.contains(&"2001:db8::1/64".into()),
            "{texts:?}"
        );

        namespace.ip("link set va up");
        let a = inside(&namespace, || Interface::find("va")).unwrap();
        assert!(a.up && !a.carrier);
        assert_eq!(a.qdisc.as_deref(), Some("noqueue"));
        namespace.ip("link set vb up");
        assert!(
            inside(&namespace, || Interface::find("va"))
                .unwrap()
                .carrier
        );
        // The caller's own namespace knows nothing of it.
        assert!(
            Interface::list()
                .unwrap()
                .iter()
                .all(|interface| interface.mac != a.mac)
        );
    }

    #[test]
    fn a_bridge_port_names_its_master() {
        let Some(namespace) = Namespace::make("port") else {
            return;
        };
        namespace.ip("link add name va type veth peer name vb");
        namespace.ip("link add name br type bridge");
        namespace.ip("link set va master br");
        let (a, bridge) = inside(&namespace, || {
            Ok((Interface::find("va")?, Interface::find("br")?))
        });
        let (a, bridge) = (a.unwrap(), bridge.unwrap());
        assert_eq!(bridge.kind.as_deref(), Some("bridge"));
        assert_eq!(
            (a.master, a.master_kind.as_deref()),
            (Some(bridge.index), Some("bridge"))
        );
        assert_eq!(a.promiscuity, 1);
    }

    #[test]
    fn programs_are_told_by_mode() {
        use attribute::{XDP_ATTACHED, XDP_PROG_ID, XDP_SKB_PROG_ID};
        let told = |attached: u8, ids: &[(u16, u32)]| {
            let mut message = Message::new(0, &[]).with(XDP_ATTACHED, &[attached]);
            for (kind, id) in ids {
                message = message.with(*kind, &id.to_ne_bytes());
            }
            Xdp::from_attributes(&message.body)
        };
        let program = |mode, id| vec![Xdp { mode, id }];
        let lone = told(2, &[(XDP_PROG_ID, 7), (XDP_SKB_PROG_ID, 7)]);
        assert_eq!(lone, program(XdpMode::Generic, 7));
        let old = told(1, &[(XDP_PROG_ID, 8)]);
        assert_eq!(old, program(XdpMode::Native, 8));
        assert_eq!(told(0, &[]), []);
    }

    /// Whatever follows what is cut short is left out, and nothing is read beyond the end.
    #[test]
    fn messages_cut_short_are_no_interfaces() {
        let whole = Message::new(libc::RTM_NEWLINK, &header(3, 0, 0))
            .with(attribute::MTU, &1500_u32.to_ne_bytes())
            .with(attribute::IFNAME, b"eth0\0");
        let interface = Interface::from_message(&whole).unwrap();
        assert_eq!(
            (interface.name.as_str(), interface.index, interface.mtu),
            ("eth0", 3, 1500)
        );
        for length in 0..whole.body.len() - 4 {
            let cut = Message::new(whole.kind, &whole.body[..length]);
            assert_eq!(Interface::from_message(&cut), None, "{length} bytes");
        }
        let wrong = whole.clone().with(attribute::NUM_RX_QUEUES, &[1]);
        assert_eq!(Interface::from_message(&wrong), None);
    }
}
