//! The short way of a hold: one limit of a key that is known, not a log; places in flight are in `known_places`.
//!
//! Where there is more to do, each function says so and changes nothing: then a transaction does it.

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

/// What is remembered of a hold of one limit. It cannot be asked for again by a name, so its answer is not.
#[inline(always)]
pub(super) fn one_of(check: &Check, key: u32, part: Part) -> One {
    One { part, key, actual: check.cost, answered: [0; 4], in_flight: false, shadow: check.shadow }
}

/// What a limit answers: measured, or to be measured when it is asked for, as that divides and few ask.
#[derive(Clone, Copy, Debug)]
pub enum Measured {
    /// It is measured.
    Now(Reading),
    /// These numbers of its state, which passed, at this moment.
    Later {
        /// The state.
        numbers: Numbers,
        /// The moment.
        now_us: i64,
        /// How long the request is to wait.
        delay_us: i64,
    },
}

impl Measured {
    /// The numbers of the limit that was asked.
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

/// What came of settling a hold of one limit: it was open.
#[derive(Clone, Copy, Debug)]
pub struct SettledOne {
    /// The units that count.
    pub actual: i64,
    /// What the limit has then; below 0 in debt.
    pub measured: Measured,
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
    let (change, refunded) = (actual - part.cost, refunds.saturating_sub(part.refunds));
    let (numbers, given) = all_steps::settle(limit, numbers, now_us, part.marked, change, refunded);
    if change > 0 && !transition::fits(limit, numbers) {
        return None;
    }
    shard.write_fields(index, numbers);
    shard.backing.holds_mut()?.settle_one(number, actual, given, now_us);
    Some(SettledOne { actual, measured: Measured::Later { numbers, now_us, delay_us: 0 } })
}
