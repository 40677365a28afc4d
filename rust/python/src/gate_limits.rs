//! The limits of a native gate: how they are bound, queried, and answer.

use std::sync::{Mutex, OnceLock, PoisonError};

use headgate_policy::costs::Cost;
use headgate_policy::selection::Bind;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bound::BoundLimits;
use crate::decision::Decision;
use crate::fields::RateLimitFields;
use crate::gate_subject::ReadError;

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

/// The most combinations of rules whose refusals for lack of an identity are cached; others are created anew.
const MOST_REFUSALS: usize = 32;

/// The refusals for lack of an identity, which stand in for limits, by which of the rules refuse.
#[derive(Default)]
pub struct Refusals(Mutex<Vec<(Vec<bool>, Refusal)>>);

/// A `headgate.policy.resolver.Settled`, and its decision.
pub struct Refusal {
    pub settled: Py<PyAny>,
    pub decision: Py<PyAny>,
}

impl Refusals {
    /// The refusal that stands in for the limits where these rules refuse; `create` creates it when it is first needed.
    pub fn of<'py>(
        &self,
        py: Python<'py>,
        refused: Vec<bool>,
        create: impl FnOnce(&[bool]) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Refusal> {
        let clone_of = |refusal: &Refusal| Refusal {
            settled: refusal.settled.clone_ref(py),
            decision: refusal.decision.clone_ref(py),
        };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, refusal)) = lock().iter().find(|(cached, _)| *cached == refused) {
            return Ok(clone_of(refusal));
        }
        let settled = create(&refused)?;
        let decision = settled.call_method1("decide", (py.None(),))?.unbind();
        let refusal = Refusal { settled: settled.unbind(), decision };
        let mut cached_refusals = lock();
        if cached_refusals.len() < MOST_REFUSALS {
            cached_refusals.push((refused, clone_of(&refusal)));
        }
        Ok(refusal)
    }

    /// While another thread holds the lock, none of them is garbage.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(cached_refusals) = self.0.try_lock() else {
            return Ok(());
        };
        cached_refusals.iter().try_for_each(|(_, refusal)| {
            visit.call(&refusal.settled)?;
            visit.call(&refusal.decision)
        })
    }
}

/// The writers of header fields of decisions on some limits; None where Python writes them.
#[derive(Default)]
pub struct Fields {
    /// As text.
    pub text: OnceLock<Option<Py<RateLimitFields>>>,
    /// As bytes.
    pub encoded: OnceLock<Option<Py<RateLimitFields>>>,
}

/// The answer of the limits that apply to a subject.
pub enum GateAnswer<'py> {
    /// No rule applies, so it passes.
    Free,
    /// A decision of the native core.
    Decided(Decision),
    /// The result of Python: a decision, or an awaitable of one.
    FromPython(Bound<'py, PyAny>),
}

/// Binds limits by the resolver of Python.
pub struct Binder<'gate, 'py>(pub &'gate Bound<'py, PyAny>);

/// Binds limits by the resolver of Python, for a thread that need not hold the interpreter's lock.
pub struct DetachedBinder<'gate>(pub &'gate Py<PyAny>);

impl Bind for DetachedBinder<'_> {
    type Limits = Limits;
    type Error = ReadError;

    #[cold]
    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, ReadError> {
        Python::attach(|py| Binder(self.0.bind(py)).bind(rules, tier))
    }
}

impl Bind for Binder<'_, '_> {
    type Limits = Limits;
    type Error = ReadError;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, ReadError> {
        let rules = PyTuple::new(self.0.py(), rules)?;
        let (bound, units, rules): (Bound<'_, PyAny>, Bound<'_, PyTuple>, Bound<'_, PyTuple>) =
            self.0.call_method1("bound_for", (rules, tier))?.extract()?;
        let native = bound.cast::<BoundLimits>().ok().map(|native| native.clone().unbind());
        let (units, rules, fields) = (units.unbind(), rules.unbind(), Fields::default());
        Ok(Limits { bound: bound.unbind(), native, units, rules, fields, refusals: Refusals::default() })
    }
}

/// How to decide for a subject: whether it is charged, when, and with which cost.
pub struct DecideOptions<'py, 'cost> {
    pub commit: bool,
    pub now_us: Option<Bound<'py, PyAny>>,
    pub cost: Cost<'cost>,
}
