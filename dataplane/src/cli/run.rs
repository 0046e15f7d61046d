//! `l2relay run`.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::Args;

use super::log::LogFormat;
use crate::{
    config::{self, Backend, Config, PortName, XdpSettings},
    control::http,
    error::Error,
};

/// Relay frames between pairs of interfaces.
///
/// Values stay text here: clap would stop at the first that is wrong, and the user wants to hear of all of them.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A port is an interface, or NAMESPACE:INTERFACE with a name below /run/netns, an absolute path or a process id.
SIGUSR1 prints the statistics; SIGINT and SIGTERM stop the relay and print them for the last time.

Examples:
  l2relay run --pair eth0,eth1
  l2relay run --pair ns1:eth0,ns2:eth0 --cores 1 --idle spin --stats-interval 1
  l2relay run --pair eth0,eth1 --rx xdp --tx packet
  l2relay run --hairpin eth0 --mac swap
  l2relay run -c relay.toml")]
pub struct RunArgs {
    /// Read a configuration file: TOML whose keys are these options. What the command line gives goes before it; SIGHUP or
    /// l2relay reload has it read again
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Join two ports, in both directions; repeat for more pairs
    #[arg(long, value_name = "A,B")]
    pub pair: Vec<String>,
    /// Send what a port receives back out of it; repeat for more
    #[arg(long, value_name = "E")]
    pub hairpin: Vec<String>,
    /// What carries frames: auto (packet on veth and tap, xdp on NICs that can), packet, xdp, kernel (a program in the kernel), fastest (kernel where nothing needs user space, else auto)
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: String,
    /// How frames are received, if not by --backend: packet, xdp
    #[arg(long, value_name = "NAME")]
    pub rx: Option<String>,
    /// How frames are sent, if not by --backend: packet, xdp
    #[arg(long, value_name = "NAME")]
    pub tx: Option<String>,
    /// With xdp, where its program runs: native (in the driver), generic (in the stack), auto (native if possible)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub xdp_mode: String,
    /// With xdp, whether the kernel copies frames: copy, zero-copy (or not at all), auto (zero-copy if possible)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub xdp_copy: String,
    /// With xdp, take the place of an XDP program that is on an interface already
    #[arg(long)]
    pub replace_xdp: bool,
    /// Frames of a flow that arrive together leave as one super-frame, which the receiver's stack cuts again: auto (where it
    /// can), on, off (every frame leaves as it came: for readers by AF_PACKET behind the ports)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub coalesce: String,
    /// With kernel, where its programs are attached: tc (tcx, or clsact before Linux 6.6), clsact, xdp (in the drivers, for NICs; a
    /// veth needs GRO at its other end), auto (tc)
    #[arg(long, value_name = "HOOK", default_value = "auto")]
    pub kernel_hook: String,
    /// MAC addresses: keep them, swap source and destination, or update them as l2fwd does
    #[arg(long, value_name = "MODE", default_value = "keep")]
    pub mac: String,
    /// With --mac update: destination of the frames that PORT sends (default 02:00:00:00:00:ID, the port's id)
    #[arg(long, value_name = "PORT=MAC")]
    pub dst_mac: Vec<String>,
    /// Pin one worker to each of these cores, e.g. 1,3-4 (default: one worker, not pinned)
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// When no frame comes: spin, adaptive (spin a while, then sleep) or sleep
    #[arg(long, value_name = "POLICY", default_value = "adaptive")]
    pub idle: String,
    /// Lanes per direction, with frames spread over them by flow: 1 to 64
    #[arg(long, value_name = "N", default_value = "1")]
    pub queues: String,
    /// Slots of each ring: 16 to 32768 (default: 1024, or 4096 for AF_XDP where frames are merged)
    #[arg(long, value_name = "N")]
    pub ring: Option<String>,
    /// Leave the interfaces out of promiscuous mode
    #[arg(long)]
    pub no_promisc: bool,
    /// Send through the interfaces' qdiscs, so that shaping on them acts (default: only where an interface has one at the start)
    #[arg(long)]
    pub qdisc: bool,
    /// Discard multicast and broadcast on hairpins, so that hosts don't see their own come back
    #[arg(long)]
    pub hairpin_guard: bool,
    /// Let at most N multicast and broadcast packets a second pass in each direction, for ports that may be joined in a loop
    #[arg(long, value_name = "N")]
    pub storm_guard: Option<String>,
    /// By what an interface that is created anew is known: name, mac
    #[arg(long, value_name = "WHAT", default_value = "name")]
    pub port_by: String,
    /// Set a port down while the other one of its pair has no link, so that hosts see a broken cable
    #[arg(long)]
    pub propagate_link: bool,
    /// Huge pages for frames: auto, require, off
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub hugepages: String,
    /// Emulate a link in one direction, in words like tc-netem's: 'A>B rate 2mbit delay 100ms loss 5% limit 100p seed 1'
    #[arg(long, value_name = "LINK")]
    pub link: Vec<String>,
    /// Seed of the links that have none of their own: the same decisions in every run (default: another one for each link)
    #[arg(long, value_name = "N")]
    pub seed: Option<String>,
    /// Wait at most S seconds for interfaces that are not there yet, as in a container: 0 to 86400
    #[arg(long, value_name = "S", default_value = "0")]
    pub wait_ports: String,
    /// Print the statistics every S seconds: 0.01 to 86400
    #[arg(long, value_name = "S")]
    pub stats_interval: Option<String>,
    /// Print statistics as JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Serve Prometheus metrics and a status page by HTTP at PORT or ADDRESS:PORT (default 127.0.0.1:9922)
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "")]
    pub metrics: Option<String>,
    /// The name by which l2relay ps, stats, set and stop know this relay (default: made of its ports)
    #[arg(long, value_name = "RELAY")]
    pub name: Option<String>,
    /// Make no control socket
    #[arg(long)]
    pub no_control: bool,
    /// How messages are written to standard error: human, json
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub log_format: String,
}

/// All that `l2relay run` was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of the relay.
    pub config: Config,
    /// How often to print statistics, in seconds.
    pub stats_interval_s: Option<f64>,
    /// Print them as JSON.
    pub json: bool,
    /// The relay's name, if it was given one.
    pub name: Option<String>,
    /// Whether to have a control socket.
    pub control: bool,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// How long to wait for interfaces that are not there yet.
    pub wait_ports: Duration,
    /// How messages are written.
    pub log_format: LogFormat,
}

impl RunArgs {
    /// All of it as typed values. With `machine`, they are held against the machine as well.
    ///
    /// # Errors
    /// Every mistake at once; that an interface is absent is none if it will be waited for.
    pub fn settings(&self, machine: bool) -> Result<Settings, Error> {
        let mut mistakes = Vec::new();
        let pairs = self.pair.iter().map(|pair| config::parse_pair(pair));
        let hairpins = self
            .hairpin
            .iter()
            .map(|port| port.parse().map(|port: PortName| [port.clone(), port]));
        let settings = Config {
            pairs: keep(pairs.chain(hairpins), &mut mistakes),
            backend: parse(&self.backend, &mut mistakes),
            rx: one_of("--rx", &self.rx, &mut mistakes),
            tx: one_of("--tx", &self.tx, &mut mistakes),
            xdp: XdpSettings {
                mode: parse(&self.xdp_mode, &mut mistakes),
                copying: parse(&self.xdp_copy, &mut mistakes),
                replace: self.replace_xdp,
            },
            coalesce: parse(&self.coalesce, &mut mistakes),
            kernel_hook: parse(&self.kernel_hook, &mut mistakes),
            mac: parse(&self.mac, &mut mistakes),
            dst_mac: keep(
                self.dst_mac.iter().map(|text| config::parse_dst_mac(text)),
                &mut mistakes,
            ),
            cores: keep(
                self.cores.iter().map(|text| config::parse_cores(text)),
                &mut mistakes,
            )
            .concat(),
            rx_cores: Vec::new(),
            idle: parse(&self.idle, &mut mistakes),
            queues: number("--queues", &self.queues, 1, &mut mistakes),
            ring: self
                .ring
                .as_ref()
                .map(|text| number("--ring", text, 1024, &mut mistakes)),
            promiscuous: !self.no_promisc,
            qdisc: self.qdisc,
            hairpin_guard: self.hairpin_guard,
            storm_guard_pps: keep(
                self.storm_guard.iter().map(|text| {
                    let mistake = |_| format!("--storm-guard {text:?}: write packets a second");
                    text.parse().map_err(mistake)
                }),
                &mut mistakes,
            )
            .pop(),
            port_by: parse(&self.port_by, &mut mistakes),
            propagate_link: self.propagate_link,
            huge_pages: parse(&self.hugepages, &mut mistakes),
            links: {
                let links = self.link.iter().map(|text| config::parse_link(text));
                links
                    .filter_map(|link| link.map_err(|more| mistakes.extend(more)).ok())
                    .collect()
            },
            seed: keep(
                self.seed.iter().map(|text| {
                    let mistake = |_| format!("--seed {text:?}: write a whole number");
                    text.parse().map_err(mistake)
                }),
                &mut mistakes,
            )
            .pop(),
        };
        let stats_interval = keep(
            self.stats_interval
                .iter()
                .map(|text| interval("--stats-interval", text)),
            &mut mistakes,
        )
        .pop();
        let address = self.metrics.iter().map(|text| http::parse_address(text));
        let metrics = keep(address, &mut mistakes).pop();
        // Tried now, so that an address in use is told with all other mistakes.
        let taken = metrics
            .filter(|_| machine)
            .and_then(|at| http::listen(at).err());
        mistakes.extend(taken);
        let wait = config::parse_wait(&self.wait_ports).unwrap_or_else(|mistake| {
            mistakes.push(mistake);
            Duration::ZERO
        });
        let log_format = parse(&self.log_format, &mut mistakes);
        if self.no_control && self.name.is_some() {
            mistakes.push("--name has no effect with --no-control: leave one of them out".into());
        }
        let broken_pairs = self.pair.len() + self.hairpin.len() > settings.pairs.len();
        let mut all = mistakes;
        let checked = match (machine, wait) {
            (false, _) => Err(settings.mistakes()),
            (true, Duration::ZERO) => settings.check(),
            (true, _) => settings.check_but_for_ports(),
        };
        if let Err(more) = checked {
            // A pair that could not be read is a mistake already; that no port is left follows from it.
            all.extend(more.into_iter().filter(|mistake| {
                !(broken_pairs && settings.pairs.is_empty() && mistake.contains("no ports"))
            }));
        }
        if all.is_empty() {
            Ok(Settings {
                config: settings,
                stats_interval_s: stats_interval,
                json: self.json,
                name: self.name.clone(),
                control: !self.no_control,
                metrics,
                wait_ports: wait,
                log_format,
            })
        } else {
            Err(Error::Config(all))
        }
    }
}

/// The values that are right; the mistakes of the others go to the list.
fn keep<T>(values: impl Iterator<Item = Result<T, String>>, mistakes: &mut Vec<String>) -> Vec<T> {
    values
        .filter_map(|value| value.map_err(|mistake| mistakes.push(mistake)).ok())
        .collect()
}

/// A value, or its default and a mistake.
fn parse<T: FromStr<Err = String> + Default>(text: &str, mistakes: &mut Vec<String>) -> T {
    text.parse().unwrap_or_else(|mistake| {
        mistakes.push(mistake);
        T::default()
    })
}

/// A back end by name, for one half of the ports.
fn one_of(option: &str, text: &Option<String>, mistakes: &mut Vec<String>) -> Option<Backend> {
    let named: Result<Backend, _> = text.as_ref()?.parse();
    let known = named
        .ok()
        .filter(|backend| matches!(backend, Backend::Packet | Backend::Xdp));
    if known.is_none() {
        mistakes.push(format!(
            "{option} {:?}: use packet or xdp",
            text.as_deref().unwrap_or_default()
        ));
    }
    known
}

fn number(option: &str, text: &str, default: usize, mistakes: &mut Vec<String>) -> usize {
    text.parse().unwrap_or_else(|_| {
        mistakes.push(format!("{option} {text:?}: write a whole number"));
        default
    })
}

pub(super) fn interval(option: &str, text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| format!("{option} {text:?}: write seconds, 0.01 to 86400"))
}
