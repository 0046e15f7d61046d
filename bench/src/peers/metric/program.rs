//! What a relay costs as a program: start, CPU while nothing is sent, memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Metric, Outcome};
use crate::peers::scene::Scene;
use crate::rounds::figure::Figure;

/// Time from the start of the program to the first frame at the server.
pub(super) struct Start;

impl Metric for Start {
    fn name(&self) -> String {
        "start".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("start", "start to first frame", "ms")]
    }

    fn takes(&self, _: Duration) -> Duration {
        // It was measured when the relay was started.
        Duration::ZERO
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        Ok(match (scene.pid(), scene.first_frame()) {
            (None, _) => Outcome::NoProgram,
            (_, None) => Outcome::NoConnection("no frame came while it started".into()),
            (_, Some(time)) => Outcome::values([time.as_secs_f64() * 1e3]),
        })
    }
}

/// CPU time of the relay's process while nothing is sent.
pub(super) struct Idle;

/// Longer than any spinning that is meant to end.
const CALM: Duration = Duration::from_millis(300);

impl Metric for Idle {
    fn name(&self) -> String {
        "idle".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("idle-cpu", "CPU when idle", "%")]
    }

    fn takes(&self, time: Duration) -> Duration {
        CALM + time
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        scene.run.sleep(CALM)?;
        let (start, before) = (Instant::now(), scene.cpu_time());
        scene.run.sleep(scene.time)?;
        let seconds = start.elapsed().as_secs_f64();
        let (Some(before), Some(after)) = (before, scene.cpu_time()) else {
            return Ok(Outcome::NoProgram);
        };
        let used = after.saturating_sub(before).as_secs_f64();
        Ok(Outcome::values([100.0 * used / seconds]))
    }
}

/// Memory of the relay's process, after the loads.
pub(super) struct Memory;

impl Metric for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::less("memory", "resident memory", "MB")]
    }

    fn takes(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn measure(&self, scene: &Scene<'_>) -> Result<Outcome> {
        let Some(pid) = scene.pid() else {
            return Ok(Outcome::NoProgram);
        };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .context("the relay's memory cannot be read")?;
        let kib = resident_kib(&status).context("the kernel does not tell the relay's memory")?;
        Ok(Outcome::values([kib as f64 * 1024.0 / 1e6]))
    }
}

/// `VmRSS` in /proc/PID/status, and `HugetlbPages`, which are not in it.
fn resident_kib(status: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some(of("VmRSS:")? + of("HugetlbPages:").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_found() {
        let status = "Name:\tx\nVmHWM:\t  9000 kB\nVmRSS:\t  8192 kB\n";
        assert_eq!(resident_kib(status), Some(8192));
        let huge = format!("{status}HugetlbPages:\t    2048 kB\n");
        assert_eq!(resident_kib(&huge), Some(8192 + 2048));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }
}
