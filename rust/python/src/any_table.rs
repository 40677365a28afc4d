//! A table, wherever its states are.

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

/// Call a method of a table, wherever it is, and raise its error.
macro_rules! call_table {
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
    /// The seed that keys are hashed with here.
    #[inline(always)]
    pub fn seed(&self) -> &Seed {
        match self {
            Self::Private(table) => table.seed(),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.seed(),
        }
    }

    /// The offset from the monotonic clock to this table's time; None for the time of the process.
    pub fn anchor_us(&self) -> Option<i64> {
        match self {
            Self::Private(_) => None,
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => Some(table.storage().birth().anchor_us),
        }
    }

    /// Register a limit.
    pub fn register(&self, definition: Definition<'_>, now_us: i64) -> Registration<PyErr> {
        call_table!(self.register(definition, now_us))
    }

    /// Raise ConfigError for limits that cannot be decided together here.
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
        call_table!(self.apply(checks, now_us, mode))
    }

    /// `check_fit` without Python: whether these limits can be decided together here.
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
        call_table!(self.apply_in_flight(checks, now_us, mode))
    }

    /// See `Table::reserve`.
    #[inline(always)]
    pub fn reserve(&self, checks: &[Check], request: &HoldRequest<'_>, now_us: i64, mode: Mode) -> PyResult<Reserved> {
        self.check_holds(checks)?;
        call_table!(self.reserve(checks, request, now_us, mode))
    }

    /// See `Table::reserve_one`.
    #[inline(always)]
    pub fn reserve_one(&self, check: &Check, times: HoldTimes, now_us: i64) -> PyResult<Option<(HoldId, Measured)>> {
        self.check_holds(std::slice::from_ref(check))?;
        call_table!(self.reserve_one(check, times, now_us))
    }

    /// See `Table::commit`.
    #[inline(always)]
    pub fn commit(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Settlement, Misuse>> {
        self.check_holds(&[])?;
        call_table!(self.commit(id, shard_number, actuals, limits, now_us))
    }

    /// See `Table::commit_outcome`.
    #[inline(always)]
    pub fn commit_outcome(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Outcome, Misuse>> {
        self.check_holds(&[])?;
        call_table!(self.commit_outcome(id, shard_number, actuals, limits, now_us))
    }

    /// See `Table::commit_one`.
    #[inline(always)]
    pub fn commit_one(
        &self,
        id: HoldId,
        shard_number: usize,
        actual: Option<i64>,
        limits: &Registered,
        now_us: i64,
    ) -> PyResult<Option<SettledOne>> {
        call_table!(self.commit_one(id, shard_number, actual, limits, now_us))
    }

    /// See `Table::extend`.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        limits: &CallerLimits<'_>,
        now_us: i64,
    ) -> PyResult<Result<Extension, Misuse>> {
        self.check_holds(&[])?;
        call_table!(self.extend(id, shard_number, lease_us, more, limits, now_us))
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
        call_table!(self.apply_each(requests, checks_each, now_us, mode, each))
    }

    /// See `Table::reset`.
    pub fn reset(&self, states: &[(&Registered, KeyHash)], now_us: i64) -> PyResult<bool> {
        call_table!(self.reset(states, now_us))
    }

    /// See `Table::give_back`.
    pub fn give_back(&self, checks: &[Check], now_us: i64, earliest_us: i64) -> PyResult<()> {
        call_table!(self.give_back(checks, now_us, earliest_us))
    }

    /// See `Table::read`.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<Entries<'_>>) -> T,
    ) -> PyResult<T> {
        call_table!(self.read(limit, key, now_us, read))
    }

    /// See `Table::clear`.
    pub fn clear(&self) -> PyResult<()> {
        call_table!(self.clear())
    }

    /// See `Table::stats`.
    pub fn stats(&self) -> PyResult<Stats> {
        call_table!(self.stats())
    }
}

/// The answer of a table, or a StoreError where its code panics over the states that it finds: it holds no lock then,
/// and the next process undoes what it had begun in a zone.
#[inline(always)]
pub fn guarded<T>(operate: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // Every structure that the closures change is consistent between any two of its statements, or is repaired when it
    // is used next.
    catch_unwind(AssertUnwindSafe(operate)).unwrap_or_else(|_| Err(failed()))
}
