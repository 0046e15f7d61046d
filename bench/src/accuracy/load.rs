//! What one relay carries: a link of 1 Gbit/s with 50 ms of it in flight, and a hundred links at once.

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Bench;
use super::line::{last, late_us};
use super::stream::PORT;
use crate::count::{Counter, Counts, Spec, Verdict};
use crate::process::Program;
use crate::sys::{place, udp};
use crate::topology::{Namespaces, enter, ip, quiet_ipv6};

/// Bytes of a frame of full size, and of the payload of a datagram in it.
const FRAME: usize = 1514;
const PAYLOAD: u16 = 1472;
/// Datagrams of a super-frame that the sender hands over at once.
const SEGMENTS: usize = 40;
const GIGABIT: f64 = 1e9;

/// Links of [`Bench::many`]: pairs, each with one in both directions.
const PAIRS: usize = 50;
/// Packets a second on each.
const PPS: u32 = 1000;

/// All drops of a lane, whatever the reason.
fn dropped(lane: &Value) -> u64 {
    let reasons = lane["dropped"].as_object();
    let counts = reasons.into_iter().flatten();
    counts.filter_map(|(_, count)| count.as_u64()).sum()
}

impl Bench<'_> {
    /// Just below the rate nothing may be lost; above it, the rate is what arrives.
    pub(super) fn fast(&mut self) -> Result<()> {
        for (name, share) in [("98 %", 0.98), ("120 %", 1.2)] {
            let line = self.line("rate 1gbit delay 50ms limit 1000p")?;
            let (client, server) = (&line.topology.client, &line.topology.server);
            let spec = Spec {
                verdict: Verdict::Drop,
                ..Spec::port(PORT)
            };
            let counter = Counter::attach(self.run, &server.namespace, server.interface, &spec)?;
            let to = (server.address, PORT);
            let from = (client.address, 0);
            let socket = enter(&client.namespace, || UdpSocket::bind(from))?
                .context("binding the sender")?;
            udp::segment(&socket, PAYLOAD).context("UDP segmentation offload")?;
            let bytes = vec![0; SEGMENTS * usize::from(PAYLOAD)];
            let gap = (SEGMENTS * FRAME * 8) as f64 / (GIGABIT * share);
            let seconds = f64::from(self.flags.seconds);
            let (sent, middle) = place::pinned(self.flags.host_cpu, || {
                let (start, mut sent) = (Instant::now(), 0u64);
                // What arrives in the middle: after the first second, before the last half.
                let mut middle: [Option<(f64, Counts)>; 2] = [None; 2];
                while sent as f64 * gap < seconds {
                    while start.elapsed().as_secs_f64() < sent as f64 * gap {
                        std::hint::spin_loop();
                    }
                    for (at, place) in [1.0, seconds - 0.5].into_iter().zip(&mut middle) {
                        if start.elapsed().as_secs_f64() >= at && place.is_none() {
                            self.run.check()?;
                            *place = Some((start.elapsed().as_secs_f64(), counter.read()?));
                        }
                    }
                    socket.send_to(&bytes, to).context("sending")?;
                    sent += 1;
                }
                Ok((sent, middle))
            })?;
            self.run.sleep(Duration::from_millis(300))?;
            let (sent, arrived) = (sent * SEGMENTS as u64, counter.read()?.packets);
            drop(counter);
            let lane = line.stop()?;
            let what = format!("1 Gbit/s x 50 ms, 1514-byte frames, {name} offered");
            let lost = sent.saturating_sub(arrived);
            let value = format!(
                "{lost} of {sent} (in the relay {}, before it {})",
                dropped(&lane),
                lane["kernel_drops"]
            );
            if share < 1.0 {
                self.judge(format!("{what}: packets lost"), value, "0", lost == 0);
            } else {
                self.note(format!("{what}: packets lost"), value);
                let [Some((from_s, from)), Some((until_s, until))] = middle else {
                    anyhow::bail!("the stream was too short");
                };
                let bits = until.since(from).bytes as f64 * 8.0;
                let error = (bits / (until_s - from_s) / GIGABIT - 1.0) * 100.0;
                self.judge(
                    format!("{what}: error of the rate"),
                    format!("{error:.3} %"),
                    "0.5 %",
                    error.abs() <= 0.5,
                );
            }
            self.note_lateness(&lane);
        }
        Ok(())
    }

    /// A hundred links of one relay, each with its own stream.
    pub(super) fn many(&mut self) -> Result<()> {
        let [c, s, r] = ["mc", "ms", "mr"].map(|short| self.run.name(short));
        let _namespaces = Namespaces::named(vec![c.clone(), s.clone(), r.clone()]);
        let mut script = format!("netns add {c}\nnetns add {s}\nnetns add {r}\n");
        let mut sides = [(&c, 'c', 'a', 1, 2), (&s, 's', 'z', 2, 1)]
            .map(|(space, host, port, own, other)| (space, host, port, own, other, String::new()));
        let mut ports = String::new();
        for at in 0..PAIRS {
            for (space, host, port, own, other, lines) in &mut sides {
                let _ = writeln!(
                    script,
                    "link add {host}{at} address 02:00:00:00:{at:02x}:0{own} netns {space} type veth peer name {port}{at} netns {r}"
                );
                let _ = writeln!(ports, "link set {port}{at} up");
                let _ = writeln!(
                    lines,
                    "addr add 10.64.{at}.{own}/24 dev {host}{at}\nlink set {host}{at} up\n\
                     neigh add 10.64.{at}.{other} lladdr 02:00:00:00:{at:02x}:0{other} dev {host}{at} nud permanent"
                );
            }
        }
        ip(self.run, None, script)?;
        for space in [&c, &s, &r] {
            quiet_ipv6(self.run, space)?;
        }
        ip(self.run, Some(&r), ports)?;
        let mut sockets = Vec::new();
        for (space, _, _, own, other, lines) in sides {
            ip(self.run, Some(space), lines)?;
            for at in 0..PAIRS {
                // A socket that is there, and full, sends nothing back.
                let bind = || UdpSocket::bind((format!("10.64.{at}.{own}"), PORT));
                let socket = enter(space, bind)?.context("binding a sender")?;
                socket.connect((format!("10.64.{at}.{other}"), PORT))?;
                sockets.push(socket);
            }
        }
        let mut args = vec!["--ring".to_owned(), "64".into()];
        for at in 0..PAIRS {
            args.extend(["--pair".to_owned(), format!("a{at},z{at}")]);
            for (from, to) in [('a', 'z'), ('z', 'a')] {
                let link = format!("{from}{at}>{to}{at} rate 20mbit delay 20ms seed 1");
                args.extend(["--link".to_owned(), link]);
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let relay = self.relay(&r, &args)?;
        let before = self.received(&[&c, &s])?;

        let gap = Duration::from_secs(1) / PPS / sockets.len() as u32;
        let count = (PPS * self.flags.seconds) as usize * sockets.len();
        let took = place::pinned(self.flags.host_cpu, || {
            let (start, payload) = (Instant::now(), [0; 158]);
            for (number, socket) in (0..count).zip(sockets.iter().cycle()) {
                while start.elapsed() < gap * number as u32 {
                    std::hint::spin_loop();
                }
                if number % 4096 == 0 {
                    self.run.check()?;
                }
                socket.send(&payload).context("sending")?;
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        self.run.sleep(Duration::from_millis(200))?;
        let arrived = self.received(&[&c, &s])? - before;
        let snapshot = last(relay)?;
        let lanes = snapshot["lanes"].as_array().context("no lanes")?;
        let worst = |name: &str| {
            let all = lanes.iter().map(|lane| late_us(lane, name));
            all.fold(0.0, f64::max)
        };
        let what = format!("{} links at {PPS} packets/s each", sockets.len());
        self.note(
            format!("{what}: packets sent in all, a second"),
            format!("{:.0}", count as f64 / took),
        );
        let lost = (count as u64).abs_diff(arrived);
        self.judge(
            format!("{what}: packets lost, counted at the far ends"),
            format!(
                "{lost} of {count} (before the relay {})",
                ports_drops(&snapshot)
            ),
            "0",
            lost == 0,
        );
        let (p50, p99) = (worst("p50_ns"), worst("p99_ns"));
        self.judge(
            format!("{what}: lateness of the worst, us, p50 / p99"),
            format!("{p50:.1} / {p99:.1}"),
            "50 / 500",
            p50 <= 50.0 && p99 <= 500.0,
        );
        Ok(())
    }
}

impl Bench<'_> {
    /// Packets that the interfaces in these namespaces have received, by their own count.
    fn received(&self, spaces: &[&str]) -> Result<u64> {
        let mut packets = 0;
        for space in spaces {
            let listed = Program::new("ip").args(["-j", "-s", "link"]).within(space);
            let listed = listed.run(self.run, Duration::from_secs(5))?.stdout;
            let links: Vec<Value> = serde_json::from_str(&listed).context("ip -j -s link")?;
            for link in links.iter().filter(|link| link["ifname"] != "lo") {
                let count = link["stats64"]["rx"]["packets"].as_u64();
                packets += count.context("ip tells no counts")?;
            }
        }
        Ok(packets)
    }
}

/// What the kernel had no room for, of all ports.
fn ports_drops(snapshot: &Value) -> u64 {
    let ports = snapshot["ports"].as_array().into_iter().flatten();
    let drops = ports.filter_map(|port| port["kernel_drops"].as_u64());
    drops.sum()
}
