//! Responses of Starlette with the fields that report what remains.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyType};

use crate::route_passed::RoutePassed;
use crate::sender::{has_field, list_of, missing_fields, with_fields};

/// A copy of a response of Starlette with more fields, except those that it has itself; the native twin of
/// `headgate.integrations.starlette.responses.python_copied`.
#[pyfunction]
pub fn copied_response<'py>(response: &Bound<'py, PyAny>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    let (py, kind) = (response.py(), response.get_type());
    let (attributes, headers) = (intern!(py, "__dict__"), intern!(py, "raw_headers"));
    let state = response.getattr(attributes)?.cast_into::<PyDict>()?.copy()?;
    let present = list_of(&state.as_any().get_item(headers)?)?;
    state.set_item(headers, with_fields(&present, fields, has_field)?)?;
    let view = intern!(py, "_headers"); // Starlette's cached view of them
    if state.contains(view)? {
        state.del_item(view)?;
    }
    static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let new = NEW.get_or_try_init(py, || py.get_type::<PyAny>().getattr("__new__").map(Bound::unbind))?;
    let copied = new.bind(py).call1((kind,))?;
    copied.setattr(attributes, state)?;
    Ok(copied)
}

/// Adds the fields that report what remains to the responses of an endpoint.
#[pyclass(frozen, module = "headgate._native")]
pub struct FieldAdder {
    /// Whether responses of a class send all of their `raw_headers`.
    sends_its_fields: Py<PyAny>,
    /// Adds the fields in all other cases: called with the passed request, the result of the endpoint, and its request.
    add_in_python: Py<PyAny>,
    /// The classes that the endpoint returned first, of those that send their `raw_headers`: most return no other.
    usual: [OnceLock<Py<PyType>>; USUAL],
}

/// Classes of responses of one endpoint whose responses get the fields in place.
const USUAL: usize = 4;

#[pymethods]
impl FieldAdder {
    #[new]
    fn new(sends_its_fields: Py<PyAny>, add_in_python: Py<PyAny>) -> Self {
        Self { sends_its_fields, add_in_python, usual: [const { OnceLock::new() }; USUAL] }
    }

    #[pyo3(signature = (passed, response, connection, /))]
    fn add_fields<'py>(
        &self,
        passed: &Bound<'py, RoutePassed>,
        response: &Bound<'py, PyAny>,
        connection: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = response.py();
        if passed.get().is_continued() || !self.is_usual(&response.get_type())? {
            return self.add_in_python.bind(py).call1((passed, response, connection));
        }
        let fields = passed.get().fields_of(py);
        // One reference is that of the call itself: nothing else refers to the response, and nothing returns it again.
        if references(response) == 1 && !is_weakly_referenced(response)? {
            let present = response.getattr(intern!(py, "raw_headers"))?;
            // Two references: the response's, and the one here. A third one belongs to a view of them.
            if let (Ok(present), 2) = (present.cast_exact::<PyList>(), references(&present)) {
                present.as_sequence().in_place_concat(missing_fields(present, fields, has_field)?.as_sequence())?;
                return Ok(response.clone());
            }
        }
        copied_response(response, fields)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sends_its_fields)?;
        visit.call(&self.add_in_python)?;
        self.usual.iter().filter_map(OnceLock::get).try_for_each(|usual| visit.call(usual))
    }
}

impl FieldAdder {
    #[inline]
    fn is_usual(&self, kind: &Bound<'_, PyType>) -> PyResult<bool> {
        for place in &self.usual {
            match place.get() {
                Some(usual) if kind.is(usual) => return Ok(true),
                Some(_) => {}
                None => return self.becomes_usual(place, kind),
            }
        }
        Ok(false)
    }

    #[cold]
    fn becomes_usual(&self, place: &OnceLock<Py<PyType>>, kind: &Bound<'_, PyType>) -> PyResult<bool> {
        let sends = self.sends_its_fields.bind(kind.py()).call1((kind,))?.is_truthy()?;
        Ok(sends && place.get_or_init(|| kind.clone().unbind()).is(kind))
    }
}

/// Whether an application has a weak reference to a response, and may return it again as long as it is being sent.
fn is_weakly_referenced(response: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!response.getattr(intern!(response.py(), "__weakref__"))?.is_none())
}

/// The number of references to an object. The interpreter's lock keeps others from changing it meanwhile.
#[allow(deprecated)] // the other way to read it is unsafe code
fn references(object: &Bound<'_, PyAny>) -> isize {
    object.get_refcnt()
}
