//! The table as Python sees it: its bounds and its counts.

use std::sync::Arc;

use headgate_core::encoding::block::PER_BLOCK;
use headgate_core::process::capacity::Bounds;
use headgate_core::process::storage::ProcessStorage;
use headgate_core::table;
use headgate_core::table::answer::OnFull;
use headgate_core::table::storage::Stats;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::any_table::AnyTable;

/// A bounded table of states, shared by every `BoundLimits` made on it.
#[pyclass(frozen, module = "headgate._native")]
pub struct Table {
    pub inner: Arc<AnyTable>,
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (*, max_keys, max_log_entries, max_holds, on_full, seed))]
    fn new(max_keys: usize, max_log_entries: usize, max_holds: usize, on_full: &str, seed: [u8; 16]) -> PyResult<Self> {
        let on_full = read_on_full(on_full)?;
        let max_log_blocks = max_log_entries.div_ceil(PER_BLOCK);
        let bounds = Bounds { max_keys, max_log_blocks, max_holds, on_full };
        let table = table::Table::new(seed, ProcessStorage::new(bounds));
        Ok(Self { inner: Arc::new(AnyTable::Private(table)) })
    }

    fn clear(&self) -> PyResult<()> {
        self.inner.clear()
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        write_stats(py, self.inner.stats()?)
    }
}

/// The choice for new keys where a table is full.
pub fn read_on_full(on_full: &str) -> PyResult<OnFull> {
    match on_full {
        "forget" => Ok(OnFull::Forget),
        "refuse" => Ok(OnFull::Refuse),
        "pass" => Ok(OnFull::Pass),
        _ => Err(PyValueError::new_err("on_full must be forget, refuse or pass")),
    }
}

/// The counts of a table by their names in `headgate.stores.protocol.StoreStats`.
pub fn write_stats(py: Python<'_>, stats: Stats) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("keys", stats.keys)?;
    dict.set_item("holds", stats.holds)?;
    dict.set_item("bytes", stats.bytes)?;
    dict.set_item("expired", stats.expired)?;
    dict.set_item("evicted", stats.evicted)?;
    dict.set_item("refused_full", stats.refused_full)?;
    dict.set_item("passed_full", stats.passed_full)?;
    Ok(dict)
}
