//! The bounds of a table: how it grows, and what happens to a new key when it is full.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::Slots;
use crate::process::backing::{ProcessBacking, range_for};
use crate::process::registry::Registry;
use crate::process::shards::Shards;
use crate::process::storage::ProcessStorage;
use crate::shard::{self, Need, Place};
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{Full, Stats};
use crate::table::transaction::{Location, Transaction};

/// A shard in the memory of this process.
type Shard = shard::Shard<ProcessBacking>;

/// Homes of a shard's first range.
const SMALLEST: usize = 16;
/// Slots that a full table looks at for one new key.
const SWEEP: usize = 32;

/// How a table is bounded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most states it holds.
    pub max_keys: usize,
    /// The most log blocks it holds.
    pub max_log_blocks: usize,
    /// What happens to a new key beyond that.
    pub on_full: OnFull,
}

/// What a table holds and has let go, and the ranges its shards grow into.
pub struct Capacity {
    bounds: Bounds,
    keys: AtomicUsize,
    log_blocks: AtomicUsize,
    ranges: Mutex<Ranges>,
    expired: AtomicU64,
    evicted: AtomicU64,
    refused_full: AtomicU64,
    passed_full: AtomicU64,
}

/// Wider ranges of slots, waiting for the shards to move into them.
///
/// All shards fill at about the same pace, so one mapping is made for all of them; each moves when
/// it is crowded itself, so no request waits for more than the move of one shard.
struct Ranges {
    homes: usize,
    ready: Vec<Option<Slots>>,
}

impl Capacity {
    /// Nothing held yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            keys: AtomicUsize::new(0),
            log_blocks: AtomicUsize::new(0),
            ranges: Mutex::new(Ranges { homes: SMALLEST, ready: Vec::new() }),
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

    /// Reserve what the new state of one check takes: a key, a log block, or both.
    ///
    /// Slots may move: `Transaction::find_again` before they are used.
    #[allow(clippy::too_many_arguments)] // one caller, and no two of these belong together
    pub fn reserve(
        &self,
        check: &Check,
        locked: &mut Transaction<'_, ProcessStorage>,
        index: usize,
        need: Need,
        shards: &Shards,
        registry: &Registry,
        now_us: i64,
    ) -> Result<(), Full> {
        let Transaction { guards, locations, .. } = locked;
        let Location { shard_number, guard, tag, place } = locations[index];
        let shard = &mut *guards[guard];
        let ours = |tag| locations.iter().any(|location| location.tag == tag);
        if place == Place::Absent {
            if !shard.can_take(tag, locations.len()) {
                self.widen(shard_number, shard, tag, locations.len(), shards.len(), registry, now_us)?;
            }
            if !self.reserve_key(shard) {
                self.free_one(shard_number, shard, shards, registry, now_us, ours)?;
                if !self.reserve_key(shard) {
                    return Err(Full { soonest_us: 1 });
                }
            }
        }
        let limit = &check.limit.limit;
        if shard.needs_block(shard.find(tag), limit, &need) && !self.reserve_block(shard) {
            let swept = self.losing(shard, |shard| shard.sweep(SWEEP, usize::MAX, &registry.hold(), now_us, ours));
            self.count_expired(swept.expired);
            if shard.needs_block(shard.find(tag), limit, &need) && !self.reserve_block(shard) {
                return Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) });
            }
        }
        Ok(())
    }

    /// Bring the counts in line with a shard once its decision is kept: reservations become keys, or lapse.
    pub fn settle(&self, shard: &mut Shard) {
        shard.backing.counted_keys = recount(&self.keys, shard.backing.counted_keys, shard.len());
        shard.backing.counted_blocks =
            recount(&self.log_blocks, shard.backing.counted_blocks, shard.backing.made_blocks());
    }

    /// Make a shard wide enough for `more` slots: without what has expired, or in a wider range.
    #[allow(clippy::too_many_arguments)] // one caller, and no two of these belong together
    fn widen(
        &self,
        shard_number: usize,
        shard: &mut Shard,
        tag: u64,
        more: usize,
        shards: usize,
        registry: &Registry,
        now_us: i64,
    ) -> Result<(), Full> {
        self.count_expired(self.losing(shard, |shard| shard.drop_expired(&registry.hold(), now_us)));
        while shard.is_crowded() || !shard.can_take(tag, more) {
            let wider = self.ranges().wider(shard_number, shards, shard.homes());
            shard.move_to(wider.map_err(|_| Full { soonest_us: 1 })?);
        }
        Ok(())
    }

    /// Free one place in a full table: of an expired key, or of one that the written choice lets go.
    fn free_one(
        &self,
        shard_number: usize,
        shard: &mut Shard,
        shards: &Shards,
        registry: &Registry,
        now_us: i64,
        ours: impl Fn(u64) -> bool,
    ) -> Result<(), Full> {
        if !shard.is_empty() {
            return self.free_one_of(shard, registry, now_us, ours);
        }
        // Nothing here to let go: take from the next shard that nobody holds, so that the bound stays.
        for offset in 1..shards.len() {
            if let Some(mut shard) = shards.try_lock((shard_number + offset) % shards.len())
                && !shard.is_empty()
            {
                return self.free_one_of(&mut shard, registry, now_us, ours);
            }
        }
        Err(Full { soonest_us: 1 })
    }

    fn free_one_of(
        &self,
        shard: &mut Shard,
        registry: &Registry,
        now_us: i64,
        ours: impl Fn(u64) -> bool,
    ) -> Result<(), Full> {
        let swept = self.losing(shard, |shard| shard.sweep(SWEEP, usize::MAX, &registry.hold(), now_us, ours));
        self.count_expired(swept.expired);
        if swept.expired > 0 {
            return Ok(());
        }
        match swept.victim {
            Some(victim) if self.bounds.on_full == OnFull::Forget => {
                self.losing(shard, |shard| shard.forget(victim.tag, registry, now_us));
                self.evicted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }),
        }
    }

    /// Do what takes slots out of a shard, and count them out; reservations stay.
    fn losing<T>(&self, shard: &mut Shard, lose: impl FnOnce(&mut Shard) -> T) -> T {
        let (keys, blocks) = (shard.len(), shard.backing.made_blocks());
        let result = lose(shard);
        let (keys, blocks) = (keys - shard.len(), blocks - shard.backing.made_blocks());
        shard.backing.counted_keys = recount(&self.keys, shard.backing.counted_keys, shard.backing.counted_keys - keys);
        shard.backing.counted_blocks =
            recount(&self.log_blocks, shard.backing.counted_blocks, shard.backing.counted_blocks - blocks);
        result
    }

    fn reserve_key(&self, shard: &mut Shard) -> bool {
        let reserved = reserve(&self.keys, self.bounds.max_keys);
        shard.backing.counted_keys += usize::from(reserved);
        reserved
    }

    fn reserve_block(&self, shard: &mut Shard) -> bool {
        let reserved = reserve(&self.log_blocks, self.bounds.max_log_blocks);
        shard.backing.counted_blocks += usize::from(reserved);
        reserved
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many states were dropped because they had become the same as none.
    pub fn count_expired(&self, expired: usize) {
        self.expired.fetch_add(expired as u64, Ordering::Relaxed);
    }
}

impl Ranges {
    /// A range with more homes than a shard has.
    fn wider(&mut self, shard_number: usize, shards: usize, homes: usize) -> io::Result<Slots> {
        if self.homes > homes
            && let Some(slots) = self.ready.get_mut(shard_number).and_then(Option::take)
        {
            return Ok(slots);
        }
        if homes > 0 {
            self.homes += self.homes / 3;
        }
        self.ready = Slots::map(shards, range_for(self.homes))?.into_iter().map(Some).collect();
        self.ready[shard_number].take().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Count one more, unless that passes the bound.
fn reserve(counter: &AtomicUsize, most: usize) -> bool {
    let one_more = |held| (held < most).then_some(held + 1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

/// Move a counter by the difference of what was counted and what is to be, and return the latter.
fn recount(counter: &AtomicUsize, counted: usize, actual: usize) -> usize {
    if actual >= counted {
        counter.fetch_add(actual - counted, Ordering::Relaxed);
    } else {
        counter.fetch_sub(counted - actual, Ordering::Relaxed);
    }
    actual
}
