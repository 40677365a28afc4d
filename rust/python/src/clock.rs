//! The moment of a decision: the system clock read natively, or a Python clock asked.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments::check_now;

/// What is added to the monotonic clock to have microseconds since the epoch.
static EPOCH_US: LazyLock<i64> = LazyLock::new(|| {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    wall.as_micros() as i64 - monotonic_us()
});

/// The system clock: wall time at its first use, carried on by the monotonic clock; never steps.
#[pyfunction]
#[inline]
pub fn now_us() -> i64 {
    *EPOCH_US + monotonic_us()
}

/// The monotonic clock; `Instant` would subtract an anchor from it, at a fifth of the whole price.
#[cfg(unix)]
#[inline]
fn monotonic_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[cfg(not(unix))]
fn monotonic_us() -> i64 {
    use std::time::Instant;
    static ANCHOR: LazyLock<Instant> = LazyLock::new(Instant::now);
    ANCHOR.elapsed().as_micros() as i64
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
