//! Which Linux this is. Called by whoever knows that something came with a release.

use std::fs;

/// Major and minor number of the running kernel's release. `None`: it can't be read, or is no release of Linux.
pub(crate) fn running() -> Option<(u32, u32)> {
    parse(&name())
}

/// What `uname -r` prints; empty if it can't be read.
pub(crate) fn name() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().into()
}

/// The first two numbers of a release, e.g. of `6.1.0-28-amd64`.
pub(crate) fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(parse("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(parse("4.20"), Some((4, 20)));
        assert_eq!(parse("5.15.167.4-microsoft-standard-WSL2"), Some((5, 15)));
        assert_eq!(parse("strange"), None);
        assert!(running().is_some(), "{}", name());
    }
}
