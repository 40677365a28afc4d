//! Callables between an application and its server that add fields to the head of the response.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::bound_function::{OneArgument, bound_function};

/// A `send` of ASGI that adds these fields; the native twin of `headgate.http.asgi.python_send_with_fields`.
#[pyfunction]
pub fn send_with_fields<'py>(send: &Bound<'py, PyAny>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
    bound_function::<SendWithFields>(&PyTuple::new(send.py(), [send, fields.as_any()])?)
}

/// The function of such a `send`. It is bound to (the `send` that it passes messages to, the fields).
struct SendWithFields;

impl OneArgument for SendWithFields {
    const NAME: &'static CStr = c"send_with_fields";

    /// Gives the result of `send`: an awaitable.
    fn call<'py>(bound_to: &Bound<'py, PyTuple>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let [send, fields] = bound_to.as_slice() else {
            return Err(PyTypeError::new_err("a send that adds fields is bound to a send and to them"));
        };
        let name = intern!(message.py(), "type");
        let plain = message.cast_exact::<PyDict>().ok();
        let kind = match plain.map_or(Ok(None), |plain| plain.get_item(name))? {
            Some(kind) => kind,
            None => message.get_item(name)?,
        };
        if !is_head(&kind) {
            return send.call1((message,));
        }
        let copied = match plain {
            Some(plain) => plain.copy()?,
            None => message.py().get_type::<PyDict>().call1((message,))?.cast_into()?,
        };
        send.call1((with_added_fields(copied, fields.cast()?)?,))
    }
}

/// Whether messages of a type have headers.
#[inline]
fn is_head(kind: &Bound<'_, PyAny>) -> bool {
    let kind = kind.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
    matches!(kind, Some("http.response.start" | "websocket.accept" | "websocket.http.response.start"))
}

/// A copy of a head with the fields, except those that the application wrote itself. The message is copied because an
/// application may send the same one again, to another client.
fn with_added_fields<'py>(copied: Bound<'py, PyDict>, fields: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyDict>> {
    let headers = intern!(copied.py(), "headers");
    let present = match copied.get_item(headers)? {
        Some(present) if !present.is_none() => list_of(&present)?,
        _ => PyList::empty(copied.py()),
    };
    copied.set_item(headers, with_fields(&present, fields, has_field)?)?;
    Ok(copied)
}

/// A `start_response` of WSGI; the native twin of `headgate.http.wsgi.python_start_with_fields`.
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
        let present = list_of(headers)?;
        let all = with_fields(&present, self.fields.bind(py), has_field_in_any_case)?;
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

/// A new list of the fields that are present, and of the added ones those that are missing.
pub fn with_fields<'py>(
    present: &Bound<'py, PyList>,
    added: &Bound<'py, PyList>,
    contains: HasField<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(present.as_sequence().concat(missing_fields(present, added, contains)?.as_sequence())?.into_any())
}

/// Whether one of these fields has this name.
type HasField<'py> = fn(&Bound<'py, PyList>, &Bound<'py, PyAny>) -> PyResult<bool>;

/// The added fields that are not present yet.
pub fn missing_fields<'py>(
    present: &Bound<'py, PyList>,
    added: &Bound<'py, PyList>,
    contains: HasField<'py>,
) -> PyResult<Bound<'py, PyList>> {
    let mut missing = None;
    for (place, field) in added.iter().enumerate() {
        if contains(present, &name_of(&field)?)? {
            missing.get_or_insert_with(|| added.get_slice(0, place));
        } else if let Some(missing) = &missing {
            missing.append(field)?;
        }
    }
    Ok(missing.unwrap_or_else(|| added.clone()))
}

/// Whether one of these fields has this name, whatever its case.
fn has_field_in_any_case<'py>(fields: &Bound<'py, PyList>, name: &Bound<'py, PyAny>) -> PyResult<bool> {
    let name = name.cast::<PyString>()?.to_str()?;
    for field in fields.iter() {
        if name_of(&field)?.cast::<PyString>()?.to_str()?.eq_ignore_ascii_case(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether one of these fields has this name, whatever its case: ASGI's is lower case, but Django's handler keeps the
/// case that its application wrote.
pub fn has_field<'py>(fields: &Bound<'py, PyList>, name: &Bound<'py, PyAny>) -> PyResult<bool> {
    let Ok(name) = name.cast::<PyBytes>() else {
        return Ok(false);
    };
    for field in fields.iter() {
        let is_present = match field.cast_exact::<PyTuple>().map(|pair| pair.as_slice()) {
            Ok([present, ..]) => is_named(present, name.as_bytes()),
            _ => is_named(&field.get_item(0)?, name.as_bytes()),
        };
        if is_present {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_named(present: &Bound<'_, PyAny>, name: &[u8]) -> bool {
    present.cast::<PyBytes>().is_ok_and(|present| present.as_bytes().eq_ignore_ascii_case(name))
}

/// The name of a field.
fn name_of<'py>(field: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match field.cast_exact::<PyTuple>().map(|pair| pair.as_slice()) {
        Ok([name, ..]) => Ok(name.clone()),
        _ => field.get_item(0),
    }
}
