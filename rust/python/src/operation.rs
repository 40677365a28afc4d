//! The operation that limits decide; the native twin of `headgate.operation.Operation`.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

/// One request to limits that are bound to a store: a key and a cost for each of their groups, and how to decide.
#[pyclass(frozen, module = "headgate.operation")]
pub struct Operation {
    #[pyo3(get)]
    pub keys: Py<PyTuple>,
    #[pyo3(get)]
    pub costs: Py<PyTuple>,
    #[pyo3(get)]
    pub commit: bool,
    /// None for the moment of the limits' clock. Checked when it is decided.
    #[pyo3(get)]
    pub now_us: Option<Py<PyAny>>,
    #[pyo3(get)]
    pub max_delay_us: Option<i64>,
}

#[pymethods]
impl Operation {
    #[new]
    #[pyo3(signature = (keys, costs, *, commit = true, now_us = None, max_delay_us = None))]
    pub fn new(
        keys: Py<PyTuple>,
        costs: Py<PyTuple>,
        commit: bool,
        now_us: Option<Py<PyAny>>,
        max_delay_us: Option<i64>,
    ) -> Self {
        Self { keys, costs, commit, now_us, max_delay_us }
    }

    /// The same for other keys, made faster than anew.
    fn with_keys(&self, keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        let keys = match keys.cast::<PyList>() {
            Ok(list) => list.to_tuple(),
            Err(_) => keys.cast::<PyTuple>()?.clone(),
        };
        Ok(self.of(keys))
    }

    /// The same with one key for all groups.
    fn with_key(&self, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        let keys = std::iter::repeat_n(key, self.costs.bind(key.py()).len());
        Ok(self.of(PyTuple::new(key.py(), keys)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let now_us = match &self.now_us {
            Some(now_us) => now_us.bind(py).repr()?.to_string(),
            None => "None".to_owned(),
        };
        let max_delay_us = self.max_delay_us.map_or("None".to_owned(), |us| us.to_string());
        Ok(format!(
            "Operation(keys={}, costs={}, commit={}, now_us={now_us}, max_delay_us={max_delay_us})",
            self.keys.bind(py).repr()?,
            self.costs.bind(py).repr()?,
            if self.commit { "True" } else { "False" },
        ))
    }
}

impl Operation {
    #[inline]
    fn of(&self, keys: Bound<'_, PyTuple>) -> Self {
        let py = keys.py();
        Self {
            costs: self.costs.clone_ref(py),
            commit: self.commit,
            now_us: self.now_us.as_ref().map(|now_us| now_us.clone_ref(py)),
            max_delay_us: self.max_delay_us,
            keys: keys.unbind(),
        }
    }
}
