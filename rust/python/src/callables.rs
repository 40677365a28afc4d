//! The callables that servers and frameworks call: they are native, so a request that passes at once runs no Python
//! code of Headgate.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::attributes::Attribute;
use crate::web_gate::{Passing, WebGate};

/// The attributes of both kinds of middleware. Python sets them; native code reads them without a look-up in the class.
#[pyclass(subclass, frozen, module = "headgate._native")]
#[derive(Default)]
pub struct MiddlewareCallable {
    app: Attribute,
    direct: Attribute,
}

#[pymethods]
impl MiddlewareCallable {
    #[getter]
    fn app(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.app.get(py, "app")
    }

    #[setter]
    fn set_app(&self, py: Python<'_>, app: Py<PyAny>) {
        self.app.set(py, Some(app));
    }

    #[getter(_direct)]
    fn direct(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.direct.get(py, "_direct")
    }

    #[setter(_direct)]
    fn set_direct(&self, py: Python<'_>, enforcer: Py<PyAny>) {
        self.direct.set(py, Some(enforcer));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.app.visit(&visit)?;
        self.direct.visit(&visit)
    }

    fn __clear__(&self, py: Python<'_>) {
        self.app.set(py, None);
        self.direct.set(py, None);
    }
}

/// The base of a middleware of ASGI; the native twin of `headgate.http.server.callables.PythonAsgiCallable`.
#[pyclass(subclass, frozen, extends = MiddlewareCallable, module = "headgate._native")]
pub struct AsgiCallable;

#[pymethods]
impl AsgiCallable {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(MiddlewareCallable::default()).add_subclass(Self)
    }

    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        scope: &Bound<'py, PyAny>,
        receive: &Bound<'py, PyAny>,
        send: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, middleware) = (slf.py(), slf.as_super().get());
        let Some((enforcer, gate)) = direct(middleware.direct.of(py, "_direct")?)? else {
            return slf.call_method1(intern!(py, "_judge"), (scope, receive, send));
        };
        match or_store_error(py, gate.get().sender(py, scope, send))? {
            Ok(send) => middleware.app.of(py, "app")?.call1((scope, receive, send)),
            Err(decision) => slf.call_method1(intern!(py, "_judge_rest"), (scope, receive, send, enforcer, decision)),
        }
    }
}

/// The base of a middleware of WSGI; the native twin of `headgate.http.server.callables.PythonWsgiCallable`.
#[pyclass(subclass, frozen, extends = MiddlewareCallable, module = "headgate._native")]
pub struct WsgiCallable;

#[pymethods]
impl WsgiCallable {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(MiddlewareCallable::default()).add_subclass(Self)
    }

    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        environ: &Bound<'py, PyAny>,
        start_response: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, middleware) = (slf.py(), slf.as_super().get());
        let Some((enforcer, gate)) = direct(middleware.direct.of(py, "_direct")?)? else {
            return slf.call_method1(intern!(py, "_judge"), (environ, start_response));
        };
        match or_store_error(py, gate.get().starter(py, environ, start_response))? {
            Ok(start) => middleware.app.of(py, "app")?.call1((environ, start)),
            Err(decision) => {
                slf.call_method1(intern!(py, "_judge_rest"), (environ, start_response, enforcer, decision))
            }
        }
    }
}

/// The enforcer of all requests, and its native gate; None where there is none, or where Python has to find it.
#[inline]
fn direct<'py>(enforcer: Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, WebGate>)>> {
    if enforcer.is_none() {
        return Ok(None);
    }
    let gate = enforcer.getattr(intern!(enforcer.py(), "web_gate"))?;
    Ok(gate.cast_into::<WebGate>().ok().map(|gate| (enforcer, gate)))
}

/// The outcome of a native gate for a request; the error of a store stands in for its decision.
#[inline]
fn or_store_error<'py>(py: Python<'py>, passing: PyResult<Passing<'py>>) -> PyResult<Passing<'py>> {
    passing.or_else(|error| Ok(Err(Some(store_error(py, error)?))))
}

/// The error of a store that gave no decision; any other error is raised.
#[cold]
fn store_error<'py>(py: Python<'py>, error: PyErr) -> PyResult<Bound<'py, PyAny>> {
    static STORE_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let kind =
        STORE_ERROR.get_or_try_init(py, || py.import("headgate.errors")?.getattr("StoreError").map(Bound::unbind))?;
    if error.matches(py, kind.bind(py))? { Ok(error.into_value(py).into_bound(py).into_any()) } else { Err(error) }
}
