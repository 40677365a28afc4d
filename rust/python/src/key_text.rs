//! A key that is stored until Python needs it, which is rare.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

/// The parts of a key, one behind another.
pub struct KeyText {
    all: String,
    ends: SmallVec<[usize; 4]>,
}

impl KeyText {
    /// Store the parts of a key.
    #[inline]
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut key = Self { all: String::with_capacity(64), ends: SmallVec::new() };
        for part in parts {
            key.all.push_str(part);
            key.ends.push(key.all.len());
        }
        key
    }

    /// The parts as Python has them.
    pub fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let begins = std::iter::once(&0).chain(&self.ends);
        let parts: SmallVec<[&str; 4]> = begins.zip(&self.ends).map(|(begin, end)| &self.all[*begin..*end]).collect();
        PyTuple::new(py, parts)
    }
}
