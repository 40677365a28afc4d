//! The short way of a hold of places in flight: one limit that counts them, alone.
//!
//! Where there is more to do, each function says so and changes nothing: then a transaction does it.

use crate::algorithms::concurrent;
use crate::algorithms::leases::{AskedLeases, Lease};
use crate::algorithms::transition::{Reading, measured_us, wait_us};
use crate::holding::record::{Content, HoldId, One, Part, Record};
use crate::holding::store::HoldStore;
use crate::limit::Algorithm;
use crate::shard::Shard;
use crate::shard::backing::Backing;
use crate::shard::registered::Registered;
use crate::table::answer::Check;
use crate::table::known_hold::{SettledOne, commit};
use crate::table::settling::HoldRequest;
use crate::table::storage::Storage;

/// Whether a limit counts places in flight.
#[inline(always)]
pub fn is_of_places(limit: &Registered) -> bool {
    limit.limit.algorithm == Algorithm::Concurrent
}

/// `Table::reserve_one` of places that are free.
#[inline(never)]
pub fn reserve_places<S: Storage>(
    storage: &S,
    check: &Check,
    request: &HoldRequest<'_>,
    now_us: i64,
) -> Result<Option<Reading>, S::Error> {
    let (tag, until_us) = (check.tag(), now_us + request.lease_us);
    let mut shard = storage.lock(storage.shard_of(check.key))?;
    if !storage.is_current(check.limit) {
        return Ok(None);
    }
    let Some(reading) = taken(&*shard, check, tag, until_us, now_us) else {
        return Ok(None);
    };
    shard.check_with_holds()?;
    if storage.reserve_hold(&mut shard, 1, now_us).is_err() {
        return Ok(None);
    }
    if let Some(holds) = shard.backing.holds_mut() {
        let key = holds.key_or_new(tag, check.limit.salt);
        let refunds = holds.key(key).map_or(0, |key| key.refunds);
        let part = Part { marked: [0, 0], refunds, cost: check.cost, number: check.limit.number() };
        let answered = [reading.remaining, reading.reset_after_us, reading.next_after_us, 0];
        let in_flight = check.cost > 0;
        let number = holds.add(Record {
            id: request.id,
            until_us,
            forget_us: until_us + request.remember_us,
            content: Content::One(One { part, key, actual: check.cost, answered, in_flight, shadow: check.shadow }),
            settled: request.at_once,
            at_once: request.at_once,
            passed: false,
        });
        if in_flight {
            holds.move_places(
                key,
                None,
                Some(Lease { until: until_us, number: u64::from(number), places: check.cost }),
            );
        }
    }
    commit(&mut *shard)?;
    if check.cost > 0
        && let Some(holds) = shard.backing.holds_mut()
    {
        holds.drop_over(tag, now_us);
    }
    Ok(Some(reading))
}

/// What is answered where these places are free, and are taken until a moment; None where they are not.
#[inline(always)]
fn taken<B: Backing>(shard: &Shard<B>, check: &Check, tag: u64, until_us: i64, now_us: i64) -> Option<Reading> {
    let limit = &check.limit.limit;
    let leases = shard.backing.holds()?.leases(tag);
    let state = concurrent::roll(limit, AskedLeases { leases, until: Some(until_us) }, now_us);
    if wait_us(limit, concurrent::admit(limit, &state, now_us, check.cost), now_us) != 0 {
        return None;
    }
    let state = concurrent::charge(limit, state, now_us, check.cost);
    let (remaining, reset_after_us, next_after_us) =
        measured_us(limit, concurrent::measure(limit, &state, now_us), now_us);
    Some(Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us: 0 })
}

/// Settle an open hold of places alone, which was never extended: they are free, and nothing else changes.
#[inline(never)]
pub fn settle_places<B: Backing>(
    shard: &mut Shard<B>,
    id: HoldId,
    actual: Option<i64>,
    asked: &Registered,
    now_us: i64,
) -> Option<SettledOne> {
    let holds = shard.backing.holds_mut()?;
    let number = holds.find(id, now_us)?;
    let (part, key) = holds.open_one(number)?;
    if part.number != asked.number() {
        return None;
    }
    let tag = holds.key(key)?.tag;
    let actual = actual.unwrap_or(part.cost);
    holds.free_one(number, actual, now_us);
    let limit = &asked.limit;
    let state = concurrent::roll(limit, AskedLeases { leases: holds.leases(tag), until: None }, now_us);
    let (remaining, reset_after_us, _) = measured_us(limit, concurrent::measure(limit, &state, now_us), now_us);
    Some(SettledOne { actual, remaining, reset_after_us })
}
