//! What kind of pages the frames of lanes lie on. Summed up by [`join`](super) and by the relay, which says it at its start.

#[cfg(feature = "xdp")]
use crate::memory::FramePool;
use crate::memory::{HugePages, Region};

/// Memory for frames, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    huge: usize,
    ordinary: usize,
}

impl Pages {
    pub(super) fn of(region: &Region) -> Self {
        let mut pages = Self::default();
        pages.count(region.len(), region.is_huge());
        pages
    }

    /// Of one lane alone.
    #[cfg(feature = "xdp")]
    pub(super) fn of_pool(pool: &FramePool) -> Self {
        let mut pages = Self::default();
        for (bytes, huge) in pool.pages() {
            pages.count(bytes, huge);
        }
        pages
    }

    fn count(&mut self, bytes: usize, huge: bool) {
        *(if huge {
            &mut self.huge
        } else {
            &mut self.ordinary
        }) += bytes;
    }

    /// Adds what other frames lie on.
    pub(crate) fn add(&mut self, other: Self) {
        self.huge += other.huge;
        self.ordinary += other.ordinary;
    }

    /// In a sentence, with the remedy where huge pages were wanted.
    pub(crate) fn describe(self, wanted: HugePages) -> String {
        let huge = format!("frames on huge pages ({} KiB)", self.huge >> 10);
        let ordinary = match wanted {
            HugePages::Auto => format!(
                "frames on ordinary pages: {}",
                Region::huge_page_remedy(self.ordinary)
            ),
            _ => "frames on ordinary pages".into(),
        };
        match (self.huge, self.ordinary) {
            (_, 0) => huge,
            (0, _) => ordinary,
            _ => format!("{huge}, others: {ordinary}"),
        }
    }
}
