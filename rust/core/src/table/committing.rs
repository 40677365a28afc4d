//! Settling holds with their actual costs: all their limits, or none.

use smallvec::SmallVec;

use crate::algorithms::transition::{self, ANY};
use crate::holding::record::HoldId;
use crate::holding::store::HoldStore;
use crate::limit::Algorithm;
use crate::shard::backing::Backing;
use crate::shard::settling::Settling;
use crate::shard::states::Need;
use crate::shard::{DamagedState, Place};
use crate::table::Table;
use crate::table::answer::Check;
use crate::table::settling::{CallerLimits, Misuse, Outcome, Settlement, Standings};
use crate::table::shares::{LoadedLimit, LoadedShare, Shares, registered};
use crate::table::storage::{Location, LockedShards, Storage};

impl<S: Storage> Table<S> {
    /// Settle a hold with its actual cost: an amount for each group, or one for all; None for as much as is held.
    pub fn commit(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Result<Result<Settlement, Misuse>, S::Error> {
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            let (actuals, after) = (SmallVec::new(), Standings::new());
            return Ok(Ok(Settlement { outcome: Outcome::Unknown, actuals, after }));
        };
        let own = shares.own_limits(caller_limits);
        let (outcome, actuals) = if shares.loaded[0].record.settled {
            (Outcome::AlreadySettled, shares.amounts().iter().map(|own| own.actual).collect())
        } else {
            match self.settle_hold(&mut shares, actuals, caller_limits, now_us)? {
                Ok(actuals) => (Outcome::Settled, actuals),
                Err(misuse) => return Ok(Err(misuse)),
            }
        };
        let after = self.standings(&shares.transaction, &own, caller_limits, now_us);
        shares.transaction.check_with_holds()?;
        Ok(Ok(Settlement { outcome, actuals, after }))
    }

    /// `commit` that returns the outcome alone, without measuring the limits.
    pub fn commit_outcome(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Result<Result<Outcome, Misuse>, S::Error> {
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            return Ok(Ok(Outcome::Unknown));
        };
        if shares.loaded[0].record.settled {
            return Ok(Ok(Outcome::AlreadySettled));
        }
        let settled = self.settle_hold(&mut shares, actuals, caller_limits, now_us)?;
        Ok(settled.map(|_| Outcome::Settled))
    }

    /// Settle a hold: all its limits, or none where one of them cannot be in so much debt. Returns the units of each
    /// group that count. The loaded shares are consumed.
    fn settle_hold<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        actuals: &[Option<i64>],
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Result<Result<SmallVec<[i64; 2]>, Misuse>, DamagedState> {
        let amounts = shares.amounts();
        if actuals.len() != 1 && actuals.len() != amounts.len() {
            return Ok(Err(Misuse::Amounts(amounts.len())));
        }
        let actual_of = |group: usize| actuals[if actuals.len() == 1 { 0 } else { group }];
        let actuals: SmallVec<[i64; 2]> =
            amounts.iter().enumerate().map(|(group, amount)| actual_of(group).unwrap_or(amount.held)).collect();
        self.forget_ended(shares, now_us);
        let mut settlings: SmallVec<[Option<Settling>; 2]> = SmallVec::with_capacity(shares.limits.len());
        for limit in 0..shares.limits.len() {
            settlings.push(match shares.held(limit) {
                Some((held, key)) if !held.parts.is_empty() => {
                    let number = held.parts.last().map_or(0, |part| part.number);
                    let own = self
                        .own_limit(number, caller_limits, limit)
                        .filter(|own| own.algorithm != Algorithm::Concurrent);
                    let actual = actuals[usize::from(held.group)];
                    match own {
                        None => None,
                        Some(own) => {
                            let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
                            let (shard, change) = (&shares.transaction.locked.guards[guard], actual - held.cost());
                            let limits = self.storage.limits();
                            let settling =
                                shard.settling(place, &own, &held.parts, change, key.refunds, limits, now_us);
                            if settling.is_none() {
                                return shard.check_with_holds().map(|()| Err(Misuse::Debt(actual, key.salt)));
                            }
                            settling
                        }
                    }
                }
                _ => None,
            });
        }
        for (limit, settling) in settlings.iter().enumerate() {
            if let Some(settling) = settling {
                self.prepare(shares, limit, settling, now_us);
            }
        }
        shares.transaction.begin();
        for (limit, settling) in settlings.iter().enumerate() {
            if let Some(settling) = settling {
                self.write_settled(shares, limit, settling, now_us);
            }
        }
        for LoadedShare { guard, number, record } in shares.loaded.drain(..) {
            if let Some(holds) = shares.transaction.locked.guards[guard].backing.holds_mut() {
                holds.settle(number, record, &actuals, now_us);
            }
        }
        let checked = shares.transaction.check_with_holds();
        shares.transaction.commit(checked)?;
        let LockedShards { guards, locations } = &mut shares.transaction.locked;
        for (number, guard) in guards.iter_mut().enumerate() {
            if let Some(location) = locations.iter().find(|location| location.guard == number) {
                self.storage.settle(location.shard_number, guard);
            }
        }
        Ok(Ok(actuals))
    }

    /// Forget the states that have ended in other numbers than the hold was last charged under, so that settling gives
    /// the same result whether or not they were forgotten before.
    #[inline]
    fn forget_ended<'table>(&'table self, shares: &mut Shares<'table, S>, now_us: i64) {
        for limit in 0..shares.limits.len() {
            let number = shares.held(limit).and_then(|(held, _)| held.parts.last()).map(|part| part.number);
            let Location { shard_number, guard, tag, place } = shares.transaction.locked.locations[limit];
            let shard = &mut shares.transaction.locked.guards[guard];
            if number.is_some_and(|number| shard.has_other_numbers(place, number)) {
                shard.drop_nothing(tag, self.storage.limits(), now_us);
                self.storage.settle(shard_number, shard);
                shares.transaction.find_again();
            }
        }
    }

    /// Make room for the state of a limit that is about to be settled. A debt on a forgotten key needs room like a new
    /// key.
    fn prepare<'table>(&'table self, shares: &mut Shares<'table, S>, limit: usize, settling: &Settling, now_us: i64) {
        if shares.transaction.locked.locations[limit].place == Place::Absent {
            self.put(shares, limit, settling, now_us);
        }
        if settling.numbers.is_none() {
            let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
            let written = registered(settling.limit, settling.number, 0);
            shares.transaction.locked.guards[guard].to_present(place, &written, now_us);
        }
    }

    /// Write the state of a limit that was settled, where there is one.
    #[inline]
    fn write_settled<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        limit: usize,
        settling: &Settling,
        now_us: i64,
    ) {
        let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
        let LoadedLimit { share, index, .. } = shares.limits[limit];
        let Some(held) = shares.loaded[share].record.share().and_then(|share| share.limits.get(index)) else {
            return;
        };
        let shard = &mut shares.transaction.locked.guards[guard];
        if let Some(holds) = shard.backing.holds_mut() {
            holds.set_refunds(held.key, settling.refunds);
        }
        let Place::Found(slot) = place else {
            return;
        };
        if let Some(numbers) = settling.numbers {
            shard.write_fields(slot, numbers);
        } else {
            shard.settle_log(slot, settling, &held.parts, self.storage.limits(), now_us);
        }
    }

    /// Make a slot for a limit without a state, where a debt creates one.
    #[cold]
    fn put<'table>(&'table self, shares: &mut Shares<'table, S>, limit: usize, settling: &Settling, now_us: i64) {
        let reset_after_us =
            settling.numbers.map(|numbers| transition::measure_numbers::<ANY>(&settling.limit, numbers, now_us).1);
        if settling.change <= 0 || reset_after_us == Some(0) {
            return;
        }
        let registered = registered(settling.limit, settling.number, 0);
        let location = shares.transaction.locked.locations[limit];
        let key = crate::hash::KeyHash { shard: 0, tag: location.tag };
        let check = Check { limit: &registered, key, cost: 0, shadow: false };
        let locked = &mut shares.transaction.locked;
        let reserved = self.storage.reserve(&check, locked, limit, Need::default(), now_us);
        if reserved.is_err() {
            self.storage.count_passed();
            return;
        }
        let shard = &mut locked.guards[location.guard];
        if shard.find(location.tag) == Place::Absent {
            shard.put_unsettled(location.tag, settling);
        }
        self.storage.settle(location.shard_number, shard);
        shares.transaction.find_again();
    }
}
