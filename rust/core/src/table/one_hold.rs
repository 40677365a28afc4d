//! Holds of one limit, which most are: made and settled on the fast path, where there is no more to do than that.

use crate::holding::record::HoldId;
use crate::holding::store::IdSource;
use crate::shard::registered::Registered;
use crate::table::Table;
use crate::table::answer::Check;
use crate::table::known_hold::{Measured, SettledOne, commit, reserve_known, settle_known};
use crate::table::known_places::{is_of_places, reserve_places, settle_places};
use crate::table::settling::HoldTimes;
use crate::table::storage::Storage;

impl<S: Storage> IdSource for Table<S> {
    #[inline(always)]
    fn next(&self) -> u64 {
        self.storage.next_id()
    }

    #[inline(always)]
    fn secret(&self, number: u64) -> [u64; 2] {
        self.id_seed.numbered(number)
    }
}

impl<S: Storage> Table<S> {
    /// `reserve` of one check under a new id, where it is admitted.
    ///
    /// None where there is more to do, and nothing is changed.
    #[inline(always)]
    pub fn reserve_one(
        &self,
        check: &Check,
        times: HoldTimes,
        now_us: i64,
    ) -> Result<Option<(HoldId, Measured)>, S::Error> {
        if is_of_places(check.limit) {
            return reserve_places(&self.storage, check, times, self, now_us);
        }
        reserve_known(&self.storage, check, times, self, now_us)
    }

    /// `commit` of an open hold of one limit, which was never extended, where the caller's only limit is that one.
    ///
    /// None where there is more to do, and nothing is changed.
    #[inline(always)]
    pub fn commit_one(
        &self,
        id: HoldId,
        shard_number: usize,
        actual: Option<i64>,
        caller_limit: &Registered,
        now_us: i64,
    ) -> Result<Option<SettledOne>, S::Error> {
        if shard_number >= self.storage.shard_count() {
            return Ok(None);
        }
        let mut shard = self.storage.lock(shard_number)?;
        let settled = if is_of_places(caller_limit) {
            settle_places(&mut *shard, id, actual, caller_limit, now_us)
        } else {
            settle_known(&mut *shard, id, actual, caller_limit, now_us)
        };
        commit(&mut *shard)?;
        Ok(settled)
    }
}
