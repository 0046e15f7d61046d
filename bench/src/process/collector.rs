//! What a child writes, collected by a thread, so that the child never blocks on a full pipe.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Reads one pipe to its end on a thread.
#[derive(Debug)]
pub(super) struct Collector {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collector {
    /// Reads a pipe, if there is one.
    pub(super) fn of<R: Read + Send + 'static>(pipe: Option<R>) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let reader = pipe.map(|mut pipe| {
            let text = Arc::clone(&text);
            std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                    let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
                    text.extend_from_slice(&chunk[..n]);
                }
            })
        });
        Self { text, reader }
    }

    /// What has come so far.
    pub(super) fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits for the pipe's end.
    pub(super) fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
