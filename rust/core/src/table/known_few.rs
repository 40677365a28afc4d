//! The short way of a decision of a few checks, all of keys that are known: it changes nothing but their states.
//!
//! It answers as `Judgement` does, without the lists that any number of checks and logs need.

use crate::algorithms::transition::{self, NEVER, Numbers, Reading, USUAL};
use crate::shard::{DamagedState, Place};
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::storage::{Location, LockedShards, Storage};
use crate::table::transaction::Transaction;

/// The most checks that are decided so.
const MOST_FEW: usize = 4;

/// The state of one check, brought to the moment of the decision, and what its limit says.
#[derive(Clone, Copy, Default)]
struct Known {
    stored: Numbers,
    numbers: Numbers,
    wait_us: i64,
    delay_us: i64,
    /// Whether it is charged.
    charged: bool,
}

impl<S: Storage> Table<S> {
    /// `Table::apply` of any number of checks but one: apart, so that the way of one is no longer for it.
    #[inline(never)]
    pub(super) fn apply_several(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        match decide_few(checks, &mut transaction, now_us, mode)? {
            Some(answer) => Ok(answer),
            None => {
                self.decide::<false>(checks, &mut transaction, &mut Judgement::new(), now_us, mode, |_, _, _| Ok(()))
            }
        }
    }
}

/// Decide checks whose shards are locked, their states found.
///
/// None where there is more to do than to replace three numbers of each: then nothing was changed.
#[inline(always)]
fn decide_few<S: Storage>(
    checks: &[Check],
    transaction: &mut Transaction<'_, S>,
    now_us: i64,
    mode: Mode,
) -> Result<Option<Answer>, DamagedState> {
    let mut few = [Known::default(); MOST_FEW];
    let Some(known) = few.get_mut(..checks.len()) else {
        return Ok(None);
    };
    let Some(allowed) = look(checks, transaction, known, now_us, mode) else {
        return Ok(None);
    };
    let mut measured = [Reading::default(); MOST_FEW];
    for ((check, known), reading) in checks.iter().zip(known.iter_mut()).zip(&mut measured) {
        let limit = &check.limit.limit;
        let passes = allowed && known.wait_us == 0;
        let mut numbers = known.numbers;
        if passes {
            numbers = transition::charge_numbers::<USUAL>(limit, numbers, now_us, check.cost);
            reading.delay_us = known.delay_us;
        }
        let (remaining, reset_after_us, next_after_us) = transition::measure_numbers::<USUAL>(limit, numbers, now_us);
        *reading = Reading { remaining, reset_after_us, retry_after_us: known.wait_us, next_after_us, ..*reading };
        known.charged = passes && check.cost != 0;
        if known.charged {
            known.numbers = numbers;
        }
    }
    if mode.commit {
        write(checks, transaction, known, allowed, now_us)?;
    }
    let readings = &measured[..checks.len()];
    let binding = binding_of(checks, readings, allowed);
    Ok(Some(Answer { allowed, full: None, binding, readings: Readings::Many(readings.into()) }))
}

/// Whether all enforced checks pass; None where a key is new, or its state is none of a usual algorithm.
#[inline(always)]
fn look<S: Storage>(
    checks: &[Check],
    transaction: &Transaction<'_, S>,
    known: &mut [Known],
    now_us: i64,
    mode: Mode,
) -> Option<bool> {
    let mut allowed = true;
    let (guards, locations) = (&transaction.locked.guards[..], &transaction.locked.locations[..]);
    for ((check, location), known) in checks.iter().zip(locations).zip(known) {
        let Location { guard, place: Place::Found(index), .. } = *location else {
            return None;
        };
        let limit = &check.limit.limit;
        let stored = guards[guard].numbers(index, check.limit)?;
        let numbers = transition::roll_numbers::<USUAL>(limit, Some(stored), now_us);
        let delay_us = transition::delay_us_numbers(limit, numbers, now_us, check.cost);
        let wait_us = transition::admit_numbers::<USUAL>(limit, numbers, now_us, check.cost);
        let wait_us = mode.wait_us(wait_us, delay_us);
        allowed &= check.shadow || wait_us == 0;
        *known = Known { stored, numbers, wait_us, delay_us, charged: false };
    }
    Some(allowed)
}

/// Keep what is charged, bring what is not to the present where a clock once far ahead wrote it, and mark what refused.
#[inline(always)]
fn write<S: Storage>(
    checks: &[Check],
    transaction: &mut Transaction<'_, S>,
    known: &[Known],
    allowed: bool,
    now_us: i64,
) -> Result<(), DamagedState> {
    let LockedShards { guards, locations } = &mut transaction.locked;
    let (guards, locations) = (&mut guards[..], &locations[..]);
    for ((check, known), location) in checks.iter().zip(known).zip(locations) {
        if known.charged {
            continue;
        }
        let shard = &mut guards[location.guard];
        if transition::was_moved(&check.limit.limit, known.stored, known.numbers) {
            shard.to_present(location.place, check.limit, now_us);
        }
        if !allowed && known.wait_us != 0 && known.wait_us != NEVER {
            shard.mark_refused(location.place);
        }
    }
    if !allowed {
        return Ok(());
    }
    transaction.begin();
    let LockedShards { guards, locations } = &mut transaction.locked;
    let (guards, locations) = (&mut guards[..], &locations[..]);
    for ((check, known), location) in checks.iter().zip(known).zip(locations) {
        if let (true, Place::Found(index)) = (known.charged, location.place) {
            guards[location.guard].overwrite(index, location.tag, check.limit, known.numbers);
        }
    }
    transaction.commit(Ok(()))
}
