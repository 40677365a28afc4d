//! What a native gate decides of a request to an endpoint.

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::decision::Decision;
use crate::key_text::KeyText;

/// What an endpoint's limits answer.
pub enum CameAt<'py> {
    Decided(Decision),
    /// A decision that Python made, or an awaitable of one.
    Told(Bound<'py, PyAny>),
}

impl<'py> CameAt<'py> {
    /// As Python has it.
    pub fn into_object(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Decided(decision) => Ok(Bound::new(py, decision)?.into_any()),
            Self::Told(told) => Ok(told),
        }
    }
}

/// What is decided of a request to an endpoint.
pub struct DecidedAt<'py> {
    pub came: CameAt<'py>,
    /// What is told of a request that passes at once.
    pub fields: Option<Bound<'py, PyList>>,
    pub key: Option<KeyText>,
}

impl<'py> DecidedAt<'py> {
    /// As Python has it: (the decision, the fields, the key).
    pub fn told(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let key = self.key.map(|key| key.parts(py)).transpose()?;
        Ok((self.came.into_object(py)?, self.fields, key).into_pyobject(py)?.into_any())
    }
}
