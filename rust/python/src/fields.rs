//! The header fields that tell what remains; the native twin of `headgate.http.fields.ratelimit`.

use std::fmt::Write;

use headgate_core::algorithms::transition::{NEVER, Reading};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::decision::Decision;

const US: i64 = 1_000_000;
/// The largest Integer of a structured field (RFC 9651, 3.3.1).
const LARGEST_INTEGER: i128 = 999_999_999_999_999;

/// What is the same in every answer of a limit; `_Form` of the twin.
#[derive(FromPyObject)]
struct Form(String, i64, i64, bool, bool, bool);

/// Writes RateLimit-Policy and RateLimit of decisions on the same limits.
#[pyclass(frozen, module = "headgate._native")]
pub struct RateLimitFields {
    forms: Vec<Form>,
    /// (name, value) of RateLimit-Policy; None where every limit is a shadow.
    policy: Option<Py<PyTuple>>,
    /// The name of RateLimit: text, or bytes where the values are to be bytes.
    name: Py<PyAny>,
    encoded: bool,
}

#[pymethods]
impl RateLimitFields {
    #[new]
    fn new(forms: Vec<Form>, policy: Option<Py<PyTuple>>, name: Bound<'_, PyAny>) -> Self {
        let encoded = name.is_instance_of::<PyBytes>();
        Self { forms, policy, name: name.unbind(), encoded }
    }

    fn write<'py>(&self, py: Python<'py>, decision: &Decision) -> PyResult<Bound<'py, PyList>> {
        let Some(policy) = &self.policy else {
            return Ok(PyList::empty(py));
        };
        let policy = policy.bind(py);
        let mut items = String::with_capacity(64);
        for (form, reading) in self.forms.iter().zip(decision.readings()) {
            if form.5 || (!decision.is_allowed() && reading.allowed()) {
                continue;
            }
            if !items.is_empty() {
                items.push_str(", ");
            }
            form.write(reading, &mut items);
        }
        if items.is_empty() {
            return PyList::new(py, [policy]);
        }
        let value = if self.encoded {
            PyBytes::new(py, items.as_bytes()).into_any()
        } else {
            PyString::new(py, &items).into_any()
        };
        PyList::new(py, [policy, &PyTuple::new(py, [self.name.bind(py), &value])?])
    }

    pub fn write_passing<'py>(&self, py: Python<'py>, decision: &Decision) -> PyResult<Option<Bound<'py, PyList>>> {
        if decision.passes_at_once() { self.write(py, decision).map(Some) } else { Ok(None) }
    }
}

impl Form {
    /// Its member of RateLimit.
    fn write(&self, reading: &Reading, items: &mut String) {
        let Self(start, _, _, in_flight, ..) = self;
        items.push_str(start);
        push(items, i128::from(reading.remaining.max(0)));
        if *in_flight || (reading.remaining <= 0 && reading.retry_after_us == NEVER) {
            return; // no time helps, or none is known
        }
        items.push_str(";t=");
        push(items, self.effective_seconds(reading));
    }

    fn effective_seconds(&self, reading: &Reading) -> i128 {
        let Self(_, window_us, quota, _, on_the_clock, _) = self;
        let mut effective_us = i128::from(reading.reset_after_us);
        if !on_the_clock || effective_us == 0 {
            effective_us =
                i128::from(reading.next_after_us).max(share_us(reading.remaining.max(0), *window_us, *quota));
        }
        if reading.allowed() {
            return seconds(effective_us);
        }
        if reading.retry_after_us != NEVER {
            effective_us = effective_us.min(i128::from(reading.retry_after_us));
        }
        seconds(effective_us).max(1)
    }
}

/// What these units take of a window in which the quota passes, rounded up. Most fit where division is fast.
fn share_us(units: i64, window_us: i64, quota: i64) -> i128 {
    let quota = quota.max(1);
    match units.checked_mul(window_us).and_then(|scaled| scaled.checked_add(quota - 1)) {
        Some(scaled) => i128::from(scaled / quota),
        None => (i128::from(units) * i128::from(window_us) + i128::from(quota) - 1) / i128::from(quota),
    }
}

/// Whole seconds, rounded up.
fn seconds(duration_us: i128) -> i128 {
    match i64::try_from(duration_us + i128::from(US) - 1) {
        Ok(last) => i128::from(last / US),
        Err(_) => (duration_us + i128::from(US) - 1) / i128::from(US),
    }
}

fn push(items: &mut String, number: i128) {
    // Writing to a String cannot fail.
    let _ = write!(items, "{}", number.min(LARGEST_INTEGER) as i64);
}
