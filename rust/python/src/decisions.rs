//! The answers for many requests at once, kept compact until they are looked at.

use headgate_core::table::answer::Answer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

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
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.answers.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Decision> {
        let position = if index < 0 { index + self.answers.len() as isize } else { index };
        let answer = usize::try_from(position)
            .ok()
            .and_then(|position| self.answers.get(position))
            .ok_or_else(|| PyIndexError::new_err("there are fewer decisions than that"))?;
        Ok(Decision::new(self.definitions.clone_ref(py), answer.clone()))
    }

    #[getter]
    fn allowed(&self) -> Vec<bool> {
        self.answers.iter().map(|answer| answer.allowed).collect()
    }

    #[getter]
    fn allowed_count(&self) -> usize {
        self.answers.iter().filter(|answer| answer.allowed).count()
    }
}
