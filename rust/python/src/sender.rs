//! What passes an ASGI application's messages on to its server, and adds fields to the head of the response.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// A `send` of ASGI; the native twin of `headgate.http.asgi.adding`.
#[pyclass(frozen, module = "headgate._native")]
pub struct FieldSender {
    send: Py<PyAny>,
    fields: Py<PyList>,
}

#[pymethods]
impl FieldSender {
    #[new]
    pub fn new(send: Py<PyAny>, fields: Py<PyList>) -> Self {
        Self { send, fields }
    }

    /// Gives what `send` gives: an awaitable.
    fn __call__<'py>(&self, py: Python<'py>, message: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if is_head(&message.get_item(intern!(py, "type"))?) {
            self.add(py, message)?;
        }
        self.send.bind(py).call1((message,))
    }
}

fn is_head(kind: &Bound<'_, PyAny>) -> bool {
    let kind = kind.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
    matches!(kind, Some("http.response.start" | "websocket.accept" | "websocket.http.response.start"))
}

impl FieldSender {
    /// Add the fields to the message, but for those that the application wrote itself.
    fn add(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let headers = intern!(py, "headers");
        let own = match message.cast::<PyDict>() {
            Ok(message) => message.get_item(headers)?,
            Err(_) => Some(message.call_method1(intern!(py, "get"), (headers,))?),
        };
        let own = match own {
            Some(own) if !own.is_none() => match own.cast_into::<PyList>() {
                Ok(own) => own,
                Err(other) => PyList::new(py, other.into_inner().try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
            },
            _ => PyList::empty(py),
        };
        let fields = self.fields.bind(py);
        let mut added = None;
        for (place, field) in fields.iter().enumerate() {
            if is_told(&own, &name_of(&field)?)? {
                added.get_or_insert_with(|| fields.get_slice(0, place));
            } else if let Some(added) = &added {
                added.append(field)?;
            }
        }
        let all = own.as_sequence().concat(added.as_ref().unwrap_or(fields).as_sequence())?;
        message.set_item(headers, all)
    }
}

/// Whether one of these fields has this name.
fn is_told(fields: &Bound<'_, PyList>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(name) = name.cast::<PyBytes>() else {
        return Ok(false);
    };
    for field in fields.iter() {
        if name_of(&field)?.cast::<PyBytes>().is_ok_and(|own| own.as_bytes() == name.as_bytes()) {
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
