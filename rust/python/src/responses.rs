//! Responses of Starlette that say what remains.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyType};

use crate::route_passed::RoutePassed;
use crate::sender::{is_told, list_of, untold, with_fields};

/// A response of Starlette that is another one with more fields, but for those that it has itself; the native twin of
/// `headgate.integrations.starlette.responses.python_copied`.
#[pyfunction]
pub fn copied_response<'py>(response: &Bound<'py, PyAny>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    let (py, kind) = (response.py(), response.get_type());
    let (attributes, headers) = (intern!(py, "__dict__"), intern!(py, "raw_headers"));
    let state = response.getattr(attributes)?.cast_into::<PyDict>()?.copy()?;
    let own = list_of(&state.as_any().get_item(headers)?)?;
    state.set_item(headers, with_fields(&own, fields, is_told)?)?;
    let view = intern!(py, "_headers"); // what Starlette keeps of them
    if state.contains(view)? {
        state.del_item(view)?;
    }
    static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let new = NEW.get_or_try_init(py, || py.get_type::<PyAny>().getattr("__new__").map(Bound::unbind))?;
    let copied = new.bind(py).call1((kind,))?;
    copied.setattr(attributes, state)?;
    Ok(copied)
}

/// Has the responses of an endpoint say what remains.
#[pyclass(frozen, module = "headgate._native")]
pub struct ResponseTeller {
    /// Whether responses of a class send their `raw_headers`, and nothing of them is hidden.
    sends_its_fields: Py<PyAny>,
    /// What tells otherwise: given what passed, what the endpoint returned, and its request.
    otherwise: Py<PyAny>,
    /// The classes that the endpoint returned first, of those that send their `raw_headers`: most return no other.
    usual: [OnceLock<Py<PyType>>; USUAL],
}

/// So many classes of responses of one endpoint are told in place.
const USUAL: usize = 4;

#[pymethods]
impl ResponseTeller {
    #[new]
    fn new(sends_its_fields: Py<PyAny>, otherwise: Py<PyAny>) -> Self {
        Self { sends_its_fields, otherwise, usual: [const { OnceLock::new() }; USUAL] }
    }

    #[pyo3(signature = (passed, response, connection, /))]
    fn tell<'py>(
        &self,
        passed: &Bound<'py, RoutePassed>,
        response: &Bound<'py, PyAny>,
        connection: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = response.py();
        if passed.get().is_continued() || !self.is_usual(&response.get_type())? {
            return self.otherwise.bind(py).call1((passed, response, connection));
        }
        let fields = passed.get().fields_of(py);
        // One reference is that of the call itself: nothing else refers to the response, and nothing returns it again.
        if references(response) == 1 && !is_known_weakly(response)? {
            let own = response.getattr(intern!(py, "raw_headers"))?;
            // Two references: the response's, and the one here. A third is that of a view of them.
            if let (Ok(own), 2) = (own.cast_exact::<PyList>(), references(&own)) {
                own.as_sequence().in_place_concat(untold(own, fields, is_told)?.as_sequence())?;
                return Ok(response.clone());
            }
        }
        copied_response(response, fields)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sends_its_fields)?;
        visit.call(&self.otherwise)?;
        self.usual.iter().filter_map(OnceLock::get).try_for_each(|usual| visit.call(usual))
    }
}

impl ResponseTeller {
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

/// Whether an application finds a response by a weak reference, and may return it again as long as it is being sent.
fn is_known_weakly(response: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!response.getattr(intern!(response.py(), "__weakref__"))?.is_none())
}

/// How many references there are to an object. The interpreter's lock keeps others from changing it meanwhile.
#[allow(deprecated)] // the other way to ask is unsafe code
fn references(object: &Bound<'_, PyAny>) -> isize {
    object.get_refcnt()
}
