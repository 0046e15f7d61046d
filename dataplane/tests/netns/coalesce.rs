//! Merging, against the kernel's own stack: what a socket behind the relay reads is what was sent, merged on the way or not.

use std::{
    collections::HashMap,
    io::Write,
    process::{Command, Stdio},
};

use etherparse::{Ipv4Header, Ipv6Header, PacketBuilder};
use serde_json::{Value, json};

use crate::common::{
    Chain, Peer, Relay, Signal, Tag, hex, mac, noise, receive_raw, send_raw, tagged, tcp_both_ways,
    unhex,
};

const SERVER_6: [u8; 16] = [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const CLIENT_6: [u8; 16] = [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Frames of a few flows, what of each flow a socket is to read, in order, by sender's address and port, and how many it may not.
struct Traffic {
    frames: Vec<Vec<u8>>,
    expected: HashMap<(String, u16), Vec<Vec<u8>>>,
    /// With a wrong checksum: over IPv4 and over IPv6.
    spoilt: [u64; 2],
}

/// Datagrams of four flows: over IPv4 with DF and without, over IPv6, and behind a tag, of lengths that change now and then. With `odd`
/// one in ten is different: options, fragments, extension headers, no checksum, a wrong one, another TTL; and some come twice, or change
/// places with the next.
fn traffic(count: usize, seed: u32, vlan: bool, odd: bool) -> Traffic {
    let mut random = noise(seed);
    let mut next = move || random.next().map_or(0, usize::from);
    let mut length = [30; 4];
    // Counted by flow, as hosts do, and past their end.
    let mut ids = [0xff00_u16; 4];
    let mut datagrams = Vec::new();
    for serial in 0..count as u32 {
        let flow = next() % length.len();
        if next() < 20 {
            length[flow] = 4 + next() * 5;
        }
        let payload: Vec<u8> = (seed << 16 | serial)
            .to_be_bytes()
            .into_iter()
            .chain(noise(serial))
            .take(length[flow])
            .collect();
        let port = 20_000 + flow as u16;
        let kind = if odd && next() < 25 {
            1 + next() % 5
        } else {
            0
        };
        let (mut frames, arrives) = if flow == 1 {
            over_ipv6(port, &payload, kind)
        } else {
            let server = [10, 9, u8::from(flow == 2), 2];
            let id = ids[flow];
            ids[flow] = id.wrapping_add(1);
            over_ipv4(server, port, &payload, kind, flow == 0, id)
        };
        if flow == 2 && vlan {
            let tag = [Tag {
                tpid: 0x8100,
                tci: 5,
            }];
            frames
                .iter_mut()
                .for_each(|frame| *frame = tagged(frame, &tag));
        }
        datagrams.push((flow, frames, arrives.then_some(payload)));
        if odd && next() < 5 {
            datagrams.push(datagrams[datagrams.len() - 1].clone());
        }
        if odd && next() < 5 && datagrams.len() > 1 {
            let last = datagrams.len() - 1;
            datagrams.swap(last - 1, last);
        }
    }
    let mut traffic = Traffic {
        frames: Vec::new(),
        expected: HashMap::new(),
        spoilt: [0; 2],
    };
    for (flow, frames, payload) in datagrams {
        traffic.frames.extend(frames);
        let Some(payload) = payload else {
            traffic.spoilt[usize::from(flow == 1)] += 1;
            continue;
        };
        let address = ["10.9.0.1", "fd09::1", "10.9.1.1", "10.9.0.1"][flow].to_owned();
        let flow = (address, 20_000 + flow as u16);
        traffic.expected.entry(flow).or_default().push(payload);
    }
    traffic
}

fn over_ipv4(
    server: [u8; 4],
    port: u16,
    payload: &[u8],
    odd: usize,
    df: bool,
    id: u16,
) -> (Vec<Vec<u8>>, bool) {
    let client = [server[0], server[1], server[2], 1];
    let mut ip =
        Ipv4Header::new(0, 64, etherparse::IpNumber::UDP, client, server).expect("it fits");
    (ip.dont_fragment, ip.identification) = (df, id);
    if odd == 1 {
        ip.options = [1, 1, 1, 0][..].try_into().expect("it fits");
    }
    if odd == 2 {
        ip.time_to_live = 63;
    }
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac("c0"), mac("s0"))
        .ip(etherparse::IpHeaders::Ipv4(ip.clone(), Default::default()))
        .udp(port, 5000)
        .write(&mut frame, payload)
        .expect("it fits");
    let udp = frame.len() - payload.len() - 8;
    match odd {
        3 => frame[udp + 6..udp + 8].fill(0),
        4 => *frame.last_mut().expect("it fits") ^= 0x40,
        5 => return (fragments(&ip, &frame[udp..]), true),
        _ => {}
    }
    (vec![frame], odd != 4)
}

/// The same datagram in two.
fn fragments(ip: &Ipv4Header, datagram: &[u8]) -> Vec<Vec<u8>> {
    let cut = if datagram.len() > 8 { 8 } else { 0 };
    let part = |bytes: &[u8], offset: usize, more: bool| {
        let mut ip = ip.clone();
        ip.dont_fragment = false;
        ip.more_fragments = more;
        ip.fragment_offset = ((offset / 8) as u16).try_into().expect("it fits");
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(mac("c0"), mac("s0"))
            .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
            .write(&mut frame, etherparse::IpNumber::UDP, bytes)
            .expect("it fits");
        frame
    };
    vec![
        part(&datagram[..cut], 0, true),
        part(&datagram[cut..], cut, false),
    ]
}

fn over_ipv6(port: u16, payload: &[u8], odd: usize) -> (Vec<Vec<u8>>, bool) {
    let mut ip = Ipv6Header {
        hop_limit: if odd == 2 { 63 } else { 64 },
        source: CLIENT_6,
        destination: SERVER_6,
        ..Ipv6Header::default()
    };
    if odd == 3 {
        ip.flow_label = 7.try_into().expect("it fits");
    }
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac("c0"), mac("s0"))
        .ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
        .udp(port, 5000)
        .write(&mut frame, payload)
        .expect("it fits");
    match odd {
        4 => *frame.last_mut().expect("it fits") ^= 0x40,
        // Destination options: padding only.
        5 => {
            frame.splice(54..54, [17, 0, 1, 4, 0, 0, 0, 0]);
            frame[20] = 60;
            let len = (frame.len() - 54) as u16;
            frame[18..20].copy_from_slice(&len.to_be_bytes());
        }
        _ => {}
    }
    (vec![frame], odd != 4)
}

/// What is to be merged of the frames sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merges {
    Nothing,
    /// So many in a hundred at least.
    Share(u64),
}

/// Sends it while the relay stands still, so that all of it is a backlog, and compares what the socket reads.
fn arrives_as_it_was_sent(args: &[&str], odd: bool, merges: Merges) {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    for line in [
        "sysctl -qw net.ipv6.conf.s0.disable_ipv6=0",
        "ip address add fd09::2/64 dev s0 nodad",
    ] {
        net.sh("server", line);
    }
    // Not every kernel has VLAN devices; tagged frames are also looked at below.
    let vlan = net.try_sh("server", "ip link add link s0 name s0.5 type vlan id 5");
    let vlan = vlan.status.success();
    let third = if vlan { "s0.5" } else { "s0" };
    net.sh("server", &format!("ip link set {third} up"));
    net.sh("server", &format!("ip address add 10.9.1.2/24 dev {third}"));
    let (mut spoilt, mut all) = ([0; 2], HashMap::<_, Vec<_>>::new());
    let collector = Peer::listen(
        net,
        "server",
        "udp-collect --address :: --limit 60 --idle 6",
    );
    for seed in 1..4 {
        // Anew each time: what one backlog was like decides nothing about the next.
        let mut relay = Relay::start(net, "relay", &[&["--pair", "r0,r1"], args].concat());
        let traffic = traffic(900, seed, vlan, odd);
        relay.signal(Signal::Freeze);
        let mut sender = Peer::start(net, "client", "raw-send --interface c0");
        sender.feed_hex(&traffic.frames);
        assert_eq!(sender.result()["sent"], traffic.frames.len());
        relay.signal(Signal::Thaw);
        let sent = traffic.frames.len() as u64;
        for (flow, payloads) in traffic.expected {
            all.entry(flow).or_default().extend(payloads);
        }
        spoilt = [spoilt[0] + traffic.spoilt[0], spoilt[1] + traffic.spoilt[1]];
        relay.snapshot_when("all of it went", |now| {
            now.way("r0", "r1").tx_packets == sent
        });
        let last = relay.stop(Signal::Term);
        let lane = last.way("r0", "r1");
        assert_eq!((lane.rx_packets, lane.lost()), (sent, 0), "{last:?}");
        match merges {
            Merges::Nothing => assert_eq!((lane.merged_packets, lane.super_frames), (0, 0)),
            Merges::Share(percent) => {
                assert!(
                    lane.merged_packets * 100 >= sent * percent,
                    "{percent} % of {sent}: {last:?}"
                );
                assert!(lane.super_frames * 2 < lane.merged_packets, "{last:?}");
            }
        }
    }
    let mut read = HashMap::<(String, u16), Vec<Vec<u8>>>::new();
    for line in collector.result()["datagrams"].as_array().expect("it fits") {
        let address = line[0]
            .as_str()
            .expect("it fits")
            .trim_start_matches("::ffff:");
        let port = line[1].as_u64().expect("it fits") as u16;
        let hex = line[2].as_str().expect("it fits");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("it fits");
        let payload = (0..hex.len()).step_by(2).map(byte).collect();
        read.entry((address.to_owned(), port))
            .or_default()
            .push(payload);
    }
    for (flow, payloads) in &all {
        assert_eq!(
            read.get(flow).map(Vec::len),
            Some(payloads.len()),
            "{flow:?}"
        );
        assert!(
            read[flow] == *payloads,
            "{flow:?}: other bytes or another order"
        );
    }
    assert_eq!(read.len(), all.len());
    // What a wrong checksum was is wrong still: the server's stack has seen each of them.
    let wrong = net.sh("server", "nstat -az UdpInCsumErrors Udp6InCsumErrors");
    let count = |name: &str| -> u64 {
        let line = wrong
            .lines()
            .find(|line| line.starts_with(name))
            .expect("it fits");
        line.split_whitespace()
            .nth(1)
            .expect("it fits")
            .parse()
            .expect("a number")
    };
    let counted = [count("UdpInCsumErrors"), count("Udp6InCsumErrors")];
    assert_eq!(counted, spoilt, "{wrong}");
    assert_eq!(spoilt.iter().all(|&count| count > 0), odd);
}

/// Of datagrams like the one before, and of those with odd ones among them, which part the others.
const SHARES: [(bool, Merges); 2] = [(false, Merges::Share(80)), (true, Merges::Share(40))];

#[test]
fn datagrams_merged_by_packet() {
    for (odd, share) in SHARES {
        arrives_as_it_was_sent(&["--backend", "packet", "--coalesce", "on"], odd, share);
    }
}

#[test]
fn datagrams_not_merged() {
    arrives_as_it_was_sent(
        &["--backend", "packet", "--coalesce", "off"],
        true,
        Merges::Nothing,
    );
}

#[cfg(feature = "xdp")]
#[test]
fn datagrams_received_by_xdp_and_merged() {
    for (odd, share) in SHARES {
        arrives_as_it_was_sent(&["--rx", "xdp", "--tx", "packet"], odd, share);
    }
}

/// A segment whose identification may be counted on.
fn segment(sequence: u32, payload: &[u8], id: u16) -> Vec<u8> {
    let (client, server) = ([10, 9, 0, 1], [10, 9, 0, 2]);
    let mut ip =
        Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, client, server).expect("it fits");
    (ip.dont_fragment, ip.identification) = (false, id);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac("c0"), mac("s0"))
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .tcp(20_000, 5000, sequence, 1000)
        .ack(77)
        .write(&mut frame, payload)
        .expect("it fits");
    frame
}

/// The kernel cuts for a device that is told not to: what leaves then is what came, to the byte, also behind tags.
#[test]
fn what_the_kernel_cuts_again_is_what_came() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    net.sh(
        "relay",
        "ethtool -K r1 tx-udp-segmentation off tso off tx off",
    );
    let relay = Relay::start(net, "relay", &["--pair", "r0,r1", "--coalesce", "on"]);
    let tags = [0x88a8, 0x8100].map(|tpid| Tag { tpid, tci: 5 });
    // Of each protocol with no tag, one and two; and of all these seven, which one burst holds.
    let flows: Vec<Vec<Vec<u8>>> = (0..9u16)
        .map(|flow| {
            let tags = &tags[..usize::from(flow % 3)];
            let one = |id: u16| {
                let payload: Vec<u8> = noise((flow << 8 | id).into()).take(30).collect();
                let frame = match flow / 3 {
                    0 => over_ipv4([10, 9, 0, 2], 20_000, &payload, 0, false, id).0[0].clone(),
                    1 => over_ipv6(20_000, &payload, 0).0[0].clone(),
                    _ => segment(30 * u32::from(id), &payload, id),
                };
                tagged(&frame, tags)
            };
            (0..7).map(one).collect()
        })
        .collect();
    let frames = flows.concat();
    let receiver = receive_raw(net, "server", "s0", frames.len());
    relay.signal(Signal::Freeze);
    let mut sender = Peer::start(net, "client", "raw-send --interface c0");
    sender.feed_hex(&frames);
    assert_eq!(sender.result()["sent"], frames.len());
    relay.signal(Signal::Thaw);
    let received: Vec<Vec<u8>> = receiver
        .frames()
        .into_iter()
        .map(|frame| match frame.tag {
            Some((tci, tpid)) => tagged(&frame.bytes, &[Tag { tpid, tci }]),
            None => frame.bytes,
        })
        .collect();
    assert_eq!(received.len(), frames.len());
    let other = (0..frames.len()).find(|&at| received[at] != frames[at]);
    assert_eq!(
        other.map(|at| (&received[at], &frames[at])),
        None,
        "{other:?}"
    );
    let last = relay.stop(Signal::Term);
    assert_eq!(last.way("r0", "r1").super_frames, 9, "{last:?}");
}

/// Super-frames as they leave, cut by scapy's reading of them, are the frames that scapy had made.
#[test]
fn scapy_cuts_what_was_merged_into_what_came() {
    let Some(chain) = Chain::open(1500) else {
        return;
    };
    let net = &chain.net;
    let scapy = |args: &[&str], input: String| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", include_str!("segments.py")]).args(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let feed = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("it ends");
        let _ = feed.join().expect("it only writes");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("text")
    };
    for args in [
        &["--backend", "packet", "--coalesce", "on"][..],
        &["--backend", "packet", "--coalesce", "off"],
        #[cfg(feature = "xdp")]
        &["--rx", "xdp", "--tx", "packet", "--coalesce", "on"],
    ] {
        let made = scapy(&["make", "7"], String::new());
        let frames: Vec<Vec<u8>> = made.lines().map(unhex).collect();
        let mut relay = Relay::start(net, "relay", &[&["--pair", "r0,r1"], args].concat());
        // Whatever is merged: it ends by itself when nothing more comes.
        let receiver = receive_raw(net, "server", "s0", frames.len());
        relay.signal(Signal::Freeze);
        let mut sender = Peer::start(net, "client", "raw-send --interface c0");
        sender.feed_hex(&frames);
        assert_eq!(sender.result()["sent"], frames.len());
        relay.signal(Signal::Thaw);
        let sent = frames.len() as u64;
        relay.snapshot_when("all of it went", |now| {
            now.way("r0", "r1").tx_packets == sent
        });
        let received: Vec<Value> = receiver
            .frames()
            .iter()
            .map(|frame| {
                json!([
                    hex(&frame.vnet),
                    hex(&frame.bytes),
                    frame.tag.map(|(tci, tpid)| [tci, tpid])
                ])
            })
            .collect();
        let sent: Vec<&str> = made.lines().collect();
        let verdict = scapy(
            &["check"],
            json!({"sent": sent, "received": received}).to_string(),
        );
        let verdict: Value = serde_json::from_str(&verdict).expect("JSON");
        let last = relay.stop(Signal::Term);
        let lane = last.way("r0", "r1");
        assert_eq!(verdict["frames"], frames.len(), "{last:?}");
        assert_eq!(verdict["super_frames"], lane.super_frames, "{last:?}");
        if args.contains(&"off") {
            assert_eq!((lane.super_frames, lane.merged_packets), (0, 0));
        } else {
            assert!(3 * lane.merged_packets > frames.len() as u64, "{last:?}");
        }
    }
}

/// Segments of hosts that cut for themselves.
#[test]
fn tcp_of_hosts_without_offloads_is_merged() {
    for args in [
        &["--backend", "packet"][..],
        #[cfg(feature = "xdp")]
        &["--rx", "xdp", "--tx", "packet"],
    ] {
        let Some(chain) = Chain::open(1500) else {
            return;
        };
        let net = &chain.net;
        for (space, interface) in [("client", "c0"), ("server", "s0")] {
            net.sh(
                space,
                &format!("ethtool -K {interface} tso off gso off tx off gro off"),
            );
        }
        let relay = Relay::start(net, "relay", &[&["--pair", "r0,r1"], args].concat());
        tcp_both_ways(net, Chain::SERVER, 20 << 20);
        let last = relay.stop(Signal::Term);
        for (from, to) in [("r0", "r1"), ("r1", "r0")] {
            let lane = last.way(from, to);
            assert!(lane.super_frames > 0, "{last:?}");
        }
    }
}

/// A device that is told not to cut gets nothing to cut: of a backlog of datagrams and segments the segments are merged.
#[test]
fn auto_obeys_the_features_of_the_port() {
    let Some(chain) = Chain::open(1500).map(Chain::without_arp) else {
        return;
    };
    let net = &chain.net;
    net.sh("relay", "ethtool -K r1 tx-udp-segmentation off");
    let mut relay = Relay::start(net, "relay", &["--pair", "r0,r1"]);
    assert!(
        relay.says("merged if TCP or TCP over IPv6 (r1 can't cut the others"),
        "{}",
        relay.said()
    );
    let mut merged = |frames: &[Vec<u8>]| {
        let before = relay.snapshot().way("r0", "r1");
        relay.signal(Signal::Freeze);
        send_raw(net, "client", "c0", frames);
        relay.signal(Signal::Thaw);
        let all = before.tx_packets + frames.len() as u64;
        let now = relay.snapshot_when("all of it went", |now| {
            now.way("r0", "r1").tx_packets >= all
        });
        let now = now.way("r0", "r1");
        (
            now.merged_packets - before.merged_packets,
            now.super_frames - before.super_frames,
        )
    };
    let datagrams = traffic(400, 1, false, false).frames;
    assert_eq!(merged(&datagrams), (0, 0));
    let segments: Vec<Vec<u8>> = (0..50)
        .map(|at| segment(100 * u32::from(at), &[7; 100], at))
        .collect();
    assert_eq!(merged(&segments), (50, 1));
    relay.snapshot().check();
    let _ = relay.stop(Signal::Term);
}
