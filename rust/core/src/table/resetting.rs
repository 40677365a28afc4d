//! Resetting states, and forgetting their holds with them: all shares, in whatever shards these are.

use smallvec::SmallVec;

use crate::algorithms::leases::Leases;
use crate::hash::KeyHash;
use crate::holding::record::ForgottenShare;
use crate::holding::store::HoldStore;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::table::Table;
use crate::table::storage::Storage;

/// Forgotten shares of holds that may have other shares.
type Forgotten = SmallVec<[ForgottenShare; 4]>;

impl<S: Storage> Table<S> {
    /// Forget the states of keys under limits, and all their holds; returns whether there were any.
    ///
    /// Shards are locked one after another: until the last one, a hold that is being forgotten is unknown, and its
    /// places under other keys are still in use.
    pub fn reset(&self, states: &[(&Registered, KeyHash)], now_us: i64) -> Result<bool, S::Error> {
        let mut live = false;
        // Forgetting a hold frees its places under all limits, so places are counted first.
        for (limit, key) in states {
            let shard = self.storage.lock(self.storage.shard_of(*key))?;
            let leases = shard.backing.holds().and_then(|holds| holds.leases(key.tag_under(limit.salt)));
            live |= leases.is_some_and(|leases| leases.used(now_us) > 0);
            shard.check_with_holds()?;
        }
        let mut forgotten = Forgotten::new();
        for (limit, key) in states {
            let shard_number = self.storage.shard_of(*key);
            let mut shard = self.storage.lock(shard_number)?;
            let tag = key.tag_under(limit.salt);
            live |= shard.forget(tag, self.storage.limits(), now_us);
            if let Some(holds) = shard.backing.holds_mut() {
                forgotten.extend(holds.forget_tag(tag));
                self.storage.settle_holds(&mut shard);
            }
            shard.check_with_holds()?;
            self.storage.settle(shard_number, &mut shard);
        }
        self.forget_others(forgotten, now_us)?;
        Ok(live)
    }

    /// Forget the other shares of holds. Only a hold's first share lists the others, so for other shares the first one
    /// is searched in all shards.
    fn forget_others(&self, forgotten: Forgotten, now_us: i64) -> Result<(), S::Error> {
        let (mut first, others): (Forgotten, Forgotten) = forgotten.into_iter().partition(|share| share.is_first);
        for shard_number in 0..if others.is_empty() { 0 } else { self.storage.shard_count() } {
            let mut shard = self.storage.lock(shard_number)?;
            if let Some(holds) = shard.backing.holds_mut() {
                for share in &others {
                    let found = holds.find(share.id, now_us);
                    first.extend(found.and_then(|number| holds.forget_hold(number)));
                }
                self.storage.settle_holds(&mut shard);
            }
            shard.check_with_holds()?;
        }
        for share in first {
            for other in &share.others {
                let mut shard = self.storage.lock(usize::from(other.shard))?;
                if let Some(holds) = shard.backing.holds_mut() {
                    if let Some(number) = holds.find_numbered(share.id, other.number, now_us) {
                        holds.forget_hold(number);
                    }
                    self.storage.settle_holds(&mut shard);
                }
                shard.check_with_holds()?;
            }
        }
        Ok(())
    }
}
