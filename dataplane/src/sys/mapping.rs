//! Anonymous memory, on huge pages or ordinary ones. Called by [`Region`](crate::memory::Region).

use std::{alloc::Layout, fs, io, ptr::NonNull};

/// A mapping for frames, unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Who unmaps it.
enum Owner {
    /// There is nothing to unmap.
    Nobody,
    /// `munmap`, here.
    Ours,
    /// hugepage-rs, which made it and wants the same layout again.
    HugePages(Layout),
    /// Whatever mapped it, when it is dropped together with the mapping.
    #[cfg(feature = "xdp")]
    Other {
        _keeper: Box<dyn std::any::Any + Send + Sync>,
        huge: bool,
    },
}

// SAFETY: invariant EXCLUSIVE (docs/architecture.md): a mapping is plain memory with no tie to a thread; the pools that
// divide it among threads own disjoint shares.
unsafe impl Send for Mapping {}
// SAFETY: as above: `&Mapping` gives out only the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// No bytes at all.
    pub(crate) fn none() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            owner: Owner::Nobody,
        }
    }

    /// Maps at least `len` bytes on huge pages.
    pub(crate) fn huge(len: usize) -> io::Result<Self> {
        // hugepage-rs panics where /proc/meminfo knows no huge pages, so ask first.
        let page = huge_page_size().ok_or(io::ErrorKind::Unsupported)?;
        let len = len.max(1).next_multiple_of(page);
        let layout = Layout::from_size_align(len, page).map_err(io::Error::other)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { hugepage_rs::alloc(layout) })
            .ok_or_else(io::Error::last_os_error)?;
        let mapping = Self {
            start,
            len,
            owner: Owner::HugePages(layout),
        };
        mapping.touch(page);
        Ok(mapping)
    }

    /// Maps at least `len` bytes on ordinary pages.
    pub(crate) fn ordinary(len: usize) -> io::Result<Self> {
        const PAGE: usize = 4096;
        let len = len.max(1).next_multiple_of(PAGE);
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Transparent huge pages need no reservation. A kernel without them refuses, and nothing is lost.
        // SAFETY: advice on our own mapping changes none of its bytes.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        let mapping = Self {
            start,
            len,
            owner: Owner::Ours,
        };
        mapping.touch(PAGE);
        Ok(mapping)
    }

    /// `len` bytes from `start` on that `keeper` has mapped, and keeps mapped until it is dropped.
    ///
    /// # Safety
    /// They are plain memory of this process, readable and writable, zeroed or written, for as long as `keeper` lives,
    /// and nobody else in this process makes references to them.
    #[cfg(feature = "xdp")]
    pub(crate) unsafe fn other(
        start: NonNull<u8>,
        len: usize,
        huge: bool,
        keeper: impl std::any::Any + Send + Sync,
    ) -> Self {
        let owner = Owner::Other {
            _keeper: Box::new(keeper),
            huge,
        };
        Self { start, len, owner }
    }

    /// The first byte.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes mapped.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it lies on huge pages.
    pub(crate) fn is_huge(&self) -> bool {
        match self.owner {
            Owner::Nobody | Owner::Ours => false,
            Owner::HugePages(_) => true,
            #[cfg(feature = "xdp")]
            Owner::Other { huge, .. } => huge,
        }
    }

    /// Writes to every page, so that a limit is met now.
    fn touch(&self, page: usize) {
        for at in (0..self.len).step_by(page) {
            // SAFETY: `at` is inside the mapping, which nobody else knows yet. Volatile: the write must happen.
            unsafe { self.as_ptr().add(at).write_volatile(0) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: made by hugepage_rs::alloc with this layout, and dropped once.
            Owner::HugePages(layout) => unsafe { hugepage_rs::dealloc(self.as_ptr(), layout) },
            // SAFETY: our own mapping with its own length; no pool outlives the region that owns it.
            Owner::Ours => unsafe {
                libc::munmap(self.as_ptr().cast(), self.len);
            },
            Owner::Nobody => {}
            #[cfg(feature = "xdp")]
            Owner::Other { .. } => {}
        }
    }
}

/// Size of a huge page in bytes, if the kernel has any.
pub(crate) fn huge_page_size() -> Option<usize> {
    meminfo("Hugepagesize:").map(|kib| kib * 1024)
}

/// Huge pages that are free and not promised to anybody.
pub(crate) fn huge_pages_free() -> Option<usize> {
    Some(meminfo("HugePages_Free:")?.saturating_sub(meminfo("HugePages_Rsvd:")?))
}

/// Huge pages that the kernel has been given.
pub(crate) fn huge_pages_total() -> Option<usize> {
    meminfo("HugePages_Total:")
}

fn meminfo(key: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
