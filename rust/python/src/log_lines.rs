//! Blocks of a common log as the entries of `headgate.replay.entries`.

use headgate_core::limit::LARGEST;
use headgate_logs::{LATEST_US, read_line};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyTuple};

const _: () = assert!(LATEST_US == LARGEST, "a line is read that no limit can be asked about, or the other way");

/// The lines of a block: an entry where the line has no surprises, else the line itself.
#[pyfunction]
pub fn read_common_lines<'py>(
    py: Python<'py>,
    block: &str,
    naive_is_utc: bool,
    no_headers: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyList>> {
    let no_host = PyString::intern(py, "");
    let cost = PyInt::new(py, 1);
    let entries = PyList::empty(py);
    for line in block.split('\n') {
        match read_line(line, naive_is_utc) {
            Some(read) => {
                let fields = [
                    PyInt::new(py, read.time_us).into_any(),
                    PyString::new(py, read.client).into_any(),
                    PyString::intern(py, read.method).into_any(),
                    PyString::new(py, read.path).into_any(),
                    no_host.clone().into_any(),
                    no_headers.clone().into_any(),
                    cost.clone().into_any(),
                ];
                entries.append(PyTuple::new(py, fields)?)?;
            }
            None => entries.append(line)?,
        }
    }
    Ok(entries)
}
