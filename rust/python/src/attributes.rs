//! Attributes of native objects that Python may set, and that native code reads without asking the object's class.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// The value that was set, or none yet.
#[derive(Default)]
pub struct Attribute(Mutex<Option<Py<PyAny>>>);

impl Attribute {
    /// The value that was set; raises AttributeError where none was.
    #[inline]
    pub fn of<'py>(&self, py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        let set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        set.as_ref().map(|set| set.bind(py).clone()).ok_or_else(|| PyAttributeError::new_err(name))
    }

    /// `of` for a getter.
    pub fn get(&self, py: Python<'_>, name: &'static str) -> PyResult<Py<PyAny>> {
        self.of(py, name).map(Bound::unbind)
    }

    /// Set the value. The former one is dropped outside of the lock: that may run any code.
    pub fn set(&self, _: Python<'_>, value: Option<Py<PyAny>>) {
        let before = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), value);
        drop(before);
    }

    /// Show it to the garbage collector. A value that is being read or set at this moment is in use, so the collector
    /// need not see it.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |set| visit.call(&*set))
    }
}
