//! The fast path of a decision: one check of a known key, which changes nothing but its own state.
//!
//! Each function returns None where there is more to do: then a transaction decides.

use crate::algorithms::all_steps;
use crate::algorithms::transition::{self, ANY, Numbers, USUAL};
use crate::encoding::slot_entries::has_blocks;
use crate::shard::backing::Backing;
use crate::shard::states::Need;
use crate::shard::{Place, log_pool};
use crate::table::answer::{Answer, Check, Mode};
use crate::table::storage::Storage;

/// Decide one check of a known key as a transaction would, without its bookkeeping. Not for logs.
///
/// None where there is more to do than to replace three numbers.
#[inline(always)]
pub fn decide_known<S: Storage>(
    storage: &S,
    check: &Check,
    now_us: i64,
    mode: Mode,
) -> Result<Option<Answer>, S::Error> {
    let shard = storage.lock(storage.shard_of(check.key))?;
    let tag = check.tag();
    let Place::Found(index) = shard.find(tag) else {
        return Ok(None);
    };
    match shard.numbers(index, check.limit) {
        Some(numbers) => Ok(decide_numbers::<S, USUAL>(storage, shard, check, (index, tag, numbers), now_us, mode)),
        None => Ok(decide_rare(storage, shard, check, (index, tag), now_us, mode)),
    }
}

/// `decide_known` where the numbers in a slot are not those of a usual algorithm.
#[cold]
#[inline(never)]
fn decide_rare<'table, S: Storage>(
    storage: &'table S,
    shard: S::Guard<'table>,
    check: &Check,
    (index, tag): (usize, u64),
    now_us: i64,
    mode: Mode,
) -> Option<Answer> {
    let numbers = shard.rare_numbers(index, check.limit)?;
    decide_numbers::<S, ANY>(storage, shard, check, (index, tag, numbers), now_us, mode)
}

/// `decide_known` once the slot is found, its tag and its numbers read.
#[inline(always)]
fn decide_numbers<'table, S: Storage, const WHICH: bool>(
    storage: &'table S,
    mut shard: S::Guard<'table>,
    check: &Check,
    (index, tag, stored): (usize, u64, Numbers),
    now_us: i64,
    mode: Mode,
) -> Option<Answer> {
    let limit = &check.limit.limit;
    if !storage.is_current(check.limit) {
        return None;
    }
    let wait_us = |wait_us, delay_us| mode.wait_us(wait_us, delay_us);
    let (numbers, reading) = if WHICH == USUAL {
        all_steps::decide(limit, stored, now_us, check.cost, wait_us)
    } else {
        all_steps::decide_rare(limit, stored, now_us, check.cost, wait_us)
    };
    let passes = reading.allowed();
    if mode.commit && passes && check.cost != 0 {
        shard.overwrite(index, tag, check.limit, numbers);
        shard.backing.commit();
    } else if mode.commit {
        if transition::was_moved(limit, stored, numbers) {
            shard.to_present(Place::Found(index), check.limit, now_us);
        }
        if reading.retry_after_us > 0 {
            shard.mark_refused(Place::Found(index));
        }
    }
    drop(shard);
    Some(Answer::of_one(check.shadow, reading))
}

/// `decide_known` for a log. None where the key is new, its limit has changed, its times are to be moved, or
/// it needs another block.
#[inline(always)]
pub fn decide_known_log<S: Storage>(
    storage: &S,
    check: &Check,
    now_us: i64,
    mode: Mode,
) -> Result<Option<Answer>, S::Error> {
    let limit = &check.limit.limit;
    let mut shard = storage.lock(storage.shard_of(check.key))?;
    let tag = check.tag();
    let place = shard.find(tag);
    let Place::Found(index) = place else {
        return Ok(None);
    };
    if !shard.is_written_by(index, check.limit) || !storage.is_current(check.limit) {
        return Ok(None);
    }
    let chain = shard.chain(place);
    let (reading, charge) = if has_blocks(chain) {
        transition::decide_log(limit, shard.log_in_blocks(chain), now_us, check.cost)
    } else {
        transition::decide_log(limit, shard.log_in_slot(chain), now_us, check.cost)
    };
    if charge.shift != 0 {
        return Ok(None);
    }
    shard.check()?;
    if mode.commit && reading.allowed() && check.cost != 0 {
        if let Some(chain) = log_pool::record_in_slot(chain, &charge) {
            shard.overwrite(index, tag, check.limit, chain);
        } else if shard.needs_block(place, limit, &Need { charge, before: 0 }) {
            return Ok(None);
        } else {
            shard.write_log(place, tag, check.limit, &charge);
            if let Err(damaged) = shard.check() {
                shard.backing.roll_back();
                return Err(damaged.into());
            }
        }
        shard.backing.commit();
    } else if mode.commit && reading.retry_after_us > 0 {
        shard.mark_refused(place);
    }
    Ok(Some(Answer::of_one(check.shadow, reading)))
}
