//! The shares of a hold that is settled or extended, locked together.

use smallvec::SmallVec;

use crate::algorithms::concurrent;
use crate::algorithms::leases::{AskedLeases, Lease};
use crate::algorithms::transition::{self, ANY, measured_us};
use crate::holding::record::{HeldLimit, HoldId, Record, Share};
use crate::holding::{Holds, KeyHolds};
use crate::limit::{Algorithm, Limit};
use crate::shard::backing::Backing;
use crate::shard::registered::{Definition, Limits, Registered};
use crate::table::Table;
use crate::table::settling::{After, Asked, Standing};
use crate::table::storage::{Location, Storage};
use crate::table::transaction::Transaction;

/// The shares of a hold, locked, and where the states of its limits are: a location for each, in their order.
pub(super) struct Shares<'table, S: Storage + 'table> {
    /// The shards.
    pub(super) transaction: Transaction<'table, S>,
    /// The guard and the number of each share; that with the amounts comes first.
    pub(super) records: SmallVec<[(usize, u32); 2]>,
    /// Of each limit its share, and which of the limits there it is.
    pub(super) limits: SmallVec<[(usize, usize); 2]>,
}

impl<'table, S: Storage> Shares<'table, S> {
    pub(super) fn record(&self, share: usize) -> Option<(&Record, &Share)> {
        let (guard, number) = self.records[share];
        let record = self.transaction.locked.guards[guard].backing.holds()?.get(number)?;
        Some((record, record.share()?))
    }

    pub(super) fn record_mut(&mut self, share: usize) -> Option<&mut Record> {
        let (guard, number) = self.records[share];
        self.transaction.locked.guards[guard].backing.holds_mut()?.get_mut(number)
    }

    /// One of its limits, and what is kept of that on its key.
    #[inline]
    pub(super) fn held(&self, limit: usize) -> Option<(&HeldLimit, &KeyHolds)> {
        let (share, index) = self.limits[limit];
        let (guard, number) = self.records[share];
        let holds = self.transaction.locked.guards[guard].backing.holds()?;
        let held = &holds.get(number)?.share()?.limits[index];
        Some((held, holds.key(held.key)?))
    }

    pub(super) fn holds_mut(&mut self, limit: usize) -> Option<(&mut Holds, u32, usize)> {
        let (share, index) = self.limits[limit];
        let (guard, number) = self.records[share];
        Some((self.transaction.locked.guards[guard].backing.holds_mut()?, number, index))
    }

    /// Take the places of a limit, and let others be in use instead.
    pub(super) fn change_lease(&mut self, limit: usize, lease: Option<Lease>, now_us: i64) {
        let Some((holds, number, index)) = self.holds_mut(limit) else {
            return;
        };
        let Some(record) = holds.get_mut(number) else {
            return;
        };
        let Some(held) = record.share_mut().map(|share| &mut share.limits[index]) else {
            return;
        };
        let (key, former) = (held.key, std::mem::replace(&mut held.lease, lease));
        if let Some(key) = holds.key_mut(key) {
            if let Some(former) = former {
                key.leases.take(former);
            }
            if let Some(lease) = lease {
                key.leases.drop_over(now_us);
                key.leases.add(lease);
            }
        }
    }
}

impl<S: Storage> Table<S> {
    /// Lock the shares of a hold; None where it is not remembered.
    #[inline]
    pub(super) fn lock_shares(&self, id: HoldId, shard_number: usize, now_us: i64) -> Result<Option<Shares<'_, S>>, S::Error> {
        if shard_number >= self.storage.shard_count() {
            return Ok(None);
        }
        let mut transaction = Transaction::new(&self.storage);
        let mut shard_numbers: SmallVec<[usize; 4]> = SmallVec::from_elem(shard_number, 1);
        self.storage.lock_all(&shard_numbers, &mut transaction.locked.guards)?;
        let Some(number) = find(&mut transaction.locked.guards[0], id, now_us) else {
            return Ok(None);
        };
        let mut records: SmallVec<[(usize, u32); 2]> = SmallVec::from_elem((0, number), 1);
        let holds = transaction.locked.guards[0].backing.holds();
        if let Some(share) = holds.and_then(|holds| holds.get(number)?.share())
            && !share.others.is_empty()
        {
            shard_numbers.extend(share.others.iter().map(|other| usize::from(*other)));
            shard_numbers.sort_unstable();
            transaction.unlock();
            self.storage.lock_all(&shard_numbers, &mut transaction.locked.guards)?;
            records.clear();
            for (guard, own) in shard_numbers.iter().enumerate() {
                match find(&mut transaction.locked.guards[guard], id, now_us) {
                    Some(number) if *own == shard_number => records.insert(0, (guard, number)),
                    Some(number) => records.push((guard, number)),
                    None => {}
                }
            }
            if records.first().is_none_or(|(guard, _)| shard_numbers[*guard] != shard_number) {
                return Ok(None);
            }
        }
        let mut shares = Shares { transaction, records, limits: SmallVec::new() };
        for (guard, number) in &shares.records {
            expand(&mut shares.transaction.locked.guards[*guard], *number);
        }
        for share in 0..shares.records.len() {
            let count = shares.record(share).map_or(0, |(_, share)| share.limits.len());
            shares.limits.extend((0..count).map(|index| (share, index)));
        }
        if shares.limits.len() > 1 {
            let mut limits = shares.limits.clone();
            limits.sort_by_key(|(share, index)| shares.record(*share).map(|(_, share)| share.limits[*index].index));
            shares.limits = limits;
        }
        let whole = shares
            .record(0)
            .is_some_and(|(record, share)| record.settled || shares.limits.len() == usize::from(share.limits_of_all));
        for limit in 0..shares.limits.len() {
            let (guard, _) = shares.records[shares.limits[limit].0];
            let tag = shares.held(limit).map_or(0, |(_, key)| key.tag);
            let place = shares.transaction.locked.guards[guard].find(tag);
            let location = Location { shard_number: shard_numbers[guard], guard, tag, place };
            shares.transaction.locked.locations.push(location);
        }
        Ok(whole.then_some(shares))
    }

    /// The numbers of the limit that a hold was charged under.
    #[inline]
    pub(super) fn own_limit(&self, number: u32, asked: &Asked<'_>) -> Option<Limit> {
        match asked.iter().find(|limit| limit.number() == number) {
            Some(limit) => Some(limit.limit),
            None => self.storage.limits().of(number),
        }
    }

    /// What the limits that are asked have now, of those of the hold.
    #[inline]
    pub(super) fn after(&self, shares: &Shares<'_, S>, asked: &Asked<'_>, now_us: i64) -> After {
        let mut after = After::new();
        for (number, limit) in asked.iter().enumerate() {
            let own = |index: &usize| shares.held(*index).is_some_and(|(_, key)| key.salt == limit.salt);
            let Some(index) = (0..shares.limits.len()).find(own) else {
                continue;
            };
            let Location { guard, place, .. } = shares.transaction.locked.locations[index];
            let (remaining, reset_after_us, _) = if limit.limit.algorithm == Algorithm::Concurrent {
                let leases = shares.held(index).map(|(_, key)| &key.leases);
                let state = concurrent::roll(&limit.limit, AskedLeases { leases, until: None }, now_us);
                measured_us(&limit.limit, concurrent::measure(&limit.limit, &state, now_us), now_us)
            } else {
                let stored =
                    shares.transaction.locked.guards[guard].stored(place, limit, self.storage.limits(), now_us);
                transition::measure::<_, ANY>(
                    &limit.limit,
                    &transition::roll::<_, ANY>(&limit.limit, stored, now_us),
                    now_us,
                )
            };
            after.push(Standing { asked: number, remaining, reset_after_us });
        }
        after
    }
}

/// Tell a hold of one limit as one of many.
pub(super) fn expand<B: Backing>(shard: &mut crate::shard::Shard<B>, number: u32) {
    if let Some(record) = shard.backing.holds_mut().and_then(|holds| holds.get_mut(number)) {
        record.expand(number);
    }
}

/// The number of the hold of this id in a shard, if it is remembered.
#[inline]
pub(super) fn find<B: Backing>(shard: &mut crate::shard::Shard<B>, id: HoldId, now_us: i64) -> Option<u32> {
    shard.backing.holds_mut()?.find(id, now_us)
}

/// A limit by its number, as if it were bound.
pub(super) fn registered(limit: Limit, number: u32, salt: u64) -> Registered {
    Registered::new(Definition { scope: "", text: "", limit }, salt, u64::from(number))
}
