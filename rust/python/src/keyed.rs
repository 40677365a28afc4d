//! Limits on keys that are known: what is asked of these again and again is read once.

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
    /// Where the first key is.
    place: u16,
    /// What stands behind the ids of what is held.
    made_of: Py<PyString>,
    /// Which of the amounts that are held is that of each group.
    held: Box<[usize]>,
    /// Which of the amounts that count is that of each group.
    settled: Box<[usize]>,
    lease_us: i64,
}

#[pymethods]
impl KeyedLimits {
    #[new]
    fn new(
        bound: &Bound<'_, BoundLimits>,
        keys: &Bound<'_, PyTuple>,
        made_of: Py<PyString>,
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
        Ok(Self { bound: bound.clone().unbind(), keys, place, made_of, held, settled, lease_us })
    }

    #[pyo3(signature = (amounts, /))]
    fn hold<'py>(&self, amounts: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, Reservation>> {
        let (bound, costs) = (self.bound.bind(amounts.py()), picked(&self.held, amounts)?);
        BoundLimits::hold_on(bound, &self.keys, self.place, &costs, self.lease_us, &self.made_of)
    }

    #[pyo3(signature = (reservation, amounts, /))]
    fn settle(&self, reservation: &Bound<'_, Reservation>, amounts: &Bound<'_, PyTuple>) -> PyResult<&'static str> {
        let actuals: SmallVec<[Option<i64>; 12]> = picked(&self.settled, amounts)?.into_iter().map(Some).collect();
        let held = reservation.get();
        let id = held.native_id().ok_or_else(|| PyTypeError::new_err("these limits hold no such reservation"))?;
        let outcome = BoundLimits::settle_untold(self.bound.bind(amounts.py()), id, &actuals)?;
        held.note_settled();
        Ok(outcome)
    }
}

/// The amount of each group, at these places.
#[inline]
fn picked(places: &[usize], amounts: &Bound<'_, PyTuple>) -> PyResult<Amounts> {
    let pick = |place: &usize| Ok(amounts.get_borrowed_item(*place)?.extract::<Cost>()?.0);
    places.iter().map(pick).collect()
}
