//! What holds are remembered in, wherever it lies: the memory of one process, or a file that many processes map.
//!
//! Where it outlives its processes, what is written counts with the rest of a decision: see `shard::backing`.

use crate::algorithms::leases::{Lease, Leases};
use crate::holding::record::{ForgottenShare, HoldId, One, Record};
use crate::holding::share::Part;

/// What is kept of one limit on one key while holds of it are remembered, but for its leases.
#[derive(Clone, Copy, Debug)]
pub struct HeldKey {
    /// The tag of its state.
    pub tag: u64,
    /// The salt of its limit's scope.
    pub salt: u64,
    /// The scaled units that were ever given back.
    pub refunds: i64,
}

/// A hold of one limit that is about to be made, under an id that no caller gave it.
#[derive(Clone, Copy, Debug)]
pub struct NewHold {
    /// The end of its lease.
    pub until_us: i64,
    /// When it is forgotten.
    pub forget_us: i64,
}

/// Where the ids of such holds come from.
pub trait IdSource {
    /// A number that no other id was made of.
    fn next(&self) -> u64;

    /// 128 bits of a number that cannot be guessed.
    fn secret(&self, number: u64) -> [u64; 2];
}

/// What a shard remembers of holds. Holds and keys are named by small numbers.
pub trait HoldStore {
    /// The leases of a key.
    type Leases<'store>: Leases
    where
        Self: 'store;

    /// The number of the hold of this id, if it is remembered. One whose time is over is forgotten.
    fn find(&mut self, id: HoldId, now_us: i64) -> Option<u32>;

    /// `find` of one whose number is told beside its id, or `UNTOLD`.
    #[inline(always)]
    fn find_told(&mut self, id: HoldId, _number: u32, now_us: i64) -> Option<u32> {
        self.find(id, now_us)
    }

    /// The id of the next hold that is added here and has no name, out of 128 secret bits.
    #[inline(always)]
    fn next_id(&self, secret: HoldId) -> HoldId {
        secret
    }

    /// The part and the key of an open hold of one limit that is not told as one of many.
    fn open_one(&self, number: u32) -> Option<(Part, u32)>;

    /// A hold, told as one of many.
    fn load(&self, number: u32) -> Option<Record>;

    /// Write a hold that was loaded and changed.
    fn change(&mut self, number: u32, record: Record);

    /// Settle a hold that was loaded: so much of each group counts; of a share without amounts none is told.
    fn settle(&mut self, number: u32, loaded: Record, actuals: &[i64], now_us: i64);

    /// Settle an open hold of one limit, of which so much was given back.
    fn settle_one(&mut self, number: u32, actual: i64, given: i64, now_us: i64);

    /// Settle an open hold of one limit that counts what is in flight: its places are free.
    fn free_one(&mut self, number: u32, actual: i64, now_us: i64);

    /// Add an open hold of one limit; its number, and the id that it was given.
    fn add_one(&mut self, held: NewHold, one: One, ids: &impl IdSource) -> (u32, HoldId);

    /// Add a hold; its number. One without a name is found by the number that its id tells, or that is told beside it.
    fn add(&mut self, record: Record) -> u32;

    /// What is kept of one limit on one key.
    fn key(&self, number: u32) -> Option<HeldKey>;

    /// The number of what is kept of a tag; None where no hold of it is remembered.
    fn key_number(&self, tag: u64) -> Option<u32>;

    /// The number of what is kept of a tag, for a hold that is about to be added.
    fn key_or_new(&mut self, tag: u64, salt: u64) -> u32;

    /// So much was ever given back on a key.
    fn set_refunds(&mut self, key: u32, refunds: i64);

    /// Something was given back on the state of a tag.
    fn note_refund(&mut self, tag: u64, given: i64);

    /// The leases of a tag; None where no hold of it is remembered.
    fn leases(&self, tag: u64) -> Option<Self::Leases<'_>> {
        self.leases_of(self.key_number(tag)?)
    }

    /// The leases of a key.
    fn leases_of(&self, key: u32) -> Option<Self::Leases<'_>>;

    /// Free places of a key, and let others be in use instead. What is free already stays so.
    fn move_places(&mut self, key: u32, former: Option<Lease>, lease: Option<Lease>);

    /// Forget the leases of a key that are over.
    fn drop_over(&mut self, key: u32, now_us: i64);

    /// Forget a hold, and free what places it has; None where it has no share in another shard.
    fn forget_hold(&mut self, number: u32) -> Option<ForgottenShare>;

    /// Forget all holds of a tag; those that have shares in other shards.
    fn forget_tag(&mut self, tag: u64) -> Vec<ForgottenShare>;
}
