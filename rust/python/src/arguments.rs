//! Keys, costs and moments from Python. The common forms are read here; everything else goes to
//! `headgate.keys`, which knows all forms and writes all messages.

use headgate_core::hash::{KeyHash, Seed};
use headgate_core::limit::LARGEST;
use headgate_policy::keys::{self, LONGEST_KEY, MOST_PARTS};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString, PyTuple};
use smallvec::SmallVec;

/// Hash a key: text, or a tuple of parts.
#[inline]
pub fn hash_key(key: &Bound<'_, PyAny>, seed: &Seed) -> PyResult<KeyHash> {
    if let Ok(text) = key.cast::<PyString>()
        && let Ok(text) = text.to_str()
        && (1..=LONGEST_KEY).contains(&text.len())
    {
        return Ok(seed.text(text.as_bytes()));
    }
    if let Ok(tuple) = key.cast::<PyTuple>()
        && tuple.len() == 1
        && let Ok(only) = tuple.get_borrowed_item(0)
        && let Ok(text) = only.cast::<PyString>()
        && let Ok(text) = text.to_str()
        && (1..=LONGEST_KEY).contains(&text.len())
    {
        return Ok(seed.text(text.as_bytes()));
    }
    hash_parts(key, seed)
}

#[cold]
fn hash_parts(key: &Bound<'_, PyAny>, seed: &Seed) -> PyResult<KeyHash> {
    let Ok(tuple) = key.cast::<PyTuple>() else {
        return Err(error_of(key, "encode_key"));
    };
    if !(1..=MOST_PARTS).contains(&tuple.len()) {
        return Err(error_of(key, "encode_key"));
    }
    let mut parts: SmallVec<[Bound<'_, PyString>; 4]> = SmallVec::new();
    for part in tuple.iter() {
        if let Ok(text) = part.cast::<PyString>() {
            parts.push(text.clone());
            continue;
        }
        let exact = part.is_exact_instance_of::<PyInt>();
        let number = if exact { part } else { call_keys(&part, "whole_number")? };
        if number.is_none() {
            return Err(error_of(key, "encode_key"));
        }
        if number.extract::<i64>().is_err() {
            call_keys(key, "encode_key")?; // refuses numbers that are too long to print
        }
        parts.push(number.str()?);
    }
    let texts: SmallVec<[&str; 4]> = parts.iter().filter_map(|part| part.to_str().ok()).collect();
    let hash = if texts.len() == parts.len() { keys::hash_key(&texts, seed) } else { None };
    hash.ok_or_else(|| error_of(key, "encode_key"))
}

/// The cost of a request, in units.
#[derive(Clone, Copy)]
pub struct Cost(pub i64);

impl<'py> FromPyObject<'_, 'py> for Cost {
    type Error = PyErr;

    #[inline]
    fn extract(cost: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if cost.is_exact_instance_of::<PyInt>()
            && let Ok(number) = cost.extract::<i64>()
            && (0..=LARGEST).contains(&number)
        {
            return Ok(Self(number));
        }
        call_keys(&cost, "check_cost")?.extract::<i64>().map(Self)
    }
}

/// The cost of a request in units, or an object to be read once it is known what the limits count.
pub enum AnyCost {
    Units(i64),
    Other(Py<PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for AnyCost {
    type Error = PyErr;

    #[inline]
    fn extract(cost: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if cost.is_exact_instance_of::<PyInt>()
            && let Ok(number) = cost.extract::<i64>()
            && (0..=LARGEST).contains(&number)
        {
            return Ok(Self::Units(number));
        }
        Ok(Self::Other(cost.to_owned().unbind()))
    }
}

/// The cost in a mapping from unit to number, for limits that count one unit; raises for any other object.
#[cold]
pub fn single_cost(definitions: &Bound<'_, PyTuple>, cost: &Py<PyAny>) -> PyResult<i64> {
    definitions.py().import("headgate.costs")?.call_method1("single_cost", (definitions, cost))?.extract()
}

/// A moment that a Python clock gave.
#[inline]
pub fn check_now(now_us: &Bound<'_, PyAny>) -> PyResult<i64> {
    if now_us.is_exact_instance_of::<PyInt>()
        && let Ok(number) = now_us.extract::<i64>()
        && (0..=LARGEST).contains(&number)
    {
        return Ok(number);
    }
    call_keys(now_us, "check_now")?.extract()
}

/// The age of a past moment, in microseconds: at most `LARGEST`.
pub fn check_ago(ago_us: &Bound<'_, PyAny>) -> PyResult<i64> {
    call_keys(ago_us, "check_ago")?.extract()
}

fn call_keys<'py>(value: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("headgate.keys")?.call_method1(function, (value,))
}

/// The error that `headgate.keys` has for a value refused here.
fn error_of(value: &Bound<'_, PyAny>, function: &str) -> PyErr {
    match call_keys(value, function) {
        Err(error) => error,
        Ok(_) => PyRuntimeError::new_err(format!("headgate.keys.{function} takes what the native core refuses")),
    }
}
