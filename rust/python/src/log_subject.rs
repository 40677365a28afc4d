//! Entries of logs, as a policy reads them.

use std::cell::OnceCell;

use headgate_logs::LogLine;
use headgate_policy::subject::{Name, Sent, Subject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};
use smallvec::SmallVec;

use crate::gate_subject::ReadError;

const FIELDS: usize = 7;

/// A line that was read natively.
pub struct LineSubject<'line>(pub LogLine<'line>);

impl Subject for LineSubject<'_> {
    type Error = ReadError;

    #[inline]
    fn method(&self) -> Result<&str, ReadError> {
        Ok(self.0.method)
    }

    #[inline]
    fn path(&self) -> Result<&str, ReadError> {
        Ok(self.0.path)
    }

    fn host(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, ReadError> {
        Ok(self.0.client)
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    #[inline]
    fn header(&self, _: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        Ok(None)
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("")
    }
}

/// An entry of `headgate.replay.entries`: (time_us, client, method, path, host, headers, cost).
pub struct LogSubject<'py, 'own> {
    /// Its fields, in their order.
    fields: &'own [Bound<'py, PyAny>; FIELDS],
    headers: Option<&'own Bound<'py, PyDict>>,
    /// The names of the headers that the policy reads, by number.
    names: &'own [Py<PyString>],
    /// The values of those headers in this entry, each read once; empty where the entry has no headers.
    values: SmallVec<[OnceCell<Option<Bound<'py, PyString>>>; 2]>,
}

impl<'py, 'own> LogSubject<'py, 'own> {
    /// None for an object that is no entry.
    #[inline]
    pub fn of(entry: &'own Bound<'py, PyTuple>, names: &'own [Py<PyString>]) -> Option<Self> {
        let fields: &[Bound<'py, PyAny>; FIELDS] = entry.as_slice().try_into().ok()?;
        let headers = fields[5].cast_exact::<PyDict>().ok()?;
        let headers = (!headers.is_empty()).then_some(headers);
        let values = if headers.is_some() { names.iter().map(|_| OnceCell::new()).collect() } else { SmallVec::new() };
        Some(Self { fields, headers, names, values })
    }

    /// Its moment, in microseconds since the epoch.
    #[inline]
    pub fn time_us(&self) -> PyResult<i64> {
        self.fields[0].extract()
    }

    /// The cost in the log; None where it is not one number.
    #[inline]
    pub fn cost(&self) -> Option<i64> {
        let cost = &self.fields[6];
        if cost.is_exact_instance_of::<PyInt>() { cost.extract().ok() } else { None }
    }

    /// A text that has no UTF-8 is left to Python.
    #[inline]
    fn text(&self, place: usize) -> Result<&str, ReadError> {
        let text = self.fields[place].cast_exact::<PyString>().map_err(|_| ReadError::NeedsPython)?;
        text.to_str().map_err(|_| ReadError::NeedsPython)
    }
}

impl Subject for LogSubject<'_, '_> {
    type Error = ReadError;

    #[inline]
    fn method(&self) -> Result<&str, ReadError> {
        self.text(2)
    }

    #[inline]
    fn path(&self) -> Result<&str, ReadError> {
        self.text(3)
    }

    fn host(&self) -> Result<&str, ReadError> {
        self.text(4)
    }

    #[inline]
    fn client_ip(&self) -> Result<&str, ReadError> {
        self.text(1)
    }

    fn endpoint(&self) -> Result<&str, ReadError> {
        Ok("")
    }

    #[inline]
    fn header(&self, name: &Name) -> Result<Option<Sent<'_>>, ReadError> {
        let Some(headers) = self.headers else {
            return Ok(None);
        };
        let place = &self.values[name.number];
        if place.get().is_none() {
            let value = headers.get_item(&self.names[name.number])?;
            let text = value
                .map(|value| value.cast_into_exact::<PyString>().map_err(|_| ReadError::NeedsPython))
                .transpose()?;
            let _ = place.set(text);
        }
        let text = place.get().and_then(Option::as_ref);
        text.map(|text| text.to_str().map(Sent::One).map_err(|_| ReadError::NeedsPython)).transpose()
    }

    fn attribute(&self, _: &str) -> Result<&str, ReadError> {
        Ok("") // an HTTP request has headers, but no attributes
    }
}
