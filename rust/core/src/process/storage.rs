//! Shards in the memory of one process: they grow, and die with it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::hash::{KeyHash, Seed};
use crate::process::backing::ProcessBacking;
use crate::process::capacity::{Bounds, Capacity};
use crate::process::registry::{Known, Registry};
use crate::process::reservation::Reservation;
use crate::process::shards::{self, Shards};
use crate::shard::DamagedState;
use crate::shard::registered::{Definition, Limits, Registered, Registration};
use crate::shard::states::Need;
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{Full, LockedShards, Stats, Storage};

/// The storage of a table that one process has for itself.
pub struct ProcessStorage {
    registry: Registry,
    shards: Shards,
    capacity: Capacity,
    /// The count of numbers that ids of holds were derived from.
    ids: AtomicU64,
}

impl ProcessStorage {
    /// An empty storage.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            registry: Registry::default(),
            shards: Shards::new(bounds.max_keys),
            capacity: Capacity::new(bounds),
            ids: AtomicU64::new(0),
        }
    }

    /// Forget the limits that no binding holds, once no slot names them.
    #[cold]
    fn forget_limits(&self, known: &mut Known, now_us: i64) {
        let newest = known.newest();
        let mut named = vec![false; self.registry.lock_limits().len()];
        for shard_number in 0..self.shards.count() {
            let mut shard = self.shards.lock(shard_number);
            let expired = shard.tidy(&newest, &self.registry.lock_limits(), now_us, &mut named);
            self.capacity.count_expired(expired);
            shard.backing.holds.note_named(&mut named);
            self.capacity.settle(&mut shard);
            self.shards.note_slots(shard_number, &shard);
        }
        drop(newest);
        self.registry.forget(known, &named);
    }
}

impl Storage for ProcessStorage {
    type Backing<'table> = ProcessBacking;
    type Guard<'table> = shards::Guard<'table>;
    type Error = DamagedState;

    fn shard_count(&self) -> usize {
        self.shards.count()
    }

    #[inline(always)]
    fn shard_of(&self, key: KeyHash) -> usize {
        self.shards.of(key)
    }

    #[inline(always)]
    fn lock(&self, shard_number: usize) -> Result<Self::Guard<'_>, DamagedState> {
        Ok(self.shards.lock(shard_number))
    }

    #[inline(always)]
    fn fetch(&self, check: &Check) {
        self.shards.fetch(check);
    }

    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<DamagedState> {
        let mut known = self.registry.lock();
        if known.is_crowded() {
            self.forget_limits(&mut known, now_us);
        }
        Ok(self.registry.register(&mut known, seed, definition))
    }

    /// Always true: a binding holds its limit, and held limits are not dropped.
    #[inline(always)]
    fn is_current(&self, _limit: &Registered) -> bool {
        true
    }

    fn renew(&self, _seed: &Seed, _limit: &Registered, _now_us: i64) -> Result<(), DamagedState> {
        Ok(())
    }

    #[inline(always)]
    fn limits(&self) -> &impl Limits {
        &self.registry
    }

    fn on_full(&self) -> OnFull {
        self.capacity.on_full()
    }

    fn reserve<'table>(
        &'table self,
        check: &Check,
        locked: &mut LockedShards<Self::Guard<'table>>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        let (capacity, shards, registry) = (&self.capacity, &self.shards, &self.registry);
        Reservation { capacity, shards, registry, now_us }.reserve(check, locked, index, need)
    }

    /// Does nothing: reservations are released when the shard is settled.
    fn drop_reserved<'table>(&'table self, _locked: &mut LockedShards<Self::Guard<'table>>, _now_us: i64) {}

    #[inline(always)]
    fn begin<'table>(&'table self, _locked: &mut LockedShards<Self::Guard<'table>>) {}

    #[inline(always)]
    fn commit<'table>(&'table self, _locked: &mut LockedShards<Self::Guard<'table>>) {}

    fn roll_back<'table>(&'table self, _locked: &mut LockedShards<Self::Guard<'table>>) {}

    #[inline]
    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }

    #[inline]
    fn reserve_hold(&self, shard: &mut Self::Guard<'_>, _limits: usize, now_us: i64) -> Result<(), Full> {
        let (capacity, shards, registry) = (&self.capacity, &self.shards, &self.registry);
        Reservation { capacity, shards, registry, now_us }.reserve_hold(shard)
    }

    #[inline]
    fn settle_holds(&self, shard: &mut Self::Guard<'_>) {
        self.capacity.settle_holds(shard);
    }

    fn settle(&self, shard_number: usize, shard: &mut Self::Guard<'_>) {
        self.capacity.settle(shard);
        self.shards.note_slots(shard_number, shard);
    }

    fn count_refused(&self) {
        self.capacity.count_refused();
    }

    fn count_passed(&self) {
        self.capacity.count_passed();
    }

    fn stats(&self) -> Result<Stats, DamagedState> {
        let held: usize =
            (0..self.shards.count()).map(|shard_number| self.shards.lock(shard_number).backing.bytes()).sum();
        Ok(self.capacity.stats(self.shards.bytes() + held))
    }
}
