//! The fast path of a decision of a few checks, all of known keys: it changes nothing but their states.
//!
//! It answers as `Judgement` does, without the lists that any number of checks and logs need, and visits each check
//! once: in most decisions all pass.

use crate::algorithms::all_steps::decide;
use crate::algorithms::transition::{self, NEVER, Numbers, Reading, USUAL};
use crate::shard::backing::Backing;
use crate::shard::{DamagedState, Place, Shard};
use crate::table::Table;
use crate::table::answer::{Answer, Check, Mode, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::storage::{Location, LockedShards, Storage};
use crate::table::transaction::Transaction;

impl<S: Storage> Table<S> {
    /// `Table::apply` of any number of checks but one: a separate function, so that the path of one stays short.
    #[inline(never)]
    pub(super) fn apply_several(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        // With a constant number of checks the loops need no bounds.
        match checks.len() {
            2 => self.apply_few::<2>(checks, now_us, mode),
            3 => self.apply_few::<3>(checks, now_us, mode),
            4 => self.apply_few::<4>(checks, now_us, mode),
            _ => self.apply_all(checks, now_us, mode),
        }
    }

    #[inline(never)]
    fn apply_few<const N: usize>(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        match decide_few::<S, N>(checks, &mut transaction, now_us, mode)? {
            Some(answer) => Ok(answer),
            None => self.apply_more(checks, &mut transaction, now_us, mode),
        }
    }
}

impl<S: Storage> Table<S> {
    /// The slow path, compiled once for all numbers of checks.
    #[cold]
    #[inline(never)]
    fn apply_more<'table>(
        &'table self,
        checks: &[Check],
        transaction: &mut Transaction<'table, S>,
        now_us: i64,
        mode: Mode,
    ) -> Result<Answer, S::Error> {
        self.decide::<false>(checks, transaction, &mut Judgement::new(), now_us, mode, |_, _, _| Ok(()))
    }
}

/// Decide checks whose shards are locked, their states found.
///
/// None where there is more to do than to replace three numbers of each: then nothing was changed.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // of four lists at once, whose length is known: shorter than pairs of pairs
fn decide_few<S: Storage, const N: usize>(
    checks: &[Check],
    transaction: &mut Transaction<'_, S>,
    now_us: i64,
    mode: Mode,
) -> Result<Option<Answer>, DamagedState> {
    let LockedShards { guards, locations } = &transaction.locked;
    let (Some(checks), Some(locations)) = (checks.first_chunk::<N>(), locations.first_chunk::<N>()) else {
        return Ok(None);
    };
    let (mut charged, mut readings, guards) = ([[0; 3]; N], [Reading::default(); N], &guards[..]);
    let (mut allowed, mut all_charged) = (true, true);
    for number in 0..N {
        let (check, location, reading) = (&checks[number], &locations[number], &mut readings[number]);
        let Place::Found(index) = location.place else {
            return Ok(None);
        };
        if !judge(&guards[location.guard], index, check, now_us, &mode, (&mut charged[number], reading)) {
            return Ok(None);
        }
        allowed &= check.shadow || reading.allowed();
        all_charged &= is_charged(check, reading);
    }
    if !allowed {
        refuse(checks, transaction, &mut readings, now_us, mode);
    } else if mode.commit {
        if !all_charged {
            to_present(checks, transaction, &readings, now_us);
        }
        write_charged(checks, transaction, &charged, &readings)?;
    }
    let binding = binding_of(checks, &readings, allowed);
    Ok(Some(Answer { allowed, full: None, binding, readings: Readings::Many(Box::new(readings)) }))
}

/// Decide one check on the state in a slot: the reading, and the charged state; false where more is to be done.
///
/// Not inlined in its loop, which would have no registers left for itself.
#[inline(never)]
fn judge<B: Backing>(
    shard: &Shard<B>,
    index: usize,
    check: &Check,
    now_us: i64,
    mode: &Mode,
    (charged, reading): (&mut Numbers, &mut Reading),
) -> bool {
    let Some(stored) = shard.numbers(index, check.limit) else {
        return false;
    };
    let wait_us = |wait_us, delay_us| mode.wait_us(wait_us, delay_us);
    (*charged, *reading) = decide(&check.limit.limit, stored, now_us, check.cost, wait_us);
    true
}

/// Whether a decision that all limits allow charges a check.
#[inline(always)]
fn is_charged(check: &Check, reading: &Reading) -> bool {
    check.cost != 0 && reading.allowed()
}

/// Write what is charged of checks that all pass, except for shadows.
#[inline(always)]
fn write_charged<S: Storage, const N: usize>(
    checks: &[Check; N],
    transaction: &mut Transaction<'_, S>,
    charged: &[Numbers; N],
    readings: &[Reading; N],
) -> Result<(), DamagedState> {
    transaction.begin();
    let LockedShards { guards, locations } = &mut transaction.locked;
    let (guards, locations) = (&mut guards[..], &locations[..]);
    let Some(locations) = locations.first_chunk::<N>() else {
        return Ok(());
    };
    for ((check, location), (charged, reading)) in checks.iter().zip(locations).zip(charged.iter().zip(readings)) {
        if let (true, Place::Found(index)) = (is_charged(check, reading), location.place) {
            guards[location.guard].overwrite(index, location.tag, check.limit, *charged);
        }
    }
    transaction.commit(Ok(()))
}

/// Charge nothing: checks that would pass by themselves are measured again without the charge, those that refuse are
/// marked.
#[inline(never)]
fn refuse<S: Storage>(
    checks: &[Check],
    transaction: &mut Transaction<'_, S>,
    readings: &mut [Reading],
    now_us: i64,
    mode: Mode,
) {
    for (number, (check, reading)) in checks.iter().zip(readings).enumerate() {
        let Location { guard, place, .. } = transaction.locked.locations[number];
        let shard = &mut transaction.locked.guards[guard];
        let limit = &check.limit.limit;
        let (stored, rolled) = rolled(shard, check, place, now_us);
        if mode.commit && transition::was_moved(limit, stored, rolled) {
            shard.to_present(place, check.limit, now_us);
        }
        if reading.allowed() {
            let (remaining, reset_after_us, next_after_us) =
                transition::measure_numbers::<USUAL>(limit, rolled, now_us);
            *reading = Reading { remaining, reset_after_us, retry_after_us: 0, next_after_us, delay_us: 0 };
        } else if mode.commit && reading.retry_after_us != NEVER {
            shard.mark_refused(place);
        }
    }
}

/// Bring the states that are not charged to the present where a clock once far ahead wrote them.
#[cold]
fn to_present<S: Storage>(checks: &[Check], transaction: &mut Transaction<'_, S>, readings: &[Reading], now_us: i64) {
    for (number, check) in checks.iter().enumerate() {
        let Location { guard, place, .. } = transaction.locked.locations[number];
        let shard = &mut transaction.locked.guards[guard];
        let (stored, rolled) = rolled(shard, check, place, now_us);
        if !is_charged(check, &readings[number]) && transition::was_moved(&check.limit.limit, stored, rolled) {
            shard.to_present(place, check.limit, now_us);
        }
    }
}

/// The state of a check as it is stored, and as it stands at a moment.
fn rolled<B: Backing>(shard: &Shard<B>, check: &Check, place: Place, now_us: i64) -> (Numbers, Numbers) {
    let found = if let Place::Found(index) = place { shard.numbers(index, check.limit) } else { None };
    let stored = found.unwrap_or_default(); // it was there when it was decided
    (stored, transition::roll_numbers::<USUAL>(&check.limit.limit, Some(stored), now_us))
}
