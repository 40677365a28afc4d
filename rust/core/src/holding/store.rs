//! The store of a shard's holds, in the memory of one process or in a file that many processes map.
//!
//! Where it outlives its processes, writes take effect with the rest of a decision: see `shard::backing`.

use crate::algorithms::leases::{Lease, Leases};
use crate::holding::record::{ForgottenShare, HoldId, One, Record};
use crate::holding::share::Part;

/// The data of one limit on one key while holds of it are remembered, except for its leases.
#[derive(Clone, Copy, Debug)]
pub struct HeldKey {
    /// The tag of its state.
    pub tag: u64,
    /// The salt of its limit's scope.
    pub salt: u64,
    /// The total of scaled units that were ever given back.
    pub refunds: i64,
}

/// The times of a hold of one limit that is about to be made, under an id that the table chooses.
#[derive(Clone, Copy, Debug)]
pub struct NewHold {
    /// The end of its lease.
    pub until_us: i64,
    /// When the hold is forgotten.
    pub forget_us: i64,
}

/// The source of the ids of such holds.
pub trait IdSource {
    /// A number that no other id was derived from.
    fn next(&self) -> u64;

    /// 128 bits, derived from a number, that cannot be guessed.
    fn secret(&self, number: u64) -> [u64; 2];
}

/// The holds of a shard. Holds and keys are identified by small numbers.
pub trait HoldStore {
    /// The leases of a key.
    type Leases<'store>: Leases
    where
        Self: 'store;

    /// The number of the hold with this id, if it is remembered. A hold whose time is over is forgotten.
    fn find(&mut self, id: HoldId, now_us: i64) -> Option<u32>;

    /// `find` for a hold whose number is known beside its id, or is `UNNUMBERED`.
    #[inline(always)]
    fn find_numbered(&mut self, id: HoldId, _number: u32, now_us: i64) -> Option<u32> {
        self.find(id, now_us)
    }

    /// The id of the next unnamed hold that is added here, made from 128 secret bits.
    #[inline(always)]
    fn next_id(&self, secret: HoldId) -> HoldId {
        secret
    }

    /// The part and the key of an open hold of one limit that is recorded as such.
    fn open_one(&self, number: u32) -> Option<(Part, u32)>;

    /// A hold as a share in full.
    fn load(&self, number: u32) -> Option<Record>;

    /// Write a hold that was loaded and changed.
    fn change(&mut self, number: u32, record: Record);

    /// Settle a hold that was loaded, with the actual units of each group, which only a first share records.
    fn settle(&mut self, number: u32, loaded: Record, actuals: &[i64], now_us: i64);

    /// Settle an open hold of one limit; `given` is what was given back.
    fn settle_one(&mut self, number: u32, actual: i64, given: i64, now_us: i64);

    /// Settle an open hold of one limit that counts places in flight: its places become free.
    fn free_one(&mut self, number: u32, actual: i64, now_us: i64);

    /// Add an open hold of one limit; returns its number and its new id.
    fn add_one(&mut self, held: NewHold, one: One, ids: &impl IdSource) -> (u32, HoldId);

    /// Add a hold; returns its number. An unnamed hold is found by the number in its id, or by one known beside it.
    fn add(&mut self, record: Record) -> u32;

    /// The data of a key.
    fn key(&self, number: u32) -> Option<HeldKey>;

    /// The number of the key of a tag; None where no hold of it is remembered.
    fn key_number(&self, tag: u64) -> Option<u32>;

    /// The number of the key of a tag, added if it is new, for a hold that is about to be added.
    fn key_or_new(&mut self, tag: u64, salt: u64) -> u32;

    /// Set the total of what was ever given back on a key.
    fn set_refunds(&mut self, key: u32, refunds: i64);

    /// Add what was given back on the state of a tag.
    fn note_refund(&mut self, tag: u64, given: i64);

    /// The leases of a tag; None where no hold of it is remembered.
    fn leases(&self, tag: u64) -> Option<Self::Leases<'_>> {
        self.leases_of(self.key_number(tag)?)
    }

    /// The leases of a key.
    fn leases_of(&self, key: u32) -> Option<Self::Leases<'_>>;

    /// Replace a lease of a key by another one. A lease that has been removed already is ignored.
    fn move_places(&mut self, key: u32, former: Option<Lease>, lease: Option<Lease>);

    /// Forget the leases of a key that are over.
    fn drop_over(&mut self, key: u32, now_us: i64);

    /// Forget a hold, and free its places; None where it has no share in another shard.
    fn forget_hold(&mut self, number: u32) -> Option<ForgottenShare>;

    /// Forget all holds of a tag; returns those that have shares in other shards.
    fn forget_tag(&mut self, tag: u64) -> Vec<ForgottenShare>;
}
