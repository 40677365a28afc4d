//! The fast path of a hold of places in flight: one limit that counts them, alone.
//!
//! Where there is more to do, each function returns None and changes nothing: then a transaction does it.

use crate::algorithms::concurrent;
use crate::algorithms::leases::{Lease, LeaseRequest, Leases};
use crate::algorithms::transition::Reading;
use crate::holding::record::{HoldId, One};
use crate::holding::share::Part;
use crate::holding::store::{HoldStore, IdSource};
use crate::limit::Algorithm;
use crate::shard::Shard;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::table::answer::Check;
use crate::table::known_hold::{Measured, SettledOne, commit, one_of};
use crate::table::settling::HoldTimes;
use crate::table::storage::Storage;

/// Whether a limit counts places in flight.
#[inline(always)]
pub fn is_of_places(limit: &Registered) -> bool {
    limit.limit.algorithm == Algorithm::Concurrent
}

/// `Table::reserve_one` for places that are free.
#[inline(never)]
pub fn reserve_places<S: Storage>(
    storage: &S,
    check: &Check,
    times: HoldTimes,
    ids: &impl IdSource,
    now_us: i64,
) -> Result<Option<(HoldId, Measured)>, S::Error> {
    let (tag, until_us) = (check.tag(), now_us + times.lease_us);
    let mut shard = storage.lock(storage.shard_of(check.key))?;
    if !storage.is_current(check.limit) {
        return Ok(None);
    }
    let Some(holds) = shard.backing.holds() else {
        return Ok(None);
    };
    let known = holds.key_number(tag);
    let Some(reading) = taken(known.and_then(|key| holds.leases_of(key)), check, until_us, now_us) else {
        return Ok(None);
    };
    shard.check_with_holds()?;
    if storage.reserve_one_hold(&mut shard, now_us).is_err() {
        return Ok(None);
    }
    let Some(holds) = shard.backing.holds_mut() else {
        return Ok(None);
    };
    let key = holds.key_or_new(tag, check.limit.salt);
    let refunds = holds.key(key).map_or(0, |key| key.refunds);
    let part = Part { marked: [0, 0], refunds, cost: check.cost, number: check.limit.number() };
    let in_flight = check.cost > 0;
    let one = One { in_flight, ..one_of(check, key, part) };
    let (number, id) = holds.add_one(times.from(now_us), one, ids);
    if in_flight {
        holds.move_places(key, None, Some(Lease { until: until_us, number: u64::from(number), places: check.cost }));
    }
    commit(&mut *shard)?;
    if in_flight && let Some(holds) = shard.backing.holds_mut() {
        holds.drop_over(key, now_us);
    }
    Ok(Some((id, Measured::Now(reading))))
}

/// The reading after a check's places are taken until `until_us`; None where they are not free.
#[inline(always)]
fn taken(leases: Option<impl Leases>, check: &Check, until_us: i64, now_us: i64) -> Option<Reading> {
    let limit = &check.limit.limit;
    let state = concurrent::roll(limit, LeaseRequest { leases, until: Some(until_us) }, now_us);
    if concurrent::admit(limit, &state, now_us, check.cost) != Some(0) {
        return None;
    }
    let state = concurrent::charge(limit, state, now_us, check.cost);
    let (remaining, reset_after_us, next_after_us) = concurrent::measure(limit, &state, now_us);
    Some(Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us: 0 })
}

/// Settle an open hold of places alone, which was never extended: its places become free, and nothing else changes.
#[inline(never)]
pub fn settle_places<B: Backing>(
    shard: &mut Shard<B>,
    id: HoldId,
    actual: Option<i64>,
    caller_limit: &Registered,
    now_us: i64,
) -> Option<SettledOne> {
    let holds = shard.backing.holds_mut()?;
    let number = holds.find(id, now_us)?;
    let (part, key) = holds.open_one(number)?;
    if part.number != caller_limit.number() {
        return None;
    }
    let actual = actual.unwrap_or(part.cost);
    holds.free_one(number, actual, now_us);
    let limit = &caller_limit.limit;
    let state = concurrent::roll(limit, LeaseRequest { leases: holds.leases_of(key), until: None }, now_us);
    let (remaining, reset_after_us, next_after_us) = concurrent::measure(limit, &state, now_us);
    let reading = Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us: 0 };
    Some(SettledOne { actual, measured: Measured::Now(reading) })
}
