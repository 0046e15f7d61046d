//! What the kernel is asked that no crate asks safely: running a BPF program on live frames, linking one to tcx, interrupting a thread,
//! reading many datagrams at once, sending by AF_XDP.
//!
//! Called by `flood`, `count`, `transit`, `reader` and `limit`. The only unsafe code of the bench; each function is safe to call.

#![expect(unsafe_code, reason = "calls into libbpf and libc")]

pub(crate) mod place;
pub(crate) mod udp;
pub(crate) mod xsk;

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// The signal that ends a system call of one of our threads. Its default action is to do nothing, so one that comes late does no harm.
pub(crate) const INTERRUPT: i32 = libc::SIGURG;

/// Runs an XDP program on live copies of `frame`, as many times as the kernel can count and `batch` at a time, on this thread.
///
/// Returns `Ok` when all runs are over and an error of kind `Interrupted` when a signal came. The batch is at most 256
/// (`TEST_XDP_MAX_BATCH` in the kernel's net/bpf/test_run.c).
pub(crate) fn run_live(program: BorrowedFd<'_>, frame: &[u8], batch: u32) -> io::Result<()> {
    let frame_len = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: mem::size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame_len,
        // The kernel reads this as an unsigned number.
        repeat: -1,
        flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: `options` is fully initialised and lives through the call, `data_in` and `data_size_in` describe the borrowed `frame`,
    // which the kernel only reads, and no output buffer is given.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    errno_of(result).map(drop)
}

/// Where a program looks at an interface's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// What arrives, before the stack sees it.
    Ingress,
    /// What leaves, before the interface sees it.
    Egress,
}

/// Links a program to a tcx hook of the interface with this index in the calling thread's network namespace. Closing the link detaches
/// the program.
pub(crate) fn link_tcx(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<OwnedFd> {
    let ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    let hook = match hook {
        Hook::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Hook::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    // SAFETY: the program's descriptor is open for the call; no options are given, which libbpf allows.
    let result = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex, hook, std::ptr::null())
    };
    let link = errno_of(result)?;
    // SAFETY: a result that is no error is a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Sends [`INTERRUPT`] to a thread. A handler must be registered, or the signal ends no system call.
pub(crate) fn interrupt<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle is not joined as long as it is borrowed, so the thread's identity is valid even if the thread has ended.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
}

/// libbpf returns a negative error number.
fn errno_of(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_results_are_errors() {
        assert_eq!(errno_of(7).unwrap(), 7);
        assert_eq!(
            errno_of(-libc::EINTR).unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
    }
}
