//! Holds that are made: charged like a hit, and remembered. All limits of one are in the shards of its keys, and a share
//! of it in each.

use smallvec::SmallVec;

use crate::algorithms::leases::Lease;
use crate::algorithms::transition::Reading;
use crate::holding::Holds;
use crate::holding::record::{Amount, Content, HeldLimit, One, Part, Record, Share};
use crate::limit::Algorithm;
use crate::shard::backing::Backing;
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, OnFull, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::known_hold::reserve_known;
use crate::table::settling::{Conflict, HoldRequest, Reserved};
use crate::table::shares::{expand, find};
use crate::table::storage::{Full, LockedShards, Storage};
use crate::table::transaction::Transaction;

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

    /// Reserve room for one more part in each of the shards that are to have one.
    #[inline]
    pub(super) fn reserve_parts<'table>(
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

    /// Bring the count of holds in line with all shards.
    #[inline]
    pub(super) fn settle_parts<'table>(&'table self, locked: &mut LockedShards<S::Guard<'table>>) {
        for guard in &mut locked.guards {
            self.storage.settle_holds(guard);
        }
    }

    /// The answer where no more can be remembered: the written choice, and nothing is charged.
    #[cold]
    pub(super) fn refuse_hold(&self, checks: &[Check], transaction: &Transaction<'_, S>, full_us: i64, now_us: i64) -> Answer {
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

fn readings_of(readings: &[Reading]) -> Readings {
    if let [only] = *readings { Readings::One(only) } else { Readings::Many(readings.into()) }
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

/// Whether a limit counts places in flight.
pub(super) fn is_in_flight(check: &Check) -> bool {
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
