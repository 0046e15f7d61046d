//! Which back end receives and which sends, and how AF_XDP is opened.

use std::{fmt, str::FromStr};

/// How frames are received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Whichever suits the interfaces.
    #[default]
    Auto,
    /// AF_PACKET.
    Packet,
    /// AF_XDP.
    Xdp,
    /// A program that forwards without leaving the kernel.
    Kernel,
    /// The kernel where nothing needs frames in user space, else as `Auto`.
    Fastest,
}

/// Where the programs of [`Backend::Kernel`] are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelHook {
    /// At tc, which suits every interface.
    #[default]
    Auto,
    /// At tc: on tcx where the kernel has it (Linux 6.6), else on clsact.
    Tc,
    /// At tc, on clsact.
    Clsact,
    /// In the driver, by XDP, before the kernel makes a socket buffer: for NICs.
    Xdp,
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver if it can, else in the stack.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack.
    Generic,
}

/// Whether the kernel copies frames between its memory and ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpCopy {
    /// Not if the driver can do without.
    #[default]
    Auto,
    /// Always.
    Copy,
    /// Never, or the port is not opened.
    ZeroCopy,
}

/// How AF_XDP is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSettings {
    /// Where the program runs.
    pub mode: XdpMode,
    /// Whether the kernel copies frames.
    pub copying: XdpCopy,
    /// Take the place of a program that somebody else attached.
    pub replace: bool,
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "packet" => Ok(Self::Packet),
            "xdp" => Ok(Self::Xdp),
            "kernel" => Ok(Self::Kernel),
            "fastest" => Ok(Self::Fastest),
            _ => Err(format!(
                "back end {text:?}: use auto, packet, xdp, kernel or fastest"
            )),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Kernel => "kernel",
            Self::Fastest => "fastest",
        })
    }
}

impl FromStr for KernelHook {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tc" => Ok(Self::Tc),
            "clsact" => Ok(Self::Clsact),
            "xdp" => Ok(Self::Xdp),
            _ => Err(format!(
                "--kernel-hook {text:?}: use auto, tc, clsact or xdp"
            )),
        }
    }
}

impl FromStr for XdpMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            _ => Err(format!("XDP mode {text:?}: use auto, native or generic")),
        }
    }
}

impl FromStr for XdpCopy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "copy" => Ok(Self::Copy),
            "zero-copy" => Ok(Self::ZeroCopy),
            _ => Err(format!("--xdp-copy {text:?}: use auto, copy or zero-copy")),
        }
    }
}

impl fmt::Display for KernelHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tc => "tc",
            Self::Clsact => "clsact",
            Self::Xdp => "xdp",
        })
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl fmt::Display for XdpCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Copy => "copy",
            Self::ZeroCopy => "zero-copy",
        })
    }
}
