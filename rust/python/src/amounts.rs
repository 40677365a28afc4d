//! Amounts, leases and times to remember, as callers pass them; `headgate.holding` raises the errors of wrong ones.

use headgate_core::limit::LARGEST;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyMapping, PyTuple};
use smallvec::SmallVec;

use crate::whole_id::call;

/// `headgate.holding.HOUR_US`.
pub const HOUR_US: i64 = 3_600_000_000;
/// `headgate.holding.LONGEST_LEASE_US`.
const LONGEST_LEASE_US: i64 = 31 * 24 * HOUR_US;

/// An amount; `headgate.holding.check_amount`.
#[inline]
pub fn check_amount(amount: &Bound<'_, PyAny>) -> PyResult<i64> {
    if amount.is_exact_instance_of::<PyInt>()
        && let Ok(number) = amount.extract::<i64>()
        && (0..=LARGEST).contains(&number)
    {
        return Ok(number);
    }
    call(amount, "check_amount")?.extract()
}

/// The actual cost of a hold: an amount for each group, or one for all; `headgate.holding.amounts_of`.
///
/// Where the limits of these definitions count one unit, a mapping may name it.
#[inline]
pub fn amounts_of(
    amounts: &Bound<'_, PyAny>,
    definitions: impl FnOnce() -> PyResult<Py<PyTuple>>,
) -> PyResult<SmallVec<[Option<i64>; 2]>> {
    let one = |amount: &Bound<'_, PyAny>| if amount.is_none() { Ok(None) } else { check_amount(amount).map(Some) };
    if let Ok(each) = amounts.cast::<PyTuple>() {
        let mut read = SmallVec::with_capacity(each.len());
        for amount in each.iter_borrowed() {
            read.push(one(&amount)?);
        }
        return Ok(read);
    }
    if let Ok(each) = amounts.cast::<PyList>() {
        return each.iter().map(|amount| one(&amount)).collect();
    }
    if is_mapping(amounts) {
        return Ok(SmallVec::from_elem(named(amounts, definitions()?, "single_actual")?.extract()?, 1));
    }
    Ok(SmallVec::from_elem(one(amounts)?, 1))
}

/// Whether these amounts name their units.
#[inline]
fn is_mapping(amounts: &Bound<'_, PyAny>) -> bool {
    !amounts.is_exact_instance_of::<PyInt>() && amounts.cast::<PyMapping>().is_ok()
}

/// The amount of a mapping from unit to number, for limits that count one unit; an error for any other mapping.
#[cold]
fn named<'py>(amounts: &Bound<'py, PyAny>, definitions: Py<PyTuple>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    amounts.py().import("headgate.costs")?.call_method1(function, (definitions, amounts))
}

/// A lease in microseconds; `headgate.holding.check_lease`.
#[inline]
pub fn check_lease(lease_us: &Bound<'_, PyAny>) -> PyResult<i64> {
    if lease_us.is_exact_instance_of::<PyInt>()
        && let Ok(number) = lease_us.extract::<i64>()
        && (1..=LONGEST_LEASE_US).contains(&number)
    {
        return Ok(number);
    }
    call(lease_us, "check_lease")?.extract()
}

/// A lease from seconds, or in microseconds; `headgate.holding.lease_of`.
#[inline]
pub fn lease_of(lease: Option<&Bound<'_, PyAny>>, lease_us: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
    let Some(seconds) = lease else {
        return lease_us.map_or(Ok(60_000_000), check_lease);
    };
    if lease_us.is_none()
        && seconds.is_exact_instance_of::<PyInt>()
        && let Ok(number) = seconds.extract::<i64>()
        && (1..=LONGEST_LEASE_US / 1_000_000).contains(&number)
    {
        return Ok(number * 1_000_000);
    }
    let py = seconds.py();
    py.import("headgate.holding")?.call_method1("lease_of", (seconds, lease_us))?.extract()
}

/// A time to remember from seconds; `headgate.holding.remember_of`.
pub fn remember_of(remember: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
    remember.map_or(Ok(0), |seconds| call(seconds, "remember_of")?.extract())
}

/// The amounts to hold in addition: one for each group, or one for all; see `amounts_of`.
pub fn extensions_of(
    more: &Bound<'_, PyAny>,
    definitions: impl FnOnce() -> PyResult<Py<PyTuple>>,
) -> PyResult<SmallVec<[i64; 2]>> {
    if more.is_instance_of::<PyTuple>() || more.is_instance_of::<PyList>() {
        let each: Vec<Bound<'_, PyAny>> = more.try_iter()?.collect::<PyResult<_>>()?;
        return each.iter().map(check_amount).collect();
    }
    if is_mapping(more) {
        return Ok(SmallVec::from_elem(named(more, definitions()?, "single_more")?.extract()?, 1));
    }
    Ok(SmallVec::from_elem(check_amount(more)?, 1))
}
