//! A request that the first limit of its route let pass at once, natively.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::key_text::KeyText;

/// What stands for the exchange of a request as long as one limit has let it pass, and nothing more is to be done.
#[pyclass(frozen, module = "headgate._native")]
pub struct RoutePassed {
    place: Py<PyAny>,
    decision: Py<PyAny>,
    fields: Py<PyList>,
    key: Option<KeyText>,
    asked_us: i64,
    exchange: OnceLock<Py<PyAny>>,
}

impl RoutePassed {
    /// What a limit decided, at its place.
    #[inline]
    pub fn new(place: Py<PyAny>, decision: Py<PyAny>, fields: Py<PyList>, key: Option<KeyText>, asked_us: i64) -> Self {
        Self { place, decision, fields, key, asked_us, exchange: OnceLock::new() }
    }
}

#[pymethods]
impl RoutePassed {
    #[getter]
    fn place(&self, py: Python<'_>) -> Py<PyAny> {
        self.place.clone_ref(py)
    }

    #[getter]
    fn decision(&self, py: Python<'_>) -> Py<PyAny> {
        self.decision.clone_ref(py)
    }

    #[getter]
    fn fields(&self, py: Python<'_>) -> Py<PyList> {
        self.fields.clone_ref(py)
    }

    #[getter]
    fn charge<'py>(&self, py: Python<'py>) -> PyResult<(Option<Bound<'py, PyTuple>>, i64)> {
        Ok((self.key.as_ref().map(|key| key.parts(py)).transpose()?, self.asked_us))
    }

    #[getter]
    fn exchange(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.exchange.get().map(|exchange| exchange.clone_ref(py))
    }

    #[pyo3(signature = (exchange, /))]
    fn become_exchange(&self, py: Python<'_>, exchange: Py<PyAny>) -> Py<PyAny> {
        self.exchange.get_or_init(|| exchange).clone_ref(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.place)?;
        visit.call(&self.decision)?;
        visit.call(&self.fields)?;
        match self.exchange.get() {
            Some(exchange) => visit.call(exchange),
            None => Ok(()),
        }
    }
}
