//! The moment of a decision: that of the system clock, read natively, or of a Python clock.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments::check_now;

/// The offset from the monotonic clock to microseconds since the epoch.
static EPOCH_US: LazyLock<i64> = LazyLock::new(|| wall_us() - monotonic_us());

/// The host's wall time, which may step.
pub fn wall_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64
}

/// The system clock: wall time at its first use, carried on by the monotonic clock; never steps.
#[pyfunction]
#[inline]
pub fn now_us() -> i64 {
    *EPOCH_US + monotonic_us()
}

/// The monotonic clock; `Instant` would subtract an anchor from it, at a fifth of the whole price.
#[cfg(unix)]
#[inline]
pub fn monotonic_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[cfg(not(unix))]
pub fn monotonic_us() -> i64 {
    use std::time::Instant;
    static ANCHOR: LazyLock<Instant> = LazyLock::new(Instant::now);
    ANCHOR.elapsed().as_micros() as i64
}

/// The clock that a limiter obeys.
pub enum Clock {
    /// The system clock.
    System,
    /// The system's monotonic clock with this many microseconds added: the time of a zone.
    Anchored(i64),
    /// An object with a method `now_us`.
    Python(Py<PyAny>),
}

impl Clock {
    /// The clock of an argument: None is the one of a zone that has this anchor, else the system clock.
    pub fn new(clock: Option<Py<PyAny>>, anchor_us: Option<i64>) -> Self {
        match (clock, anchor_us) {
            (Some(clock), _) => Self::Python(clock),
            (None, Some(anchor_us)) => Self::Anchored(anchor_us),
            (None, None) => Self::System,
        }
    }

    /// The current moment in microseconds since the epoch.
    #[inline]
    pub fn now_us(&self, py: Python<'_>) -> PyResult<i64> {
        match self {
            Self::System => Ok(now_us()),
            Self::Anchored(anchor_us) => Ok(anchor_us + monotonic_us()),
            Self::Python(clock) => check_now(&clock.bind(py).call_method0(intern!(py, "now_us"))?),
        }
    }

    /// The same for a thread that is not attached to Python: it attaches for a Python clock.
    #[inline]
    pub fn now_us_alone(&self) -> PyResult<i64> {
        match self {
            Self::System => Ok(now_us()),
            Self::Anchored(anchor_us) => Ok(anchor_us + monotonic_us()),
            Self::Python(_) => Python::attach(|py| self.now_us(py)),
        }
    }
}
