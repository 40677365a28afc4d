//! Entries of logs that are not Python objects: read, sorted and merged.

use std::sync::Mutex;

use headgate_core::limit::LARGEST;
use headgate_logs::entries::{Entries, Entry, Merge};
use headgate_logs::{LATEST_US, read_line};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

const _: () = assert!(LATEST_US == LARGEST, "the latest moment of a line is not the latest that a limit decides at");

/// Entries that Python read: `headgate.replay.entries.Entry`.
pub type Other = Py<PyTuple>;

/// Entries of a log; see `headgate.replay.entries.Block`.
#[pyclass(module = "headgate._native")]
#[derive(Default)]
pub struct LogBlock {
    entries: Entries<Other>,
}

impl LogBlock {
    pub fn entries(&self) -> &Entries<Other> {
        &self.entries
    }
}

#[pymethods]
impl LogBlock {
    #[new]
    #[pyo3(signature = (entries = None, /))]
    fn new(entries: Option<&Bound<'_, PyList>>) -> PyResult<Self> {
        let mut block = Self::default();
        for entry in entries.into_iter().flatten() {
            block.push(entry)?;
        }
        Ok(block)
    }

    /// The lines of a text, each by itself or by Python.
    #[staticmethod]
    fn read(py: Python<'_>, text: &str, naive_is_utc: bool, read_other: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut block = Self::default();
        let mut lines = text.split('\n').enumerate();
        loop {
            let other = py.detach(|| {
                for (number, line) in lines.by_ref() {
                    match read_line(line, naive_is_utc) {
                        Some(read) => block.entries.push_line(&read),
                        None => return Some((number, line)),
                    }
                }
                None
            });
            let Some(other) = other else {
                return Ok(block);
            };
            let read = read_other.call1(other)?;
            if !read.is_none() {
                block.push(read)?;
            }
        }
    }

    /// Add the entries of another block, which has none then.
    fn append(&mut self, py: Python<'_>, other: &mut Self) {
        py.detach(|| self.entries.append(&mut other.entries));
    }

    fn sort(&mut self, py: Python<'_>) {
        py.detach(|| self.entries.sort());
    }

    fn take_first(&mut self, py: Python<'_>, count: usize) -> Self {
        Self { entries: py.detach(|| self.entries.take_first(count)) }
    }

    fn retain_within(&mut self, py: Python<'_>, from_us: i64, to_us: i64) -> usize {
        py.detach(|| self.entries.retain_within(from_us, to_us))
    }

    #[getter]
    fn ends_us(&self) -> Option<(i64, i64)> {
        self.entries.ends_us()
    }

    fn __len__(&self) -> usize {
        self.entries.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyTuple>> {
        match self.entries.get(index) {
            Some(Entry::Line(line)) => {
                let headers = PyDict::new(py);
                (line.time_us, line.client, line.method, line.path, "", headers, 1).into_pyobject(py)
            }
            Some(Entry::Other(other)) => Ok(other.bind(py).clone()),
            None => Err(PyIndexError::new_err("a block has no such entry")),
        }
    }
}

impl LogBlock {
    /// Add an entry that Python read.
    fn push(&mut self, entry: Bound<'_, PyAny>) -> PyResult<()> {
        let entry = entry.cast_into::<PyTuple>().map_err(|_| PyTypeError::new_err("an entry of a log is a tuple"))?;
        self.entries.push_other(entry.get_item(0)?.extract()?, entry.unbind());
        Ok(())
    }
}

/// Blocks of several logs, each in order, merged into one.
#[pyclass(frozen, module = "headgate._native")]
pub struct LogMerge {
    merge: Mutex<Merge<Other>>,
}

impl LogMerge {
    fn with<R>(&self, then: impl FnOnce(&mut Merge<Other>) -> R) -> PyResult<R> {
        let mut merge = self.merge.lock().map_err(|_| PyRuntimeError::new_err("a merge has failed before"))?;
        Ok(then(&mut merge))
    }
}

#[pymethods]
impl LogMerge {
    #[new]
    fn new(logs: usize) -> Self {
        Self { merge: Mutex::new(Merge::new(logs)) }
    }

    #[getter]
    fn wants(&self) -> PyResult<Option<usize>> {
        self.with(|merge| merge.wants())
    }

    #[pyo3(signature = (log, block, /))]
    fn give(&self, log: usize, block: Option<&mut LogBlock>) -> PyResult<()> {
        let entries = block.map(|block| std::mem::take(&mut block.entries));
        self.with(|merge| merge.give(log, entries))
    }

    fn merged(&self, py: Python<'_>) -> PyResult<LogBlock> {
        Ok(LogBlock { entries: py.detach(|| self.with(Merge::merged))? })
    }
}
