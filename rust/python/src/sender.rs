//! What stands between an application and its server, and adds fields to the head of the response.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::bound_function::{OneArgument, bound_function};

/// A `send` of ASGI that adds these fields; the native twin of `headgate.http.asgi.python_adding`.
#[pyfunction]
pub fn adding<'py>(send: &Bound<'py, PyAny>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    bound_function::<SendWithFields>(&PyTuple::new(send.py(), [send, fields.as_any()])?)
}

/// What such a `send` does. It is bound to (the `send` that it passes messages to, the fields).
struct SendWithFields;

impl OneArgument for SendWithFields {
    const NAME: &'static CStr = c"send_with_fields";

    /// Gives what `send` gives: an awaitable.
    fn call<'py>(bound_to: &Bound<'py, PyTuple>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let [send, fields] = bound_to.as_slice() else {
            return Err(PyTypeError::new_err("a send that adds fields is bound to a send and to them"));
        };
        if is_head(message)? {
            return send.call1((with_told(message, fields.cast::<PyList>()?)?,));
        }
        send.call1((message,))
    }
}

/// Whether a message has headers. Most have a type that is the same object as the name here: both are interned.
#[inline]
fn is_head(message: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = message.py();
    let name = intern!(py, "type");
    let kind = match message.cast_exact::<PyDict>().map(|message| message.get_item(name)) {
        Ok(Ok(Some(kind))) => kind,
        _ => message.get_item(name)?,
    };
    if kind.is(intern!(py, "http.response.body")) {
        return Ok(false);
    }
    if kind.is(intern!(py, "http.response.start")) {
        return Ok(true);
    }
    let kind = kind.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
    Ok(matches!(kind, Some("http.response.start" | "websocket.accept" | "websocket.http.response.start")))
}

/// The message with the fields, but for those that the application wrote itself. It is another message: an application
/// may send the same one again, to another client.
fn with_told<'py>(message: &Bound<'py, PyAny>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyDict>> {
    let py = message.py();
    let headers = intern!(py, "headers");
    let told = match message.cast_exact::<PyDict>() {
        Ok(message) => message.copy()?,
        Err(_) => py.get_type::<PyDict>().call1((message,))?.cast_into::<PyDict>()?,
    };
    let own = match told.get_item(headers)? {
        Some(own) if !own.is_none() => list_of(&own)?,
        _ => PyList::empty(py),
    };
    told.set_item(headers, with_fields(&own, fields, is_told)?)?;
    Ok(told)
}

/// A `start_response` of WSGI; the native twin of `headgate.http.wsgi.telling`.
#[pyclass(frozen, module = "headgate._native")]
pub struct FieldStarter {
    start: Py<PyAny>,
    fields: Py<PyList>,
}

#[pymethods]
impl FieldStarter {
    #[new]
    pub fn new(start: Py<PyAny>, fields: Py<PyList>) -> Self {
        Self { start, fields }
    }

    #[pyo3(signature = (status, headers, *error))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        status: &Bound<'py, PyAny>,
        headers: &Bound<'py, PyAny>,
        error: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = list_of(headers)?;
        let all = with_fields(&own, self.fields.bind(py), is_told_in_any_case)?;
        if error.is_empty() {
            return self.start.bind(py).call1((status, all));
        }
        let mut arguments = vec![status.clone(), all.into_any()];
        arguments.extend(error.iter());
        self.start.bind(py).call1(PyTuple::new(py, arguments)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.start)?;
        visit.call(&self.fields)
    }
}

/// Header fields in a list.
pub fn list_of<'py>(fields: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    match fields.cast::<PyList>() {
        Ok(fields) => Ok(fields.clone()),
        Err(_) => PyList::new(fields.py(), fields.try_iter()?.collect::<PyResult<Vec<_>>>()?),
    }
}

/// A new list of the own fields, and of the added ones those that are not told by them.
pub fn with_fields<'py>(
    own: &Bound<'py, PyList>,
    added: &Bound<'py, PyList>,
    is_told: IsTold<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(own.as_sequence().concat(untold(own, added, is_told)?.as_sequence())?.into_any())
}

/// Whether one of these fields has this name.
type IsTold<'py> = fn(&Bound<'py, PyList>, &Bound<'py, PyAny>) -> PyResult<bool>;

/// Of the added fields those that are not told by the own ones.
pub fn untold<'py>(
    own: &Bound<'py, PyList>,
    added: &Bound<'py, PyList>,
    is_told: IsTold<'py>,
) -> PyResult<Bound<'py, PyList>> {
    let mut rest = None;
    for (place, field) in added.iter().enumerate() {
        if is_told(own, &name_of(&field)?)? {
            rest.get_or_insert_with(|| added.get_slice(0, place));
        } else if let Some(rest) = &rest {
            rest.append(field)?;
        }
    }
    Ok(rest.unwrap_or_else(|| added.clone()))
}

/// Whether one of these fields has this name, whatever its case.
fn is_told_in_any_case<'py>(fields: &Bound<'py, PyList>, name: &Bound<'py, PyAny>) -> PyResult<bool> {
    let name = name.cast::<PyString>()?.to_str()?;
    for field in fields.iter() {
        if name_of(&field)?.cast::<PyString>()?.to_str()?.eq_ignore_ascii_case(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether one of these fields has this name.
pub fn is_told<'py>(fields: &Bound<'py, PyList>, name: &Bound<'py, PyAny>) -> PyResult<bool> {
    let Ok(name) = name.cast::<PyBytes>() else {
        return Ok(false);
    };
    let name = name.as_bytes();
    let is_it = |own: &Bound<'_, PyAny>| own.cast::<PyBytes>().is_ok_and(|own| own.as_bytes() == name);
    for field in fields.iter() {
        let found = match field.cast_exact::<PyTuple>() {
            Ok(pair) if !pair.is_empty() => is_it(&pair.as_slice()[0]),
            _ => is_it(&name_of(&field)?),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// In lower case, as ASGI has it.
fn name_of<'py>(field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match field.cast::<PyTuple>() {
        Ok(pair) => pair.get_item(0),
        Err(_) => field.get_item(0),
    }
}
