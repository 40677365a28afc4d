//! The table: every key's state under every limit, bounded, safe under threads. It decides.
//!
//! Algorithms decide for one limit on one state; the table decides for several limits together, and what happens where
//! there is no room: another state is dropped, the request is refused, or it passes uncounted.
//!
//! A key's hash chooses one of many shards, each under its own lock; all limits of one key are in
//! the same shard. A decision locks the shards of its keys in ascending order, judges all checks,
//! then charges all or none.

pub mod answer;
mod committing;
mod extending;
mod judgement;
mod known_few;
pub mod known_hold;
mod known_key;
mod known_places;
mod locking;
mod one_hold;
mod remembering;
mod reserving;
mod resetting;
pub mod settling;
mod shares;
pub mod storage;
pub mod transaction;

use crate::algorithms::transition::Stored;
use crate::hash::{KeyHash, Seed};
use crate::holding::record::HoldId;
use crate::holding::store::IdSource;
use crate::limit::Algorithm;
use crate::shard::DamagedState;
use crate::shard::log_reader::Entries;
use crate::shard::registered::{Definition, Registered, Registration};
use crate::table::answer::{Answer, Check, Mode, OnFull, Readings, binding_of};
use crate::table::judgement::Judgement;
use crate::table::known_key::{decide_known, decide_known_log};
use crate::table::storage::{Full, LockedShards, Stats, Storage};
use crate::table::transaction::Transaction;

/// How many requests ahead a key's slot is prefetched in a batch.
const LOOKAHEAD: usize = 8;

/// The table, on a storage.
pub struct Table<S> {
    seed: Seed,
    storage: S,
    /// The seed that hold ids are derived from.
    id_seed: Seed,
}

impl<S: Storage> Table<S> {
    /// A table on a storage.
    pub fn new(seed: [u8; 16], storage: S) -> Self {
        let seed = Seed::new(seed);
        Self { id_seed: seed.derived(), seed, storage }
    }

    /// The storage of its states.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The seed of its key hashes.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// A new id for a hold: 128 bits that cannot be guessed, unique among all users of the storage.
    #[inline]
    pub fn new_id(&self) -> HoldId {
        HoldId(self.secret(self.next()))
    }

    /// Register a limit.
    pub fn register(&self, definition: Definition<'_>, now_us: i64) -> Registration<S::Error> {
        self.storage.register(&self.seed, definition, now_us)
    }

    /// Prefetch the cache line in which a check's state will be searched. A hint, without any lock.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        self.storage.fetch(check);
    }

    /// Decide the checks of one request at one instant: all enforced ones are charged, or none. Atomic.
    ///
    /// No two checks may be the same limit on the same key.
    #[inline(always)]
    pub fn apply(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let known = match checks {
            [check] if check.limit.limit.algorithm == Algorithm::SlidingLog => {
                decide_known_log(&self.storage, check, now_us, mode)?
            }
            [check] => decide_known(&self.storage, check, now_us, mode)?,
            _ => return self.apply_several(checks, now_us, mode),
        };
        match known {
            Some(answer) => Ok(answer),
            None => self.apply_all(checks, now_us, mode),
        }
    }

    /// Decide a list of requests one after another, all at one instant; `each` gets every answer in turn.
    ///
    /// An error ends the batch; requests decided before it stay charged.
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
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        Ok(transaction.give_back(checks, now_us, earliest_us)?)
    }

    /// Call `read` with the stored state of a key under a limit, while the shard is locked.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<Entries<'_>>) -> T,
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

    /// Forget all states and holds; limits stay registered.
    pub fn clear(&self) -> Result<(), S::Error> {
        for shard_number in 0..self.storage.shard_count() {
            let mut shard = self.storage.lock(shard_number)?;
            shard.clear();
            self.storage.settle_holds(&mut shard);
            self.storage.settle(shard_number, &mut shard);
        }
        Ok(())
    }

    /// The table's statistics.
    pub fn stats(&self) -> Result<Stats, S::Error> {
        self.storage.stats()
    }

    /// Lock the shards of all checks, with limits that slots may name.
    #[inline(always)]
    fn lock(&self, transaction: &mut Transaction<'_, S>, checks: &[Check], now_us: i64) -> Result<(), S::Error> {
        transaction.lock(checks)?;
        while !checks.iter().all(|check| self.storage.is_current(check.limit)) {
            transaction.unlock();
            for check in checks {
                self.storage.renew(&self.seed, check.limit, now_us)?;
            }
            transaction.lock(checks)?;
        }
        Ok(())
    }

    /// `apply` for limits of which some count what is in flight.
    pub fn apply_in_flight(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        self.decide::<true>(checks, &mut transaction, &mut Judgement::new(), now_us, mode, |_, _, _| Ok(()))
    }

    // Inlining is forced in all of the slow path from here on: otherwise additions to it make the fast path longer.
    #[inline(always)]
    fn apply_all(&self, checks: &[Check], now_us: i64, mode: Mode) -> Result<Answer, S::Error> {
        let mut transaction = Transaction::new(&self.storage);
        self.lock(&mut transaction, checks, now_us)?;
        self.decide::<false>(checks, &mut transaction, &mut Judgement::new(), now_us, mode, |_, _, _| Ok(()))
    }

    /// Decide the checks of a transaction, and charge all or none; for `HOLDS` see `Judgement::judge`.
    ///
    /// `more` is written with the charges, and counts with them.
    #[inline(always)]
    fn decide<'table, const HOLDS: bool>(
        &'table self,
        checks: &[Check],
        transaction: &mut Transaction<'table, S>,
        judgement: &mut Judgement,
        now_us: i64,
        mode: Mode,
        more: impl FnOnce(&mut LockedShards<S::Guard<'table>>, &Judgement, Option<OnFull>) -> Result<(), DamagedState>,
    ) -> Result<Answer, S::Error> {
        if mode.commit {
            transaction.adopt(checks, now_us);
        }
        judgement.judge::<S, HOLDS>(checks, transaction, now_us, mode, None);
        transaction.check()?;
        let mut full = None;
        if mode.commit && judgement.updates.iter().any(Option::is_none) {
            transaction.to_present(checks, &judgement.updates, now_us);
        }
        if mode.commit && !judgement.allowed {
            transaction.mark_refused(&judgement.readings);
        } else if mode.commit && transaction.needs_room(checks, &judgement.updates) {
            full = self.make_room::<HOLDS>(checks, transaction, judgement, now_us, mode);
            let mut written = Ok(());
            if judgement.allowed {
                written = transaction.write_growing(checks, &judgement.updates, |locked| more(locked, judgement, full));
            }
            if !judgement.allowed || written.is_err() {
                self.storage.drop_reserved(&mut transaction.locked, now_us);
            }
            transaction.settle();
            written?;
        } else if mode.commit {
            transaction.write(checks, &judgement.updates, |locked| more(locked, judgement, None))?;
        }
        let (allowed, readings) = (judgement.allowed, &judgement.readings[..]);
        let binding = binding_of(checks, readings, allowed);
        let readings = if let [only] = *readings { Readings::One(only) } else { Readings::Many(readings.into()) };
        Ok(Answer { allowed, full, binding, readings })
    }

    /// Make room for the new states of an admitted decision, or else apply the configured choice for a full table.
    #[cold]
    fn make_room<'table, const HOLDS: bool>(
        &'table self,
        checks: &[Check],
        transaction: &mut Transaction<'table, S>,
        judgement: &mut Judgement,
        now_us: i64,
        mode: Mode,
    ) -> Option<OnFull> {
        let mut full = None;
        for (index, check) in checks.iter().enumerate() {
            if judgement.updates[index].is_none() {
                continue;
            }
            let need = transaction.need(checks, &judgement.updates, index);
            let reserved = self.storage.reserve(check, &mut transaction.locked, index, need, now_us);
            let Err(Full { soonest_us }) = reserved else {
                continue;
            };
            if check.shadow || self.storage.on_full() == OnFull::Pass {
                self.storage.count_passed();
                judgement.updates[index] = None;
                if !check.shadow {
                    full = Some(OnFull::Pass);
                }
                continue;
            }
            self.storage.count_refused();
            transaction.find_again();
            judgement.judge::<S, HOLDS>(checks, transaction, now_us, mode, Some((index, soonest_us)));
            return Some(OnFull::Refuse);
        }
        full
    }
}
