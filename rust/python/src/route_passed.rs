//! A request that the first limit of its route let pass at once, natively.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::decision::Decision;
use crate::key_text::KeyText;

/// Stands for the exchange of a request as long as one limit has let it pass, and nothing more is to be done.
#[pyclass(frozen, module = "headgate._native")]
pub struct RoutePassed {
    place: Py<PyAny>,
    decision: Decision,
    /// The same as a Python object, once it was needed.
    python_decision: OnceLock<Py<Decision>>,
    fields: Py<PyList>,
    key: Option<KeyText>,
    charged_us: i64,
    exchange: OnceLock<Py<PyAny>>,
}

impl RoutePassed {
    /// A request that the limit at this place let pass.
    #[inline]
    pub fn new(
        place: Py<PyAny>,
        decision: Decision,
        fields: Py<PyList>,
        key: Option<KeyText>,
        charged_us: i64,
    ) -> Self {
        Self { place, decision, python_decision: OnceLock::new(), fields, key, charged_us, exchange: OnceLock::new() }
    }

    /// The fields that report what remains.
    #[inline]
    pub fn fields_of<'py>(&self, py: Python<'py>) -> &Bound<'py, PyList> {
        self.fields.bind(py)
    }

    /// Whether an exchange has taken its place.
    #[inline]
    pub fn is_continued(&self) -> bool {
        self.exchange.get().is_some()
    }
}

#[pymethods]
impl RoutePassed {
    #[getter]
    fn place(&self, py: Python<'_>) -> Py<PyAny> {
        self.place.clone_ref(py)
    }

    #[getter]
    fn decision(&self, py: Python<'_>) -> PyResult<Py<Decision>> {
        if let Some(python_decision) = self.python_decision.get() {
            return Ok(python_decision.clone_ref(py));
        }
        let decision = Py::new(py, self.decision.clone_ref(py))?;
        Ok(self.python_decision.get_or_init(|| decision).clone_ref(py))
    }

    #[getter]
    fn fields(&self, py: Python<'_>) -> Py<PyList> {
        self.fields.clone_ref(py)
    }

    #[getter]
    fn charge<'py>(&self, py: Python<'py>) -> PyResult<(Option<Bound<'py, PyTuple>>, i64)> {
        Ok((self.key.as_ref().map(|key| key.parts(py)).transpose()?, self.charged_us))
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
        self.decision.visit(&visit)?;
        if let Some(python_decision) = self.python_decision.get() {
            visit.call(python_decision)?;
        }
        visit.call(&self.fields)?;
        match self.exchange.get() {
            Some(exchange) => visit.call(exchange),
            None => Ok(()),
        }
    }
}
