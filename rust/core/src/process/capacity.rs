//! The bounds of a table in the memory of one process, and the counts towards them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process::backing::ProcessShard;
use crate::process::ranges::Ranges;
use crate::table::answer::OnFull;
use crate::table::storage::Stats;

/// The bounds of a table.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most states it holds.
    pub max_keys: usize,
    /// The most log blocks it holds.
    pub max_log_blocks: usize,
    /// The most parts of holds it remembers.
    pub max_holds: usize,
    /// What happens to a new key beyond that.
    pub on_full: OnFull,
}

/// The counts of a table towards its bounds, its statistics, and the ranges its shards grow into.
pub struct Capacity {
    bounds: Bounds,
    keys: AtomicUsize,
    log_blocks: AtomicUsize,
    holds: AtomicUsize,
    ranges: Mutex<Ranges>,
    expired: AtomicU64,
    evicted: AtomicU64,
    refused_full: AtomicU64,
    passed_full: AtomicU64,
}

impl Capacity {
    /// The capacity of an empty table.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            keys: AtomicUsize::new(0),
            log_blocks: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            ranges: Mutex::default(),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            passed_full: AtomicU64::new(0),
        }
    }

    /// The configured choice for a full table.
    pub fn on_full(&self) -> OnFull {
        self.bounds.on_full
    }

    /// The statistics; the caller knows `bytes`.
    pub fn stats(&self, bytes: usize) -> Stats {
        Stats {
            keys: self.keys.load(Ordering::Relaxed),
            holds: self.holds.load(Ordering::Relaxed),
            bytes,
            expired: self.expired.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            refused_full: self.refused_full.load(Ordering::Relaxed),
            passed_full: self.passed_full.load(Ordering::Relaxed),
        }
    }

    /// Count a new key that was refused because the table was full.
    pub fn count_refused(&self) {
        self.refused_full.fetch_add(1, Ordering::Relaxed);
    }

    /// Count a new key that passed uncounted because the table was full.
    pub fn count_passed(&self) {
        self.passed_full.fetch_add(1, Ordering::Relaxed);
    }

    /// Count states that were dropped because they had become the same as none.
    pub fn count_expired(&self, expired: usize) {
        self.expired.fetch_add(expired as u64, Ordering::Relaxed);
    }

    /// Count a live key that was evicted for a new one.
    pub fn count_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Update the counts to a shard once its decision is written: reservations become keys, or are released.
    pub fn settle(&self, shard: &mut ProcessShard) {
        shard.backing.counted_keys = recount(&self.keys, shard.backing.counted_keys as usize, shard.len()) as u32;
        shard.backing.counted_blocks =
            recount(&self.log_blocks, shard.backing.counted_blocks as usize, shard.backing.made_blocks()) as u32;
    }

    /// Update the count of holds to a shard.
    #[inline]
    pub fn settle_holds(&self, shard: &mut ProcessShard) {
        let weight = shard.backing.holds.weight();
        if weight != shard.backing.holds.counted {
            shard.backing.holds.counted = recount(&self.holds, shard.backing.holds.counted, weight);
        }
    }

    /// Count one more part of a hold for a shard, unless that passes the bound.
    #[inline]
    pub fn reserve_hold(&self, shard: &mut ProcessShard) -> bool {
        let reserved = reserve(&self.holds, self.bounds.max_holds);
        shard.backing.holds.counted += usize::from(reserved);
        reserved
    }

    /// Run `remove`, which removes slots from a shard, and subtract them from the counts; reservations stay.
    pub fn removing<T>(&self, shard: &mut ProcessShard, remove: impl FnOnce(&mut ProcessShard) -> T) -> T {
        let (keys, blocks) = (shard.len(), shard.backing.made_blocks());
        let result = remove(shard);
        let (keys, blocks) = (keys - shard.len(), blocks - shard.backing.made_blocks());
        let (counted_keys, counted_blocks) =
            (shard.backing.counted_keys as usize, shard.backing.counted_blocks as usize);
        shard.backing.counted_keys = recount(&self.keys, counted_keys, counted_keys - keys) as u32;
        shard.backing.counted_blocks = recount(&self.log_blocks, counted_blocks, counted_blocks - blocks) as u32;
        result
    }

    /// Count one more key for a shard, unless that passes the bound.
    pub fn reserve_key(&self, shard: &mut ProcessShard) -> bool {
        let reserved = reserve(&self.keys, self.bounds.max_keys);
        shard.backing.counted_keys += u32::from(reserved);
        reserved
    }

    /// Count one more log block for a shard, unless that passes the bound.
    pub fn reserve_block(&self, shard: &mut ProcessShard) -> bool {
        let reserved = reserve(&self.log_blocks, self.bounds.max_log_blocks);
        shard.backing.counted_blocks += u32::from(reserved);
        reserved
    }

    /// The wider ranges for crowded shards.
    pub fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Count one more, unless that passes the bound.
fn reserve(counter: &AtomicUsize, most: usize) -> bool {
    let one_more = |held| (held < most).then_some(held + 1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

/// Change a counter by the difference of `actual` and `counted`; returns `actual`.
fn recount(counter: &AtomicUsize, counted: usize, actual: usize) -> usize {
    if actual == counted {
        return actual; // as nearly always: nothing that all threads share is written
    }
    if actual > counted {
        counter.fetch_add(actual - counted, Ordering::Relaxed);
    } else {
        counter.fetch_sub(counted - actual, Ordering::Relaxed);
    }
    actual
}
