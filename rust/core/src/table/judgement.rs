//! What the limits of a decision answer to the stored states, before anything is written.

use smallvec::SmallVec;

use crate::algorithms::leases::LeaseRequest;
use crate::algorithms::log_view::Marked;
use crate::algorithms::transition::{self, ANY, Numbers, Reading, State, StateUpdate, USUAL, measured_us, wait_us};
use crate::algorithms::{concurrent, sliding_log};
use crate::holding::store::HoldStore;
use crate::limit::Algorithm;
use crate::shard::backing::Backing;
use crate::shard::log_reader::Entries;
use crate::table::answer::{Check, Mode};
use crate::table::storage::{Location, Storage};
use crate::table::transaction::Transaction;

/// A decision in progress: what each limit answers, and what to write if it is charged.
pub struct Judgement {
    /// Whether all enforced checks pass.
    pub allowed: bool,
    /// The reading of each check.
    pub readings: SmallVec<[Reading; 4]>,
    /// The rolled state of each check; None for logs.
    rolled: SmallVec<[Option<Numbers>; 4]>,
    /// What to write for each check; None where it is not charged.
    pub updates: SmallVec<[Option<StateUpdate>; 4]>,
    /// What a hold records of each check.
    pub marks: SmallVec<[Marked; 4]>,
    /// The end of the requested lease; None for a peek.
    pub until_us: Option<i64>,
}

impl Judgement {
    /// A judgement of no checks yet.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            allowed: false,
            readings: SmallVec::new(),
            rolled: SmallVec::new(),
            updates: SmallVec::new(),
            marks: SmallVec::new(),
            until_us: None,
        }
    }

    /// `new`, with room for this many checks.
    pub fn with_room(checks: usize) -> Self {
        Self {
            readings: SmallVec::with_capacity(checks),
            rolled: SmallVec::with_capacity(checks),
            updates: SmallVec::with_capacity(checks),
            marks: SmallVec::with_capacity(checks),
            ..Self::new()
        }
    }

    /// Judge all checks on the stored states. The table is not changed.
    ///
    /// `refuse_for` is the check that the table has no room for, with the time until it may have.
    ///
    /// With `HOLDS`, limits may count places in flight, which are requested until `until_us`, and what a hold
    /// records of each check is put in `marks`.
    #[inline(always)]
    pub fn judge<S: Storage, const HOLDS: bool>(
        &mut self,
        checks: &[Check],
        transaction: &Transaction<'_, S>,
        now_us: i64,
        mode: Mode,
        refuse_for: Option<(usize, i64)>,
    ) {
        if HOLDS || checks.iter().any(|check| check.limit.limit.algorithm.is_rare()) {
            self.judge_each::<S, ANY, HOLDS>(checks, transaction, now_us, mode, refuse_for);
        } else {
            self.judge_each::<S, USUAL, HOLDS>(checks, transaction, now_us, mode, refuse_for);
        }
    }

    #[inline(never)]
    fn judge_each<S: Storage, const WHICH: bool, const HOLDS: bool>(
        &mut self,
        checks: &[Check],
        transaction: &Transaction<'_, S>,
        now_us: i64,
        mode: Mode,
        refuse_for: Option<(usize, i64)>,
    ) {
        self.allowed = refuse_for.is_none();
        self.readings.clear();
        self.rolled.clear();
        self.updates.clear();
        self.marks.clear();
        for (check, location) in checks.iter().zip(&transaction.locked.locations) {
            let limit = &check.limit.limit;
            if HOLDS && limit.algorithm == Algorithm::Concurrent {
                let state = places(check, transaction, location, now_us, self.until_us);
                let mut wait_us = wait_us(limit, concurrent::admit(limit, &state, now_us, check.cost), now_us);
                if let Some((full, soonest_us)) = refuse_for
                    && full == self.readings.len()
                {
                    wait_us = soonest_us.max(1);
                }
                self.allowed &= check.shadow || wait_us == 0;
                self.readings.push(Reading { retry_after_us: wait_us, ..Reading::default() });
                self.rolled.push(None);
                continue;
            }
            let state = roll::<S, WHICH>(check, transaction, location, now_us);
            let delay_us = transition::delay_us(limit, &state, now_us, check.cost);
            let mut wait_us = mode.wait_us(transition::admit::<_, WHICH>(limit, &state, now_us, check.cost), delay_us);
            if let Some((full, soonest_us)) = refuse_for
                && full == self.readings.len()
            {
                wait_us = soonest_us.max(1);
            }
            self.allowed &= check.shadow || wait_us == 0;
            self.readings.push(Reading { retry_after_us: wait_us, delay_us, ..Reading::default() });
            self.rolled.push(if let State::Numbers(numbers) = state { Some(numbers) } else { None });
        }
        let first_pass = self.readings.iter_mut().zip(&self.rolled);
        for ((check, location), (reading, rolled)) in checks.iter().zip(&transaction.locked.locations).zip(first_pass) {
            let limit = &check.limit.limit;
            let charged = self.allowed && reading.allowed();
            if !charged {
                reading.delay_us = 0;
            }
            if HOLDS && limit.algorithm == Algorithm::Concurrent {
                let mut state = places(check, transaction, location, now_us, self.until_us);
                if charged {
                    state = concurrent::charge(limit, state, now_us, check.cost);
                }
                let measured = measured_us(limit, concurrent::measure(limit, &state, now_us), now_us);
                let (remaining, reset_after_us, next_after_us) = measured;
                *reading = Reading { remaining, reset_after_us, next_after_us, ..*reading };
                self.updates.push(None);
                self.marks.push(concurrent::mark(limit, &state, now_us));
                continue;
            }
            let (measured, update) = match *rolled {
                Some(mut numbers) => {
                    if charged {
                        numbers = transition::charge_numbers::<WHICH>(limit, numbers, now_us, check.cost);
                    }
                    if HOLDS {
                        self.marks.push(transition::mark(limit, numbers, now_us));
                    }
                    (transition::measure_numbers::<WHICH>(limit, numbers, now_us), StateUpdate::Numbers(numbers))
                }
                None => {
                    let mut state = roll::<S, WHICH>(check, transaction, location, now_us);
                    if charged {
                        state = transition::charge::<_, WHICH>(limit, state, now_us, check.cost);
                    }
                    if HOLDS && let State::Entries(log) = &state {
                        self.marks.push(sliding_log::mark(limit, log, transition::unit_time(limit, now_us)));
                    }
                    (transition::measure::<_, WHICH>(limit, &state, now_us), transition::update_of(&state))
                }
            };
            let (remaining, reset_after_us, next_after_us) = measured;
            *reading = Reading { remaining, reset_after_us, next_after_us, ..*reading };
            self.updates.push((charged && check.cost != 0).then_some(update));
        }
    }
}

/// The state of a check, brought to this moment.
#[inline(always)]
fn roll<'transaction, S: Storage, const WHICH: bool>(
    check: &Check,
    transaction: &'transaction Transaction<'_, S>,
    location: &Location,
    now_us: i64,
) -> State<Entries<'transaction>> {
    transition::roll::<_, WHICH>(&check.limit.limit, transaction.stored(check, location, now_us), now_us)
}

/// The places in flight on a storage.
type PlacesOf<'transaction, 'table, S> = concurrent::State<LeasesOf<'transaction, <S as Storage>::Backing<'table>>>;
type LeasesOf<'transaction, B> = <<B as Backing>::Holds as HoldStore>::Leases<'transaction>;

/// The places in flight of a check, as they stand at this moment.
fn places<'transaction, 'table, S: Storage>(
    check: &Check,
    transaction: &'transaction Transaction<'table, S>,
    location: &Location,
    now_us: i64,
    until_us: Option<i64>,
) -> PlacesOf<'transaction, 'table, S> {
    let holds = transaction.locked.guards[location.guard].backing.holds();
    let leases = holds.and_then(|holds| holds.leases(location.tag));
    concurrent::roll(&check.limit.limit, LeaseRequest { leases, until: until_us }, now_us)
}
