//! The bounds of a table in the memory of one process, and what is counted towards them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process::backing::ProcessShard;
use crate::process::ranges::Ranges;
use crate::table::answer::OnFull;
use crate::table::storage::Stats;

/// How a table is bounded.
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

/// How much a table holds of how much it may hold, what it has let go, and the ranges its shards grow into.
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
    /// Nothing held yet.
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

    /// The written choice for a full table.
    pub fn on_full(&self) -> OnFull {
        self.bounds.on_full
    }

    /// What was counted; `bytes` is what the caller knows.
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

    /// A new key was refused because the table was full.
    pub fn count_refused(&self) {
        self.refused_full.fetch_add(1, Ordering::Relaxed);
    }

    /// A new key passed uncounted because the table was full.
    pub fn count_passed(&self) {
        self.passed_full.fetch_add(1, Ordering::Relaxed);
    }

    /// So many states were dropped because they had become the same as none.
    pub fn count_expired(&self, expired: usize) {
        self.expired.fetch_add(expired as u64, Ordering::Relaxed);
    }

    /// A live key was evicted for a new one.
    pub fn count_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Bring the counts in line with a shard once its decision is kept: reservations become keys, or lapse.
    pub fn settle(&self, shard: &mut ProcessShard) {
        shard.backing.counted_keys = recount(&self.keys, shard.backing.counted_keys as usize, shard.len()) as u32;
        shard.backing.counted_blocks =
            recount(&self.log_blocks, shard.backing.counted_blocks as usize, shard.backing.made_blocks()) as u32;
    }

    /// Bring the count of holds in line with a shard.
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

    /// Do what takes slots out of a shard, and count them out; reservations stay.
    pub fn losing<T>(&self, shard: &mut ProcessShard, lose: impl FnOnce(&mut ProcessShard) -> T) -> T {
        let (keys, blocks) = (shard.len(), shard.backing.made_blocks());
        let result = lose(shard);
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

    /// Wider ranges for shards that are crowded.
    pub fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Count one more, unless that passes the bound.
fn reserve(counter: &AtomicUsize, most: usize) -> bool {
    let one_more = |held| (held < most).then_some(held + 1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

/// Move a counter by the difference of what was counted and what is to be, and return the latter.
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
