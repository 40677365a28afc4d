//! The mapped file of a zone: its layout, its limits, and its counters.

use std::sync::atomic::Ordering::Relaxed;

use crate::limit::Limit;
use crate::memory::shared::{SharedMap, Words};
use crate::shard::registered::Limits;
use crate::zone::catalog::Catalog;
use crate::zone::layout::{FIGURES, Layout, NAMESPACE};

const FIGURE_WORDS: usize = 7;

/// The counters of a zone, each by its place.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// States dropped because they had become the same as none.
    Expired = 0,
    /// Live keys evicted for new ones.
    Evicted = 1,
    /// New keys refused because the zone was full.
    RefusedFull = 2,
    /// New keys passed uncounted because the zone was full.
    PassedFull = 3,
    /// Shards that were found inconsistent, and mended.
    Mended = 4,
    /// Parts of holds that are remembered; too many where processes died.
    Holds = 5,
    /// Numbers that ids of holds were derived from.
    Ids = 6,
}

/// A mapped zone.
pub struct ZoneFile {
    /// The mapping.
    pub map: SharedMap,
    /// The layout of the file.
    pub layout: Layout,
}

impl ZoneFile {
    /// The limits of the zone.
    #[inline(always)]
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog::new(&self.map, &self.layout)
    }

    /// The PID namespace of the processes that use it.
    pub fn namespace(&self) -> u64 {
        self.map.words::<1>(NAMESPACE)[0].load(Relaxed)
    }

    /// The value of a counter.
    pub fn figure(&self, figure: Figure) -> u64 {
        self.figures()[figure as usize].load(Relaxed)
    }

    /// Add to a counter.
    pub fn count(&self, figure: Figure, more: u64) {
        if more > 0 {
            self.figures()[figure as usize].fetch_add(more, Relaxed);
        }
    }

    /// Add 1 to a counter; returns its former value.
    pub fn next(&self, figure: Figure) -> u64 {
        self.figures()[figure as usize].fetch_add(1, Relaxed)
    }

    /// Subtract from a counter.
    pub fn take_off(&self, figure: Figure, fewer: u64) {
        self.figures()[figure as usize].fetch_sub(fewer, Relaxed);
    }

    fn figures(&self) -> &Words<FIGURE_WORDS> {
        self.map.words(FIGURES)
    }
}

impl Limits for ZoneFile {
    fn of(&self, number: u32) -> Option<Limit> {
        self.catalog().limit(number)
    }
}
