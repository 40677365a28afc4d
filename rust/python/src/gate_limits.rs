//! The limits that a native gate asks: how they are bound, what they are asked, and what they say.

use std::sync::{Mutex, OnceLock, PoisonError};

use headgate_policy::costs::Cost;
use headgate_policy::selection::Bind;
use pyo3::gc::{PyTraverseError, PyVisit};
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
    pub refusals: Refusals,
}

/// Most combinations of rules that are remembered to refuse for lack of an identity; others are made anew.
const MOST_REFUSALS: usize = 32;

/// What stands for limits where rules refuse for lack of an identity, by which of them do.
#[derive(Default)]
pub struct Refusals(Mutex<Vec<(Vec<bool>, Refusal)>>);

/// A `headgate.policy.resolver.Settled`, and its decision.
pub struct Refusal {
    pub settled: Py<PyAny>,
    pub decision: Py<PyAny>,
}

impl Refusals {
    /// What stands for the limits where these rules refuse; `make` makes it when it is first asked for.
    pub fn of<'py>(
        &self,
        py: Python<'py>,
        refused: Vec<bool>,
        make: impl FnOnce(&[bool]) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Refusal> {
        let again = |refusal: &Refusal| Refusal {
            settled: refusal.settled.clone_ref(py),
            decision: refusal.decision.clone_ref(py),
        };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, refusal)) = lock().iter().find(|(own, _)| *own == refused) {
            return Ok(again(refusal));
        }
        let settled = make(&refused)?;
        let decision = settled.call_method1("decide", (py.None(),))?.unbind();
        let refusal = Refusal { settled: settled.unbind(), decision };
        let mut known = lock();
        if known.len() < MOST_REFUSALS {
            known.push((refused, again(&refusal)));
        }
        Ok(refusal)
    }

    /// While another thread looks for one, none is garbage.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(known) = self.0.try_lock() else {
            return Ok(());
        };
        known.iter().try_for_each(|(_, refusal)| {
            visit.call(&refusal.settled)?;
            visit.call(&refusal.decision)
        })
    }
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

/// Binds limits by the resolver of Python, for a thread that need not hold the interpreter's lock.
pub struct DetachedBinder<'gate>(pub &'gate Py<PyAny>);

impl Bind for DetachedBinder<'_> {
    type Limits = Limits;
    type Error = Trouble;

    #[cold]
    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, Trouble> {
        Python::attach(|py| Binder(self.0.bind(py)).bind(rules, tier))
    }
}

impl Bind for Binder<'_, '_> {
    type Limits = Limits;
    type Error = Trouble;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, Trouble> {
        let rules = PyTuple::new(self.0.py(), rules)?;
        let (bound, units, rules): (Bound<'_, PyAny>, Bound<'_, PyTuple>, Bound<'_, PyTuple>) =
            self.0.call_method1("bound_for", (rules, tier))?.extract()?;
        let native = bound.cast::<BoundLimits>().ok().map(|native| native.clone().unbind());
        let (units, rules, fields) = (units.unbind(), rules.unbind(), Fields::default());
        Ok(Limits { bound: bound.unbind(), native, units, rules, fields, refusals: Refusals::default() })
    }
}

/// What is decided of a subject, and what is told of it besides.
pub struct Asking<'py, 'cost> {
    pub commit: bool,
    pub now_us: Option<Bound<'py, PyAny>>,
    pub cost: Cost<'cost>,
}
