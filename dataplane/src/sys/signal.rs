//! The signals that end a relay or ask for a snapshot, as something to read.
//!
//! Called once by the program, before it starts any thread. No signal handler runs, so nothing has to be safe in one.

use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A signal that was sent to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: the polite request to end.
    Terminate,
    /// SIGUSR1: a request for a snapshot.
    User1,
    /// SIGHUP: a request to read the configuration again.
    HangUp,
}

impl Signal {
    const ALL: [Self; 4] = [Self::Interrupt, Self::Terminate, Self::User1, Self::HangUp];

    fn number(self) -> libc::c_int {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::User1 => libc::SIGUSR1,
            Self::HangUp => libc::SIGHUP,
        }
    }
}

/// The signals received; waits in `poll` like any descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    file: File,
}

impl Signals {
    /// Keeps the signals from acting in the calling thread and in every thread it starts from now on, and collects
    /// them instead. They stay blocked when this is dropped.
    ///
    /// SIGHUP only with `hang_up`: else the end of a terminal ends what runs in it.
    pub(crate) fn block(hang_up: bool) -> io::Result<Self> {
        // SAFETY: a sigset_t is plain numbers; sigemptyset makes it the empty set before anything reads it.
        let mut set: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: `set` is ours, and the numbers are those of signals that exist.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for signal in Signal::ALL {
                if signal == Signal::HangUp && !hang_up {
                    continue;
                }
                libc::sigaddset(&raw mut set, signal.number());
            }
        }
        // SAFETY: reads `set`; a null pointer asks for no old set.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: reads `set`; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            file: File::from(fd),
        })
    }

    /// The next signal that has come, `None` if there is none. Never waits.
    pub(crate) fn next(&mut self) -> io::Result<Option<Signal>> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let length = loop {
            match self.file.read(&mut record) {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        // signalfd(2): whole records only, and the signal's number comes first in each.
        let number = record[..length]
            .first_chunk()
            .copied()
            .map(u32::from_ne_bytes);
        Ok(Signal::ALL
            .into_iter()
            .find(|signal| number == u32::try_from(signal.number()).ok()))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a signal to the calling thread alone: other tests run in other threads.
    fn raise(signal: Signal) {
        // SAFETY: the signal is blocked in this thread, so all it does is to wait.
        assert_eq!(unsafe { libc::raise(signal.number()) }, 0);
    }

    #[test]
    fn each_signal_is_read_once() {
        let mut signals = Signals::block(true).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        for signal in Signal::ALL {
            raise(signal);
            assert_eq!(signals.next().unwrap(), Some(signal));
            assert_eq!(signals.next().unwrap(), None);
        }
    }

    #[test]
    fn later_threads_are_spared() {
        let mut signals = Signals::block(true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                raise(Signal::Terminate);
                // Read here: it was sent to this thread.
                assert_eq!(signals.next().unwrap(), Some(Signal::Terminate));
            });
        });
    }
}
