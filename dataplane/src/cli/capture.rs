//! `l2relay capture`: frames from a relay that runs, into a file or as lines.

mod output;
mod show;

use std::{
    io::{self, Read},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::Args;
use pcap_file::{
    PcapError,
    pcapng::{
        Block, PcapNgParser,
        blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
    },
};

use self::{
    output::Output,
    show::{line, name},
};
use super::{
    Target,
    log::{LogFormat, say},
    remote::one,
};
use crate::{
    control::protocol::{CaptureRequest, Request, Response},
    error::Error,
    stage::tap::{TapSettings, bpf::Program},
    sys::{
        event::Poller,
        pcap,
        signal::{Signal, Signals},
    },
    text::visible,
};

/// Copy frames from a relay that runs, into a pcapng file or as lines
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Frames are taken where they are received, before any stage has seen them (--before), and where they are handed over to be sent (--after);
without either at both. A port's frames are those it receives and those it sends.
Forwarding never waits for a capture: when its reader is too slow, copies are lost and counted.
FILTER is an expression as tcpdump takes it: see pcap-filter(7). VLAN tags are in the frame, so `vlan and udp` finds tagged UDP.
It ends with SIGINT or SIGTERM, after -c frames, or with the relay.
A FILE is emptied when the capture begins. One that could not be written at all is not left behind.

Exit status: 0 when it was ended so, 1 if the relay or the output broke off, 2 if it could not begin.

Examples:
  l2relay capture --port r0 -w r0.pcapng
  l2relay capture --lane 'r0>r1' -c 10 tcp port 80
  l2relay capture -s 128 -w - 'not arp' | wireshark -k -i -")]
pub struct CaptureArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
    /// What a port receives and sends (default: all ports)
    #[arg(long, value_name = "PORT", conflicts_with = "lane")]
    pub port: Option<String>,
    /// What passes in one direction, e.g. 'r0>r1'
    #[arg(long, value_name = "LANE")]
    pub lane: Option<String>,
    /// Frames as they are received, before the stages
    #[arg(long)]
    pub before: bool,
    /// Frames as they are handed over to be sent, behind the stages
    #[arg(long)]
    pub after: bool,
    /// End after N frames
    #[arg(short, long, value_name = "N")]
    pub count: Option<String>,
    /// Copy only the first BYTES of each frame (0: all of it)
    #[arg(short, long, value_name = "BYTES", default_value = "0")]
    pub snaplen: String,
    /// Room in the relay for copies that the reader has not taken yet: 1 to 256
    #[arg(short = 'B', long, value_name = "MIB", default_value = "16")]
    pub buffer: String,
    /// Write pcapng to FILE, or to standard output with - (default: print a line for each frame)
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<String>,
    /// Which frames
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,
}

/// How long a relay may take to end a capture, once it was asked to.
const END: Duration = Duration::from_secs(3);

impl CaptureArgs {
    /// Captures.
    ///
    /// # Errors
    /// It can't begin: every mistake at once, no relay can be asked, or the output can't be opened.
    pub fn run(&self) -> Result<ExitCode, Error> {
        // Until it begins, a signal ends this as any program: to compile a filter, to connect and to open a pipe may take for ever.
        let request = self.request()?;
        let mut relay = self.target.connect()?;
        let name = relay.name().to_owned();
        let mut output = Output::open(self.write.as_deref())?;
        // Before any thread starts: one thread waits for them.
        let failed = |source| Error::system("wait for", "signals", source, "");
        let signals = Signals::block(false).map_err(failed)?;
        let ports = match relay.ask(&Request::Capture(request)).map_err(one)? {
            Response::Capture(started) => started.ports,
            other => return Err(super::remote::strange(&relay, &other)),
        };
        output.begin()?;
        let (rest, stream) = relay.into_stream().map_err(one)?;
        tell(&format!("capturing at {}", ports.join(", ")));
        end_on_signal(signals, &stream).map_err(failed)?;
        let mut capture = Capture {
            bytes: rest,
            parser: None,
            frames: 0,
            statistics: Vec::new(),
        };
        let outcome = capture.copy(stream, &mut output);
        Ok(capture.report(outcome, &name, &output))
    }

    fn request(&self) -> Result<CaptureRequest, Error> {
        let mut mistakes = Vec::new();
        let count = self.count.as_ref().and_then(|text| {
            let count = text.parse::<u64>().ok().filter(|count| *count > 0);
            if count.is_none() {
                mistakes.push(format!("-c {text:?}: write a number of frames, from 1 on"));
            }
            count
        });
        let snaplen = self.snaplen.parse::<u32>().unwrap_or_else(|_| {
            mistakes.push(format!(
                "-s {:?}: write a number of bytes, 0 for all",
                self.snaplen
            ));
            0
        });
        let most = CaptureRequest::BUFFER_MAX >> 20;
        let buffer = self.buffer.parse::<u64>().ok();
        let buffer = buffer.filter(|mebibytes| (1..=most).contains(mebibytes));
        if buffer.is_none() {
            mistakes.push(format!("-B {:?}: write MiB, 1 to {most}", self.buffer));
        }
        let expression = self.filter.join(" ").trim().to_owned();
        let filter = if expression.is_empty() {
            Vec::new()
        } else {
            compile(&expression).unwrap_or_else(|why| {
                mistakes.push(format!("filter {expression:?}: {why}; see pcap-filter(7)"));
                Vec::new()
            })
        };
        if !mistakes.is_empty() {
            return Err(Error::Config(mistakes));
        }
        Ok(CaptureRequest {
            port: self.port.clone(),
            lane: self.lane.clone(),
            before: self.before,
            after: self.after,
            count,
            snaplen: (snaplen > 0).then_some(snaplen),
            buffer_bytes: buffer.map_or(TapSettings::BUFFER as u64, |mebibytes| mebibytes << 20),
            filter,
            expression,
        })
    }
}

/// A filter that the relay accepts.
fn compile(expression: &str) -> Result<Vec<crate::stage::tap::bpf::Instruction>, String> {
    let code = pcap::compile(expression)?;
    Program::new(&code).map_err(|invalid| invalid.to_string())?;
    Ok(code)
}

/// Says a line. It names ports, which may be called anything.
fn tell(line: &str) {
    say(LogFormat::Human, line);
}

/// At the first signal asks the relay for the end; what it sends until then is still taken.
fn end_on_signal(mut signals: Signals, stream: &UnixStream) -> io::Result<()> {
    let stream = stream.try_clone()?;
    let wait = move || {
        let mut poller = Poller::default();
        while let Ok(None | Some(Signal::User1 | Signal::HangUp)) = signals.next() {
            let _ = poller.wait(&[signals.as_fd()], None);
        }
        let _ = stream.set_read_timeout(Some(END));
        let _ = stream.shutdown(Shutdown::Write);
    };
    let thread = thread::Builder::new().name("l2relay-signals".into());
    thread.spawn(wait).map(drop)
}

/// What has come so far.
struct Capture {
    /// The beginning of a block.
    bytes: Vec<u8>,
    /// Once the section has begun.
    parser: Option<PcapNgParser>,
    frames: u64,
    /// The last block of each port.
    statistics: Vec<InterfaceStatisticsBlock<'static>>,
}

/// Why it ended early.
enum Broken {
    /// The relay's side.
    Relay(String),
    /// The output's.
    Output(io::Error),
}

impl Capture {
    /// Copies whole blocks until the relay closes the connection.
    fn copy(&mut self, mut stream: UnixStream, output: &mut Output) -> Result<(), Broken> {
        let mut piece = vec![0; 256 << 10];
        loop {
            let used = self.take_blocks(output)?;
            self.bytes.drain(..used);
            match stream.read(&mut piece) {
                Ok(0) if self.statistics.is_empty() => {
                    return Err(Broken::Relay("it was killed".into()));
                }
                Ok(0) => return Ok(()),
                Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Broken::Relay("it does not answer".into()));
                }
                Err(error) => return Err(Broken::Relay(error.to_string())),
            }
        }
    }

    /// Writes the blocks that are there as a whole. How many bytes they have.
    fn take_blocks(&mut self, output: &mut Output) -> Result<usize, Broken> {
        let strange = |error| Broken::Relay(format!("what it sends is not understood: {error}"));
        let mut rest = &self.bytes[..];
        let mut lines = String::new();
        loop {
            let parsed = match &mut self.parser {
                None => PcapNgParser::new(rest).map(|(rest, parser)| {
                    self.parser = Some(parser);
                    (rest, None)
                }),
                Some(parser) => parser
                    .next_block(rest)
                    .map(|(rest, block)| (rest, Some(block))),
            };
            let block = match parsed {
                Ok((after, block)) => {
                    rest = after;
                    block
                }
                Err(PcapError::IncompleteBuffer) => break,
                Err(error) => return Err(strange(error)),
            };
            match block {
                Some(Block::EnhancedPacket(frame)) => {
                    self.frames += 1;
                    if output.wants_lines() {
                        let parser = self.parser.as_ref();
                        let port = parser.and_then(|parser| parser.packet_interface(&frame));
                        lines.push_str(&visible(&line(port, &frame)));
                    }
                }
                Some(Block::InterfaceStatistics(block)) => {
                    let ports = self.parser.as_ref().map(PcapNgParser::interfaces);
                    let port = ports.and_then(|ports| ports.get(block.interface_id as usize));
                    if let Some(why) = comment(&block)
                        && why.ends_with(CaptureRequest::GOES_ON)
                    {
                        tell(&format!("{}: {why}", name(port)));
                    }
                    self.statistics.push(block.into_owned());
                }
                _ => {}
            }
        }
        let used = self.bytes.len() - rest.len();
        if output.wants_lines() {
            output.write(lines.as_bytes()).map_err(Broken::Output)?;
        } else {
            output.write(&self.bytes[..used]).map_err(Broken::Output)?;
        }
        Ok(used)
    }

    /// Says what it came to.
    fn report(&self, outcome: Result<(), Broken>, relay: &str, output: &Output) -> ExitCode {
        let (mut matched, mut lost, mut seen) = (0, 0, 0);
        for option in self.statistics.iter().flat_map(|block| &block.options) {
            match option {
                InterfaceStatisticsOption::IsbIfRecv(count) => seen += count,
                InterfaceStatisticsOption::IsbFilterAccept(count) => matched += count,
                InterfaceStatisticsOption::IsbIfDrop(count) => lost += count,
                _ => {}
            }
        }
        let why = self.statistics.last().and_then(comment).unwrap_or_default();
        match outcome {
            Ok(()) => {
                tell(&format!(
                    "{} frames captured ({why}); {seen} passed, {matched} matched, {lost} copies lost because the reader was slow",
                    self.frames
                ));
                return ExitCode::SUCCESS;
            }
            Err(Broken::Relay(why)) => tell(&format!(
                "l2relay: relay {relay}: {why}; {} frames captured until then",
                self.frames
            )),
            Err(Broken::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                tell(&format!("l2relay: {output}: its reader has left"));
            }
            Err(Broken::Output(error)) => tell(&format!("l2relay: {output}: {error}")),
        }
        tell(&format!(
            "l2relay: the capture broke off{}",
            output.condition()
        ));
        ExitCode::FAILURE
    }
}

/// The comment of a block.
fn comment<'a>(block: &'a InterfaceStatisticsBlock<'_>) -> Option<&'a str> {
    block.options.iter().find_map(|option| match option {
        InterfaceStatisticsOption::Comment(text) => Some(text.as_ref()),
        _ => None,
    })
}
