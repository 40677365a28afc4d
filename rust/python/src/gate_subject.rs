//! A `headgate.policy.request.Request` as a policy reads it, without calling Python's code.

use std::cell::OnceCell;

use headgate_policy::subject::{Name, Sent, Subject};
use headgate_policy::value::NeedsPython;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use smallvec::SmallVec;

/// Why a field could not be read.
pub enum ReadError {
    /// Only Python can read it.
    NeedsPython,
    /// Python raised an error.
    Raised(PyErr),
}

impl From<NeedsPython> for ReadError {
    fn from(_: NeedsPython) -> Self {
        Self::NeedsPython
    }
}

impl From<PyErr> for ReadError {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

/// The classes of the objects that are read here; objects of other classes are left to Python.
pub struct Classes {
    request: Py<PyType>,
    headers: Py<PyType>,
    repeated: Py<PyType>,
    pub(crate) descriptor: Py<PyType>,
}

impl Classes {
    /// As Python has them.
    pub fn new(py: Python<'_>) -> PyResult<Self> {
        let class = |module: &str, name: &str| -> PyResult<Py<PyType>> {
            Ok(py.import(module)?.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        Ok(Self {
            request: class("headgate.policy.request", "Request")?,
            headers: class("headgate.policy.headers", "Headers")?,
            repeated: class("headgate.policy.subject", "Repeated")?,
            descriptor: class("headgate.policy.descriptor", "Descriptor")?,
        })
    }
}

/// A header as it was sent.
enum Lines<'py> {
    None,
    One(Bound<'py, PyString>),
    /// All lines joined, and each; boxed, for most requests have no such header, and the box keeps the enum small.
    Several(Box<(Bound<'py, PyString>, Vec<Bound<'py, PyString>>)>),
}

/// A request whose class is that of Python itself, of which each part is read once.
pub struct PythonRequest<'py, 'gate> {
    request: &'gate Bound<'py, PyAny>,
    classes: &'gate Classes,
    /// The names of headers by number.
    names: &'gate [Py<PyString>],
    method: OnceCell<Bound<'py, PyString>>,
    path: OnceCell<Bound<'py, PyString>>,
    host: OnceCell<Bound<'py, PyString>>,
    client_ip: OnceCell<Bound<'py, PyString>>,
    endpoint: OnceCell<Bound<'py, PyString>>,
    headers: OnceCell<Bound<'py, PyDict>>,
    header_lines: SmallVec<[OnceCell<Lines<'py>>; 4]>,
}

impl<'py, 'gate> PythonRequest<'py, 'gate> {
    /// None for a subject of another class, whose methods may be its own.
    #[inline(always)]
    pub fn of(
        request: &'gate Bound<'py, PyAny>,
        classes: &'gate Classes,
        names: &'gate [Py<PyString>],
    ) -> Option<Self> {
        if !request.get_type().is(&classes.request) {
            return None;
        }
        Some(Self {
            request,
            classes,
            names,
            method: OnceCell::new(),
            path: OnceCell::new(),
            host: OnceCell::new(),
            client_ip: OnceCell::new(),
            endpoint: OnceCell::new(),
            headers: OnceCell::new(),
            header_lines: names.iter().map(|_| OnceCell::new()).collect(),
        })
    }

    #[inline]
    fn attribute_text<'own>(
        &self,
        place: &'own OnceCell<Bound<'py, PyString>>,
        name: &Bound<'py, PyString>,
    ) -> Result<&'own str, ReadError> {
        if place.get().is_none() {
            let _ = place.set(self.text(self.request.getattr(name)?)?);
        }
        place.get().and_then(|text| text.to_str().ok()).ok_or(ReadError::NeedsPython)
    }

    /// A text of a class whose methods are known.
    #[inline]
    fn text(&self, value: Bound<'py, PyAny>) -> Result<Bound<'py, PyString>, ReadError> {
        if value.is_exact_instance_of::<PyString>() || value.get_type().is(&self.classes.repeated) {
            return value.cast_into::<PyString>().map_err(|_| ReadError::NeedsPython);
        }
        Err(ReadError::NeedsPython)
    }

    fn all_headers(&self) -> Result<&Bound<'py, PyDict>, ReadError> {
        if self.headers.get().is_none() {
            let headers = self.request.getattr(intern!(self.request.py(), "headers"))?;
            if !headers.get_type().is(&self.classes.headers) && !headers.is_exact_instance_of::<PyDict>() {
                return Err(ReadError::NeedsPython);
            }
            let _ = self.headers.set(headers.cast_into::<PyDict>().map_err(PyErr::from)?);
        }
        self.headers.get().ok_or(ReadError::NeedsPython)
    }

    fn lines(&self, name: &Name) -> Result<Lines<'py>, ReadError> {
        let Some(value) = self.all_headers()?.get_item(&self.names[name.number])? else {
            return Ok(Lines::None);
        };
        if value.is_exact_instance_of::<PyString>() {
            return Ok(Lines::One(value.cast_into::<PyString>().map_err(PyErr::from)?));
        }
        let joined = self.text(value)?;
        let values = joined.getattr(intern!(joined.py(), "values"))?;
        let mut lines = Vec::new();
        for line in values.cast::<PyTuple>().map_err(PyErr::from)? {
            if !line.is_exact_instance_of::<PyString>() {
                return Err(ReadError::NeedsPython);
            }
            lines.push(line.cast_into::<PyString>().map_err(PyErr::from)?);
        }
        if lines.is_empty() { Err(ReadError::NeedsPython) } else { Ok(Lines::Several(Box::new((joined, lines)))) }
    }
}

impl Subject for PythonRequest<'_, '_> {
    type Error = ReadError;

    #[inline]
    fn method(&self) -> Result<&str, ReadError> {
        self.attribute_text(&self.method, intern!(self.request.py(), "method"))
    }

    #[inline]
    fn path(&self) -> Result<&str, ReadError> {
        self.attribute_text(&self.path, intern!(self.request.py(), "path"))
    }

    fn host(&self) -> Result<&str, ReadError> {
        self.attribute_text(&self.host, intern!(self.request.py(), "host"))
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, ReadError> {
        self.attribute_text(&self.client_ip, intern!(self.request.py(), "client_ip"))
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        self.attribute_text(&self.endpoint, intern!(self.request.py(), "endpoint"))
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        let place = &self.header_lines[name.number];
        if place.get().is_none() {
            let _ = place.set(self.lines(name)?);
        }
        Ok(match place.get() {
            None | Some(Lines::None) => None,
            Some(Lines::One(text)) => Some(Sent::One(utf8(text)?)),
            Some(Lines::Several(several)) => {
                let (joined, lines) = &**several;
                Some(Sent::Several { joined: utf8(joined)?, lines: lines.iter().map(utf8).collect::<Result<_, _>>()? })
            }
        })
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("") // an HTTP request has headers, but no attributes
    }
}

/// A text that has no UTF-8 is left to Python.
#[inline]
fn utf8<'a>(text: &'a Bound<'_, PyString>) -> Result<&'a str, ReadError> {
    text.to_str().map_err(|_| ReadError::NeedsPython)
}
