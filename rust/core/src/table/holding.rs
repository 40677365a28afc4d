//! Holds: charged now, settled later. All limits of one are in the shards of its keys, and a share of it in each.

use smallvec::SmallVec;

use crate::algorithms::concurrent;
use crate::algorithms::leases::{AskedLeases, Lease};
use crate::algorithms::transition::{self, ANY, Reading, measured_us};
use crate::holding::record::{Amount, Content, HeldLimit, HoldId, One, Part, Record, Share};
use crate::holding::{Holds, KeyHolds};
use crate::limit::{Algorithm, Limit};
use crate::shard::Place;
use crate::shard::backing::Backing;
use crate::shard::registered::{Definition, Limits, Registered};
use crate::shard::settling::Settling;
use crate::shard::states::Need;
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, OnFull, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::known_hold::{SettledOne, commit_known, reserve_known};
use crate::table::settling::{
    After, Asked, Conflict, Extension, HoldRequest, Misuse, Outcome, Reserved, Settlement, Standing,
};
use crate::table::storage::{Full, Location, LockedShards, Storage};
use crate::table::transaction::Transaction;

/// The shares of a hold, locked, and where the states of its limits are: a location for each, in their order.
struct Shares<'table, S: Storage + 'table> {
    transaction: Transaction<'table, S>,
    /// The guard and the number of each share; that with the amounts comes first.
    records: SmallVec<[(usize, u32); 2]>,
    /// Of each limit its share, and which of the limits there it is.
    limits: SmallVec<[(usize, usize); 2]>,
}

impl<'table, S: Storage> Shares<'table, S> {
    fn record(&self, share: usize) -> Option<(&Record, &Share)> {
        let (guard, number) = self.records[share];
        let record = self.transaction.locked.guards[guard].backing.holds()?.get(number)?;
        Some((record, record.share()?))
    }

    fn record_mut(&mut self, share: usize) -> Option<&mut Record> {
        let (guard, number) = self.records[share];
        self.transaction.locked.guards[guard].backing.holds_mut()?.get_mut(number)
    }

    /// One of its limits, and what is kept of that on its key.
    #[inline]
    fn held(&self, limit: usize) -> Option<(&HeldLimit, &KeyHolds)> {
        let (share, index) = self.limits[limit];
        let (guard, number) = self.records[share];
        let holds = self.transaction.locked.guards[guard].backing.holds()?;
        let held = &holds.get(number)?.share()?.limits[index];
        Some((held, holds.key(held.key)?))
    }

    fn holds_mut(&mut self, limit: usize) -> Option<(&mut Holds, u32, usize)> {
        let (share, index) = self.limits[limit];
        let (guard, number) = self.records[share];
        Some((self.transaction.locked.guards[guard].backing.holds_mut()?, number, index))
    }

    /// Take the places of a limit, and let others be in use instead.
    fn change_lease(&mut self, limit: usize, lease: Option<Lease>, now_us: i64) {
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
    /// Decide like `apply`, charge, and remember what was charged.
    pub fn reserve(
        &self,
        checks: &[Check],
        request: &HoldRequest<'_>,
        now_us: i64,
        mode: Mode,
    ) -> Result<Reserved, S::Error> {
        if let [check] = checks
            && let Some(answer) = reserve_known(&self.storage, check, request, now_us, mode)?
        {
            return Ok(Reserved::Decided(answer));
        }
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        let first = request.groups.iter().position(|group| *group == 0).unwrap_or(0);
        let home = transaction.locked.locations[first].guard;
        if let Some(holds) = transaction.locked.guards[home].backing.holds_mut()
            && let Some(number) = holds.find(request.id, now_us)
        {
            return Ok(repeat(&mut transaction.locked, (home, number), checks, request, now_us));
        }
        if let Err(Full { soonest_us }) = self.reserve_parts(&mut transaction.locked, |_| true, now_us) {
            let answer = self.refuse_hold(checks, &transaction, soonest_us, now_us);
            self.settle_parts(&mut transaction.locked);
            return Ok(Reserved::Decided(answer));
        }
        let mut judgement = Judgement::new();
        judgement.until_us = Some(now_us + request.lease_us);
        let decided = self.decide::<true>(checks, &mut transaction, &mut judgement, now_us, mode);
        if let Ok(answer) = &decided
            && answer.allowed
        {
            remember(&mut transaction.locked, checks, &judgement, request, answer, home, now_us);
        }
        self.settle_parts(&mut transaction.locked);
        decided.map(Reserved::Decided)
    }

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

    /// Let a lease end `lease_us` from now, never sooner than it did, and hold more: an amount for each group, or one
    /// for all.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<Result<Extension, Misuse>, S::Error> {
        let unknown = Extension { outcome: Outcome::Unknown, after: After::new(), answer: None };
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            return Ok(Ok(unknown));
        };
        let Some((record, share)) = shares.record(0) else {
            return Ok(Ok(unknown));
        };
        let groups = share.amounts.len();
        let (mut outcome, mut answer) = (Outcome::AlreadySettled, None);
        if !record.settled && record.until_us <= now_us {
            outcome = Outcome::Lapsed;
        } else if !record.settled {
            let more: SmallVec<[i64; 2]> = match more {
                [one] => SmallVec::from_elem(*one, groups),
                more if more.len() == groups => more.into(),
                _ => return Ok(Err(Misuse::Amounts(groups))),
            };
            let until_us = record.until_us.max(now_us + lease_us);
            let (decided, is_same) = self.extend_hold(&mut shares, until_us, &more, asked, now_us)?;
            outcome = if decided.allowed { Outcome::Extended } else { Outcome::Refused };
            answer = Some(decided).filter(|_| is_same);
        }
        let after = self.after(&shares, asked, now_us);
        shares.transaction.check()?;
        Ok(Ok(Extension { outcome, after, answer }))
    }

    /// Lock the shares of a hold; None where it is not remembered.
    #[inline]
    fn lock_shares(&self, id: HoldId, shard_number: usize, now_us: i64) -> Result<Option<Shares<'_, S>>, S::Error> {
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
    fn own_limit(&self, number: u32, asked: &Asked<'_>) -> Option<Limit> {
        match asked.iter().find(|limit| limit.number() == number) {
            Some(limit) => Some(limit.limit),
            None => self.storage.limits().of(number),
        }
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

    /// Decide about more of a hold, and remember it with a lease until `until_us`; whether the limits asked are its own.
    fn extend_hold<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        until_us: i64,
        more: &[i64],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> Result<(Answer, bool), S::Error> {
        let count = shares.limits.len();
        let salt = |limit: usize| shares.held(limit).map(|(_, key)| key.salt);
        let is_same = asked.len() == count && (0..count).all(|limit| salt(limit) == Some(asked[limit].salt));
        let mut own: SmallVec<[Registered; 2]> = SmallVec::new();
        for limit in 0..if is_same { 0 } else { count } {
            let held = shares.held(limit);
            let number = held.and_then(|(held, _)| Some(held.parts.last()?.number)).unwrap_or(0);
            if let Some(limits) = self.own_limit(number, asked) {
                own.push(registered(limits, number, held.map_or(0, |(_, key)| key.salt)));
            }
        }
        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        for limit in 0..count {
            let Some((held, key)) = shares.held(limit) else {
                continue;
            };
            let cost = if held.parts.is_empty() { 0 } else { more[usize::from(held.group)] };
            let limit: &Registered = if is_same { asked[limit] } else { &own[limit] };
            let key = crate::hash::KeyHash { shard: 0, tag: key.tag ^ key.salt };
            checks.push(Check { limit, key, cost, shadow: held.shadow });
        }
        let guard_of = |shares: &Shares<'table, S>, limit: usize| shares.transaction.locked.locations[limit].guard;
        let growing: SmallVec<[usize; 4]> =
            (0..count).filter(|limit| checks[*limit].cost > 0).map(|limit| guard_of(shares, limit)).collect();
        let room = self.reserve_parts(&mut shares.transaction.locked, |guard| growing.contains(&guard), now_us);
        if let Err(Full { soonest_us }) = room {
            let answer = self.refuse_hold(&checks, &shares.transaction, soonest_us, now_us);
            self.settle_parts(&mut shares.transaction.locked);
            return Ok((answer, is_same));
        }
        let mut judgement = Judgement::new();
        judgement.until_us = Some(until_us);
        let mode = Mode { commit: true, max_delay_us: None };
        let decided = self.decide::<true>(&checks, &mut shares.transaction, &mut judgement, now_us, mode);
        shares.transaction.find_again();
        if let Ok(answer) = &decided
            && answer.allowed
        {
            for share in 0..shares.records.len() {
                let (guard, number) = shares.records[share];
                if let Some(record) = shares.record_mut(share) {
                    record.move_end(until_us);
                }
                if let Some(share) = shares.record_mut(share).and_then(Record::share_mut) {
                    share.amounts.iter_mut().zip(more).for_each(|(amount, more)| amount.held += more);
                }
                if growing.contains(&guard)
                    && let Some(holds) = shares.transaction.locked.guards[guard].backing.holds_mut()
                {
                    holds.grow(number);
                }
            }
            for (limit, check) in checks.iter().enumerate() {
                extend_limit(shares, limit, check, &judgement, until_us, now_us);
            }
        }
        self.settle_parts(&mut shares.transaction.locked);
        decided.map(|answer| (answer, is_same))
    }

    /// What the limits that are asked have now, of those of the hold.
    #[inline]
    fn after(&self, shares: &Shares<'_, S>, asked: &Asked<'_>, now_us: i64) -> After {
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

    /// Reserve room for one more part in each of the shards that are to have one.
    #[inline]
    fn reserve_parts<'table>(
        &'table self,
        locked: &mut LockedShards<S::Guard<'table>>,
        has_one: impl Fn(usize) -> bool,
        now_us: i64,
    ) -> Result<(), Full> {
        for (number, guard) in locked.guards.iter_mut().enumerate() {
            if has_one(number) {
                self.storage.reserve_hold(guard, now_us)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn settle_parts<'table>(&'table self, locked: &mut LockedShards<S::Guard<'table>>) {
        for guard in &mut locked.guards {
            self.storage.settle_holds(guard);
        }
    }

    /// The answer where no more can be remembered: the written choice, and nothing is charged.
    #[cold]
    fn refuse_hold(&self, checks: &[Check], transaction: &Transaction<'_, S>, full_us: i64, now_us: i64) -> Answer {
        let passes = self.storage.on_full() == OnFull::Pass;
        if passes {
            self.storage.count_passed();
        } else {
            self.storage.count_refused();
        }
        let free: SmallVec<[Check<'_>; 4]> = checks.iter().map(|check| Check { cost: 0, ..*check }).collect();
        let mut judgement = Judgement::new();
        judgement.judge::<S, true>(&free, transaction, now_us, Mode { commit: false, max_delay_us: None }, None);
        let passing = |check: &Check| passes || check.shadow;
        let readings: SmallVec<[Reading; 4]> = checks
            .iter()
            .zip(&judgement.readings)
            .map(|(check, reading)| Reading { retry_after_us: if passing(check) { 0 } else { full_us }, ..*reading })
            .collect();
        let allowed = checks.iter().all(passing);
        let full = Some(if allowed { OnFull::Pass } else { OnFull::Refuse });
        Answer { allowed, full, binding: binding_of(checks, &readings, allowed), readings: readings_of(&readings) }
    }
}

/// Tell a hold of one limit as one of many.
fn expand<B: Backing>(shard: &mut crate::shard::Shard<B>, number: u32) {
    if let Some(record) = shard.backing.holds_mut().and_then(|holds| holds.get_mut(number)) {
        record.expand(number);
    }
}

/// The number of the hold of this id in a shard, if it is remembered.
#[inline]
fn find<B: Backing>(shard: &mut crate::shard::Shard<B>, id: HoldId, now_us: i64) -> Option<u32> {
    shard.backing.holds_mut()?.find(id, now_us)
}

fn readings_of(readings: &[Reading]) -> Readings {
    if let [only] = *readings { Readings::One(only) } else { Readings::Many(readings.into()) }
}

/// A limit by its number, as if it were bound.
fn registered(limit: Limit, number: u32, salt: u64) -> Registered {
    Registered::new(Definition { scope: "", text: "", limit }, salt, u64::from(number))
}

/// Remember what was just charged: a share in each shard.
#[inline]
fn remember<G, B>(
    locked: &mut LockedShards<G>,
    checks: &[Check],
    judgement: &Judgement,
    request: &HoldRequest<'_>,
    answer: &Answer,
    home: usize,
    now_us: i64,
) where
    G: std::ops::DerefMut<Target = crate::shard::Shard<B>>,
    B: Backing,
{
    for guard in 0..locked.guards.len() {
        let Some(holds) = locked.guards[guard].backing.holds_mut() else {
            continue;
        };
        let mut share = Share { weight: 1, limits_of_all: checks.len() as u16, ..Share::default() };
        if guard == home {
            let amount = |cost: &i64| Amount { cost: *cost, held: *cost, actual: *cost };
            share.amounts = request.costs.iter().map(amount).collect();
            for location in &locked.locations {
                let other = location.shard_number as u16;
                if location.guard != home && !share.others.contains(&other) {
                    share.others.push(other);
                }
            }
        }
        for (index, check) in checks.iter().enumerate().filter(|(index, _)| locked.locations[*index].guard == guard) {
            let reading = judgement.readings[index];
            let key = holds.key_or_new(locked.locations[index].tag, check.limit.salt);
            let refunds = holds.key(key).map_or(0, |key| key.refunds);
            let counted = is_in_flight(check) || check.cost == 0 || judgement.kept[index].is_some();
            let (marked, number) = (judgement.marks[index], check.limit.number());
            let part = Part { marked, refunds, cost: check.cost, number };
            let parts = if reading.allowed() && counted { SmallVec::from_buf([part]) } else { SmallVec::new() };
            let (index, group) = (index as u16, request.groups[index]);
            share.limits.push(HeldLimit { parts, key, index, group, shadow: check.shadow, lease: None, reading });
        }
        let content = match (&share.limits[..], &share.amounts[..]) {
            ([held], [amount]) if !held.parts.is_empty() && share.limits_of_all == 1 => {
                let Reading { remaining, reset_after_us, next_after_us, delay_us, .. } = held.reading;
                Content::One(One {
                    part: held.parts[0],
                    key: held.key,
                    actual: amount.actual,
                    answered: [remaining, reset_after_us, next_after_us, delay_us],
                    in_flight: is_in_flight(&checks[0]) && held.parts[0].cost > 0,
                    shadow: held.shadow,
                })
            }
            _ => Content::Many(Box::new(share)),
        };
        let until_us = now_us + request.lease_us;
        let number = holds.add(Record {
            id: request.id,
            until_us,
            forget_us: until_us + request.remember_us,
            content,
            settled: request.at_once,
            at_once: request.at_once,
            passed: answer.full == Some(OnFull::Pass),
        });
        take_places(holds, number, checks, until_us, now_us);
    }
}

fn is_in_flight(check: &Check) -> bool {
    check.limit.limit.algorithm == Algorithm::Concurrent
}

/// Let the places of a hold be in use that was just added.
fn take_places(holds: &mut Holds, number: u32, checks: &[Check], until_us: i64, now_us: i64) {
    if !checks.iter().any(is_in_flight) {
        return;
    }
    let mut leases: SmallVec<[(u32, Lease); 2]> = SmallVec::new();
    let lease = |places: i64| Lease { until: until_us, number: u64::from(number), places };
    match holds.get_mut(number).map(|record| &mut record.content) {
        Some(Content::One(one)) if one.in_flight => leases.push((one.key, lease(one.part.cost))),
        Some(Content::Many(share)) => {
            for held in share.limits.iter_mut().filter(|held| is_in_flight(&checks[usize::from(held.index)])) {
                held.lease = Some(lease(held.cost())).filter(|lease| lease.places > 0);
                leases.extend(held.lease.map(|lease| (held.key, lease)));
            }
        }
        _ => {}
    }
    for (key, lease) in leases {
        if let Some(key) = holds.key_mut(key) {
            key.leases.drop_over(now_us);
            key.leases.add(lease);
        }
    }
}

/// Remember what was just charged on top of a hold, and let its places be in use until `until_us`.
fn extend_limit<S: Storage>(
    shares: &mut Shares<'_, S>,
    limit: usize,
    check: &Check,
    judgement: &Judgement,
    until_us: i64,
    now_us: i64,
) {
    let reading = judgement.readings[limit];
    let Some((holds, number, index)) = shares.holds_mut(limit) else {
        return;
    };
    let key = holds.get(number).and_then(|record| Some(record.share()?.limits[index].key));
    let refunds = key.and_then(|key| holds.key(key)).map_or(0, |key| key.refunds);
    let Some(held) = holds.get_mut(number).and_then(Record::share_mut).map(|share| &mut share.limits[index]) else {
        return;
    };
    if check.cost > 0 && reading.allowed() && (is_in_flight(check) || judgement.kept[limit].is_some()) {
        let part = Part { marked: judgement.marks[limit], refunds, cost: check.cost, number: check.limit.number() };
        held.parts.push(part);
    }
    let places = held.cost();
    if is_in_flight(check) && places > 0 {
        let lease = Lease { until: until_us, number: u64::from(number), places };
        shares.change_lease(limit, Some(lease), now_us);
    }
}

/// What is answered where a hold was made before: the same again, or a conflict with it.
#[cold]
fn repeat<G, B>(
    locked: &mut LockedShards<G>,
    (home, number): (usize, u32),
    checks: &[Check],
    request: &HoldRequest<'_>,
    now_us: i64,
) -> Reserved
where
    G: std::ops::DerefMut<Target = crate::shard::Shard<B>>,
    B: Backing,
{
    let shares: SmallVec<[(usize, u32); 2]> = (0..locked.guards.len())
        .filter_map(|guard| Some((guard, find(&mut locked.guards[guard], request.id, now_us)?)))
        .collect();
    for (guard, number) in &shares {
        expand(&mut locked.guards[*guard], *number);
    }
    let record = |guard: usize, number: u32| {
        let record = locked.guards[guard].backing.holds()?.get(number)?;
        Some((record, record.share()?))
    };
    let Some((first, share)) = record(home, number) else {
        return Reserved::Conflict(Conflict::Keys);
    };
    if first.at_once != request.at_once {
        return Reserved::Conflict(Conflict::Kind { former_is_hit: first.at_once });
    }
    let costs: SmallVec<[i64; 2]> = share.amounts.iter().map(|amount| amount.cost).collect();
    if costs[..] != *request.costs {
        return Reserved::Conflict(Conflict::Costs(costs));
    }
    if checks.len() != usize::from(share.limits_of_all) {
        return Reserved::Conflict(Conflict::Limits);
    }
    let mut readings: SmallVec<[Option<Reading>; 4]> = SmallVec::from_elem(None, checks.len());
    for (guard, number) in shares {
        let Some(holds) = locked.guards[guard].backing.holds() else {
            continue;
        };
        for held in holds.get(number).and_then(Record::share).iter().flat_map(|share| &share.limits) {
            let (index, key) = (usize::from(held.index), holds.key(held.key));
            if key.map(|key| key.salt) != Some(checks[index].limit.salt) {
                return Reserved::Conflict(Conflict::Limits);
            }
            if key.map(|key| key.tag) == Some(locked.locations[index].tag) {
                readings[index] = Some(held.reading);
            }
        }
    }
    let all: Option<SmallVec<[Reading; 4]>> = readings.into_iter().collect();
    let Some(readings) = all else {
        return Reserved::Conflict(Conflict::Keys);
    };
    let binding = binding_of(checks, &readings, true);
    let full = first.passed.then_some(OnFull::Pass);
    Reserved::Repeated(Answer { allowed: true, full, binding, readings: readings_of(&readings) })
}
