//! One mapping of memory, on huge pages if there are any.
//!
//! Made by the relay at start, shared by the pools that lie in it. It is touched at once, so that a limit on memory
//! (cgroup, huge pages) fails at start with an error and not later with SIGBUS.

use std::{fmt, io, str::FromStr};

use crate::{
    error::{Error, Result},
    sys::mapping::{self, Mapping},
};

/// Whether frames lie on huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// On huge pages if enough are free, else on ordinary ones.
    #[default]
    Auto,
    /// On huge pages, or not at all.
    Require,
    /// On ordinary pages.
    Off,
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Off => "off",
        })
    }
}

impl FromStr for HugePages {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "off" => Ok(Self::Off),
            _ => Err(format!("huge pages {text:?}: use auto, require or off")),
        }
    }
}

/// One mapping of memory.
pub struct Region {
    pub(super) mapping: Mapping,
}

impl Region {
    /// Maps `len` bytes, rounded up to whole pages, zeroed and touched.
    ///
    /// # Errors
    /// Huge pages are required and too few are free (the remedy says how many are missing), or memory is short.
    pub fn map(len: usize, huge_pages: HugePages) -> Result<Self> {
        if huge_pages != HugePages::Off {
            match Mapping::huge(len) {
                Ok(mapping) => return Ok(Self { mapping }),
                Err(source) if huge_pages == HugePages::Require => {
                    return Err(too_few(len, source));
                }
                Err(_) => {}
            }
        }
        let mapping = Mapping::ordinary(len).map_err(|source| {
            let remedy = "lower --ring or the number of pairs, or raise the memory limit";
            Error::system(
                "map memory for frames:",
                format!("{len} bytes"),
                source,
                remedy,
            )
        })?;
        Ok(Self { mapping })
    }

    /// A region without bytes.
    pub(super) fn none() -> Self {
        Self {
            mapping: Mapping::none(),
        }
    }

    /// A region in memory that something else mapped.
    #[cfg(feature = "xdp")]
    pub(crate) fn from_mapping(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// Bytes in the region.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it lies on huge pages.
    pub fn is_huge(&self) -> bool {
        self.mapping.is_huge()
    }

    /// The command that would provide huge pages for `len` bytes, as a remedy.
    pub fn huge_page_remedy(len: usize) -> String {
        let Some(size) = mapping::huge_page_size() else {
            return "this kernel has no huge pages: use --hugepages off".into();
        };
        let wanted = len.div_ceil(size);
        let free = mapping::huge_pages_free().unwrap_or(0);
        let total = mapping::huge_pages_total().unwrap_or(0);
        let missing = wanted.saturating_sub(free);
        format!(
            "{wanted} huge pages of {} KiB wanted, {free} free: echo {} > /proc/sys/vm/nr_hugepages, or --hugepages off",
            size / 1024,
            total + missing
        )
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_huge() { "huge" } else { "ordinary" };
        write!(f, "Region({} bytes on {kind} pages)", self.len())
    }
}

fn too_few(len: usize, source: io::Error) -> Error {
    let remedy = Region::huge_page_remedy(len);
    Error::system(
        "map huge pages for frames:",
        format!("{len} bytes"),
        source,
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_always_gives_memory() {
        let region = Region::map(100_000, HugePages::Auto).unwrap();
        assert!(region.len() >= 100_000);
    }

    #[test]
    fn require_names_the_missing_pages() {
        // More than any machine that runs the tests has: 1 TiB.
        let error = Region::map(1 << 40, HugePages::Require)
            .unwrap_err()
            .to_string();
        assert!(error.contains("huge pages"), "{error}");
        assert!(error.contains("--hugepages off"), "{error}");
    }

    #[test]
    fn policies_parse() {
        assert_eq!("require".parse(), Ok(HugePages::Require));
        assert!("maybe".parse::<HugePages>().unwrap_err().contains("maybe"));
    }
}
