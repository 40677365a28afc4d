//! Reads the answers of native limits, once they are needed.

use headgate_core::table::answer::Answer;
use headgate_core::table::known_hold::Measured;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Reads the definitions and the answers of native limits.
pub struct LimitReader {
    pub definitions: fn(&Bound<'_, PyAny>) -> PyResult<Py<PyTuple>>,
    pub read: fn(&Bound<'_, PyAny>, &Measured) -> PyResult<Answer>,
}
