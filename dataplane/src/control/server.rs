//! The relay's end of the control socket: reads requests, writes answers, and never waits for a client.
//!
//! [`Control`](super::Control) calls it when its socket has news. Lines, answers and clients are bounded: a client that does not
//! read its answer is not asked for its next request, and one too many takes the place of the one that was silent longest.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    time::{Duration, Instant},
};

use mio::{
    Interest, Registry, Token,
    net::{UnixListener, UnixStream},
};

use super::{
    place::Claim,
    protocol::{Failure, FailureCode, REQUEST_MAX, Request, Response, to_line},
};
use crate::text::shortened;

/// Clients at a time.
pub(super) const CLIENTS_MAX: usize = 64;

/// How long a line may take from its first byte to its end.
const LINE_PATIENCE: Duration = Duration::from_secs(30);

/// A socket that listens, and its clients.
pub struct Server {
    claim: Claim,
    listener: UnixListener,
    clients: BTreeMap<usize, Client>,
    /// The token of the listener; those of clients follow.
    base: usize,
    next: usize,
    /// Connections may still wait that could not be accepted.
    more: bool,
}

struct Client {
    stream: UnixStream,
    /// What came and was not yet obeyed.
    inbox: Vec<u8>,
    /// So much of it has no end of line.
    scanned: usize,
    /// When the line began that has no end yet.
    begun: Option<Instant>,
    /// What it has not yet taken.
    outbox: Vec<u8>,
    written: usize,
    readable: bool,
    /// It says nothing more, or is not listened to any more.
    ended: bool,
    heard: Instant,
    /// Who has the connection from now on.
    heir: Option<HandOver>,
}

/// What a step with a client came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing to do before the socket has news.
    Waits,
    /// There is more to do at once.
    Again,
    /// The connection is at its end.
    Over,
}

/// What a request comes to.
pub enum Answer {
    /// Say this, and listen on.
    Say(Response),
    /// Give the connection to this, which answers by itself and says nothing more in lines.
    HandOver(HandOver),
}

/// Takes a connection over.
pub type HandOver = Box<dyn FnOnce(std::os::unix::net::UnixStream) + Send>;

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(claim: Claim) -> io::Result<Self> {
        let listener = claim.listen()?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            claim,
            listener: UnixListener::from_std(listener),
            clients: BTreeMap::new(),
            base: 0,
            next: 0,
            more: false,
        })
    }

    /// The relay's name.
    pub fn name(&self) -> &str {
        self.claim.name()
    }

    /// Takes all tokens from `base` on.
    pub(super) fn register(&mut self, registry: &Registry, base: usize) -> io::Result<()> {
        (self.base, self.next) = (base, base + 1);
        registry.register(&mut self.listener, Token(base), Interest::READABLE)
    }

    /// Whether there are connections that could not be accepted, for want of descriptors: try again after a while.
    pub(super) fn is_stuck(&self) -> bool {
        self.more
    }

    /// When a line that has no end yet will have taken too long: to be looked at again then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let clients = self.clients.values().filter(|client| !client.is_writing());
        let begun = clients.filter_map(|client| client.begun).min();
        begun.map(|begun| begun + LINE_PATIENCE)
    }

    /// Notes that a socket has news.
    pub(super) fn news(&mut self, token: Token) {
        if token.0 == self.base {
            self.more = true;
        } else if let Some(client) = self.clients.get_mut(&token.0) {
            client.readable = true;
        }
    }

    /// Does what there is to do: one request a client at most. `true`: there is more to do at once.
    pub(super) fn turn(
        &mut self,
        registry: &Registry,
        answer: &mut dyn FnMut(Request) -> Answer,
    ) -> bool {
        self.accept(registry);
        let now = Instant::now();
        let mut again = false;
        let over = self.clients.extract_if(.., |_, client| {
            let step = client.step(now, answer);
            again |= step == Step::Again;
            step == Step::Over
        });
        for (_, mut client) in over {
            let _ = registry.deregister(&mut client.stream);
            if let Some(heir) = client.heir {
                heir(client.stream.into());
            }
        }
        again
    }

    fn accept(&mut self, registry: &Registry) {
        while self.more {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    self.make_room(registry);
                    let token = self.next;
                    // A token is used again only after more connections than a process can have made.
                    self.next = self.next.checked_add(1).unwrap_or(self.base + 1);
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    match registry.register(&mut stream, Token(token), interest) {
                        Ok(()) => {
                            self.clients.insert(token, Client::new(stream));
                        }
                        Err(error) => tracing::warn!("control socket: {error}"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.more = false,
                Err(error) => {
                    // Out of descriptors, most likely. With no client to give one back, it is tried again at the next news.
                    let silent = self.silent_longest();
                    if silent.is_none() {
                        return tracing::warn!("control socket: {error}");
                    }
                    self.close(silent, registry);
                }
            }
        }
    }

    fn make_room(&mut self, registry: &Registry) {
        if self.clients.len() >= CLIENTS_MAX {
            let silent = self.silent_longest();
            self.close(silent, registry);
        }
    }

    fn silent_longest(&self) -> Option<usize> {
        let longest = self.clients.iter().min_by_key(|(_, client)| client.heard);
        longest.map(|(token, _)| *token)
    }

    fn close(&mut self, token: Option<usize>, registry: &Registry) {
        if let Some(mut client) = token.and_then(|token| self.clients.remove(&token)) {
            let _ = registry.deregister(&mut client.stream);
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            inbox: Vec::new(),
            scanned: 0,
            begun: None,
            outbox: Vec::new(),
            written: 0,
            readable: true,
            ended: false,
            heard: Instant::now(),
            heir: None,
        }
    }

    fn step(&mut self, now: Instant, answer: &mut dyn FnMut(Request) -> Answer) -> Step {
        if self.write().is_err() {
            return Step::Over;
        }
        if self.is_writing() {
            return Step::Waits;
        }
        if !self.ended && self.readable && self.line_end().is_none() && self.read().is_err() {
            return Step::Over;
        }
        match self.take_line(now) {
            Some(Ok(line)) => {
                self.heard = now;
                // An empty line, at the end perhaps, asks for nothing.
                if !line.trim_ascii().is_empty() {
                    let response = match Request::parse(&line) {
                        Ok(request) => match answer(request) {
                            Answer::Say(response) => response,
                            Answer::HandOver(heir) => {
                                self.heir = Some(heir);
                                return Step::Over;
                            }
                        },
                        Err(failure) => Response::Error(failure),
                    };
                    self.say(response);
                }
            }
            Some(Err(failure)) => {
                self.say(Response::Error(failure));
                self.inbox = Vec::new();
                (self.scanned, self.begun) = (0, None);
                self.ended = true;
            }
            None if self.ended => return Step::Over,
            None if self.readable => return Step::Again,
            None => return Step::Waits,
        }
        match self.write() {
            Err(_) => Step::Over,
            Ok(()) if self.is_writing() => Step::Waits,
            Ok(()) => Step::Again,
        }
    }

    fn say(&mut self, response: Response) {
        self.outbox = to_line(&match response {
            // It may tell what was asked for, which may be long.
            Response::Error(Failure { code, message }) => Response::Error(Failure {
                code,
                message: shortened(&message),
            }),
            response => response,
        });
    }

    fn is_writing(&self) -> bool {
        self.written < self.outbox.len()
    }

    fn write(&mut self) -> io::Result<()> {
        while self.is_writing() {
            match self.stream.write(&self.outbox[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // Answers differ in length by orders of magnitude: the room of a long one is given back.
        self.outbox = Vec::new();
        self.written = 0;
        Ok(())
    }

    /// Reads a piece: no more than makes a line too long.
    fn read(&mut self) -> io::Result<()> {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => (self.ended, self.readable) = (true, false),
            Ok(count) => self.inbox.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Looks at no byte twice, however slowly they come.
    fn line_end(&mut self) -> Option<usize> {
        let mut new = self.inbox[self.scanned..].iter();
        let end = new.position(|byte| *byte == b'\n');
        let end = end.map(|end| self.scanned + end);
        self.scanned = end.unwrap_or(self.inbox.len());
        end
    }

    /// The next whole line; what has no end counts as one when nothing more comes.
    fn take_line(&mut self, now: Instant) -> Option<Result<Vec<u8>, Failure>> {
        let end = self
            .line_end()
            .or_else(|| (self.ended && !self.inbox.is_empty()).then_some(self.inbox.len()));
        let length = end.unwrap_or(self.inbox.len());
        if length > REQUEST_MAX {
            return Some(Err(Failure {
                code: FailureCode::TooLong,
                message: format!("a request has at most {REQUEST_MAX} bytes"),
            }));
        }
        let Some(end) = end else {
            if self.inbox.is_empty() {
                return None;
            }
            let begun = *self.begun.get_or_insert(now);
            let late = now.saturating_duration_since(begun) >= LINE_PATIENCE;
            return late.then(|| {
                let seconds = LINE_PATIENCE.as_secs();
                Err(Failure {
                    code: FailureCode::Malformed,
                    message: format!(
                        "no end of line within {seconds} s: end a request by a line feed"
                    ),
                })
            });
        };
        (self.scanned, self.begun) = (0, None);
        let rest = self.inbox.split_off((end + 1).min(self.inbox.len()));
        let mut line = std::mem::replace(&mut self.inbox, rest);
        line.truncate(end);
        Some(Ok(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> (std::os::unix::net::UnixStream, Client) {
        let (there, here) = std::os::unix::net::UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        (there, Client::new(UnixStream::from_std(here)))
    }

    #[test]
    fn a_line_has_so_much_time() {
        let (mut there, mut client) = connected();
        let start = Instant::now();
        let mut asked = 0;
        let mut step = |client: &mut Client, at: Instant| {
            client.readable = true;
            let mut answer = |_| {
                asked += 1;
                Answer::Say(Response::Done(Vec::new()))
            };
            while client.step(at, &mut answer) == Step::Again {}
        };
        // A client that says nothing has all the time it wants; then that of a line begins.
        step(&mut client, start);
        assert_eq!(client.begun, None);
        let begun = start + 10 * LINE_PATIENCE;
        there.write_all(br#"{"v":1,"#).unwrap();
        step(&mut client, begun);
        there.write_all(b"\"cmd\":\"info\"}\n{").unwrap();
        let second = begun + LINE_PATIENCE - Duration::from_secs(1);
        step(&mut client, second);
        assert_eq!(client.begun, Some(second));
        step(&mut client, second + LINE_PATIENCE - Duration::from_secs(1));
        assert!(!client.ended);
        step(&mut client, second + LINE_PATIENCE);
        assert!(client.ended && client.begun.is_none());
        drop(client);
        let mut said = String::new();
        there.read_to_string(&mut said).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            lines.len() == 2 && lines[1].contains("within 30 s"),
            "{said}"
        );
        assert_eq!(asked, 1);
    }

    #[test]
    fn no_byte_is_looked_at_twice() {
        let (_there, mut client) = connected();
        client.inbox = b"ab".to_vec();
        assert_eq!((client.line_end(), client.scanned), (None, 2));
        // What was looked at counts as having no end, whatever it is.
        client.inbox = b"\n\nc\nd".to_vec();
        assert_eq!((client.line_end(), client.scanned), (Some(3), 3));
        assert_eq!(client.line_end(), Some(3));
        let line = client.take_line(Instant::now()).unwrap().unwrap();
        assert_eq!(
            (&line[..], &client.inbox[..], client.scanned),
            (&b"\n\nc"[..], &b"d"[..], 0)
        );
    }
}
