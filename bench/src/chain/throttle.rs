//! How often a CPU quota has stopped a process: the counts of its control group, read before and after a measurement.

use std::fs;
use std::path::Path;

use crate::report::Throttled;

/// What the group of this process has counted so far; none if the kernel counts nothing there.
pub(super) fn of(pid: u32) -> Option<Throttled> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    directories(&groups)
        .iter()
        .filter_map(|directory| fs::read_to_string(Path::new(directory).join("cpu.stat")).ok())
        .find_map(|text| parse(&text))
}

/// What was counted between two looks.
pub(super) fn between(before: Throttled, after: Throttled) -> Throttled {
    Throttled {
        periods: after.periods.saturating_sub(before.periods),
        throttled_periods: after
            .throttled_periods
            .saturating_sub(before.throttled_periods),
        throttled_us: after.throttled_us.saturating_sub(before.throttled_us),
    }
}

/// Where a group of `/proc/PID/cgroup` may be: version 1 by its controllers, version 2 alone or beside it.
fn directories(groups: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            all.extend(["", "/unified"].map(|mount| format!("/sys/fs/cgroup{mount}{path}")));
        } else if controllers.split(',').any(|name| name == "cpu") {
            all.extend([controllers, "cpu"].map(|mount| format!("/sys/fs/cgroup/{mount}{path}")));
        }
    }
    all
}

/// `cpu.stat` of either version (Documentation/scheduler/sched-bwc.rst): nanoseconds in the first, microseconds in the second.
fn parse(text: &str) -> Option<Throttled> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse::<u64>().ok()
    };
    Some(Throttled {
        periods: value("nr_periods ")?,
        throttled_periods: value("nr_throttled ")?,
        throttled_us: value("throttled_usec ")
            .or_else(|| value("throttled_time ").map(|ns| ns / 1000))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let counts = Throttled {
            periods: 40,
            throttled_periods: 3,
            throttled_us: 120,
        };
        let first = "nr_periods 40\nnr_throttled 3\nthrottled_time 120999\n";
        let second =
            "usage_usec 9\nnr_periods 40\nnr_throttled 3\nthrottled_usec 120\nnr_bursts 0\n";
        assert_eq!(parse(first), Some(counts));
        assert_eq!(parse(second), Some(counts));
        assert_eq!(parse("usage_usec 9\n"), None);
        assert_eq!(between(counts, counts).throttled_us, 0);
    }

    #[test]
    fn groups_are_found() {
        assert_eq!(
            directories("3:cpu,cpuacct:/docker/x\n2:memory:/y\n0::/z\n"),
            [
                "/sys/fs/cgroup/cpu,cpuacct/docker/x",
                "/sys/fs/cgroup/cpu/docker/x",
                "/sys/fs/cgroup/z",
                "/sys/fs/cgroup/unified/z"
            ]
        );
    }
}
