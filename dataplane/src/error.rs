//! What can go wrong while a relay is set up.
//!
//! Set-up returns an [`Error`]: it names the operation, the thing and the cause, and ends with the remedy.
//! While frames run nothing returns an error: a full ring or an empty pool is counted
//! (see [`Reason`](crate::stats::Reason)), and only a dead port ends its lanes.

use std::{fmt, io};

/// Why a relay could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Every mistake found in a configuration, one sentence each.
    #[error("{}", .0.join("\n"))]
    Config(Vec<String>),
    /// The kernel refused something.
    #[error("{operation} {subject}: {source}{}", Remedy(.remedy))]
    System {
        /// What was attempted, e.g. "open a packet socket on".
        operation: &'static str,
        /// On what: an interface, an amount of memory, a core.
        subject: String,
        /// The kernel's answer.
        source: io::Error,
        /// What the user can do about it; empty when there is nothing to say.
        remedy: String,
    },
}

/// The result of set-up.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A refusal of the kernel, with the remedy for it.
    pub fn system(
        operation: &'static str,
        subject: impl Into<String>,
        source: io::Error,
        remedy: impl Into<String>,
    ) -> Self {
        Self::System {
            operation,
            subject: subject.into(),
            source,
            remedy: remedy.into(),
        }
    }

    /// The operating system's error number, if the kernel was the one to refuse.
    pub fn os_error(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } => source.raw_os_error(),
            Self::Config(_) => None,
        }
    }
}

struct Remedy<'a>(&'a str);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  remedy: {}", self.0)
        }
    }
}
