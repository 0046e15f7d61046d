//! Whether frames are merged.

use std::{fmt, str::FromStr};

/// Whether frames of a flow that arrive together leave as one super-frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// Where the sending side can have them cut again, and no link is emulated.
    #[default]
    Auto,
    /// The same, and refused where that can't be.
    On,
    /// Never: every frame leaves as it came.
    Off,
}

impl FromStr for Coalesce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("--coalesce {text:?}: use auto, on or off")),
        }
    }
}

impl fmt::Display for Coalesce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}
