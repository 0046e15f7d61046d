//! The CPU quota of the control group this process is in.
//!
//! Called by `check`, and at the start of a relay: a worker that spins uses its quota up, and is then stopped for the
//! rest of the period, tens of milliseconds, with all its frames.

use std::fs;
use std::path::{Path, PathBuf};

/// How much CPU time a group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Microseconds of CPU time in each period.
    pub(crate) quota_us: u64,
    /// Microseconds of a period.
    pub(crate) period_us: u64,
}

impl Quota {
    /// How many CPUs that is.
    pub(crate) fn cpus(self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }
}

/// The narrowest quota that applies to this process, if there is any.
pub(crate) fn quota() -> Option<Quota> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    narrowest(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

/// A group's own quota and those of the groups above it all apply.
fn narrowest(cgroup: &str, mountinfo: &str) -> Option<Quota> {
    let (v1, v2) = (v1_group(cgroup, mountinfo), v2_group(cgroup, mountinfo));
    let v1 = v1.iter().flat_map(Group::and_above).filter_map(v1_quota);
    let v2 = v2.iter().flat_map(Group::and_above).filter_map(v2_quota);
    v1.chain(v2).min_by(|a, b| a.cpus().total_cmp(&b.cpus()))
}

/// A control group as a directory.
struct Group {
    directory: PathBuf,
    /// The directory of the topmost group that can be seen.
    top: PathBuf,
}

impl Group {
    fn and_above(&self) -> impl Iterator<Item = &Path> {
        self.directory
            .ancestors()
            .take_while(|directory| directory.starts_with(&self.top))
    }
}

/// `12:cpu,cpuacct:/path`: our group among those of version 1 that limit the CPU.
fn v1_group(cgroup: &str, mountinfo: &str) -> Option<Group> {
    let has_cpu = |list: &str| list.split(',').any(|controller| controller == "cpu");
    let path = cgroup.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        has_cpu(controllers).then_some(path)
    })?;
    mounts(mountinfo)
        .find(|mount| mount.kind == "cgroup" && has_cpu(mount.options))
        .map(|mount| mount.group(path))
}

/// `0::/path`: our group of version 2.
fn v2_group(cgroup: &str, mountinfo: &str) -> Option<Group> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts(mountinfo)
        .find(|mount| mount.kind == "cgroup2")
        .map(|mount| mount.group(path))
}

struct Mount<'a> {
    /// What of the file system is mounted.
    root: &'a str,
    /// Where.
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    /// In a container the path often begins with what the mount leaves out.
    fn group(&self, path: &str) -> Group {
        let below = Path::new(path)
            .strip_prefix(self.root)
            .unwrap_or(Path::new(""));
        let top = PathBuf::from(self.point);
        Group {
            directory: top.join(below),
            top,
        }
    }
}

/// proc_pid_mountinfo(5): `36 35 98:0 /root /point options [tags] - kind source options`.
fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut what = what.split(' ');
        let (root, point, kind) = (place.next()?, place.next()?, what.next()?);
        Some(Mount {
            root,
            point,
            kind,
            options: what.nth(1)?,
        })
    })
}

fn v1_quota(directory: &Path) -> Option<Quota> {
    let read = |name| {
        fs::read_to_string(directory.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    // -1 stands for none, and is no u64.
    Quota {
        quota_us: read("cpu.cfs_quota_us")?,
        period_us: read("cpu.cfs_period_us")?,
    }
    .sane()
}

fn v2_quota(directory: &Path) -> Option<Quota> {
    let text = fs::read_to_string(directory.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    // "max" stands for none.
    let quota_us = words.next()?.parse().ok()?;
    Quota {
        quota_us,
        period_us: words.next()?.parse().ok()?,
    }
    .sane()
}

impl Quota {
    fn sane(self) -> Option<Self> {
        (self.period_us > 0).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes when it is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn make(label: &str) -> Self {
            let path = std::env::temp_dir().join(format!("l2relay-{}-{label}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn version_2_counts_the_groups_above() {
        let scratch = Scratch::make("v2");
        scratch.write("cpu.max", "max 100000\n");
        scratch.write("outer/cpu.max", "50000 100000\n");
        scratch.write("outer/inner/cpu.max", "150000 100000\n");
        let mountinfo = format!(
            "41 31 0:31 / {} rw,relatime - cgroup2 cgroup2 rw\n",
            scratch.0.display()
        );
        let quota = |path: &str| narrowest(&format!("0::{path}\n"), &mountinfo);
        let half = Quota {
            quota_us: 50_000,
            period_us: 100_000,
        };
        assert_eq!(quota("/outer/inner"), Some(half));
        assert_eq!(half.cpus(), 0.5);
        assert_eq!(quota("/"), None);
        assert_eq!(quota("/elsewhere"), None);
    }

    #[test]
    fn version_1_is_found_beside_version_2() {
        let scratch = Scratch::make("v1");
        scratch.write("cpu/box/cpu.cfs_quota_us", "200000\n");
        scratch.write("cpu/box/cpu.cfs_period_us", "100000\n");
        scratch.write("cpu/free/cpu.cfs_quota_us", "-1\n");
        scratch.write("cpu/free/cpu.cfs_period_us", "100000\n");
        let at = scratch.0.display();
        let mountinfo = format!(
            "30 29 0:28 / {at}/set rw - cgroup cgroup rw,cpuset\n\
             31 29 0:29 / {at}/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             41 29 0:31 / {at}/unified rw - cgroup2 cgroup2 rw\n"
        );
        let quota = |group: &str| {
            narrowest(
                &format!("4:cpuset:/\n3:cpu,cpuacct:/{group}\n0::/\n"),
                &mountinfo,
            )
        };
        assert_eq!(
            quota("box"),
            Some(Quota {
                quota_us: 200_000,
                period_us: 100_000
            })
        );
        assert_eq!(quota("free"), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_top() {
        let scratch = Scratch::make("box");
        scratch.write("cpu.cfs_quota_us", "25000\n");
        scratch.write("cpu.cfs_period_us", "100000\n");
        let mountinfo = format!(
            "31 29 0:29 /docker/c0ffee {} ro - cgroup cgroup rw,cpu\n",
            scratch.0.display()
        );
        let quota = narrowest("3:cpu:/docker/c0ffee\n", &mountinfo);
        assert_eq!(
            quota,
            Some(Quota {
                quota_us: 25_000,
                period_us: 100_000
            })
        );
    }

    #[test]
    fn nonsense_is_no_quota() {
        let scratch = Scratch::make("nonsense");
        for text in ["", "max", "5", "x y", "50000 0", "-1 100000"] {
            scratch.write("cpu.max", text);
            assert_eq!(v2_quota(&scratch.0), None, "{text:?}");
        }
        assert_eq!(narrowest("", ""), None);
        assert_eq!(narrowest("0::/\n3:cpu", "a - b\n\n - - -"), None);
    }
}
