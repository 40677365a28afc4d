//! The shares of a hold that is settled or extended, locked together.

use std::ops::Deref;

use smallvec::SmallVec;

use crate::algorithms::concurrent;
use crate::algorithms::leases::{Lease, LeaseRequest};
use crate::algorithms::transition::{self, ANY, measured_us};
use crate::holding::record::{HoldId, Record};
use crate::holding::share::{Amount, HeldLimit};
use crate::holding::store::{HeldKey, HoldStore};
use crate::limit::{Algorithm, Limit};
use crate::shard::Shard;
use crate::shard::backing::Backing;
use crate::shard::registered::{Definition, Limits, Registered};
use crate::table::Table;
use crate::table::settling::{CallerLimits, Standing, Standings};
use crate::table::storage::{Location, LockedShards, Storage};
use crate::table::transaction::Transaction;

/// The caller's limits that are those of a hold: (index among the caller's limits, index among the hold's) of each.
pub(super) type OwnLimits = SmallVec<[(usize, usize); 4]>;

/// One share of a hold.
pub(super) struct LoadedShare {
    /// The guard of its shard.
    pub(super) guard: usize,
    /// Its number in the shard's store.
    pub(super) number: u32,
    /// Its record, expanded as one of many limits.
    pub(super) record: Record,
}

/// Where one of the limits of a hold is recorded, and the data of its key.
#[derive(Clone, Copy)]
pub(super) struct LoadedLimit {
    /// The index of the share.
    pub(super) share: usize,
    /// The index of the limit in the share.
    pub(super) index: usize,
    /// The key's data when the shares were locked.
    key: Option<HeldKey>,
}

/// The place of a limit whose share is forgotten.
const FORGOTTEN: LoadedLimit = LoadedLimit { share: usize::MAX, index: 0, key: None };

/// The locked shares of a hold, with the location of the state of each limit in the transaction, in order.
pub(super) struct Shares<'table, S: Storage + 'table> {
    /// The shards.
    pub(super) transaction: Transaction<'table, S>,
    /// All shares; the one with the amounts comes first.
    pub(super) loaded: SmallVec<[LoadedShare; 1]>,
    /// All limits, in the order of the hold.
    pub(super) limits: SmallVec<[LoadedLimit; 2]>,
}

impl LoadedShare {
    /// The lease of one of its limits; None where that has no places in flight.
    pub(super) fn lease(&self, index: usize) -> Option<Lease> {
        let held = self.record.share()?.limits.get(index)?;
        let lease = Lease { until: self.record.until_us, number: u64::from(self.number), places: held.cost() };
        held.in_flight.then_some(lease)
    }
}

impl<S: Storage> Shares<'_, S> {
    /// The amounts of the hold's groups.
    pub(super) fn amounts(&self) -> &[Amount] {
        self.loaded.first().and_then(|first| first.record.share()).map_or(&[], |share| &share.amounts)
    }

    /// Match the caller's limits with those of the hold.
    pub(super) fn own_limits(&self, caller_limits: &CallerLimits<'_>) -> OwnLimits {
        let salt = |limit: usize| self.held(limit).map(|(_, key)| key.salt);
        let mut own = OwnLimits::with_capacity(caller_limits.len());
        for (number, limit) in caller_limits.iter().enumerate() {
            let is_own = |index: &usize| salt(*index) == Some(limit.salt);
            let likely = Some(number).filter(|index| *index < self.limits.len()).filter(is_own);
            own.extend(likely.or_else(|| (0..self.limits.len()).find(is_own)).map(|index| (number, index)));
        }
        own
    }

    /// One of the hold's limits, and the data of its key.
    #[inline]
    pub(super) fn held(&self, limit: usize) -> Option<(&HeldLimit, HeldKey)> {
        let LoadedLimit { share, index, key } = self.limits[limit];
        Some((self.loaded[share].record.share()?.limits.get(index)?, key?))
    }
}

impl<S: Storage> Table<S> {
    /// Lock the shares of a hold; None where it is not remembered.
    #[inline]
    pub(super) fn lock_shares(
        &self,
        id: HoldId,
        shard_number: usize,
        now_us: i64,
    ) -> Result<Option<Shares<'_, S>>, S::Error> {
        if shard_number >= self.storage.shard_count() {
            return Ok(None);
        }
        let mut transaction = Transaction::new(&self.storage);
        let mut shard_numbers: SmallVec<[usize; 4]> = SmallVec::from_elem(shard_number, 1);
        self.storage.lock_all(&shard_numbers, &mut transaction.locked.guards)?;
        let Some(number) = find(&mut transaction.locked.guards[0], id, now_us) else {
            return Ok(None);
        };
        let mut loaded: SmallVec<[LoadedShare; 1]> = SmallVec::new();
        loaded.extend(load(&transaction.locked.guards[0], 0, number));
        if let Some(share) = loaded.first().and_then(|first| first.record.share())
            && !share.others.is_empty()
        {
            let others = share.others.clone();
            shard_numbers.extend(others.iter().map(|other| usize::from(other.shard)));
            shard_numbers.sort_unstable();
            shard_numbers.dedup();
            transaction.unlock();
            loaded.clear();
            loaded.reserve(shard_numbers.len());
            if shard_numbers.last().is_none_or(|last| *last < self.storage.shard_count()) {
                self.storage.lock_all(&shard_numbers, &mut transaction.locked.guards)?;
            }
            for guard in 0..transaction.locked.guards.len() {
                let shard = &mut transaction.locked.guards[guard];
                let number = match others.iter().find(|other| usize::from(other.shard) == shard_numbers[guard]) {
                    Some(other) => {
                        shard.backing.holds_mut().and_then(|holds| holds.find_numbered(id, other.number, now_us))
                    }
                    None => find(shard, id, now_us),
                };
                let share = number.and_then(|number| load(&transaction.locked.guards[guard], guard, number));
                let place = if shard_numbers[guard] == shard_number { 0 } else { loaded.len() };
                share.into_iter().for_each(|share| loaded.insert(place, share));
            }
        }
        transaction.check_with_holds()?;
        if loaded.first().is_none_or(|first| shard_numbers[first.guard] != shard_number) {
            return Ok(None);
        }
        let limits = limits_of(&loaded, &transaction.locked.guards);
        let first = &loaded[0].record;
        let is_complete =
            first.settled || first.share().is_some_and(|share| limits.len() == usize::from(share.limits_of_all));
        let LockedShards { guards, locations } = &mut transaction.locked;
        locations.extend(limits.iter().map(|limit| {
            let (guard, tag) = (loaded[limit.share].guard, limit.key.map_or(0, |key| key.tag));
            Location { shard_number: shard_numbers[guard], guard, tag, place: guards[guard].find(tag) }
        }));
        Ok(is_complete.then_some(Shares { transaction, loaded, limits }))
    }

    /// The numbers of the limit that a hold was charged under; likely that at index `likely` of the caller's limits.
    #[inline]
    pub(super) fn own_limit(&self, number: u32, caller_limits: &CallerLimits<'_>, likely: usize) -> Option<Limit> {
        let is_own = |limit: &&&Registered| limit.number() == number;
        match caller_limits.get(likely).filter(is_own).or_else(|| caller_limits.iter().find(is_own)) {
            Some(limit) => Some(limit.limit),
            None => self.storage.limits().of(number),
        }
    }

    /// The standings of the caller's limits now, for those that are the hold's `own`.
    #[inline]
    pub(super) fn standings(
        &self,
        transaction: &Transaction<'_, S>,
        own: &OwnLimits,
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Standings {
        let mut standings = Standings::with_capacity(own.len());
        for (number, index) in own {
            let limit = caller_limits[*number];
            let Location { guard, place, tag, .. } = transaction.locked.locations[*index];
            let (remaining, reset_after_us, _) = if limit.limit.algorithm == Algorithm::Concurrent {
                let holds = transaction.locked.guards[guard].backing.holds();
                let leases = holds.and_then(|holds| holds.leases(tag));
                let state = concurrent::roll(&limit.limit, LeaseRequest { leases, until: None }, now_us);
                measured_us(&limit.limit, concurrent::measure(&limit.limit, &state, now_us), now_us)
            } else {
                let stored = transaction.locked.guards[guard].stored(place, limit, self.storage.limits(), now_us);
                transition::measure::<_, ANY>(
                    &limit.limit,
                    &transition::roll::<_, ANY>(&limit.limit, stored, now_us),
                    now_us,
                )
            };
            standings.push(Standing { limit: *number, remaining, reset_after_us });
        }
        standings
    }
}

/// The limits of a hold in their order, of all shares that are remembered.
fn limits_of<G, B>(loaded: &[LoadedShare], guards: &[G]) -> SmallVec<[LoadedLimit; 2]>
where
    G: Deref<Target = Shard<B>>,
    B: Backing,
{
    let of_all = loaded.first().and_then(|first| first.record.share()).map_or(0, |share| share.limits_of_all);
    let mut limits: SmallVec<[LoadedLimit; 2]> = SmallVec::from_elem(FORGOTTEN, usize::from(of_all));
    for (share, LoadedShare { guard, record, .. }) in loaded.iter().enumerate() {
        let (Some(own), Some(holds)) = (record.share(), guards[*guard].backing.holds()) else {
            continue;
        };
        for (index, held) in own.limits.iter().enumerate() {
            if let Some(limit) = limits.get_mut(usize::from(held.index)) {
                *limit = LoadedLimit { share, index, key: holds.key(held.key) };
            }
        }
    }
    limits.retain(|limit| limit.share != FORGOTTEN.share);
    limits
}

/// Load a share of a hold from its record.
pub(super) fn load<B: Backing>(shard: &Shard<B>, guard: usize, number: u32) -> Option<LoadedShare> {
    Some(LoadedShare { guard, number, record: shard.backing.holds()?.load(number)? })
}

/// The number of the hold of this id in a shard, if it is remembered.
#[inline]
pub(super) fn find<B: Backing>(shard: &mut Shard<B>, id: HoldId, now_us: i64) -> Option<u32> {
    shard.backing.holds_mut()?.find(id, now_us)
}

/// A limit with its number, as if it were registered.
pub(super) fn registered(limit: Limit, number: u32, salt: u64) -> Registered {
    Registered::new(Definition { scope: "", text: "", limit }, salt, u64::from(number))
}
