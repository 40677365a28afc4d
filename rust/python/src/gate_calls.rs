//! The `hit` and `peek` of a gate of Python: one call, which decides by whatever policy is in force.

use std::sync::{PoisonError, RwLock};

use headgate_policy::costs::Cost;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments::AnyCost;
use crate::gate::NativeGate;

/// Decides for the gate that made it, before and after each reload.
#[pyclass(frozen, module = "headgate._native")]
pub struct GateCalls {
    in_force: RwLock<InForce>,
}

/// A policy, ready to decide.
struct InForce {
    /// None where only Python can apply the policy.
    native: Option<Py<NativeGate>>,
    /// The `headgate.policy.resolver.Resolver` that decides what the native gate leaves to Python.
    resolver: Py<PyAny>,
}

/// The name of a ruleset as the caller passed it.
enum NamedRuleset<'py> {
    /// None was passed: all rules.
    All,
    Named(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for NamedRuleset<'py> {
    type Error = PyErr;

    #[inline]
    fn extract(name: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Named(name.to_owned()))
    }
}

#[pymethods]
impl GateCalls {
    #[new]
    fn new(native: Option<Py<NativeGate>>, resolver: Py<PyAny>) -> Self {
        Self { in_force: RwLock::new(InForce { native, resolver }) }
    }

    /// Decide by another policy from here on.
    fn take(&self, native: Option<Py<NativeGate>>, resolver: Py<PyAny>) {
        let mut former = InForce { native, resolver };
        std::mem::swap(&mut former, &mut *self.in_force.write().unwrap_or_else(PoisonError::into_inner));
        drop(former); // not before the lock is released: that may run Python code
    }

    #[pyo3(
        signature = (request, cost = AnyCost::Units(1), *, ruleset = NamedRuleset::All),
        text_signature = "($self, request, cost=1, *, ruleset='default')"
    )]
    fn hit<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        cost: AnyCost,
        ruleset: NamedRuleset<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.decide(request, cost, ruleset, true)
    }

    #[pyo3(
        signature = (request, cost = AnyCost::Units(1), *, ruleset = NamedRuleset::All),
        text_signature = "($self, request, cost=1, *, ruleset='default')"
    )]
    fn peek<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        cost: AnyCost,
        ruleset: NamedRuleset<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.decide(request, cost, ruleset, false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // While another thread swaps them, they are not garbage.
        match self.in_force.try_read() {
            Ok(in_force) => {
                visit.call(&in_force.native)?;
                visit.call(&in_force.resolver)
            }
            Err(_) => Ok(()),
        }
    }
}

impl GateCalls {
    #[inline(always)]
    fn decide<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        cost: AnyCost,
        ruleset: NamedRuleset<'py>,
        commit: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        if let Some(native) = self.native(py) {
            let gate = native.get();
            let number = match &ruleset {
                NamedRuleset::All => Some(gate.all_rules()),
                NamedRuleset::Named(name) => gate.ruleset(name),
            };
            let decision = match (number, &cost) {
                (Some(number), AnyCost::Units(times)) => {
                    gate.decide_request(request, Cost { times: *times, amounts: &[] }, number, commit)?
                }
                (Some(number), AnyCost::Other(cost)) => match gate.costs.read(gate.policy(), cost.bind(py))? {
                    Some(cost) => gate.decide_request(request, cost.cost(), number, commit)?,
                    None => None,
                },
                (None, _) => None,
            };
            if let Some(decision) = decision {
                return Ok(decision);
            }
        }
        self.in_python(request, cost, ruleset, commit)
    }

    #[inline(always)]
    fn native(&self, py: Python<'_>) -> Option<Py<NativeGate>> {
        let in_force = self.in_force.read().unwrap_or_else(PoisonError::into_inner);
        in_force.native.as_ref().map(|native| native.clone_ref(py))
    }

    #[cold]
    fn in_python<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        cost: AnyCost,
        ruleset: NamedRuleset<'py>,
        commit: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        let resolver = self.in_force.read().unwrap_or_else(PoisonError::into_inner).resolver.clone_ref(py);
        let cost = match cost {
            AnyCost::Units(units) => units.into_pyobject(py)?.into_any(),
            AnyCost::Other(cost) => cost.into_bound(py),
        };
        let ruleset = match ruleset {
            NamedRuleset::All => intern!(py, "default").clone().into_any(),
            NamedRuleset::Named(name) => name,
        };
        resolver.bind(py).call_method1(intern!(py, "decide"), (request, cost, ruleset, commit))
    }
}
