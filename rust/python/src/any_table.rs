//! One door to the tables, wherever their states are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headgate_core::algorithms::transition::Stored;
use headgate_core::hash::{KeyHash, Seed};
use headgate_core::holding::record::HoldId;
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::log_reader::Entries;
use headgate_core::shard::registered::{Definition, Registered, Registration};
use headgate_core::table::Table;
use headgate_core::table::answer::{Answer, Check, Mode};
use headgate_core::table::known_hold::{Measured, SettledOne};
use headgate_core::table::settling::{
    CallerLimits, Extension, HoldRequest, HoldTimes, Misuse, Outcome, Reserved, Settlement,
};
use headgate_core::table::storage::{Stats, Storage};
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::storage::ZoneStorage;
use pyo3::prelude::*;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub use crate::table_errors::unusable;
use crate::table_errors::{damaged, failed};
pub use crate::table_errors::{full, headgate_error};

/// What a table answers to a call, wherever it is; an error is raised.
macro_rules! ask {
    ($self:ident.$call:ident($($argument:expr),*)) => {
        guarded(|| match $self {
            Self::Private(table) => table.$call($($argument),*).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.$call($($argument),*).map_err(unusable),
        })
    };
}

/// A table.
pub enum AnyTable {
    /// In the memory of this process.
    Private(Table<ProcessStorage>),
    /// In a file that all processes of a host map.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    Shared(Table<ZoneStorage>),
}

impl AnyTable {
    /// How keys are hashed here.
    #[inline(always)]
    pub fn seed(&self) -> &Seed {
        match self {
            Self::Private(table) => table.seed(),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.seed(),
        }
    }

    /// What is added to the monotonic clock to have this table's time; None: the time of the process.
    pub fn anchor_us(&self) -> Option<i64> {
        match self {
            Self::Private(_) => None,
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => Some(table.storage().birth().anchor_us),
        }
    }

    /// Make a limit known.
    pub fn register(&self, definition: Definition<'_>, now_us: i64) -> Registration<PyErr> {
        ask!(self.register(definition, now_us))
    }

    /// Raise ConfigError for limits that cannot be asked together here.
    pub fn check_fit<'limit>(&self, limits: impl Iterator<Item = &'limit Limit> + Clone) -> PyResult<()> {
        match self {
            Self::Private(_) => Ok(()),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(_) => ZoneStorage::check_fit(limits).map_err(|fault| headgate_error("ConfigError", fault)),
        }
    }

    /// See `Table::fetch`.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        match self {
            Self::Private(table) => table.fetch(check),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.fetch(check),
        }
    }

    /// See `Table::apply`.
    #[inline(always)]
    pub fn apply(&self, checks: &[Check], now_us: i64, mode: Mode) -> PyResult<Answer> {
        ask!(self.apply(checks, now_us, mode))
    }

    /// `check_fit` without Python: whether these limits can be asked together here.
    pub fn fits<'limit>(&self, limits: impl Iterator<Item = &'limit Limit> + Clone) -> bool {
        match self {
            Self::Private(_) => true,
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(_) => ZoneStorage::check_fit(limits).is_ok(),
        }
    }

    /// `apply` without Python: None where the table fails, and nothing is charged.
    pub fn apply_or_fail(&self, checks: &[Check], now_us: i64, mode: Mode) -> Option<Answer> {
        // As in `guarded`.
        let applied = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Private(table) => table.apply(checks, now_us, mode).ok(),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.apply(checks, now_us, mode).ok(),
        }));
        applied.unwrap_or_default()
    }

    /// See `Table::apply_in_flight`.
    pub fn apply_in_flight(&self, checks: &[Check], now_us: i64, mode: Mode) -> PyResult<Answer> {
        self.check_holds(checks)?;
        ask!(self.apply_in_flight(checks, now_us, mode))
    }

    /// See `Table::reserve`.
    #[inline(always)]
    pub fn reserve(&self, checks: &[Check], request: &HoldRequest<'_>, now_us: i64, mode: Mode) -> PyResult<Reserved> {
        self.check_holds(checks)?;
        ask!(self.reserve(checks, request, now_us, mode))
    }

    /// See `Table::reserve_one`.
    #[inline(always)]
    pub fn reserve_one(&self, check: &Check, times: HoldTimes, now_us: i64) -> PyResult<Option<(HoldId, Measured)>> {
        self.check_holds(std::slice::from_ref(check))?;
        ask!(self.reserve_one(check, times, now_us))
    }

    /// See `Table::commit`.
    #[inline(always)]
    pub fn commit(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        asked: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Settlement, Misuse>> {
        self.check_holds(&[])?;
        ask!(self.commit(id, shard_number, actuals, asked, now_us))
    }

    /// See `Table::commit_outcome`.
    #[inline(always)]
    pub fn commit_outcome(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        asked: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Outcome, Misuse>> {
        self.check_holds(&[])?;
        ask!(self.commit_outcome(id, shard_number, actuals, asked, now_us))
    }

    /// See `Table::commit_one`.
    #[inline(always)]
    pub fn commit_one(
        &self,
        id: HoldId,
        shard_number: usize,
        actual: Option<i64>,
        asked: &Registered,
        now_us: i64,
    ) -> PyResult<Option<SettledOne>> {
        ask!(self.commit_one(id, shard_number, actual, asked, now_us))
    }

    /// See `Table::extend`.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        asked: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Extension, Misuse>> {
        self.check_holds(&[])?;
        ask!(self.extend(id, shard_number, lease_us, more, asked, now_us))
    }

    /// See `Table::new_id`.
    #[inline(always)]
    pub fn new_id(&self) -> HoldId {
        match self {
            Self::Private(table) => table.new_id(),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.new_id(),
        }
    }

    /// The number of a key's shard, for the ids of its holds. Raises ConfigError for a table that holds nothing.
    #[inline(always)]
    pub fn place_of(&self, key: KeyHash) -> PyResult<u16> {
        self.check_holds(&[])?;
        match self {
            Self::Private(table) => Ok(table.storage().shard_of(key) as u16),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => Ok(table.storage().shard_of(key) as u16),
        }
    }

    /// Raise ConfigError where these limits cannot be held together here.
    #[inline(always)]
    fn check_holds(&self, checks: &[Check]) -> PyResult<()> {
        match self {
            Self::Private(_) => Ok(()),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => {
                let logs = checks.iter().filter(|check| check.limit.limit.algorithm == Algorithm::SlidingLog).count();
                match table.storage().hold_error(checks.len(), logs) {
                    None => Ok(()),
                    Some(fault) => Err(headgate_error("ConfigError", fault)),
                }
            }
        }
    }

    /// See `Table::apply_each`.
    pub fn apply_each(
        &self,
        requests: &[Check<'_>],
        checks_each: usize,
        now_us: i64,
        mode: Mode,
        each: impl FnMut(Answer),
    ) -> PyResult<()> {
        ask!(self.apply_each(requests, checks_each, now_us, mode, each))
    }

    /// See `Table::reset`.
    pub fn reset(&self, states: &[(&Registered, KeyHash)], now_us: i64) -> PyResult<bool> {
        ask!(self.reset(states, now_us))
    }

    /// See `Table::give_back`.
    pub fn give_back(&self, checks: &[Check], now_us: i64, earliest_us: i64) -> PyResult<()> {
        ask!(self.give_back(checks, now_us, earliest_us))
    }

    /// See `Table::read`.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<Entries<'_>>) -> T,
    ) -> PyResult<T> {
        ask!(self.read(limit, key, now_us, read))
    }

    /// See `Table::clear`.
    pub fn clear(&self) -> PyResult<()> {
        ask!(self.clear())
    }

    /// See `Table::stats`.
    pub fn stats(&self) -> PyResult<Stats> {
        ask!(self.stats())
    }
}

/// What a table answers, and a StoreError where its code fails over what it finds there: no lock stays with it, and
/// what it had begun in a zone is taken back by the next process.
#[inline(always)]
pub fn guarded<T>(ask: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // Every structure that the closures change is whole between any two of its statements, or mended when it is
    // met next.
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| Err(failed()))
}
