//! Extending holds: a later end of the lease, and further units held. All of it takes effect, or nothing.

use std::ops::DerefMut;

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::algorithms::transition::{NEVER, Reading};
use crate::holding::record::HoldId;
use crate::holding::share::Part;
use crate::holding::store::HoldStore;
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::shard::Shard;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, binding_of};
use crate::table::judgement::Judgement;
use crate::table::reserving::{check_all, drop_over, readings_of};
use crate::table::settling::{CallerLimits, Extension, Misuse, Outcome, Standings};
use crate::table::shares::{LoadedLimit, LoadedShare, Shares, registered};
use crate::table::storage::{Full, Location, LockedShards, Storage};

impl<S: Storage> Table<S> {
    /// Let a lease end `lease_us` from now, never sooner than it did, and hold more: an amount for each group, or one
    /// for all.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Result<Result<Extension, Misuse>, S::Error> {
        let unknown = Extension { outcome: Outcome::Unknown, after: Standings::new(), answer: None };
        let Some(mut shares) = self.lock_shares(id, shard_number, now_us)? else {
            return Ok(Ok(unknown));
        };
        let (record, groups) = (&shares.loaded[0].record, shares.amounts().len());
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
            let (decided, is_same) = self.extend_hold(&mut shares, until_us, &more, caller_limits, now_us)?;
            outcome = if decided.allowed { Outcome::Extended } else { Outcome::Refused };
            answer = Some(decided).filter(|_| is_same);
        }
        let after = self.standings(&shares.transaction, &shares.own_limits(caller_limits), caller_limits, now_us);
        shares.transaction.check_with_holds()?;
        Ok(Ok(Extension { outcome, after, answer }))
    }

    /// Decide about the further units of a hold, and record them with a lease until `until_us`; returns the answer, and
    /// whether the caller's limits are exactly the hold's.
    ///
    /// Where the caller's limits contain all of the hold's, their current numbers apply; else those of its making.
    fn extend_hold<'table>(
        &'table self,
        shares: &mut Shares<'table, S>,
        until_us: i64,
        more: &[i64],
        caller_limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> Result<(Answer, bool), S::Error> {
        let count = shares.limits.len();
        let mut places: SmallVec<[usize; 2]> = SmallVec::from_elem(usize::MAX, count);
        for (number, limit) in shares.own_limits(caller_limits) {
            places[limit] = number;
        }
        let knows_all = places.iter().all(|place| *place < caller_limits.len());
        let is_same = knows_all && caller_limits.len() == count;
        let mut own: SmallVec<[Option<Registered>; 2]> = SmallVec::new();
        for limit in 0..if knows_all { 0 } else { count } {
            let held = shares.held(limit);
            let Location { guard, place, .. } = shares.transaction.locked.locations[limit];
            // A state that the hold does not charge stays in its numbers.
            let charged = held.and_then(|(held, _)| Some(held.parts.first()?.number));
            let number = charged.or_else(|| shares.transaction.locked.guards[guard].number_at(place));
            let limits = match number {
                Some(number) => self.own_limit(number, caller_limits, limit),
                None => numbers_of_uncharged(),
            };
            let salt = held.map_or(0, |(_, key)| key.salt);
            own.push(limits.map(|limits| registered(limits, number.unwrap_or(0), salt)));
        }
        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        for limit in 0..count {
            let Some((held, key)) = shares.held(limit) else {
                continue;
            };
            let cost = if held.parts.is_empty() { 0 } else { more.get(usize::from(held.group)).copied().unwrap_or(0) };
            let Some(limit) = (if knows_all { Some(caller_limits[places[limit]]) } else { own[limit].as_ref() }) else {
                continue;
            };
            let key = crate::hash::KeyHash { shard: 0, tag: key.tag ^ key.salt };
            checks.push(Check { limit, key, cost, shadow: held.shadow });
        }
        let guard_of = |shares: &Shares<'table, S>, limit: usize| shares.transaction.locked.locations[limit].guard;
        let growing: SmallVec<[usize; 4]> =
            (0..checks.len()).filter(|limit| checks[*limit].cost > 0).map(|limit| guard_of(shares, limit)).collect();
        let parts = |limit: usize| shares.held(limit).map_or(0, |(held, _)| held.parts.len());
        let is_long = |limit: usize| {
            let check = &checks[limit];
            check.cost > 0
                && check.limit.limit.algorithm == Algorithm::SlidingLog
                && parts(limit) >= S::MOST_PARTS_OF_LOG
        };
        let room = if checks.len() < count || (0..count).any(is_long) {
            Err(Full { soonest_us: NEVER })
        } else {
            let limits = (0..count).map(|limit| 1 + parts(limit) / 4).sum();
            self.reserve_parts(&mut shares.transaction.locked, |guard| growing.contains(&guard), limits, now_us)
        };
        if let Err(Full { soonest_us }) = room {
            let answer = self.refuse_hold(&checks, &shares.transaction, soonest_us, now_us);
            self.settle_parts(&mut shares.transaction.locked);
            return Ok((if is_same { in_order_of(answer, &checks, &places) } else { answer }, is_same));
        }
        let mut judgement = Judgement::new();
        judgement.until_us = Some(until_us);
        let mode = Mode { commit: true, max_delay_us: None };
        let Shares { transaction, loaded, limits } = shares;
        let decided =
            self.decide::<true>(&checks, transaction, &mut judgement, now_us, mode, |locked, judgement, _| {
                for (limit, check) in checks.iter().enumerate() {
                    let LoadedLimit { share, index, .. } = limits[limit];
                    extend_limit(locked, &mut loaded[share], index, (check, until_us), judgement, limit);
                }
                for share in loaded.iter_mut() {
                    extend_share(locked, share, until_us, more, growing.contains(&share.guard));
                }
                check_all(&locked.guards)
            });
        transaction.find_again();
        drop_over(&mut transaction.locked, &checks, &decided, now_us);
        self.settle_parts(&mut shares.transaction.locked);
        decided.map(|answer| (if is_same { in_order_of(answer, &checks, &places) } else { answer }, is_same))
    }
}

/// Numbers for a limit that a hold does not charge and that has no state: they admit a cost of 0.
fn numbers_of_uncharged() -> Option<Limit> {
    Limit::new(Algorithm::Concurrent, 1, LARGEST, 1, 0).ok()
}

/// An answer in the order of the caller's limits; `places` has the index of each check among them.
fn in_order_of(answer: Answer, checks: &[Check], places: &[usize]) -> Answer {
    if places.iter().enumerate().all(|(limit, place)| limit == *place) {
        return answer;
    }
    let mut order: SmallVec<[(usize, usize); 4]> = places.iter().enumerate().map(|(at, place)| (*place, at)).collect();
    order.sort_unstable();
    let checks: SmallVec<[Check<'_>; 4]> = order.iter().map(|(_, at)| checks[*at]).collect();
    let all = answer.readings.all();
    let readings: SmallVec<[Reading; 4]> = order.iter().map(|(_, at)| all[*at]).collect();
    Answer { binding: binding_of(&checks, &readings, answer.allowed), readings: readings_of(&readings), ..answer }
}

/// Record what was just charged on top of a hold, and keep its places in use until the lease's end.
fn extend_limit<G, B>(
    locked: &mut LockedShards<G>,
    share: &mut LoadedShare,
    index: usize,
    (check, until_us): (&Check, i64),
    judgement: &Judgement,
    limit: usize,
) where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    let former = share.lease(index);
    let (Some(holds), Some(own)) = (locked.guards[share.guard].backing.holds_mut(), share.record.share_mut()) else {
        return;
    };
    let held = &mut own.limits[index];
    if check.cost > 0
        && judgement.readings[limit].allowed()
        && (check.is_in_flight() || judgement.updates[limit].is_some())
    {
        let refunds = holds.key(held.key).map_or(0, |key| key.refunds);
        let (marked, number) = (judgement.marks[limit], check.limit.number());
        held.parts.push(Part { marked, refunds, cost: check.cost, number });
    }
    held.in_flight = check.is_in_flight() && held.cost() > 0;
    let lease = Lease { until: until_us, number: u64::from(share.number), places: held.cost() };
    holds.move_places(held.key, former, held.in_flight.then_some(lease));
}

/// Write a share of a hold that was extended.
fn extend_share<G, B>(
    locked: &mut LockedShards<G>,
    share: &mut LoadedShare,
    until_us: i64,
    more: &[i64],
    has_more: bool,
) where
    G: DerefMut<Target = Shard<B>>,
    B: Backing,
{
    share.record.move_end(until_us);
    if let Some(own) = share.record.share_mut() {
        own.amounts.iter_mut().zip(more).for_each(|(amount, more)| amount.held = amount.held.saturating_add(*more));
        own.weight += u32::from(has_more);
    }
    if let Some(holds) = locked.guards[share.guard].backing.holds_mut() {
        holds.change(share.number, share.record.clone());
    }
}
