//! Places for threads to run at: a network namespace as `ip netns` names it, a CPU.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};

/// Moves the calling thread into a namespace, for good.
pub(crate) fn settle(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path)
        .with_context(|| format!("network namespace {namespace}: {path} cannot be opened"))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).with_context(|| {
        format!("network namespace {namespace} cannot be entered (root is needed)")
    })
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "CPU {cpu}: no such number");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .with_context(|| format!("CPU {cpu} is not among those this process may use"))
}

/// Runs `work` on a thread of its own that keeps to one CPU: programs that the caller starts are not kept there.
pub(crate) fn pinned<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu)?;
            work()
        });
        let result = thread.join();
        result.map_err(|_| anyhow::anyhow!("a thread on CPU {cpu} panicked"))?
    })
}

/// Lets the calling thread run before ordinary ones whenever it can (`SCHED_FIFO`, priority 1).
#[expect(unsafe_code, reason = "calls into libc")]
pub(crate) fn go_first() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the calling thread, and the parameters live through the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    ensure!(
        result == 0,
        "a real-time priority is refused: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}
