//! Holds that are settled with what they really cost: all their limits, or none.

use smallvec::SmallVec;

use crate::algorithms::transition::{self, ANY};
use crate::holding::record::{Amount, HoldId, Part, Record};
use crate::limit::Algorithm;
use crate::shard::Place;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::shard::settling::Settling;
use crate::shard::states::Need;
use crate::table::Table;
use crate::table::answer::Check;
use crate::table::known_hold::{SettledOne, commit_known};
use crate::table::settling::{After, Asked, Misuse, Outcome, Settlement};
use crate::table::shares::{Shares, registered};
use crate::table::storage::{Location, Storage};

impl<S: Storage> Table<S> {
    /// `commit` of an open hold of one limit through that limit; None where there is more to do.
    #[inline]
    pub fn commit_one(
        &self,
        id: HoldId,
        shard_number: usize,
        actual: Option<i64>,
        asked: &Registered,
        now_us: i64,
    ) -> Result<Option<SettledOne>, S::Error> {
        commit_known(&self.storage, id, shard_number, actual, asked, now_us)
    }

    /// Settle a hold with what it really cost: an amount for each group, or one for all; None for as much as is held.
    pub fn commit(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<Result<Settlement, Misuse>, S::Error> {
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            let (actuals, after) = (SmallVec::new(), After::new());
            return Ok(Ok(Settlement { outcome: Outcome::Unknown, actuals, after }));
        };
        let mut outcome = Outcome::AlreadySettled;
        if shares.record(0).is_some_and(|(record, _)| !record.settled) {
            if let Err(misuse) = self.settle_hold(&mut shares, actuals, asked, now_us) {
                return Ok(Err(misuse));
            }
            outcome = Outcome::Settled;
        }
        let actuals = shares.record(0).map(|(_, share)| share.amounts.iter().map(|own| own.actual).collect());
        let after = self.after(&shares, asked, now_us);
        shares.transaction.check()?;
        Ok(Ok(Settlement { outcome, actuals: actuals.unwrap_or_default(), after }))
    }

    /// Settle a hold: all its limits, or none where one of them cannot be in so much debt.
    fn settle_hold<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        actuals: &[Option<i64>],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<(), Misuse> {
        let amounts: SmallVec<[Amount; 2]> =
            shares.record(0).map_or_else(SmallVec::new, |(_, share)| share.amounts.iter().copied().collect());
        if actuals.len() != 1 && actuals.len() != amounts.len() {
            return Err(Misuse::Amounts(amounts.len()));
        }
        let actual = |group: usize| actuals[if actuals.len() == 1 { 0 } else { group }].unwrap_or(amounts[group].held);
        let mut settlings: SmallVec<[Option<Settling>; 2]> = SmallVec::new();
        for limit in 0..shares.limits.len() {
            settlings.push(match shares.held(limit) {
                Some((held, key)) if !held.parts.is_empty() => {
                    let number = held.parts.last().map_or(0, |part| part.number);
                    let own = self.own_limit(number, asked).filter(|own| own.algorithm != Algorithm::Concurrent);
                    let actual = actual(usize::from(held.group));
                    match own {
                        None => None,
                        Some(own) => {
                            let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
                            let (shard, change) = (&shares.transaction.locked.guards[guard], actual - held.cost());
                            let limits = self.storage.limits();
                            let settling =
                                shard.settling(place, &own, &held.parts, change, key.refunds, limits, now_us);
                            Some(settling.ok_or(Misuse::Debt(actual, key.salt))?)
                        }
                    }
                }
                _ => None,
            });
        }
        for (limit, settling) in settlings.iter().enumerate() {
            if let Some(settling) = settling {
                self.write_settled(shares, limit, settling, now_us);
            }
            if shares.held(limit).is_some_and(|(held, _)| held.lease.is_some()) {
                shares.change_lease(limit, None, now_us);
            }
        }
        for share in 0..shares.records.len() {
            if let Some(share) = shares.record_mut(share).and_then(Record::share_mut) {
                for (group, amount) in share.amounts.iter_mut().enumerate() {
                    amount.actual = actual(group);
                }
            }
            let (guard, number) = shares.records[share];
            if let Some(holds) = shares.transaction.locked.guards[guard].backing.holds_mut() {
                holds.settle(number, now_us);
            }
        }
        Ok(())
    }

    /// Write the state of a limit that was settled. A debt of a key that was forgotten needs room like a new key.
    #[inline]
    fn write_settled<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        limit: usize,
        settling: &Settling,
        now_us: i64,
    ) {
        if let Some((holds, number, index)) = shares.holds_mut(limit)
            && let Some(key) = holds.get(number).and_then(|record| Some(record.share()?.limits[index].key))
            && let Some(key) = holds.key_mut(key)
        {
            key.refunds = settling.refunds;
        }
        if shares.transaction.locked.locations[limit].place == Place::Absent
            && !self.put(shares, limit, settling, now_us)
        {
            return;
        }
        let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
        let Place::Found(slot) = place else {
            return;
        };
        let (_, number) = shares.records[shares.limits[limit].0];
        let index = shares.limits[limit].1;
        let shard = &mut shares.transaction.locked.guards[guard];
        if let Some(numbers) = settling.numbers {
            shard.write_fields(slot, numbers);
        } else {
            let share = shard.backing.holds().and_then(|holds| holds.get(number)?.share());
            let held = share.map(|share| &share.limits[index]);
            let parts: SmallVec<[Part; 1]> =
                held.map_or_else(SmallVec::new, |held| held.parts.iter().copied().collect());
            shard.to_present(place, &registered(settling.limit, settling.number, 0), now_us);
            shard.settle_log(slot, settling, &parts, self.storage.limits(), now_us);
            self.storage.settle(shares.transaction.locked.locations[limit].shard_number, shard);
        }
        shard.backing.commit();
    }

    /// Make a slot for the state of a limit that has none, where a debt leaves one; whether there is one then.
    #[cold]
    fn put<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        limit: usize,
        settling: &Settling,
        now_us: i64,
    ) -> bool {
        let reset_after_us =
            settling.numbers.map(|numbers| transition::measure_numbers::<ANY>(&settling.limit, numbers, now_us).1);
        if settling.change <= 0 || reset_after_us == Some(0) {
            return false;
        }
        let registered = registered(settling.limit, settling.number, 0);
        let location = shares.transaction.locked.locations[limit];
        let key = crate::hash::KeyHash { shard: 0, tag: location.tag };
        let check = Check { limit: &registered, key, cost: 0, shadow: false };
        let locked = &mut shares.transaction.locked;
        let reserved = self.storage.reserve(&check, locked, limit, Need::default(), now_us);
        if reserved.is_err() {
            self.storage.count_passed();
            return false;
        }
        let shard = &mut locked.guards[location.guard];
        if shard.find(location.tag) == Place::Absent {
            shard.put_unsettled(location.tag, settling);
        }
        self.storage.settle(location.shard_number, shard);
        shares.transaction.find_again();
        true
    }
}
