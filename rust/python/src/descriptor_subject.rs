//! A `headgate.policy.descriptor.Descriptor` as a policy reads it, without calling Python's code.

use headgate_policy::entries::remote_address;
use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::gate_subject::{Classes, ReadError};

/// A descriptor whose class is that of Python itself.
pub struct PythonDescriptor<'py> {
    entries: Bound<'py, PyTuple>,
}

impl<'py> PythonDescriptor<'py> {
    /// None for a subject of another class, whose methods may be its own.
    pub fn of(subject: &Bound<'py, PyAny>, classes: &Classes) -> Option<Self> {
        if !subject.get_type().is(&classes.descriptor) {
            return None;
        }
        let entries = subject.getattr(intern!(subject.py(), "entries")).ok()?;
        entries.cast_into_exact::<PyTuple>().ok().map(|entries| Self { entries })
    }
}

/// A text of Python's own class; one that has no UTF-8 is left to Python.
fn text<'own>(text: &'own Bound<'_, PyAny>) -> Result<&'own str, ReadError> {
    text.cast_exact::<PyString>().ok().and_then(|text| text.to_str().ok()).ok_or(ReadError::NeedsPython)
}

impl Subject for PythonDescriptor<'_> {
    type Error = ReadError;

    fn method(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    fn path(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    fn host(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    fn client_ip(&self) -> Result<&str, ReadError> {
        remote_address(self)
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    fn header(&self, _: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        Ok(None)
    }

    fn entry(&self, place: usize) -> Result<Option<(&str, &str)>, ReadError> {
        let Some(entry) = self.entries.as_slice().get(place) else {
            return Ok(None);
        };
        match entry.cast_exact::<PyTuple>().map(|entry| entry.as_slice()) {
            Ok([key, value]) => Ok(Some((text(key)?, text(value)?))),
            _ => Err(ReadError::NeedsPython),
        }
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("") // a descriptor is no call
    }
}
