//! Where the stripes of a table are, and how they are locked, bounded and shared: the memory of one
//! process, `private`, or a file that all processes of a host map, `zone`.

use std::ops::DerefMut;

use smallvec::SmallVec;

use crate::answer::{Check, OnFull};
use crate::ground::Ground;
use crate::hash::{KeyHash, Seed};
use crate::locked::Locked;
use crate::registry::{Definition, Limits, Registered, Registration};
use crate::stripe::{Need, Stripe};

/// A table with no room for a check: until some slot that was looked at is free again.
pub struct Full {
    /// Microseconds, at least 1.
    pub soonest_us: i64,
}

/// What a table counts about itself.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// States held now.
    pub keys: usize,
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

/// What is stored of a key is no state that can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedState;

/// Why no limit can be made known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// So many are known already.
    Limits(usize),
    /// The texts that name them take so many bytes already.
    Bytes(usize),
}

/// Where the stripes of a table are. A key's hash chooses one; all limits of one key are in the same.
pub trait Storage: Sized {
    /// Where the slots and blocks of a stripe lie.
    type Ground<'table>: Ground
    where
        Self: 'table;
    /// A stripe, locked until this is dropped.
    type Guard<'table>: DerefMut<Target = Stripe<Self::Ground<'table>>>
    where
        Self: 'table;
    /// Why a stripe could not be locked, or what is in it not be read.
    type Error: From<DamagedState>;

    /// How many stripes there are.
    fn lanes(&self) -> usize;

    /// The stripe of a key.
    fn lane_of(&self, key: KeyHash) -> usize;

    /// Lock a stripe.
    fn lock(&self, lane: usize) -> Result<Self::Guard<'_>, Self::Error>;

    /// Lock several stripes, given in ascending order.
    #[inline(always)]
    fn lock_all<'table>(
        &'table self,
        lanes: &[usize],
        guards: &mut SmallVec<[Self::Guard<'table>; 4]>,
    ) -> Result<(), Self::Error> {
        for lane in lanes {
            guards.push(self.lock(*lane)?);
        }
        Ok(())
    }

    /// Ask for the cache line where a check's state will be looked for. A hint, without any lock.
    fn fetch(&self, check: &Check);

    /// Make a limit known.
    ///
    /// Where there is no room for another one, those that nothing names are taken back.
    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<Self::Error>;

    /// Whether slots may name this limit by its number. Asked while a stripe is held, it stays so until that is not.
    fn is_current(&self, limit: &Registered) -> bool;

    /// Give a limit a number again whose own was taken back. No stripe is held.
    fn renew(&self, seed: &Seed, limit: &Registered, now_us: i64) -> Result<(), Self::Error>;

    /// The limits by the numbers that slots name them by.
    fn limits(&self) -> &impl Limits;

    /// The written choice for a full table.
    fn on_full(&self) -> OnFull;

    /// Reserve what the new state of the check at `index` takes: a slot, a log block, or both.
    ///
    /// Slots may move: `Locked::find_again` before they are used.
    fn reserve(
        &self,
        check: &Check,
        locked: &mut Locked<'_, Self>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full>;

    /// Drop what was reserved for a decision that is not kept after all.
    fn drop_reserved(&self, locked: &mut Locked<'_, Self>, now_us: i64);

    /// The charges of a decision begin; what its guards write from here on counts together.
    fn begin(&self, locked: &mut Locked<'_, Self>);

    /// All charges of a decision are written, and count.
    fn commit(&self, locked: &mut Locked<'_, Self>);

    /// What a decision wrote since it began was never written.
    fn take_back(&self, locked: &mut Locked<'_, Self>);

    /// Bring what the table counts in line with a stripe that was changed.
    fn settle(&self, lane: usize, stripe: &mut Self::Guard<'_>);

    /// A new key was refused because the table was full.
    fn count_refused(&self);

    /// A new key passed uncounted because the table was full.
    fn count_passed(&self);

    /// What the table counts about itself.
    fn stats(&self) -> Result<Stats, Self::Error>;
}
