//! What others wrote: files that they named, opened and read without waiting, and texts that go to a terminal or into a message. Called for
//! configuration, traces, tables and namespaces, and wherever names are printed for people.

use std::{
    borrow::Cow,
    fmt::Write,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

/// Opens an ordinary file to read, and nothing else: to open a pipe waits for its writer, and to open some devices sets them going.
///
/// # Errors
/// What the kernel says; [`InvalidInput`](io::ErrorKind::InvalidInput) for what is no ordinary file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // O_PATH finds the file without opening it (open(2)); then that very file is opened, whatever has the name by now.
    let found = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    if !found.metadata()?.is_file() {
        return Err(not_ordinary());
    }
    // Some of /proc call themselves files and wait nevertheless.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

fn not_ordinary() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not an ordinary file")
}

/// Reads a text of at most `max` bytes.
///
/// # Errors
/// What the kernel says; what is no ordinary file (a pipe, a device, one that the kernel makes and that waits for more), too long, or no text.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<String> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    match file.take(max + 1).read_to_end(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(not_ordinary()),
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

/// A message with long lines cut in the middle: they begin with what is meant and end with the remedy.
pub(crate) fn shortened(message: &str) -> String {
    /// Characters at either end.
    const KEPT: usize = 300;
    let line = |line: &str| {
        let chars = line.chars().count();
        if chars <= 2 * KEPT {
            return line.to_owned();
        }
        let at = |nth: usize| {
            line.char_indices()
                .nth(nth)
                .map_or(line.len(), |(at, _)| at)
        };
        format!("{} … {}", &line[..at(KEPT)], &line[at(chars - KEPT)..])
    };
    message.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A text as a terminal may have it: line ends and tabs stay, other control characters, and those that turn the direction of what follows,
/// are written out, as `\x1b` or, which TOML takes too, `\u202e`. An interface may be called anything.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for c in text.chars() {
        // Writing to a string does not fail.
        let _ = match c {
            c if !acts(c) => write!(shown, "{c}"),
            c if c.is_ascii() => write!(shown, "\\x{:02x}", u32::from(c)),
            c => write!(shown, "\\u{:04x}", u32::from(c)),
        };
    }
    Cow::Owned(shown)
}

/// How many columns a text takes when it is [visible].
pub(crate) fn columns(text: &str) -> usize {
    visible(text).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_not_steered() {
        assert!(matches!(
            visible("r0 <-> r1\n\tü"),
            Cow::Borrowed("r0 <-> r1\n\tü")
        ));
        assert_eq!(
            visible("\u{1b}[31mE\r\u{9b}\u{7f}\u{202e}"),
            r"\x1b[31mE\x0d\u009b\x7f\u202e"
        );
        // Twice is as once.
        assert_eq!(visible(&visible("\u{7}")), r"\x07");
    }

    #[test]
    fn messages_keep_both_ends() {
        let long = format!("port {}: write a name\nshort", "ü".repeat(60_000));
        let short = shortened(&long);
        assert!(
            short.starts_with("port ü") && short.ends_with("ü: write a name\nshort"),
            "{short}"
        );
        assert!(short.chars().count() < 620, "{short}");
        assert_eq!(shortened("a\nb"), "a\nb");
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("l2relay-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = open(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(open(Path::new("/proc/self/ns/net")).is_ok());
    }

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
