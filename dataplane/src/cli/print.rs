//! Printing to standard output, which may be slow, full or closed.

use std::{
    fmt::Display,
    io::{self, Write},
    thread,
    time::Duration,
};

use crossbeam::channel::{Receiver, Sender, bounded};
use serde::Serialize;

use crate::text::visible;

/// Prints statistics in a thread of its own: whoever reads them may take a long time, and neither relaying nor stopping
/// waits for that.
#[derive(Debug)]
pub struct Printer {
    lines: Sender<String>,
    done: Receiver<()>,
    json: bool,
}

/// How many snapshots wait for a slow reader. More are left out.
const WAITING: usize = 16;
/// How long the last snapshot may take.
const PATIENCE: Duration = Duration::from_secs(1);

impl Printer {
    /// Starts the thread. With `json`, everything is one line.
    pub fn start(json: bool) -> Self {
        let (lines, waiting) = bounded::<String>(WAITING);
        let (finished, done) = bounded(1);
        thread::spawn(move || {
            let mut told = false;
            for text in waiting {
                if let Err(error) = write(&text) {
                    // A reader that has left knows why.
                    if !told && error.kind() != io::ErrorKind::BrokenPipe {
                        eprintln!("l2relay: statistics can't be written: {error}");
                    }
                    told = true;
                }
            }
            let _ = finished.send(());
        });
        Self { lines, done, json }
    }

    /// Prints, or leaves it out if the reader is too far behind.
    pub fn print(&self, what: &(impl Serialize + Display)) {
        let _ = self.lines.try_send(text(what, self.json));
    }

    /// Prints for the last time. Waits for the reader, but not for long.
    pub fn finish(self, what: &(impl Serialize + Display)) {
        if self
            .lines
            .send_timeout(text(what, self.json), PATIENCE)
            .is_ok()
        {
            self.close();
        }
    }

    /// Waits for what was printed to be read, but not for long.
    pub fn close(self) {
        drop(self.lines);
        let _ = self.done.recv_timeout(PATIENCE);
    }
}

/// Prints once, and waits for it; names in it do not steer the terminal.
///
/// # Errors
/// Standard output takes nothing.
pub fn print(what: &(impl Serialize + Display), json: bool) -> io::Result<()> {
    let text = text(what, json);
    write(&if json { text.into() } else { visible(&text) })
}

fn text(what: &(impl Serialize + Display), json: bool) -> String {
    if json {
        serde_json::to_string(what)
            .unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
    } else {
        what.to_string()
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}
