//! Captures: what taps copy, as a stream of pcapng to whoever asked for it on the control socket.
//!
//! [`Relay::answer`](crate::relay::Relay::answer) starts one; each has a thread of its own. A reader that is slow holds up that thread
//! alone: copies are lost meanwhile, and counted.

mod pcapng;
pub(crate) mod port;
mod stream;

use std::{
    os::unix::net::UnixStream,
    sync::{Mutex, MutexGuard, PoisonError},
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
}

impl Captures {
    /// Starts to capture as soon as the client's connection is ours.
    pub(crate) fn start(&self, taps: Vec<Observation>, request: &CaptureRequest) -> Answer {
        let mut threads = self.lock();
        threads.retain(|thread| !thread.is_finished());
        if threads.len() >= CAPTURES_MAX {
            return refused(format!(
                "{CAPTURES_MAX} captures are running: end one of them"
            ));
        }
        let (connect, connection) = crossbeam::channel::bounded::<UnixStream>(1);
        let stream = Stream::new(taps, request);
        let ports = stream.ports().map(str::to_owned).collect();
        let first = to_line(&Response::Capture(CaptureStarted { ports }));
        let run = move || {
            // Without one the client has left before it could be answered.
            if let Ok(connection) = connection.recv() {
                stream.run(connection, &first);
            }
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
        for thread in self.lock().drain(..) {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that says why not.
pub(crate) fn refused(message: String) -> Answer {
    Answer::Say(Response::Error(Failure {
        code: FailureCode::Refused,
        message,
    }))
}
