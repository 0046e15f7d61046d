//! Captures: what taps copy, as a stream of pcapng to whoever asked for it on the control socket.
//!
//! [`Relay::answer`](crate::relay::Relay::answer) starts one; each has a thread of its own. A reader that is slow holds up that thread
//! alone: copies are lost meanwhile, and counted.

mod pcapng;
pub(crate) mod port;
mod stream;

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use crate::{
    control::{
        protocol::{CaptureRequest, CaptureStarted, Failure, FailureCode, Response, to_line},
        server::Answer,
    },
    relay::observe::Observation,
};

use self::stream::Stream;

/// Captures at a time.
const CAPTURES_MAX: usize = 16;

/// The captures of a relay.
#[derive(Default)]
pub(crate) struct Captures {
    threads: Mutex<Vec<JoinHandle<()>>>,
    used: Arc<Mutex<Used>>,
}

/// What captures have of what there is for all of them.
#[derive(Default)]
struct Used {
    captures: usize,
    bytes: u64,
}

/// A capture's share. Dropping it gives it back.
pub(crate) struct Share {
    bytes: u64,
    used: Arc<Mutex<Used>>,
}

impl Captures {
    /// A share with so much room for copies: asked for before the room is made. Or the answer to who asks for too much.
    pub(crate) fn share(&self, bytes: u64) -> Result<Share, Answer> {
        let mut used = lock(&self.used);
        if used.captures >= CAPTURES_MAX {
            return Err(refused(format!(
                "{CAPTURES_MAX} captures are running: end one of them"
            )));
        }
        let left = CaptureRequest::BUFFER_MAX - used.bytes;
        if bytes > left {
            let [bytes, left, all] = [bytes, left, CaptureRequest::BUFFER_MAX].map(size);
            return Err(refused(format!(
                "room of {bytes} for copies: of {all} for all captures {left} are left: ask for less (-B), or end one of the {} \
                 that run",
                used.captures
            )));
        }
        used.captures += 1;
        used.bytes += bytes;
        let used = Arc::clone(&self.used);
        Ok(Share { bytes, used })
    }

    /// Starts to capture as soon as the client's connection is ours.
    pub(crate) fn start(
        &self,
        taps: Vec<Observation>,
        request: &CaptureRequest,
        share: Share,
    ) -> Answer {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        let (connect, connection) = crossbeam::channel::bounded::<UnixStream>(1);
        let stream = Stream::new(taps, request);
        let ports = stream.ports().map(str::to_owned).collect();
        let first = to_line(&Response::Capture(CaptureStarted { ports }));
        let run = move || {
            // Without one the client has left before it could be answered.
            match connection.recv() {
                Ok(connection) => stream.run(connection, &first),
                Err(_) => drop(stream),
            }
            drop(share);
        };
        match thread::Builder::new()
            .name("l2relay-capture".into())
            .spawn(run)
        {
            Ok(thread) => {
                threads.push(thread);
                Answer::HandOver(Box::new(move |connection| {
                    let _ = connect.send(connection);
                }))
            }
            Err(error) => refused(format!("no thread can be started for it: {error}")),
        }
    }

    /// Waits for all of them, after their taps are gone.
    pub(crate) fn join(&self) {
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = lock(&self.used);
        used.captures -= 1;
        used.bytes -= self.bytes;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer that says why not.
pub(crate) fn refused(message: String) -> Answer {
    Answer::Say(Response::Error(Failure {
        code: FailureCode::Refused,
        message,
    }))
}

/// In MiB, where that is a whole number of them.
fn size(bytes: u64) -> String {
    match bytes >> 20 {
        mebibytes if bytes > 0 && mebibytes << 20 == bytes => format!("{mebibytes} MiB"),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(answer: Result<Share, Answer>) -> String {
        match answer {
            Err(Answer::Say(Response::Error(failure))) => failure.message,
            _ => panic!("not refused"),
        }
    }

    #[test]
    fn captures_share_what_there_is() {
        let captures = Captures::default();
        let half = CaptureRequest::BUFFER_MAX / 2;
        let first = captures.share(half).ok().unwrap();
        let _second = captures.share(half - (1 << 20)).ok().unwrap();
        let told = why(captures.share(2 << 20));
        assert!(
            told.contains("room of 2 MiB") && told.contains(" 1 MiB are left"),
            "{told}"
        );
        let _rest = captures.share(1 << 20).ok().unwrap();
        let told = why(captures.share(1));
        assert!(
            told.contains("room of 1 bytes") && told.contains(" 0 bytes are left"),
            "{told}"
        );
        let told = why(captures.share(u64::MAX));
        assert!(told.contains(&u64::MAX.to_string()), "{told}");
        drop(first);
        let _third = captures.share(half).ok().unwrap();
    }

    #[test]
    fn there_are_so_many_captures() {
        let captures = Captures::default();
        let mut shares: Vec<Share> = (0..CAPTURES_MAX)
            .map(|_| captures.share(0).ok().unwrap())
            .collect();
        assert!(why(captures.share(0)).contains("16 captures are running"));
        shares.pop();
        captures.share(0).ok().unwrap();
    }
}
