//! Files that somebody named: read whole, and neither waited for nor read without end. Called for configuration, traces and tables.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Reads a text of at most `max` bytes.
///
/// # Errors
/// What the kernel says; what is no ordinary file (a pipe, a device, one that the kernel makes and that waits for more), too long, or no text.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<String> {
    let ordinary = || io::Error::other("not an ordinary file");
    // Looked at before it is opened: to open a pipe waits for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(ordinary());
    }
    // Some of /proc call themselves files and wait nevertheless.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    match file.take(max + 1).read_to_end(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(ordinary()),
        result => result?,
    };
    if bytes.len() as u64 > max {
        let most = format!("more than {} MiB; shorten it", max >> 20);
        return Err(io::Error::other(most));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not a text"))
}

/// As much of a text as a message needs.
pub(crate) fn beginning(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_short() {
        assert_eq!(beginning("short"), "short");
        assert_eq!(beginning(&"ü".repeat(2_000_000)), "ü".repeat(40));
    }

    #[test]
    fn what_never_ends_is_no_file() {
        for path in ["/dev/zero", "/"] {
            let error = read(Path::new(path), 1 << 20).unwrap_err();
            assert_eq!(error.to_string(), "not an ordinary file", "{path}");
        }
    }
}
