//! Shards in the memory of one process: they grow, and die with it.

use crate::hash::{KeyHash, Seed};
use crate::process::backing::ProcessBacking;
pub use crate::process::capacity::Bounds;
use crate::process::capacity::Capacity;
use crate::process::registry::{Definition, Known, Limits, Registered, Registration, Registry};
use crate::process::shards::{self, Shards};
use crate::shard::Need;
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{DamagedState, Full, Stats, Storage};
use crate::table::transaction::Transaction;

/// The storage of a table that one process has for itself.
pub struct ProcessStorage {
    registry: Registry,
    shards: Shards,
    room: Capacity,
}

impl ProcessStorage {
    /// Nothing stored yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { registry: Registry::default(), shards: Shards::new(bounds.max_keys), room: Capacity::new(bounds) }
    }
}

impl ProcessStorage {
    /// Forget the limits that nobody binds, once no slot names them.
    #[cold]
    fn forget_limits(&self, known: &mut Known, now_us: i64) {
        let newest = known.newest();
        let mut named = vec![false; self.registry.hold().len()];
        for shard_number in 0..self.shards.len() {
            let mut shard = self.shards.lock(shard_number);
            let expired = shard.tidy(&newest, &self.registry.hold(), now_us, &mut named);
            self.room.count_expired(expired);
            self.room.settle(&mut shard);
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

    fn shards(&self) -> usize {
        self.shards.len()
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

    /// Whoever binds a limit holds it, and none that is held is taken back.
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
        self.room.on_full()
    }

    fn reserve(
        &self,
        check: &Check,
        locked: &mut Transaction<'_, Self>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        self.room.reserve(check, locked, index, need, &self.shards, &self.registry, now_us)
    }

    /// Reservations lapse when the shard is settled.
    fn drop_reserved(&self, _locked: &mut Transaction<'_, Self>, _now_us: i64) {}

    #[inline(always)]
    fn begin(&self, _locked: &mut Transaction<'_, Self>) {}

    #[inline(always)]
    fn commit(&self, _locked: &mut Transaction<'_, Self>) {}

    fn take_back(&self, _locked: &mut Transaction<'_, Self>) {}

    fn settle(&self, shard_number: usize, shard: &mut Self::Guard<'_>) {
        self.room.settle(shard);
        self.shards.note_slots(shard_number, shard);
    }

    fn count_refused(&self) {
        self.room.count_refused();
    }

    fn count_passed(&self) {
        self.room.count_passed();
    }

    fn stats(&self) -> Result<Stats, DamagedState> {
        let held: usize =
            (0..self.shards.len()).map(|shard_number| self.shards.lock(shard_number).backing.bytes()).sum();
        Ok(self.room.stats(self.shards.bytes() + held))
    }
}
