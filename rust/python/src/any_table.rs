//! One door to the tables, wherever their states are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headgate_core::algorithms::transition::Stored;
use headgate_core::hash::{KeyHash, Seed};
use headgate_core::holding::record::HoldId;
use headgate_core::limit::Limit;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::shard::DamagedState;
use headgate_core::shard::log_reader::Entries;
use headgate_core::shard::registered::TooMany;
use headgate_core::shard::registered::{Definition, Registered, Registration};
use headgate_core::table::Table;
use headgate_core::table::answer::{Answer, Check, Mode};
use headgate_core::table::known_hold::SettledOne;
use headgate_core::table::settling::HoldRequest;
use headgate_core::table::settling::{Asked, Extension, Misuse, Reserved, Settlement};
use headgate_core::table::storage::Stats;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::backoff::LONGEST_WAIT;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::shards::Unusable;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::storage::ZoneStorage;
use pyo3::prelude::*;

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
        guarded(|| match self {
            Self::Private(table) => table.register(definition, now_us).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.register(definition, now_us).map_err(unusable),
        })
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
        guarded(|| match self {
            Self::Private(table) => table.apply(checks, now_us, mode).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.apply(checks, now_us, mode).map_err(unusable),
        })
    }

    /// See `Table::apply_in_flight`.
    pub fn apply_in_flight(&self, checks: &[Check], now_us: i64, mode: Mode) -> PyResult<Answer> {
        guarded(|| self.holding()?.apply_in_flight(checks, now_us, mode).map_err(damaged))
    }

    /// See `Table::reserve`.
    #[inline(always)]
    pub fn reserve(&self, checks: &[Check], request: &HoldRequest<'_>, now_us: i64, mode: Mode) -> PyResult<Reserved> {
        guarded(|| self.holding()?.reserve(checks, request, now_us, mode).map_err(damaged))
    }

    /// See `Table::commit`.
    #[inline(always)]
    pub fn commit(
        &self,
        id: HoldId,
        shard_number: usize,
        actuals: &[Option<i64>],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> PyResult<Result<Settlement, Misuse>> {
        guarded(|| self.holding()?.commit(id, shard_number, actuals, asked, now_us).map_err(damaged))
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
        guarded(|| self.holding()?.commit_one(id, shard_number, actual, asked, now_us).map_err(damaged))
    }

    /// See `Table::extend`.
    pub fn extend(
        &self,
        id: HoldId,
        shard_number: usize,
        lease_us: i64,
        more: &[i64],
        asked: &Asked<'_>,
        now_us: i64,
    ) -> PyResult<Result<Extension, Misuse>> {
        guarded(|| self.holding()?.extend(id, shard_number, lease_us, more, asked, now_us).map_err(damaged))
    }

    /// The table, if it is one that holds.
    #[inline(always)]
    pub fn holding(&self) -> PyResult<&Table<ProcessStorage>> {
        match self {
            Self::Private(table) => Ok(table),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(_) => {
                let message = "a shared zone does not hold what is settled later: use a store that does";
                Err(headgate_error("ConfigError", message.into()))
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
        guarded(|| match self {
            Self::Private(table) => table.apply_each(requests, checks_each, now_us, mode, each).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.apply_each(requests, checks_each, now_us, mode, each).map_err(unusable),
        })
    }

    /// See `Table::reset`.
    pub fn reset(&self, limit: &Registered, key: KeyHash, now_us: i64) -> PyResult<bool> {
        guarded(|| match self {
            Self::Private(table) => table.reset(limit, key, now_us).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.reset(limit, key, now_us).map_err(unusable),
        })
    }

    /// See `Table::give_back`.
    pub fn give_back(&self, checks: &[Check], now_us: i64, earliest_us: i64) -> PyResult<()> {
        guarded(|| match self {
            Self::Private(table) => table.give_back(checks, now_us, earliest_us).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.give_back(checks, now_us, earliest_us).map_err(unusable),
        })
    }

    /// See `Table::read`.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<Entries<'_>>) -> T,
    ) -> PyResult<T> {
        guarded(|| match self {
            Self::Private(table) => table.read(limit, key, now_us, read).map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.read(limit, key, now_us, read).map_err(unusable),
        })
    }

    /// See `Table::clear`.
    pub fn clear(&self) -> PyResult<()> {
        guarded(|| match self {
            Self::Private(table) => table.clear().map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.clear().map_err(unusable),
        })
    }

    /// See `Table::stats`.
    pub fn stats(&self) -> PyResult<Stats> {
        guarded(|| match self {
            Self::Private(table) => table.stats().map_err(damaged),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.stats().map_err(unusable),
        })
    }
}

/// The error of a limit that a table has no room for.
#[cold]
pub fn full(too_many: TooMany) -> PyErr {
    let message = match too_many {
        TooMany::Limits(most) => format!("this store holds states of {most} limits, which is all that it can know"),
        TooMany::Bytes(most) => {
            format!("the names of the limits that this store holds states of fill the {most} bytes it has for them")
        }
    };
    headgate_error("StoreUnavailable", message + "; a larger one knows more")
}

/// The error of a state that cannot be.
#[cold]
fn damaged(_: DamagedState) -> PyErr {
    let message = "what the store holds of this key is damaged, so nothing is decided by it: reset the key \
                   (`headgate zone reset KEY PATH` for a shared zone)";
    headgate_error("StoreKeyError", message.into())
}

/// What a table answers, and a StoreError where its code fails over what it finds there: no lock stays with it, and
/// what it had begun in a zone is taken back by the next process.
#[inline(always)]
pub fn guarded<T>(ask: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // Every structure that the closures change is whole between any two of its statements, or mended when it is
    // met next.
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| Err(failed()))
}

#[cold]
fn failed() -> PyErr {
    let message = "the native core failed over what the store holds, as standard error tells: is the store damaged?";
    headgate_error("StoreUnavailable", message.into())
}

/// The error of a shard that cannot be worked on.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[cold]
pub fn unusable(unusable: Unusable) -> PyErr {
    let thread = match unusable {
        Unusable::Damaged(fault) => {
            let message = format!(
                "the shared zone is damaged, it has {fault}: stop all processes that use it, delete its file, and start again"
            );
            return headgate_error("StoreUnavailable", message);
        }
        Unusable::DamagedState => return damaged(DamagedState),
        Unusable::Full(too_many) => return full(too_many),
        Unusable::Stuck(thread) => thread,
    };
    let who = if thread == 0 { String::new() } else { format!(" by thread {thread}") };
    let message = format!(
        "a part of the shared zone is held{who} for more than {} ms: is that process stopped, or starved of CPU?",
        LONGEST_WAIT.as_millis()
    );
    headgate_error("StoreTimeout", message)
}

/// An error of `headgate.errors`, by its name.
#[cold]
pub fn headgate_error(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let error = py.import("headgate.errors").and_then(|errors| errors.getattr(name)?.call1((message,)));
        error.map_or_else(|error| error, PyErr::from_value)
    })
}
