//! A zone as Python sees it: a table in a file that all processes of a host map.

use std::os::fd::RawFd;
use std::sync::Arc;

use headgate_core::memory::shared::{file_system, same_file};
use headgate_core::table;
use headgate_core::table::storage::Storage;
use headgate_core::zone::header::Birth;
use headgate_core::zone::inspection::KeyState;
use headgate_core::zone::layout::Layout;
use headgate_core::zone::line_layout::GROUPS;
use headgate_core::zone::storage::ZoneStorage;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::any_table::{AnyTable, guarded, headgate_error, unusable};
use crate::arguments::{check_now, hash_key};
use crate::clock::{monotonic_us, wall_us};
use crate::lines::ZoneLines;
use crate::table::{read_on_full, write_stats};

/// A table in a file that all processes of a host map.
#[pyclass(frozen, module = "headgate._native")]
pub struct Zone {
    pub inner: Arc<AnyTable>,
}

#[pymethods]
impl Zone {
    #[new]
    #[pyo3(signature = (descriptor, *, on_full, alone))]
    fn new(descriptor: RawFd, on_full: &str, alone: Option<u64>) -> PyResult<Self> {
        let zone = ZoneStorage::open(&same_file(descriptor)?, read_on_full(on_full)?, alone)?;
        let zone = zone.map_err(|fault| headgate_error("ConfigError", fault))?;
        let table = table::Table::new(zone.birth().seed, zone);
        Ok(Self { inner: Arc::new(AnyTable::Shared(table)) })
    }

    /// Make a file of zeroes a zone.
    #[staticmethod]
    #[pyo3(signature = (descriptor, *, size, log_percent, max_holds, seed, boot))]
    fn format(
        descriptor: RawFd,
        size: usize,
        log_percent: usize,
        max_holds: usize,
        seed: [u8; 16],
        boot: [u8; 16],
    ) -> PyResult<()> {
        let layout = Layout::new(size, log_percent, max_holds).map_err(|fault| headgate_error("ConfigError", fault))?;
        let created_us = wall_us();
        let birth = Birth { seed, boot, anchor_us: created_us - monotonic_us(), created_us };
        Ok(ZoneStorage::format(&same_file(descriptor)?, &layout, &birth)?)
    }

    /// The kernel's number for the kind of file system that a file lies on.
    #[staticmethod]
    fn file_system(descriptor: RawFd) -> PyResult<u64> {
        Ok(file_system(&same_file(descriptor)?)?)
    }

    #[getter]
    fn boot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.table()?.storage().birth().boot))
    }

    fn now_us(&self) -> PyResult<i64> {
        Ok(self.table()?.storage().birth().anchor_us + monotonic_us())
    }

    #[getter]
    fn namespace(&self) -> PyResult<u64> {
        Ok(self.table()?.storage().namespace())
    }

    fn check(&self) -> PyResult<Option<String>> {
        guarded(|| Ok(self.table()?.storage().check().map_err(unusable)?.err()))
    }

    fn probe(&self) -> PyResult<()> {
        guarded(|| self.table()?.storage().probe().map_err(unusable))
    }

    fn clear(&self) -> PyResult<()> {
        self.inner.clear()?;
        (0..GROUPS as u16).for_each(|place| self.inner.notify_freed(place));
        Ok(())
    }

    #[getter]
    fn lines(&self) -> ZoneLines {
        ZoneLines::new(Arc::clone(&self.inner))
    }

    fn place_of(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        let key = hash_key(key, self.inner.seed())?;
        Ok(self.table()?.storage().shard_of(key))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        write_stats(py, self.inner.stats()?)
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let zone = self.table()?.storage();
        let (layout, (held, blocks)) = (zone.layout(), zone.log_blocks());
        let dict = PyDict::new(py);
        dict.set_item("size", layout.size)?;
        dict.set_item("log_percent", layout.log_percent)?;
        dict.set_item("shards", layout.shards.count)?;
        dict.set_item("max_keys", layout.max_keys())?;
        dict.set_item("max_log_entries_per_key", layout.max_log_entries())?;
        dict.set_item("log_blocks", blocks)?;
        dict.set_item("log_blocks_held", held)?;
        dict.set_item("max_holds", layout.max_holds)?;
        dict.set_item("max_limits", layout.limits)?;
        dict.set_item("max_waiters", zone.lines().0.room().0)?;
        dict.set_item("created_us", zone.birth().created_us)?;
        dict.set_item("mended", zone.mended())?;
        Ok(dict)
    }

    fn known(&self) -> PyResult<Vec<(String, String)>> {
        let known = guarded(|| Ok(self.table()?.storage().known()))?;
        Ok(known.into_iter().map(|limit| (limit.scope.into(), limit.text.into())).collect())
    }

    #[pyo3(signature = (key, now_us = None))]
    fn look<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        now_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let key = hash_key(key, self.inner.seed())?;
        let now_us = self.moment(now_us)?;
        let found = guarded(|| self.table()?.storage().inspect(key, now_us).map_err(unusable))?;
        let write = |state: KeyState| {
            let dict = PyDict::new(py);
            dict.set_item("limit", state.place)?;
            dict.set_item("remaining", state.reading.remaining)?;
            dict.set_item("reset_after_us", state.reading.reset_after_us)?;
            dict.set_item("next_after_us", state.reading.next_after_us)?;
            dict.set_item("refused", state.refused)?;
            Ok(dict)
        };
        found.into_iter().map(write).collect()
    }

    #[pyo3(signature = (key, now_us = None))]
    fn forget(&self, key: &Bound<'_, PyAny>, now_us: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let key = hash_key(key, self.inner.seed())?;
        let now_us = self.moment(now_us)?;
        let found = guarded(|| {
            let table = self.table()?;
            let known = table.storage().known();
            let states: Vec<_> = known.iter().map(|limit| (limit, key)).collect();
            table.reset(&states, now_us).map_err(unusable)
        })?;
        self.inner.notify_freed(self.table()?.storage().shard_of(key) as u16);
        Ok(found)
    }
}

impl Zone {
    fn table(&self) -> PyResult<&table::Table<ZoneStorage>> {
        match &*self.inner {
            AnyTable::Shared(table) => Ok(table),
            AnyTable::Private(_) => Err(PyValueError::new_err("a zone has a shared table")),
        }
    }

    fn moment(&self, now_us: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
        now_us.map_or_else(|| self.now_us(), check_now)
    }
}
