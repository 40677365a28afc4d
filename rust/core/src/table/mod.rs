//! The table: every key's state under every limit, bounded, safe under threads.
//!
//! A key's hash chooses one of many shards, each under its own lock; all limits of one key are in
//! the same shard. A decision locks the shards of its keys in ascending order, judges all checks,
//! then charges all or none.

pub mod answer;
pub mod storage;
pub mod transaction;

use smallvec::SmallVec;

use crate::algorithms::transition::{self, Kept, Numbers, Reading, State, Stored};
use crate::hash::{KeyHash, Seed};
use crate::limit::Algorithm;
use crate::process::registry::{Definition, Registered, Registration};
use crate::shard::backing::Backing;
use crate::shard::log_pool;
use crate::shard::{Need, Place};
use crate::table::answer::{Answer, Check, Mode, OnFull, Readings, binding_of};
use crate::table::storage::{Full, Stats, Storage};
use crate::table::transaction::{Location, Transaction};

/// How far ahead of its turn a key's slot is fetched when many keys are judged.
const LOOKAHEAD: usize = 8;

/// The table, on a storage.
pub struct Table<S> {
    seed: Seed,
    storage: S,
}

/// A decision in the making: what each limit answers, and what to keep if it is charged.
struct Judged {
    allowed: bool,
    readings: SmallVec<[Reading; 4]>,
    /// The rolled states of all but logs.
    rolled: SmallVec<[Option<Numbers>; 4]>,
    kept: SmallVec<[Option<Kept>; 4]>,
}

impl<S: Storage> Table<S> {
    /// A table of what a storage holds.
    pub fn new(seed: [u8; 16], storage: S) -> Self {
        Self { seed: Seed::new(seed), storage }
    }

    /// Where its states are.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// How keys are hashed here.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Make a limit known.
    pub fn register(&self, definition: Definition<'_>, now_us: i64) -> Registration<S::Error> {
        self.storage.register(&self.seed, definition, now_us)
    }

    /// Ask for the cache line where a check's state will be looked for. A hint, without any lock.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        self.storage.fetch(check);
    }

    /// Decide the checks of one request at one instant: all enforced ones are charged, or none. Atomic.
    ///
    /// No two checks may be the same limit on the same key.
    #[inline]
    pub fn apply(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let known = match checks {
            [check] if check.limit.limit.algorithm == Algorithm::SlidingLog => {
                self.apply_known_log(check, now_us, mode)?
            }
            [check] => self.apply_known(check, now_us, mode)?,
            _ => None,
        };
        match known {
            Some(answer) => Ok(answer),
            None => self.apply_all(checks, now_us, mode),
        }
    }

    /// Decide a list of requests one after another, all at one instant; `each` gets every answer in turn.
    ///
    /// An error ends it: what was answered before stays charged.
    ///
    /// `requests` holds the same number of checks for each request.
    pub fn apply_each(
        &self,
        requests: &[Check<'_>],
        checks_each: usize,
        now_us: i64,
        mode: Mode,
        mut each: impl FnMut(Answer),
    ) -> Result<(), S::Error> {
        for (index, checks) in requests.chunks(checks_each).enumerate() {
            if let Some(ahead) = requests.get((index + LOOKAHEAD) * checks_each) {
                self.fetch(ahead);
            }
            each(self.apply(checks, now_us, mode)?);
        }
        Ok(())
    }

    /// Give back what one decision charged for these checks at `earliest_us` or later, as far as it still counts.
    pub fn give_back(&self, checks: &[Check], now_us: i64, earliest_us: i64) -> Result<(), S::Error> {
        let mut locked = Transaction::none();
        self.lock(&mut locked, checks, now_us)?;
        Ok(locked.give_back(&self.storage, checks, now_us, earliest_us)?)
    }

    /// Forget what is known of a key under a limit; whether that was more than nothing.
    pub fn reset(&self, limit: &Registered, key: KeyHash, now_us: i64) -> Result<bool, S::Error> {
        let shard_number = self.storage.shard_of(key);
        let mut shard = self.storage.lock(shard_number)?;
        let live = shard.forget(key.tag_under(limit.salt), self.storage.limits(), now_us);
        self.storage.settle(shard_number, &mut shard);
        Ok(live)
    }

    /// What is stored of a key under a limit, handed to `read` while the shard is locked.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<'_>) -> T,
    ) -> Result<T, S::Error> {
        let mut shard = self.storage.lock(self.storage.shard_of(key))?;
        while !self.storage.is_current(limit) {
            drop(shard);
            self.storage.renew(&self.seed, limit, now_us)?;
            shard = self.storage.lock(self.storage.shard_of(key))?;
        }
        let place = shard.find(key.tag_under(limit.salt));
        let read = read(shard.stored(place, limit, self.storage.limits(), now_us));
        shard.check()?;
        Ok(read)
    }

    /// Forget everything; limits stay known.
    pub fn clear(&self) -> Result<(), S::Error> {
        for shard_number in 0..self.storage.shards() {
            let mut shard = self.storage.lock(shard_number)?;
            shard.clear();
            self.storage.settle(shard_number, &mut shard);
        }
        Ok(())
    }

    /// What the table counts about itself.
    pub fn stats(&self) -> Result<Stats, S::Error> {
        self.storage.stats()
    }

    /// Decide one check of a key that is known already: `apply_all` without its bookkeeping. Not for logs.
    ///
    /// None where there is more to do than to replace three numbers.
    #[inline(always)]
    fn apply_known(&self, check: &Check, now_us: i64, mode: Mode) -> Result<Option<Answer>, S::Error> {
        let limit = &check.limit.limit;
        let mut shard = self.storage.lock(self.storage.shard_of(check.key))?;
        let tag = check.tag();
        let Place::Found(index) = shard.find(tag) else {
            return Ok(None);
        };
        let Some(numbers) = shard.numbers(index, check.limit) else {
            return Ok(None);
        };
        if !self.storage.is_current(check.limit) {
            return Ok(None);
        }
        let stored = numbers;
        let numbers = transition::roll_numbers(limit, Some(stored), now_us);
        let delay_us = transition::delay_us_numbers(limit, numbers, now_us, check.cost);
        let wait_us = mode.wait_us(transition::admit_numbers(limit, numbers, now_us, check.cost), delay_us);
        let passes = wait_us == 0;
        let numbers = if passes { transition::charge_numbers(limit, numbers, now_us, check.cost) } else { numbers };
        if mode.commit && passes && check.cost != 0 {
            shard.overwrite(index, tag, check.limit, numbers);
            shard.backing.commit();
        } else if mode.commit {
            if transition::was_moved(limit, stored, numbers) {
                shard.to_present(Place::Found(index), check.limit, now_us);
            }
            if wait_us > 0 {
                shard.mark_refused(Place::Found(index));
            }
        }
        drop(shard);
        let (remaining, reset_after_us, next_after_us) = transition::measure_numbers(limit, numbers, now_us);
        let delay_us = if passes { delay_us } else { 0 };
        let reading = Reading { remaining, reset_after_us, retry_after_us: wait_us, next_after_us, delay_us };
        Ok(Some(Answer::of_one(check, reading)))
    }

    /// `apply_known` for a log. None where the key is new, its limit has changed, its times are to be moved, or
    /// it needs another block.
    #[inline(always)]
    fn apply_known_log(&self, check: &Check, now_us: i64, mode: Mode) -> Result<Option<Answer>, S::Error> {
        let limit = &check.limit.limit;
        let mut shard = self.storage.lock(self.storage.shard_of(check.key))?;
        let tag = check.tag();
        let place = shard.find(tag);
        let Place::Found(index) = place else {
            return Ok(None);
        };
        if !shard.is_written_by(index, check.limit) || !self.storage.is_current(check.limit) {
            return Ok(None);
        }
        let chain = shard.chain(place);
        let (reading, charge) = if log_pool::has_blocks(chain) {
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
                shard.keep_log(place, tag, check.limit, &charge);
                if let Err(damaged) = shard.check() {
                    shard.backing.take_back();
                    return Err(damaged.into());
                }
            }
            shard.backing.commit();
        } else if mode.commit && reading.retry_after_us > 0 {
            shard.mark_refused(place);
        }
        Ok(Some(Answer::of_one(check, reading)))
    }

    /// Lock the shards of all checks, with limits that slots may name.
    #[inline(always)]
    fn lock<'table>(
        &'table self,
        locked: &mut Transaction<'table, S>,
        checks: &[Check],
        now_us: i64,
    ) -> Result<(), S::Error> {
        locked.lock(&self.storage, checks)?;
        while !checks.iter().all(|check| self.storage.is_current(check.limit)) {
            *locked = Transaction::none();
            for check in checks {
                self.storage.renew(&self.seed, check.limit, now_us)?;
            }
            locked.lock(&self.storage, checks)?;
        }
        Ok(())
    }

    fn apply_all(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let mut locked = Transaction::none();
        self.lock(&mut locked, checks, now_us)?;
        if mode.commit {
            locked.adopt(&self.storage, checks, now_us);
        }
        let mut judged =
            Judged { allowed: false, readings: SmallVec::new(), rolled: SmallVec::new(), kept: SmallVec::new() };
        self.judge(checks, &locked, now_us, mode, None, &mut judged);
        locked.check()?;
        let mut full = None;
        if mode.commit && judged.kept.iter().any(Option::is_none) {
            locked.to_present(checks, &judged.kept, now_us);
        }
        if mode.commit && !judged.allowed {
            locked.mark_refused(&judged.readings);
        } else if mode.commit && locked.needs_room(checks, &judged.kept) {
            full = self.make_room(checks, &mut locked, &mut judged, now_us, mode);
            let mut kept = Ok(());
            if judged.allowed {
                kept = locked.keep_growing(&self.storage, checks, &judged.kept);
            }
            if !judged.allowed || kept.is_err() {
                self.storage.drop_reserved(&mut locked, now_us);
            }
            for Location { shard_number, guard, .. } in &locked.locations {
                self.storage.settle(*shard_number, &mut locked.guards[*guard]);
            }
            kept?;
        } else if mode.commit {
            locked.keep(&self.storage, checks, &judged.kept)?;
        }
        let (allowed, readings) = (judged.allowed, &judged.readings[..]);
        let binding = binding_of(checks, readings, allowed);
        let readings = if let [only] = *readings { Readings::One(only) } else { Readings::Many(readings.into()) };
        Ok(Answer { allowed, full, binding, readings })
    }

    /// Judge all checks on what is stored. Nothing in the table is changed.
    ///
    /// `refuse_for` is the check that the table has no room for, with the time until it may have.
    fn judge(
        &self,
        checks: &[Check],
        locked: &Transaction<'_, S>,
        now_us: i64,
        mode: Mode,
        refuse_for: Option<(usize, i64)>,
        judged: &mut Judged,
    ) {
        judged.allowed = refuse_for.is_none();
        judged.readings.clear();
        judged.rolled.clear();
        judged.kept.clear();
        for (check, location) in checks.iter().zip(&locked.locations) {
            let limit = &check.limit.limit;
            let state = self.roll(check, locked, location, now_us);
            let delay_us = transition::delay_us(limit, &state, now_us, check.cost);
            let mut wait_us = mode.wait_us(transition::admit(limit, &state, now_us, check.cost), delay_us);
            if let Some((full, soonest_us)) = refuse_for
                && full == judged.readings.len()
            {
                wait_us = soonest_us.max(1);
            }
            judged.allowed &= check.shadow || wait_us == 0;
            judged.readings.push(Reading { retry_after_us: wait_us, delay_us, ..Reading::default() });
            judged.rolled.push(if let State::Numbers(numbers) = state { Some(numbers) } else { None });
        }
        let first_pass = judged.readings.iter_mut().zip(&judged.rolled);
        for ((check, location), (reading, rolled)) in checks.iter().zip(&locked.locations).zip(first_pass) {
            let limit = &check.limit.limit;
            let mut state = match *rolled {
                Some(numbers) => State::Numbers(numbers),
                None => self.roll(check, locked, location, now_us),
            };
            let charged = judged.allowed && reading.allowed();
            if charged {
                state = transition::charge(limit, state, now_us, check.cost);
            } else {
                reading.delay_us = 0;
            }
            let (remaining, reset_after_us, next_after_us) = transition::measure(limit, &state, now_us);
            *reading = Reading { remaining, reset_after_us, next_after_us, ..*reading };
            judged.kept.push((charged && check.cost != 0).then(|| transition::keep(&state)));
        }
    }

    /// The state of a check, brought to this moment.
    #[inline(always)]
    fn roll<'locked>(
        &self,
        check: &Check,
        locked: &'locked Transaction<'_, S>,
        location: &Location,
        now_us: i64,
    ) -> State<'locked> {
        let stored = locked.guards[location.guard].stored(location.place, check.limit, self.storage.limits(), now_us);
        transition::roll(&check.limit.limit, stored, now_us)
    }

    /// Find room for the new states of an admitted decision, or let the written choice decide.
    #[cold]
    fn make_room(
        &self,
        checks: &[Check],
        locked: &mut Transaction<'_, S>,
        judged: &mut Judged,
        now_us: i64,
        mode: Mode,
    ) -> Option<OnFull> {
        let mut full = None;
        for (index, check) in checks.iter().enumerate() {
            if judged.kept[index].is_none() {
                continue;
            }
            let need = locked.need(checks, &judged.kept, index);
            let reserved = self.storage.reserve(check, locked, index, need, now_us);
            let Err(Full { soonest_us }) = reserved else {
                continue;
            };
            if check.shadow || self.storage.on_full() == OnFull::Pass {
                self.storage.count_passed();
                judged.kept[index] = None;
                if !check.shadow {
                    full = Some(OnFull::Pass);
                }
                continue;
            }
            self.storage.count_refused();
            locked.find_again();
            self.judge(checks, locked, now_us, mode, Some((index, soonest_us)), judged);
            return Some(OnFull::Refuse);
        }
        full
    }
}
