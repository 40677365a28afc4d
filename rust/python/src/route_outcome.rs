//! The outcome of a native gate for a request to an endpoint.

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::decision::Decision;
use crate::key_text::KeyText;

/// The answer of an endpoint's limits.
pub enum RouteAnswer<'py> {
    Decided(Decision),
    /// A decision that Python made, or an awaitable of one.
    FromPython(Bound<'py, PyAny>),
}

impl<'py> RouteAnswer<'py> {
    /// As Python has it.
    pub fn into_object(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Decided(decision) => Ok(Bound::new(py, decision)?.into_any()),
            Self::FromPython(decision) => Ok(decision),
        }
    }
}

/// The outcome of a request to an endpoint.
pub struct RouteOutcome<'py> {
    pub answer: RouteAnswer<'py>,
    /// The fields for a request that passes at once; None for any other.
    pub fields: Option<Bound<'py, PyList>>,
    pub key: Option<KeyText>,
}

impl<'py> RouteOutcome<'py> {
    /// As Python has it: (the decision, the fields, the key).
    pub fn into_tuple(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let key = self.key.map(|key| key.parts(py)).transpose()?;
        Ok((self.answer.into_object(py)?, self.fields, key).into_pyobject(py)?.into_any())
    }
}
