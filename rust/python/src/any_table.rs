//! One door to the tables, wherever their states are.

use std::convert::Infallible;

use headgate_core::algorithms::transition::Stored;
use headgate_core::answer::{Answer, Check, Mode};
use headgate_core::hash::{KeyHash, Seed};
use headgate_core::limit::Limit;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::patience::PATIENCE;
use headgate_core::private::Private;
use headgate_core::registry::Registered;
use headgate_core::storage::{Stats, TooMany};
use headgate_core::table::Table;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use headgate_core::zone::{Unusable, Zone};
use pyo3::prelude::*;

/// A table.
pub enum AnyTable {
    /// In the memory of this process.
    Private(Table<Private>),
    /// In a file that all processes of a host map.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    Shared(Table<Zone>),
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

    /// Make a limit known; `text` is how people write it.
    pub fn register(&self, scope: &str, text: &str, limit: Limit) -> PyResult<Result<Registered, TooMany>> {
        match self {
            Self::Private(table) => Ok(sure(table.register(scope, text, limit))),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.register(scope, text, limit).map_err(unusable),
        }
    }

    /// Raise ConfigError for limits that cannot be asked together here.
    pub fn check_fit<'limit>(&self, limits: impl Iterator<Item = &'limit Limit> + Clone) -> PyResult<()> {
        match self {
            Self::Private(_) => Ok(()),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(_) => Zone::check_fit(limits).map_err(|fault| headgate_error("ConfigError", fault)),
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
        match self {
            Self::Private(table) => Ok(sure(table.apply(checks, now_us, mode))),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.apply(checks, now_us, mode).map_err(unusable),
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
        match self {
            Self::Private(table) => {
                sure(table.apply_each(requests, checks_each, now_us, mode, each));
                Ok(())
            }
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.apply_each(requests, checks_each, now_us, mode, each).map_err(unusable),
        }
    }

    /// See `Table::reset`.
    pub fn reset(&self, limit: &Registered, key: KeyHash, now_us: i64) -> PyResult<bool> {
        match self {
            Self::Private(table) => Ok(sure(table.reset(limit, key, now_us))),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.reset(limit, key, now_us).map_err(unusable),
        }
    }

    /// See `Table::give_back`.
    pub fn give_back(&self, checks: &[Check], now_us: i64, earliest_us: i64) -> PyResult<()> {
        match self {
            Self::Private(table) => {
                sure(table.give_back(checks, now_us, earliest_us));
                Ok(())
            }
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.give_back(checks, now_us, earliest_us).map_err(unusable),
        }
    }

    /// See `Table::read`.
    pub fn read<T>(
        &self,
        limit: &Registered,
        key: KeyHash,
        now_us: i64,
        read: impl FnOnce(Stored<'_>) -> T,
    ) -> PyResult<T> {
        match self {
            Self::Private(table) => Ok(sure(table.read(limit, key, now_us, read))),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.read(limit, key, now_us, read).map_err(unusable),
        }
    }

    /// See `Table::clear`.
    pub fn clear(&self) -> PyResult<()> {
        match self {
            Self::Private(table) => {
                sure(table.clear());
                Ok(())
            }
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.clear().map_err(unusable),
        }
    }

    /// See `Table::stats`.
    pub fn stats(&self) -> PyResult<Stats> {
        match self {
            Self::Private(table) => Ok(sure(table.stats())),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => table.stats().map_err(unusable),
        }
    }
}

/// What no lock of this process can refuse.
#[inline(always)]
fn sure<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

/// The error of a lane that cannot be worked on.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[cold]
pub fn unusable(unusable: Unusable) -> PyErr {
    let thread = match unusable {
        Unusable::Damaged(fault) => {
            let message = format!(
                "the shared zone is damaged, it has {fault}: stop all who use it, delete its file, and start again"
            );
            return headgate_error("StoreUnavailable", message);
        }
        Unusable::Stuck(thread) => thread,
    };
    let who = if thread == 0 { String::new() } else { format!(" by thread {thread}") };
    let message = format!(
        "a part of the shared zone is held{who} for more than {} ms: is that process stopped, or starved of CPU?",
        PATIENCE.as_millis()
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
