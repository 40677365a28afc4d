//! Limits on a store that is waited for, as native checks know them: bound by Python when a batch is taken.

use std::sync::{Arc, OnceLock};

use headgate_checks::late_checks::Owner;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::redis_calls::RedisCalls;

/// Binds the limits of a policy by its `headgate.policy.resolver.Resolver` when a batch is taken.
pub struct LimitBinder(pub Arc<Py<PyAny>>);

/// Limits of rules for a tier.
pub struct Choice {
    resolver: Arc<Py<PyAny>>,
    rules: Box<[usize]>,
    tier: Box<str>,
    bound: OnceLock<BoundChoice>,
}

/// The same, bound to the store: the fields of a `BatchedLimits` of the guard.
pub struct BoundChoice {
    /// The limits.
    pub limits: Py<PyAny>,
    /// Their definitions.
    pub definitions: Py<PyTuple>,
    /// Packs their calls and reads the replies; None where Python does.
    pub calls: Option<Py<RedisCalls>>,
    /// Their number in the memory of refusals.
    pub number: i64,
    /// Whether refusals are remembered.
    pub remembers: bool,
    /// The places of their states, each with its group.
    pub places: Vec<(Py<PyString>, usize)>,
}

impl Owner for LimitBinder {
    type Choice = Choice;

    fn choice(&self, rules: &[usize], tier: &str) -> Choice {
        Choice { resolver: Arc::clone(&self.0), rules: rules.into(), tier: tier.into(), bound: OnceLock::new() }
    }
}

/// A `headgate.stores.guard.limits.BatchedLimits`.
#[derive(FromPyObject)]
struct Batched {
    definitions: Py<PyTuple>,
    calls: Option<Py<RedisCalls>>,
    number: i64,
    remembers: bool,
    places: Vec<(Py<PyString>, usize)>,
}

impl Choice {
    /// The limits, which are bound when they are first needed.
    pub fn bind_limits(&self, py: Python<'_>) -> PyResult<&BoundChoice> {
        if let Some(bound_choice) = self.bound.get() {
            return Ok(bound_choice);
        }
        let rules = PyTuple::new(py, &self.rules)?;
        let bound = self.resolver.bind(py).call_method1("bound_for", (rules, &*self.tier))?;
        let limits = bound.get_item(0)?;
        let Batched { definitions, calls, number, remembers, places } = limits.getattr("batched")?.extract()?;
        let bound_choice = BoundChoice { limits: limits.unbind(), definitions, calls, number, remembers, places };
        Ok(self.bound.get_or_init(|| bound_choice))
    }

    /// The same where they are bound already.
    pub fn bound_limits(&self) -> Option<&BoundChoice> {
        self.bound.get()
    }
}
