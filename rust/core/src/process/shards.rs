//! The shards of a table in the memory of one process, each under its own lock.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::encoding::slot::Slot;
use crate::hash::KeyHash;
use crate::memory::prefetch;
use crate::process::backing::ProcessShard;
use crate::shard::home;
use crate::table::answer::Check;

/// The number of keys that one shard is meant for.
const KEYS_PER_SHARD: usize = 4096;
const MOST_SHARDS: usize = 1024;

/// A shard, on cache lines of its own, so that threads on two shards do not slow each other.
#[repr(C, align(64))]
#[derive(Default)]
struct PaddedShard {
    shard: Mutex<ProcessShard>,
    /// Where the slots of the shard are, for prefetching before the lock; a stale value does no harm.
    slots: AtomicPtr<Slot>,
    homes: AtomicUsize,
}

/// All shards; a key's hash chooses one.
pub struct Shards {
    shards: Box<[PaddedShard]>,
}

/// A shard, locked.
pub type Guard<'table> = MutexGuard<'table, ProcessShard>;

impl Shards {
    /// Empty shards for a table of this many keys.
    pub fn new(max_keys: usize) -> Self {
        let count = (max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(1, MOST_SHARDS);
        let shards = std::iter::repeat_with(PaddedShard::default).take(count).collect();
        Self { shards }
    }

    /// How many shards there are.
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The bytes of the shards themselves, without their contents.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.shards)
    }

    /// The shard of a key. All limits of one key are in one shard.
    #[inline(always)]
    pub fn of(&self, key: KeyHash) -> usize {
        // A power of two of shards: the product keeps the highest bits.
        home(key.shard, self.shards.len())
    }

    /// Lock a shard.
    #[inline(always)]
    pub fn lock(&self, shard_number: usize) -> Guard<'_> {
        // A shard whose lock was poisoned is consistent: nothing in it panics between two writes.
        self.shards[shard_number].shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock a shard unless another thread holds it.
    pub fn try_lock(&self, shard_number: usize) -> Option<Guard<'_>> {
        match self.shards[shard_number].shard.try_lock() {
            Ok(shard) => Some(shard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Prefetch the cache line in which a check's state will be searched. A hint, without any lock.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        let shard_number = &self.shards[self.of(check.key)];
        let home = home(check.tag(), shard_number.homes.load(Ordering::Relaxed));
        prefetch(shard_number.slots.load(Ordering::Relaxed).wrapping_add(home));
    }

    /// Record where a shard's slots are now.
    pub fn note_slots(&self, shard_number: usize, shard: &ProcessShard) {
        self.shards[shard_number].slots.store(shard.backing.start().cast_mut(), Ordering::Relaxed);
        self.shards[shard_number].homes.store(shard.homes(), Ordering::Relaxed);
    }
}
