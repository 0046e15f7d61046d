//! What a worker does when no frame comes.

use std::{fmt, str::FromStr, time::Duration};

/// How a worker waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Looks again at once, always: lowest latency, one core burned.
    Spin,
    /// Looks again for a while after the last frame, then sleeps until one comes.
    #[default]
    Adaptive,
    /// Sleeps until a frame comes, as soon as there is none.
    Sleep,
}

impl IdlePolicy {
    /// How long to look again before sleeping.
    ///
    /// A wake-up costs tens to hundreds of us on a virtual machine: less than the usual gap between frames would be the
    /// worst of both. Measured: from 200 us on, the latency is that of spinning.
    pub const PATIENCE: Duration = Duration::from_micros(500);

    /// How long a worker looks in vain before it sleeps; `None`: it never does.
    pub fn patience(self) -> Option<Duration> {
        match self {
            Self::Spin => None,
            Self::Adaptive => Some(Self::PATIENCE),
            Self::Sleep => Some(Duration::ZERO),
        }
    }
}

impl fmt::Display for IdlePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Sleep => "sleep",
        })
    }
}

impl FromStr for IdlePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "spin" => Ok(Self::Spin),
            "adaptive" => Ok(Self::Adaptive),
            "sleep" => Ok(Self::Sleep),
            _ => Err(format!("idle policy {text:?}: use spin, adaptive or sleep")),
        }
    }
}
