//! Limits on keys that are known: keys that are used again and again are read once.

use headgate_core::hash::KeyHash;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

use crate::amounts::check_lease;
use crate::arguments::Cost;
use crate::bound::BoundLimits;
use crate::reservation::Reservation;

/// An amount for each group.
type Amounts = SmallVec<[i64; 12]>;

/// Limits on a key for each of their groups, held and settled by amounts of which each group has one.
#[pyclass(frozen, module = "headgate._native")]
pub struct KeyedLimits {
    bound: Py<BoundLimits>,
    /// The key of each limit.
    keys: Box<[KeyHash]>,
    /// The place of the first key.
    place: u16,
    /// The text that follows the ids of reservations.
    id_suffix: Py<PyString>,
    /// For each group the index of its amount among those that are held.
    held: Box<[usize]>,
    /// For each group the index of its amount among those that count in the end.
    settled: Box<[usize]>,
    lease_us: i64,
}

#[pymethods]
impl KeyedLimits {
    #[new]
    fn new(
        bound: &Bound<'_, BoundLimits>,
        keys: &Bound<'_, PyTuple>,
        id_suffix: Py<PyString>,
        held: Vec<usize>,
        settled: Vec<usize>,
        lease_us: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let limits = bound.get();
        let lease_us = check_lease(lease_us)?;
        let (keys, place) = limits.keys_of(keys)?;
        limits.check_groups(held.len())?;
        limits.check_groups(settled.len())?;
        let (held, settled) = (held.into(), settled.into());
        Ok(Self { bound: bound.clone().unbind(), keys, place, id_suffix, held, settled, lease_us })
    }

    #[pyo3(signature = (amounts, /))]
    fn hold<'py>(&self, amounts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, Reservation>> {
        let (bound, costs) = (self.bound.bind(amounts.py()), amounts_at(&self.held, amounts)?);
        BoundLimits::hold_groups(bound, &self.keys, self.place, &costs, self.lease_us, &self.id_suffix)
    }

    #[pyo3(signature = (reservation, amounts, /))]
    fn settle(&self, reservation: &Bound<'_, Reservation>, amounts: &Bound<'_, PyTuple>) -> PyResult<&'static str> {
        let actuals: SmallVec<[Option<i64>; 12]> = amounts_at(&self.settled, amounts)?.into_iter().map(Some).collect();
        let held = reservation.get();
        let id = held.native_id().ok_or_else(|| PyTypeError::new_err("these limits hold no such reservation"))?;
        let outcome = BoundLimits::settle_outcome(self.bound.bind(amounts.py()), id, &actuals)?;
        held.mark_settled();
        Ok(outcome)
    }
}

/// The amount of each group, at these places.
#[inline]
fn amounts_at(places: &[usize], amounts: &Bound<'_, PyTuple>) -> PyResult<Amounts> {
    let pick = |place: &usize| Ok(amounts.get_borrowed_item(*place)?.extract::<Cost>()?.0);
    places.iter().map(pick).collect()
}
