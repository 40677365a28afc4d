//! The header fields that report what remains; the native twin of `headgate.http.fields.ratelimit`.

use headgate_answers::ratelimit::{Form, write_ratelimit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::decision::Decision;

/// `headgate.http.fields.ratelimit.Form`.
#[derive(FromPyObject)]
pub struct PythonForm(String, i64, i64, bool, bool, bool);

impl From<PythonForm> for Form {
    fn from(form: PythonForm) -> Self {
        let PythonForm(start, window_us, quota, in_flight, on_the_clock, shadow) = form;
        Self { start: start.into(), window_us, quota, in_flight, on_the_clock, shadow }
    }
}

/// Writes RateLimit-Policy and RateLimit of decisions on the same limits.
#[pyclass(frozen, module = "headgate._native")]
pub struct RateLimitFields {
    forms: Vec<Form>,
    /// (name, value) of RateLimit-Policy; None where every limit is a shadow.
    policy: Option<Py<PyTuple>>,
    /// The name of RateLimit: text, or bytes where the values are to be bytes.
    name: Py<PyAny>,
    encoded: bool,
}

#[pymethods]
impl RateLimitFields {
    #[new]
    fn new(forms: Vec<PythonForm>, policy: Option<Py<PyTuple>>, name: Bound<'_, PyAny>) -> Self {
        let encoded = name.is_instance_of::<PyBytes>();
        Self { forms: forms.into_iter().map(Form::from).collect(), policy, name: name.unbind(), encoded }
    }

    pub fn write<'py>(&self, py: Python<'py>, decision: &Decision) -> PyResult<Bound<'py, PyList>> {
        let Some(policy) = &self.policy else {
            return Ok(PyList::empty(py));
        };
        let policy = policy.bind(py);
        let items = write_ratelimit(self.forms.iter(), decision.is_allowed(), decision.readings());
        if items.is_empty() {
            return PyList::new(py, [policy]);
        }
        let value = if self.encoded {
            PyBytes::new(py, items.as_bytes()).into_any()
        } else {
            PyString::new(py, &items).into_any()
        };
        PyList::new(py, [policy, &PyTuple::new(py, [self.name.bind(py), &value])?])
    }

    pub fn write_passing<'py>(&self, py: Python<'py>, decision: &Decision) -> PyResult<Option<Bound<'py, PyList>>> {
        if decision.passes_at_once() { self.write(py, decision).map(Some) } else { Ok(None) }
    }
}
