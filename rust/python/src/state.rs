//! States at the border: as Python's transitions write them. For inspection and for waiting lines.

use headgate_core::algorithms::transition::Stored;
use headgate_core::hash::KeyHash;
use headgate_core::limit::Algorithm;
use headgate_core::shard::registered::Registered;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::any_table::AnyTable;

/// A state, taken out of the table: no lock is held while Python objects are made.
enum Owned {
    Nothing,
    Numbers(Vec<i64>),
    Entries(Vec<(i64, i64)>),
}

/// What a table holds of a key under a limit, as the Python transition writes it; None for nothing.
pub fn read_state<'py>(
    py: Python<'py>,
    table: &AnyTable,
    limit: &Registered,
    key: KeyHash,
    now_us: i64,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let owned = table.read(limit, key, now_us, |stored| match (stored, limit.limit.algorithm) {
        (Stored::Nothing, _) => Owned::Nothing,
        (Stored::Numbers(numbers), Algorithm::SlidingWindow | Algorithm::CalendarWindow) => {
            Owned::Numbers(numbers.to_vec())
        }
        (Stored::Numbers([a, b, _]), _) => Owned::Numbers(vec![a, b]),
        (Stored::Entries(log), _) => Owned::Entries(log.entries.collect()),
    })?;
    Ok(match owned {
        Owned::Nothing => None,
        Owned::Numbers(numbers) => Some(PyTuple::new(py, numbers)?),
        Owned::Entries(entries) => Some(PyTuple::new(py, entries)?),
    })
}
