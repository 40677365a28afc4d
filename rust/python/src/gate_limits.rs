//! The limits that a native gate asks: how they are bound, what they are asked, and what they say.

use std::sync::OnceLock;

use headgate_policy::selection::Bind;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bound::BoundLimits;
use crate::decision::Decision;
use crate::fields::RateLimitFields;
use crate::gate_subject::Trouble;

/// Limits of rules for a tier, on the store.
pub struct Limits {
    pub bound: Py<PyAny>,
    /// The same where the native core decides.
    pub native: Option<Py<BoundLimits>>,
    /// The unit of each group.
    pub units: Py<PyTuple>,
    /// The rule of each group.
    pub rules: Py<PyTuple>,
    pub fields: Fields,
}

/// What writes the header fields of decisions on some limits; None where Python does.
#[derive(Default)]
pub struct Fields {
    /// As text.
    pub text: OnceLock<Option<Py<RateLimitFields>>>,
    /// As bytes.
    pub encoded: OnceLock<Option<Py<RateLimitFields>>>,
}

/// What the limits that apply to a subject say.
pub enum Said<'py> {
    /// No rule applies, so it passes.
    Free,
    /// What the native core decided.
    Decided(Decision),
    /// What Python gave: a decision, or an awaitable of one.
    Came(Bound<'py, PyAny>),
}

/// Binds limits by the resolver of Python.
pub struct Binder<'gate, 'py>(pub &'gate Bound<'py, PyAny>);

impl Bind for Binder<'_, '_> {
    type Limits = Limits;
    type Error = Trouble;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, Trouble> {
        let rules = PyTuple::new(self.0.py(), rules)?;
        let (bound, units, rules): (Bound<'_, PyAny>, Bound<'_, PyTuple>, Bound<'_, PyTuple>) =
            self.0.call_method1("bound_for", (rules, tier))?.extract()?;
        let native = bound.cast::<BoundLimits>().ok().map(|native| native.clone().unbind());
        let (units, rules, fields) = (units.unbind(), rules.unbind(), Fields::default());
        Ok(Limits { bound: bound.unbind(), native, units, rules, fields })
    }
}

/// What is decided of a subject, and what is told of it besides.
pub struct Asking<'py> {
    pub commit: bool,
    pub now_us: Option<Bound<'py, PyAny>>,
    pub cost: i64,
}
