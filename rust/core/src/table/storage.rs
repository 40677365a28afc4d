//! What a table requires of a storage: shards that can be locked, bounded and shared.

use std::ops::DerefMut;

use smallvec::SmallVec;

use crate::hash::{KeyHash, Seed};
use crate::shard::backing::Backing;
use crate::shard::registered::{Definition, Limits, Registered, Registration};
use crate::shard::states::Need;
use crate::shard::{DamagedState, Place, Shard};
use crate::table::answer::{Check, OnFull};

/// A table has no room for a check; `soonest_us` is the time until some visited slot is free again.
pub struct Full {
    /// In microseconds, at least 1.
    pub soonest_us: i64,
}

/// The statistics of a table.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// States held now.
    pub keys: usize,
    /// Parts of holds remembered now.
    pub holds: usize,
    /// Bytes of all slots and log blocks.
    pub bytes: usize,
    /// States dropped because they had become the same as none.
    pub expired: u64,
    /// Live keys evicted for new ones.
    pub evicted: u64,
    /// New keys refused because the table was full.
    pub refused_full: u64,
    /// New keys passed uncounted because the table was full.
    pub passed_full: u64,
}

/// Where a check's state is: in which of the locked shards, under which tag, in which place.
#[derive(Clone, Copy)]
pub struct Location {
    /// The shard's number.
    pub shard_number: usize,
    /// The index of its guard.
    pub guard: usize,
    /// The tag.
    pub tag: u64,
    /// Where the tag is.
    pub place: Place,
}

/// The shards of a decision, locked, and where each check's state is in them.
pub struct LockedShards<G> {
    /// The shards, in ascending order of their numbers.
    pub guards: SmallVec<[G; 4]>,
    /// Where each check's state is, in the order of the checks.
    pub locations: SmallVec<[Location; 4]>,
}

/// The storage of a table's shards. A key's hash chooses one; all limits of one key are in the same shard.
pub trait Storage: Sized {
    /// Where the slots and blocks of a shard are stored.
    type Backing<'table>: Backing
    where
        Self: 'table;
    /// A shard, locked until this is dropped.
    type Guard<'table>: DerefMut<Target = Shard<Self::Backing<'table>>>
    where
        Self: 'table;
    /// Why a shard could not be locked, or its contents not be read.
    type Error: From<DamagedState>;

    /// How many shards there are.
    fn shard_count(&self) -> usize;

    /// The number of a key's shard.
    fn shard_of(&self, key: KeyHash) -> usize;

    /// Lock a shard.
    fn lock(&self, shard_number: usize) -> Result<Self::Guard<'_>, Self::Error>;

    /// Lock several shards, given by their numbers in ascending order.
    #[inline(always)]
    fn lock_all<'table>(
        &'table self,
        shard_numbers: &[usize],
        guards: &mut SmallVec<[Self::Guard<'table>; 4]>,
    ) -> Result<(), Self::Error> {
        for shard_number in shard_numbers {
            guards.push(self.lock(*shard_number)?);
        }
        Ok(())
    }

    /// Prefetch the cache line in which a check's state will be searched. A hint, without any lock.
    fn fetch(&self, check: &Check);

    /// Register a limit.
    ///
    /// Where there is no room for another one, limits that no slot or hold names are dropped.
    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<Self::Error>;

    /// Whether slots may name this limit by its number. The answer holds as long as the caller has a shard locked.
    fn is_current(&self, limit: &Registered) -> bool;

    /// Give a limit whose number was taken back a new one. The caller has no shard locked.
    fn renew(&self, seed: &Seed, limit: &Registered, now_us: i64) -> Result<(), Self::Error>;

    /// The limits by the numbers that slots name them by.
    fn limits(&self) -> &impl Limits;

    /// The configured choice for a full table.
    fn on_full(&self) -> OnFull;

    /// Reserve what the new state of the check at `index` takes: a slot, a log block, or both.
    ///
    /// Slots may move: find their places again before you use them.
    fn reserve<'table>(
        &'table self,
        check: &Check,
        locked: &mut LockedShards<Self::Guard<'table>>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full>;

    /// Drop what was reserved for a decision that is not written after all.
    fn drop_reserved<'table>(&'table self, locked: &mut LockedShards<Self::Guard<'table>>, now_us: i64);

    /// Begin the charges of a decision: what its guards write from here on takes effect together.
    fn begin<'table>(&'table self, locked: &mut LockedShards<Self::Guard<'table>>);

    /// Make all charges of a decision take effect.
    fn commit<'table>(&'table self, locked: &mut LockedShards<Self::Guard<'table>>);

    /// Undo what a decision wrote since it began.
    fn roll_back<'table>(&'table self, locked: &mut LockedShards<Self::Guard<'table>>);

    /// The most parts of a hold on a sliding log: each is settled by itself, and all of them as one.
    const MOST_PARTS_OF_LOG: usize = usize::MAX;

    /// A number that no other hold id was derived from.
    fn next_id(&self) -> u64;

    /// Reserve room in a locked shard for one more part of a hold with this many limits there.
    fn reserve_hold(&self, shard: &mut Self::Guard<'_>, limits: usize, now_us: i64) -> Result<(), Full>;

    /// Reserve room in a locked shard for a hold of one limit, which `HoldStore::add_one` adds next.
    #[inline(always)]
    fn reserve_one_hold(&self, shard: &mut Self::Guard<'_>, now_us: i64) -> Result<(), Full> {
        self.reserve_hold(shard, 1, now_us)
    }

    /// Update the count of holds to a shard; reserved room that was not used is released.
    fn settle_holds(&self, shard: &mut Self::Guard<'_>);

    /// Update the table's counts to a shard that was changed.
    fn settle(&self, shard_number: usize, shard: &mut Self::Guard<'_>);

    /// Count a new key that was refused because the table was full.
    fn count_refused(&self);

    /// Count a new key that passed uncounted because the table was full.
    fn count_passed(&self);

    /// The table's statistics.
    fn stats(&self) -> Result<Stats, Self::Error>;
}
