//! The short way of a hold: one limit of a key that is known, not a log; places in flight are in `known_places`.
//!
//! Where there is more to do, each function says so and changes nothing: then a transaction does it.

use crate::algorithms::transition::{self, ANY, Reading};
use crate::holding::record::{Content, HoldId, One, Part, Record};
use crate::holding::store::{HeldKey, HoldStore};
use crate::limit::Algorithm;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::shard::{DamagedState, Place, Shard};
use crate::table::answer::Check;
use crate::table::settling::HoldRequest;
use crate::table::storage::Storage;

/// Whether states of this limit are numbers in a slot.
#[inline(always)]
fn is_of_numbers(limit: &Registered) -> bool {
    !matches!(limit.limit.algorithm, Algorithm::SlidingLog | Algorithm::Concurrent)
}

/// `Table::reserve_one` of a key that is known.
#[inline(always)]
pub fn reserve_known<S: Storage>(
    storage: &S,
    check: &Check,
    request: &HoldRequest<'_>,
    now_us: i64,
) -> Result<Option<Reading>, S::Error> {
    if !is_of_numbers(check.limit) {
        return Ok(None);
    }
    let limit = &check.limit.limit;
    let mut shard = storage.lock(storage.shard_of(check.key))?;
    let tag = check.tag();
    let Place::Found(index) = shard.find(tag) else {
        return Ok(None);
    };
    let Some(numbers) = shard.numbers(index, check.limit) else {
        return Ok(None);
    };
    if !storage.is_current(check.limit) {
        return Ok(None);
    }
    let numbers = transition::roll_numbers::<ANY>(limit, Some(numbers), now_us);
    let delay_us = transition::delay_us_numbers(limit, numbers, now_us, check.cost);
    if transition::admit_numbers::<ANY>(limit, numbers, now_us, check.cost) != 0 {
        return Ok(None);
    }
    if storage.reserve_hold(&mut shard, 1, now_us).is_err() {
        return Ok(None);
    }
    let numbers = transition::charge_numbers::<ANY>(limit, numbers, now_us, check.cost);
    if check.cost != 0 {
        shard.overwrite(index, tag, check.limit, numbers);
    }
    let (remaining, reset_after_us, next_after_us) = transition::measure_numbers::<ANY>(limit, numbers, now_us);
    let reading = Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us };
    if let Some(holds) = shard.backing.holds_mut() {
        let marked = transition::mark(limit, numbers, now_us);
        let part = Part { marked, refunds: 0, cost: check.cost, number: check.limit.number() };
        remember(holds, check, request, tag, part, &reading, now_us);
    }
    commit(&mut shard)?;
    Ok(Some(reading))
}

/// What was written counts, unless something that cannot be was met.
#[inline(always)]
pub(super) fn commit<B: Backing>(shard: &mut Shard<B>) -> Result<(), DamagedState> {
    let checked = shard.check_with_holds();
    if checked.is_ok() {
        shard.backing.commit();
    } else {
        shard.backing.roll_back();
    }
    checked
}

/// Remember a hold of one limit.
#[inline(always)]
fn remember(
    holds: &mut impl HoldStore,
    check: &Check,
    request: &HoldRequest<'_>,
    tag: u64,
    mut part: Part,
    reading: &Reading,
    now_us: i64,
) {
    let key = holds.key_or_new(tag, check.limit.salt);
    part.refunds = holds.key(key).map_or(0, |key| key.refunds);
    let until_us = now_us + request.lease_us;
    let Reading { remaining, reset_after_us, next_after_us, delay_us, .. } = *reading;
    let answered = [remaining, reset_after_us, next_after_us, delay_us];
    let one = One { part, key, actual: check.cost, answered, in_flight: false, shadow: check.shadow };
    holds.add(Record {
        id: request.id,
        until_us,
        forget_us: until_us + request.remember_us,
        content: Content::One(one),
        settled: request.at_once,
        at_once: request.at_once,
        passed: false,
    });
}

/// What came of settling a hold of one limit: it was open.
#[derive(Clone, Copy, Debug)]
pub struct SettledOne {
    /// The units that count.
    pub actual: i64,
    /// What remains; below 0 in debt.
    pub remaining: i64,
    /// Until the state is the same as none.
    pub reset_after_us: i64,
}

/// `Table::commit_one` of a limit whose states are numbers.
#[inline(always)]
pub fn settle_known<B: Backing>(
    shard: &mut Shard<B>,
    id: HoldId,
    actual: Option<i64>,
    asked: &Registered,
    now_us: i64,
) -> Option<SettledOne> {
    let number = shard.backing.holds_mut()?.find(id, now_us)?;
    let holds = shard.backing.holds()?;
    let (part, key) = holds.open_one(number)?;
    if part.number != asked.number() || !is_of_numbers(asked) {
        return None;
    }
    let HeldKey { tag, refunds, .. } = holds.key(key)?;
    let Place::Found(index) = shard.find(tag) else {
        return None;
    };
    let numbers = shard.numbers(index, asked)?;
    let actual = actual.unwrap_or(part.cost);
    let limit = &asked.limit;
    let numbers = transition::roll_numbers::<ANY>(limit, Some(numbers), now_us);
    let (change, refunded) = (actual - part.cost, refunds.saturating_sub(part.refunds));
    let (numbers, given) = transition::settle(limit, numbers, now_us, part.marked, change, refunded);
    if change > 0 && !transition::fits(limit, numbers) {
        return None;
    }
    shard.write_fields(index, numbers);
    shard.backing.holds_mut()?.settle_one(number, actual, given, now_us);
    let (remaining, reset_after_us, _) = transition::measure_numbers::<ANY>(limit, numbers, now_us);
    Some(SettledOne { actual, remaining, reset_after_us })
}
