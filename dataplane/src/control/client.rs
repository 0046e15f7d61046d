//! The other end of the control socket: finds a relay, asks, and reads the answer.
//!
//! Called by the commands of the program (`ps`, `stats`, `set`, …), and by whoever else wants to. It blocks, but never for long.

use std::{
    fs, io,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    place::{directories, names, socket_path},
    protocol::{Request, Response, from_line, to_line},
};

/// A connection to a running relay.
#[derive(Debug)]
pub struct Client {
    name: String,
    stream: BufReader<UnixStream>,
}

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const ANSWER_MAX: u64 = 64 << 20;

/// Why a relay did not do what it was asked.
enum Unanswered {
    /// It has ended: the connection is closed.
    Ended,
    /// In a sentence.
    Other(String),
}

/// A relay's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The relay's name.
    pub name: String,
    /// The path.
    pub socket: PathBuf,
}

/// The sockets of all relays that run, and the directories that could not be looked into, with the reason.
pub fn find() -> (Vec<Found>, Vec<String>) {
    let (mut found, mut closed) = (Vec::new(), Vec::new());
    for directory in directories() {
        match names(&directory) {
            Ok(names) => found.extend(names.into_iter().map(|name| Found {
                socket: socket_path(&directory, &name),
                name,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => closed.push(format!("{}: {error}", directory.display())),
        }
    }
    (found, closed)
}

impl Client {
    /// Connects to the relay of that name, or to the only one that runs.
    ///
    /// # Errors
    /// There is none, or more than one, or it can't be reached: which, and what to do.
    pub fn connect(name: Option<&str>) -> Result<Self, String> {
        let looked = || {
            let places: Vec<String> = directories()
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            places.join(" and ")
        };
        let (found, closed) = find();
        let closed = if closed.is_empty() {
            String::new()
        } else {
            format!("; not looked into: {}", closed.join(", "))
        };
        let listed = || {
            let names: Vec<&str> = found.iter().map(|relay| relay.name.as_str()).collect();
            names.join(", ")
        };
        let relay = match (name, &found[..]) {
            (None, [one]) => one,
            (None, []) => {
                return Err(format!(
                    "no relay is running (looked in {}){closed}",
                    looked()
                ));
            }
            (None, _) => {
                return Err(format!(
                    "several relays are running: choose one with --name: {}",
                    listed()
                ));
            }
            (Some(name), _) => found
                .iter()
                .find(|relay| relay.name == name)
                .ok_or_else(|| {
                    let others = if found.is_empty() {
                        format!("none is (looked in {})", looked())
                    } else {
                        format!("there are {}", listed())
                    };
                    format!("no relay called {name} is running: {others}{closed}")
                })?,
        };
        Self::open(relay)
    }

    /// Connects to a socket.
    ///
    /// # Errors
    /// What the kernel says, with the remedy.
    pub fn open(relay: &Found) -> Result<Self, String> {
        Self::dial(&relay.socket)
            .map(|stream| Self {
                name: relay.name.clone(),
                stream: BufReader::new(stream),
            })
            .map_err(|error| {
                let remedy = match error.kind() {
                    io::ErrorKind::PermissionDenied => ": be the user who started it, or root",
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        ": it is just starting or ending"
                    }
                    _ => "",
                };
                format!("relay {}: {error}{remedy}", relay.name)
            })
    }

    fn dial(path: &Path) -> io::Result<UnixStream> {
        // A directory that may be looked through but not into, is told from a relay that is gone.
        fs::symlink_metadata(path)?;
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// The relay's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The relay's refusal, or that it does not answer.
    pub fn ask(&mut self, request: &Request) -> Result<Response, String> {
        self.exchange(request).map_err(|why| match why {
            Unanswered::Ended => format!("relay {} has ended", self.name),
            Unanswered::Other(why) => why,
        })
    }

    /// The same. `None`: it has ended.
    ///
    /// # Errors
    /// The relay's refusal, or that it does not answer.
    pub fn ask_unless_ended(&mut self, request: &Request) -> Result<Option<Response>, String> {
        match self.exchange(request) {
            Ok(response) => Ok(Some(response)),
            Err(Unanswered::Ended) => Ok(None),
            Err(Unanswered::Other(why)) => Err(why),
        }
    }

    fn exchange(&mut self, request: &Request) -> Result<Response, Unanswered> {
        let name = &self.name;
        let failed = |error: io::Error| match error.kind() {
            // It ended with our request unread, or before it was sent.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Unanswered::Ended,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unanswered::Other(format!(
                "relay {name} did not answer within {} s: it is stopped or very busy",
                PATIENCE.as_secs()
            )),
            _ => Unanswered::Other(format!("relay {name}: {error}")),
        };
        self.stream
            .get_mut()
            .write_all(&to_line(request))
            .map_err(failed)?;
        let mut line = Vec::new();
        (&mut self.stream)
            .take(ANSWER_MAX)
            .read_until(b'\n', &mut line)
            .map_err(failed)?;
        if line.is_empty() {
            return Err(Unanswered::Ended);
        }
        match from_line(&line) {
            Ok(Response::Error(failure)) => Err(Unanswered::Other(failure.message)),
            Ok(response) => Ok(response),
            Err(error) => Err(Unanswered::Other(format!(
                "relay {name}: its answer is not understood: {error}"
            ))),
        }
    }

    /// The connection itself, which blocks, and what was read from it already.
    ///
    /// # Errors
    /// The kernel does not let it block.
    pub fn into_stream(self) -> Result<(Vec<u8>, UnixStream), String> {
        let read = self.stream.buffer().to_vec();
        let stream = self.stream.into_inner();
        match stream.set_read_timeout(None) {
            Ok(()) => Ok((read, stream)),
            Err(error) => Err(format!("relay {}: {error}", self.name)),
        }
    }

    /// Waits until the relay closes the connection, because it has ended; at most that long.
    ///
    /// # Errors
    /// It has not.
    pub fn wait_for_end(mut self, limit: Duration) -> Result<(), String> {
        let waited = self
            .stream
            .get_ref()
            .set_read_timeout(Some(limit))
            .and_then(|()| io::copy(&mut self.stream, &mut io::sink()));
        match waited {
            // It has ended without reading everything that was sent.
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(format!(
                "relay {} has not ended within {} s",
                self.name,
                limit.as_secs()
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay that ends with a request unread, as at a second `stop` and at `kill -9`.
    #[test]
    fn a_relay_that_ends_is_no_error() {
        let client = || {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let (name, stream) = ("x".to_owned(), BufReader::new(ours));
            (Client { name, stream }, theirs)
        };
        // Data unread when it closes: ECONNRESET (net/unix/af_unix.c, unix_release_sock).
        let (mut asking, theirs) = client();
        let ended = std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut byte = [0];
                (&theirs).read_exact(&mut byte).expect("the request comes");
            });
            asking.ask_unless_ended(&Request::Stop {})
        });
        assert!(matches!(ended, Ok(None)), "{ended:?}");
        let (mut asking, theirs) = client();
        drop(theirs);
        let ended = asking.ask(&Request::Stop {}).unwrap_err();
        assert_eq!(ended, "relay x has ended");
    }
}
