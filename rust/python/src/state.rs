//! States as Python's transitions write them, for inspection and for waiting lines.

use headgate_core::algorithms::transition::Stored;
use headgate_core::hash::KeyHash;
use headgate_core::limit::Algorithm;
use headgate_core::shard::registered::Registered;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::any_table::AnyTable;

/// A state, copied from the table: no lock is held while Python objects are created.
enum StoredState {
    Nothing,
    Numbers(Vec<i64>),
    Entries(Vec<(i64, i64)>),
}

/// The state of a key under a limit, as the Python transition writes it; None where there is none.
pub fn read_state<'py>(
    py: Python<'py>,
    table: &AnyTable,
    limit: &Registered,
    key: KeyHash,
    now_us: i64,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let state = table.read(limit, key, now_us, |stored| match (stored, limit.limit.algorithm) {
        (Stored::Nothing, _) => StoredState::Nothing,
        (Stored::Numbers(numbers), Algorithm::SlidingWindow | Algorithm::CalendarWindow) => {
            StoredState::Numbers(numbers.to_vec())
        }
        (Stored::Numbers([a, b, _]), _) => StoredState::Numbers(vec![a, b]),
        (Stored::Entries(log), _) => StoredState::Entries(log.entries.collect()),
    })?;
    Ok(match state {
        StoredState::Nothing => None,
        StoredState::Numbers(numbers) => Some(PyTuple::new(py, numbers)?),
        StoredState::Entries(entries) => Some(PyTuple::new(py, entries)?),
    })
}
