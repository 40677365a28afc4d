//! Raw memory: the only unsafe code of Headgate.
//!
//! The slots of all stripes lie in one mapping, cut into ranges that do not overlap. A mapping costs
//! nothing until it is touched, large ones get large pages, and what a stripe leaves behind goes back
//! to the system at once.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use memmap2::MmapRaw;

use crate::slot::Slot;

/// Mappings below this size are not worth large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 8 << 20;

/// Slots of one stripe: a range of a mapping that nobody else reaches.
pub struct Slots {
    mapping: Option<Arc<MmapRaw>>,
    range: Range<usize>,
}

impl Slots {
    /// A new zeroed mapping, cut into `ranges` ranges of `length` slots each.
    pub fn map(ranges: usize, length: usize) -> io::Result<Vec<Self>> {
        let slots = ranges.checked_mul(length).filter(|slots| *slots > 0);
        let bytes = slots.and_then(|slots| slots.checked_mul(size_of::<Slot>()));
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping: MmapRaw = memmap2::MmapOptions::new().len(bytes).map_anon()?.into();
        #[cfg(target_os = "linux")]
        if bytes >= LARGE {
            // Advice only: without it the table is slower, not wrong.
            let _ = mapping.advise(memmap2::Advice::HugePage);
        }
        let mapping = Arc::new(mapping);
        let cut =
            |index: usize| Self { mapping: Some(Arc::clone(&mapping)), range: index * length..(index + 1) * length };
        Ok((0..ranges).map(cut).collect())
    }

    /// Where the slots begin, for fetching them ahead.
    pub fn start(&self) -> *const Slot {
        self.as_ptr()
    }
}

impl Default for Slots {
    /// No slots.
    fn default() -> Self {
        Self { mapping: None, range: 0..0 }
    }
}

impl Deref for Slots {
    type Target = [Slot];

    #[inline(always)]
    fn deref(&self) -> &[Slot] {
        let Some(mapping) = &self.mapping else {
            return &[];
        };
        // SAFETY: `map` made the mapping long enough for every range it cut, mappings start on a page
        // and so are aligned for slots, and any bytes (zeroes at first) are valid integers. `map` cuts
        // ranges that do not overlap and nothing copies a range, so nobody else has a mutable view.
        unsafe { std::slice::from_raw_parts(mapping.as_ptr().cast::<Slot>().add(self.range.start), self.range.len()) }
    }
}

impl DerefMut for Slots {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Slot] {
        let Some(mapping) = &self.mapping else {
            return &mut [];
        };
        // SAFETY: as in `deref`; and the exclusive borrow of `self` is the only view of the range.
        unsafe {
            std::slice::from_raw_parts_mut(mapping.as_mut_ptr().cast::<Slot>().add(self.range.start), self.range.len())
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(mapping) = &self.mapping
            && Arc::strong_count(mapping) > 1
        {
            const PAGE: usize = 4096;
            let bytes = self.range.start * size_of::<Slot>()..self.range.end * size_of::<Slot>();
            let whole = bytes.start.next_multiple_of(PAGE)..bytes.end / PAGE * PAGE;
            if whole.start < whole.end {
                // SAFETY: whole pages inside this range, of a private anonymous mapping: their content
                // is lost, and with this drop nobody has a view of it any more. Where it fails, the
                // memory goes back with the rest of the mapping.
                let _ = unsafe {
                    mapping.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        whole.start,
                        whole.end - whole.start,
                    )
                };
            }
        }
    }
}

/// Ask for the cache line of `place` before it is needed. `place` may be anything.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and cannot fault, and SSE is part of every x86-64 processor.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
