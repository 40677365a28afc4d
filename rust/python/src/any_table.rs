//! One door to the tables, wherever their states are.

use std::convert::Infallible;

use headgate_core::algorithms::transition::Stored;
use headgate_core::answer::{Answer, Check, Mode};
use headgate_core::hash::{KeyHash, Seed};
use headgate_core::limit::Limit;
use headgate_core::private::Private;
use headgate_core::registry::Registered;
use headgate_core::storage::{Stats, TooMany};
use headgate_core::table::Table;
use pyo3::prelude::*;

/// A table of one process.
pub enum AnyTable {
    /// In the memory of this process.
    Private(Table<Private>),
}

impl AnyTable {
    /// How keys are hashed here.
    #[inline(always)]
    pub fn seed(&self) -> &Seed {
        match self {
            Self::Private(table) => table.seed(),
        }
    }

    /// Make a limit known.
    pub fn register(&self, scope: &str, limit: Limit) -> PyResult<Result<Registered, TooMany>> {
        match self {
            Self::Private(table) => Ok(sure(table.register(scope, limit))),
        }
    }

    /// See `Table::fetch`.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        match self {
            Self::Private(table) => table.fetch(check),
        }
    }

    /// See `Table::apply`.
    #[inline(always)]
    pub fn apply(&self, checks: &[Check], now_us: i64, mode: Mode) -> PyResult<Answer> {
        match self {
            Self::Private(table) => Ok(sure(table.apply(checks, now_us, mode))),
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
        }
    }

    /// See `Table::reset`.
    pub fn reset(&self, limit: &Registered, key: KeyHash, now_us: i64) -> PyResult<bool> {
        match self {
            Self::Private(table) => Ok(sure(table.reset(limit, key, now_us))),
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
        }
    }

    /// See `Table::clear`.
    pub fn clear(&self) -> PyResult<()> {
        match self {
            Self::Private(table) => {
                sure(table.clear());
                Ok(())
            }
        }
    }

    /// See `Table::stats`.
    pub fn stats(&self) -> PyResult<Stats> {
        match self {
            Self::Private(table) => Ok(sure(table.stats())),
        }
    }
}

/// What no lock of this process can refuse.
#[inline(always)]
fn sure<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}
