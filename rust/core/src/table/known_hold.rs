//! The fast path of a hold: one limit of a known key, not a log; places in flight are in `known_places`.
//!
//! Where there is more to do, each function returns None and changes nothing: then a transaction does it.

use crate::algorithms::all_steps;
use crate::algorithms::transition::{self, ANY, Numbers, Reading};
use crate::holding::record::{HoldId, One};
use crate::holding::share::Part;
use crate::holding::store::{HeldKey, HoldStore, IdSource};
use crate::limit::{Algorithm, Limit};
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::shard::{DamagedState, Place, Shard};
use crate::table::answer::Check;
use crate::table::settling::HoldTimes;
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
    times: HoldTimes,
    ids: &impl IdSource,
    now_us: i64,
) -> Result<Option<(HoldId, Measured)>, S::Error> {
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
    let Some((numbers, marked, delay_us)) = all_steps::reserve(limit, numbers, now_us, check.cost) else {
        return Ok(None);
    };
    if storage.reserve_one_hold(&mut shard, now_us).is_err() {
        return Ok(None);
    }
    if check.cost != 0 {
        shard.overwrite(index, tag, check.limit, numbers);
    }
    let Some(holds) = shard.backing.holds_mut() else {
        return Ok(None);
    };
    let key = holds.key_or_new(tag, check.limit.salt);
    let refunds = holds.key(key).map_or(0, |key| key.refunds);
    let part = Part { marked, refunds, cost: check.cost, number: check.limit.number() };
    let (_, id) = holds.add_one(times.from(now_us), one_of(check, key, part), ids);
    commit(&mut shard)?;
    Ok(Some((id, Measured::Later { numbers, now_us, delay_us })))
}

/// Commit what was written, or roll it back where an impossible value was read.
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

/// The record of an unnamed hold of one limit. Its request cannot be repeated by name, so the answer is not recorded.
#[inline(always)]
pub(super) fn one_of(check: &Check, key: u32, part: Part) -> One {
    One { part, key, actual: check.cost, answered: [0; 4], in_flight: false, shadow: check.shadow }
}

/// What a limit answers: measured, or measured on demand, as that takes divisions and is rarely needed.
#[derive(Clone, Copy, Debug)]
pub enum Measured {
    /// The measured reading.
    Now(Reading),
    /// What the reading is computed from, after the request passed.
    Later {
        /// The numbers of the state.
        numbers: Numbers,
        /// The moment of the decision.
        now_us: i64,
        /// How long the request is to wait.
        delay_us: i64,
    },
}

impl Measured {
    /// The reading of `limit`, which must be the one that was decided on.
    pub fn reading(&self, limit: &Limit) -> Reading {
        match *self {
            Self::Now(reading) => reading,
            Self::Later { numbers, now_us, delay_us } => {
                let (remaining, reset_after_us, next_after_us) =
                    transition::measure_numbers::<ANY>(limit, numbers, now_us);
                Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us }
            }
        }
    }
}

/// The result of settling an open hold of one limit.
#[derive(Clone, Copy, Debug)]
pub struct SettledOne {
    /// The units that count.
    pub actual: i64,
    /// What the limit has afterwards; negative in debt.
    pub measured: Measured,
}

/// `Table::commit_one` of a limit whose states are numbers.
#[inline(always)]
pub fn settle_known<B: Backing>(
    shard: &mut Shard<B>,
    id: HoldId,
    actual: Option<i64>,
    caller_limit: &Registered,
    now_us: i64,
) -> Option<SettledOne> {
    let number = shard.backing.holds_mut()?.find(id, now_us)?;
    let holds = shard.backing.holds()?;
    let (part, key) = holds.open_one(number)?;
    if part.number != caller_limit.number() || !is_of_numbers(caller_limit) {
        return None;
    }
    let HeldKey { tag, refunds, .. } = holds.key(key)?;
    let Place::Found(index) = shard.find(tag) else {
        return None;
    };
    let numbers = shard.numbers(index, caller_limit)?;
    let actual = actual.unwrap_or(part.cost);
    let limit = &caller_limit.limit;
    let (change, refunded) = (actual - part.cost, refunds.saturating_sub(part.refunds));
    let (numbers, given) = all_steps::settle(limit, numbers, now_us, part.marked, change, refunded);
    if change > 0 && !transition::fits(limit, numbers) {
        return None;
    }
    shard.write_fields(index, numbers);
    shard.backing.holds_mut()?.settle_one(number, actual, given, now_us);
    Some(SettledOne { actual, measured: Measured::Later { numbers, now_us, delay_us: 0 } })
}
