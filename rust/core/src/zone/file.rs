//! The mapped file of a zone: how it is laid out, the limits written in it, and what it counts.

use std::sync::atomic::Ordering::Relaxed;

use crate::limit::Limit;
use crate::memory::shared::{SharedMap, Words};
use crate::shard::registered::Limits;
use crate::zone::catalog::Catalog;
use crate::zone::layout::{FIGURES, Layout, NAMESPACE};

const FIGURE_WORDS: usize = 7;

/// What a zone counts, by its place among the figures.
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
    /// Shards that were found half written.
    Mended = 4,
    /// Parts of holds that are remembered, and some more of processes that died.
    Holds = 5,
    /// Ids for holds that were made.
    Ids = 6,
}

/// A mapped zone.
pub struct ZoneFile {
    /// The mapping.
    pub map: SharedMap,
    /// Where everything is in it.
    pub layout: Layout,
}

impl ZoneFile {
    /// The limits that are written in it.
    #[inline(always)]
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog::new(&self.map, &self.layout)
    }

    /// The PID namespace of the processes that use it.
    pub fn namespace(&self) -> u64 {
        self.map.words::<1>(NAMESPACE)[0].load(Relaxed)
    }

    /// What was counted.
    pub fn figure(&self, figure: Figure) -> u64 {
        self.figures()[figure as usize].load(Relaxed)
    }

    /// Count so many more.
    pub fn count(&self, figure: Figure, more: u64) {
        if more > 0 {
            self.figures()[figure as usize].fetch_add(more, Relaxed);
        }
    }

    /// Count one more; how many there were.
    pub fn next(&self, figure: Figure) -> u64 {
        self.figures()[figure as usize].fetch_add(1, Relaxed)
    }

    /// Count so many fewer.
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
