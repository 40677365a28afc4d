//! The answers for many requests at once, stored compactly until they are read.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use headgate_core::table::answer::Answer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::decision::Decision;

/// A sequence of decisions, in the order of the keys.
#[pyclass(frozen, sequence, module = "headgate._native")]
pub struct Decisions {
    definitions: Py<PyTuple>,
    answers: Vec<Answer>,
}

impl Decisions {
    pub fn new(definitions: Py<PyTuple>, answers: Vec<Answer>) -> Self {
        Self { definitions, answers }
    }

    fn at(&self, py: Python<'_>, position: usize) -> Option<Decision> {
        let answer = self.answers.get(position)?;
        Some(Decision::new(self.definitions.clone_ref(py), answer.clone()))
    }
}

/// Creates one decision after another, so that no more of them exist than the caller keeps.
#[pyclass(frozen)]
struct DecisionsIterator {
    decisions: Py<Decisions>,
    next: AtomicUsize,
}

#[pymethods]
impl DecisionsIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> Option<Decision> {
        self.decisions.get().at(py, self.next.fetch_add(1, Relaxed))
    }
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.answers.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Decision> {
        let position = if index < 0 { index + self.answers.len() as isize } else { index };
        usize::try_from(position)
            .ok()
            .and_then(|position| self.at(py, position))
            .ok_or_else(|| PyIndexError::new_err("there are fewer decisions than that"))
    }

    fn __iter__(slf: Py<Self>) -> DecisionsIterator {
        DecisionsIterator { decisions: slf, next: AtomicUsize::new(0) }
    }

    #[getter]
    fn allowed(&self) -> Vec<bool> {
        self.answers.iter().map(|answer| answer.allowed).collect()
    }

    #[getter]
    fn allowed_count(&self) -> usize {
        self.answers.iter().filter(|answer| answer.allowed).count()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyList>,))> {
        let class = slf.py().import("headgate.stores.python_table")?.getattr("PythonDecisions")?;
        Ok((class, (slf.try_iter()?.collect::<PyResult<Vec<_>>>()?.into_pyobject(slf.py())?.cast_into()?,)))
    }
}
