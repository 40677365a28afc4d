//! How what native limits answered is read, once it is asked for.

use headgate_core::table::answer::Answer;
use headgate_core::table::known_hold::Measured;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// What is asked of the native limits that answered.
pub struct LimitsOf {
    pub definitions: fn(&Bound<'_, PyAny>) -> PyResult<Py<PyTuple>>,
    pub read: fn(&Bound<'_, PyAny>, &Measured) -> PyResult<Answer>,
}
