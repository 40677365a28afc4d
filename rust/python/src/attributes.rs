//! Attributes of native objects that Python may set, and that native code reads without asking the object's class.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// What was set, or nothing yet.
#[derive(Default)]
pub struct Attribute(Mutex<Option<Py<PyAny>>>);

impl Attribute {
    /// What was set; as Python says it where nothing was.
    #[inline]
    pub fn of<'py>(&self, py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        let set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.as_ref().map(|set| set.bind(py).clone()).ok_or_else(|| PyAttributeError::new_err(name))
    }

    /// `of` as a getter gives it.
    pub fn got(&self, py: Python<'_>, name: &'static str) -> PyResult<Py<PyAny>> {
        self.of(py, name).map(Bound::unbind)
    }

    /// Set it. What was there is let go of outside of the lock: its end may run any code.
    pub fn set(&self, _: Python<'_>, value: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), value);
        drop(before);
    }

    /// Show it to the garbage collector. What is being read or set at this moment is in use, so nothing is lost if the
    /// collector is not shown it.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |set| visit.call(&*set))
    }
}
