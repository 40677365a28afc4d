//! The moment of a decision: the system clock read natively, or a Python clock asked.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments::check_now;

/// Wall time at the first use, in microseconds, and the monotonic moment that belongs to it.
static ANCHOR: LazyLock<(i64, Instant)> = LazyLock::new(|| {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (wall.as_micros() as i64, Instant::now())
});

/// The system clock: wall time at its first use, carried on by the monotonic clock; never steps.
#[pyfunction]
#[inline]
pub fn now_us() -> i64 {
    let (wall_us, anchor) = *ANCHOR;
    let elapsed = anchor.elapsed();
    wall_us + elapsed.as_secs() as i64 * 1_000_000 + i64::from(elapsed.subsec_micros())
}

/// The clock that a limiter obeys.
pub enum Clock {
    /// The system clock.
    System,
    /// An object with a method `now_us`.
    Python(Py<PyAny>),
}

impl Clock {
    /// The clock of an argument: None is the system clock.
    pub fn new(clock: Option<Py<PyAny>>) -> Self {
        clock.map_or(Self::System, Self::Python)
    }

    /// The current moment in microseconds since the epoch.
    #[inline]
    pub fn now_us(&self, py: Python<'_>) -> PyResult<i64> {
        match self {
            Self::System => Ok(now_us()),
            Self::Python(clock) => check_now(&clock.bind(py).call_method0(intern!(py, "now_us"))?),
        }
    }
}
