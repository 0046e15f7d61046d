//! Work in another network namespace.
//!
//! Called wherever a port is named `namespace:interface`. A socket belongs for life to the namespace it was opened in,
//! so only the opening needs [`within`]; the caller's own thread never changes its namespace.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

use crate::text;

/// Where `ip netns add` keeps the namespaces it made.
const NAMED: &str = "/run/netns";

/// Runs `work` in a network namespace, in a short-lived thread of its own; `None` means here, without a thread.
///
/// A namespace is the name of one in `/run/netns`, an absolute path, or the number of a process that is in it.
///
/// # Errors
///
/// [`NotFound`](io::ErrorKind::NotFound) if there is no such namespace,
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) without the right to enter it,
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if what is named is no network namespace.
pub fn within<T: Send>(netns: Option<&str>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let Some(name) = netns else {
        return Ok(work());
    };
    let path = path(name)?;
    // Nothing but a file: a pipe would hold us up, a device be set going.
    let file = text::open(&path).map_err(|error| explain(error, name, &path))?;
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, || {
                enter(&file).map_err(|error| explain(error, name, &path))?;
                Ok(work())
            })?;
        thread
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

/// The names in `/run/netns`, in order.
pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(NAMED).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What tells one namespace from another, whatever it is called: device and inode of the file that stands for it.
pub(crate) fn identity(netns: Option<&str>) -> io::Result<(u64, u64)> {
    let path = netns.map_or_else(|| Ok("/proc/thread-self/ns/net".into()), path)?;
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// The file that stands for a namespace. A namespace called `7` goes before the process 7.
fn path(name: &str) -> io::Result<PathBuf> {
    if name.starts_with('/') {
        return Ok(name.into());
    }
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        let message = format!(
            "'{name}' is no network namespace: give a name, an absolute path or a process number"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let named = Path::new(NAMED).join(name);
    if name.bytes().all(|byte| byte.is_ascii_digit()) && !named.exists() {
        return Ok(format!("/proc/{name}/ns/net").into());
    }
    Ok(named)
}

/// Moves the calling thread.
fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: setns takes an open descriptor and touches no memory of ours.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Says in words what stands in the way.
fn explain(error: io::Error, name: &str, path: &Path) -> io::Error {
    let path = path.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => match names().as_slice() {
            [] => format!(
                "no such network namespace '{name}': there is no {path} (make one: ip netns add {name})"
            ),
            names => format!(
                "no such network namespace '{name}': there is no {path}; there are {}",
                names.join(", ")
            ),
        },
        io::ErrorKind::PermissionDenied => {
            format!(
                "not permitted to enter network namespace '{name}' ({path}): CAP_SYS_ADMIN is needed ({error})"
            )
        }
        // What setns says of any other file, and we of what is none.
        io::ErrorKind::InvalidInput => {
            format!("'{name}' is no network namespace: {path} is something else")
        }
        _ => format!("network namespace '{name}' ({path}): {error}"),
    };
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
pub(crate) mod testing {
    //! Namespaces for tests, in this module and others.

    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A namespace that goes when it is dropped.
    pub(crate) struct Namespace {
        pub(crate) name: String,
    }

    impl Namespace {
        /// Makes one, or says aloud that the test is skipped, which is a failure where root is required.
        pub(crate) fn make(label: &str) -> Option<Self> {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            if !is_root() {
                println!("skipped: needs root");
                let required =
                    std::env::var("L2RELAY_REQUIRE_ROOT").is_ok_and(|value| value == "1");
                assert!(!required, "L2RELAY_REQUIRE_ROOT=1, but not root");
                return None;
            }
            let count = NEXT.fetch_add(1, Ordering::Relaxed);
            let namespace = Self {
                name: format!("l2r-{}-{count}-{label}", std::process::id()),
            };
            ip(&format!("netns add {}", namespace.name));
            Some(namespace)
        }

        /// Runs `ip` inside.
        pub(crate) fn ip(&self, arguments: &str) {
            ip(&format!("-n {} {arguments}", self.name));
        }

        /// Its interfaces say nothing of themselves when they come up.
        #[cfg(feature = "xdp")]
        pub(crate) fn without_ipv6(&self) {
            let off = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            let done = super::within(Some(&self.name), off);
            done.expect("its namespace").expect("IPv6 off");
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name])
                .status();
        }
    }

    /// Whether this process has root's rights.
    pub(crate) fn is_root() -> bool {
        // SAFETY: geteuid only answers.
        unsafe { libc::geteuid() == 0 }
    }

    fn ip(arguments: &str) {
        let output = Command::new("ip")
            .args(arguments.split_whitespace())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Namespace;
    use super::*;

    /// What identifies the namespace of the calling thread.
    fn here() -> PathBuf {
        std::fs::read_link("/proc/thread-self/ns/net").unwrap()
    }

    #[test]
    fn none_is_here() {
        let thread = thread::current().id();
        assert_eq!(within(None, || thread::current().id()).unwrap(), thread);
    }

    #[test]
    fn unknown_names_are_told_apart() {
        let error = within(Some("no-such-namespace"), || ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(
            error
                .to_string()
                .starts_with("no such network namespace 'no-such-namespace'"),
            "{error}"
        );
        for name in ["", "a/b", "..", "/", "/dev/null", "/proc/self/status"] {
            // Another file is only found out with the right to try.
            let error = within(Some(name), || ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
    }

    #[test]
    fn a_refusal_names_the_capability() {
        let error = explain(
            io::Error::from_raw_os_error(libc::EPERM),
            "a",
            Path::new("/run/netns/a"),
        );
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    }

    #[test]
    fn enters_by_name_path_and_process_and_leaves_the_caller_alone() {
        let Some(namespace) = Namespace::make("enter") else {
            return;
        };
        let before = here();
        let inside = within(Some(&namespace.name), here).unwrap();
        assert_ne!(inside, before);
        assert_eq!(
            within(Some(&format!("{NAMED}/{}", namespace.name)), here).unwrap(),
            inside
        );
        assert_eq!(
            within(Some(&std::process::id().to_string()), here).unwrap(),
            before
        );
        assert_eq!(here(), before);
        assert!(names().contains(&namespace.name));
    }

    #[test]
    fn a_panic_inside_reaches_the_caller() {
        let Some(namespace) = Namespace::make("panic") else {
            return;
        };
        let result = panic::catch_unwind(|| within(Some(&namespace.name), || panic!("inside")));
        assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "inside");
    }
}
