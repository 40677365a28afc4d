//! Limits on keys that are known: what is asked of these again and again is read once.

use headgate_core::hash::KeyHash;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::amounts::check_lease;
use crate::bound::BoundLimits;
use crate::reservation::Reservation;

/// Limits on a key for each of their groups.
#[pyclass(frozen, module = "headgate._native")]
pub struct KeyedLimits {
    bound: Py<BoundLimits>,
    /// The key of each limit.
    keys: Box<[KeyHash]>,
    /// Where the first key is.
    place: u16,
    /// What stands behind the ids of what is held.
    made_of: Py<PyString>,
}

#[pymethods]
impl KeyedLimits {
    #[new]
    fn new(bound: &Bound<'_, BoundLimits>, keys: &Bound<'_, PyTuple>, made_of: Py<PyString>) -> PyResult<Self> {
        let (keys, place) = bound.get().keys_of(keys)?;
        Ok(Self { bound: bound.clone().unbind(), keys, place, made_of })
    }

    #[pyo3(signature = (costs, lease_us, /))]
    fn hold<'py>(
        &self,
        costs: &Bound<'py, PyTuple>,
        lease_us: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let lease_us = check_lease(lease_us)?;
        BoundLimits::hold_on(self.bound.bind(costs.py()), &self.keys, self.place, costs, lease_us, &self.made_of)
    }
}
