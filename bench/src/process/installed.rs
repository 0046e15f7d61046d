//! Where programs are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where a program is, if it is installed.
pub(crate) fn installed(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|p| p.is_file());
    }
    std::env::split_paths(&search_path())
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
}

/// The user's search path, and where the system's network tools are (`sudo` may leave them out).
pub(super) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    for dir in ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"] {
        if !std::env::split_paths(&path).any(|p| p == Path::new(dir)) {
            path.push(":");
            path.push(dir);
        }
    }
    path
}
