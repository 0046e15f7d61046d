//! Waiting for descriptors, and waking who waits.
//!
//! Called by a worker that is out of frames, and by whoever wants to stop it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// A bell between threads: rung from any, it stays readable until it is cleared.
#[derive(Debug)]
pub(crate) struct Wake {
    file: File,
}

impl Wake {
    /// One that has not been rung.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes numbers and makes a new descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            file: File::from(fd),
        })
    }

    /// Rings it. To ring it again before it is cleared changes nothing.
    pub(crate) fn wake(&self) {
        // Fails only when the counter is at its limit, and then it is readable already (eventfd(2)).
        let _ = (&self.file).write(&1_u64.to_ne_bytes());
    }

    /// Makes it silent again.
    pub(crate) fn clear(&self) {
        // Fails only when it has not been rung.
        let _ = (&self.file).read(&mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Wake {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Several descriptors as one that is readable when one of them is.
#[cfg(feature = "xdp")]
#[derive(Debug)]
pub(crate) struct Any {
    epoll: OwnedFd,
}

#[cfg(feature = "xdp")]
impl Any {
    /// Of those descriptors, for as long as they are open.
    pub(crate) fn of<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        for fd in fds {
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0,
            };
            // SAFETY: both descriptors are open, and the event lives through the call.
            let added = unsafe {
                libc::epoll_ctl(
                    epoll.as_raw_fd(),
                    libc::EPOLL_CTL_ADD,
                    fd.as_raw_fd(),
                    &raw mut event,
                )
            };
            if added < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { epoll })
    }
}

#[cfg(feature = "xdp")]
impl AsFd for Any {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Has the timeouts of this thread's waits end when they should: the kernel adds 50 us by default, to wake up less often
/// (`PR_SET_TIMERSLACK`).
pub(crate) fn exact_timeouts() {
    // SAFETY: only numbers are passed. It can't fail for one's own thread; if it did, waits would be as long as before.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// What is known of a descriptor after a wait.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Readiness(libc::pollfd);

impl Readiness {
    /// Whether there is something to read.
    pub(crate) fn readable(self) -> bool {
        self.0.revents & libc::POLLIN != 0
    }

    /// Whether an error waits to be fetched, or the other end is gone.
    pub(crate) fn error(self) -> bool {
        self.0.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
    }
}

/// Waits for descriptors; keeps its list between calls, so that only a longer one allocates.
#[derive(Default)]
pub(crate) struct Poller {
    fds: Vec<Readiness>,
}

impl Poller {
    /// Waits until one of `fds` is readable or has an error, at most for `timeout`, without one for ever.
    ///
    /// The result is in the order of `fds`. After the timeout, and when a signal came in between, nothing is ready.
    pub(crate) fn wait(
        &mut self,
        fds: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<&[Readiness]> {
        self.fds.clear();
        self.fds.extend(fds.iter().map(|fd| {
            Readiness(libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
        }));
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = self.fds.len() as libc::nfds_t;
        // SAFETY: the list has `count` entries, each a pollfd (the wrapper is transparent), and the time outlives the
        // call; a null mask leaves the signals as they are.
        let ready =
            unsafe { libc::ppoll(self.fds.as_mut_ptr().cast(), count, timeout, ptr::null()) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(&self.fds)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wake_is_readable_until_cleared() {
        let wake = Wake::new().unwrap();
        let mut poller = Poller::default();
        let mut readable =
            |wake: &Wake| poller.wait(&[wake.as_fd()], Some(Duration::ZERO)).unwrap()[0].readable();
        assert!(!readable(&wake));
        wake.wake();
        wake.wake();
        assert!(readable(&wake));
        wake.clear();
        assert!(!readable(&wake));
        wake.clear();
    }

    #[test]
    fn a_full_wake_does_not_block() {
        let wake = Wake::new().unwrap();
        (&wake.file)
            .write_all(&(u64::MAX - 1).to_ne_bytes())
            .unwrap();
        wake.wake();
        assert!(Poller::default().wait(&[wake.as_fd()], None).unwrap()[0].readable());
    }

    #[test]
    fn another_thread_ends_an_endless_wait() {
        let (wake, never) = (Wake::new().unwrap(), Wake::new().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                wake.wake();
            });
            let mut poller = Poller::default();
            let ready = poller.wait(&[never.as_fd(), wake.as_fd()], None).unwrap();
            assert!(!ready[0].readable() && ready[1].readable());
        });
    }

    #[test]
    fn the_timeout_is_kept_below_a_millisecond() {
        let wake = Wake::new().unwrap();
        let mut poller = Poller::default();
        let timeout = Duration::from_micros(200);
        // The shortest of many: whatever else the machine does, one of them is undisturbed.
        let waited = (0..50).map(|_| {
            let start = Instant::now();
            assert!(!poller.wait(&[wake.as_fd()], Some(timeout)).unwrap()[0].readable());
            start.elapsed()
        });
        let shortest = waited.min().unwrap();
        assert!(
            shortest >= timeout && shortest < Duration::from_millis(1),
            "{shortest:?}"
        );
    }

    #[test]
    fn a_lost_peer_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut poller = Poller::default();
        assert!(poller.wait(&[ours.as_fd()], None).unwrap()[0].error());
    }

    #[test]
    fn a_signal_makes_nothing_ready() {
        extern "C" fn ignore(_: libc::c_int) {}
        let wake = Wake::new().unwrap();
        // SAFETY: SIGUSR2 is used by no other test, and the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR2, ignore as *const () as libc::sighandler_t) };
        // SAFETY: pthread_self only answers.
        let waiting = unsafe { libc::pthread_self() };
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                // SAFETY: the thread that waits lives until this scope ends.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
            });
            let start = Instant::now();
            let mut poller = Poller::default();
            let ready = poller
                .wait(&[wake.as_fd()], Some(Duration::from_secs(10)))
                .unwrap();
            assert!(!ready[0].readable() && !ready[0].error());
            assert!(start.elapsed() < Duration::from_secs(5));
        });
    }
}
