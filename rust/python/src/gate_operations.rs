//! The operations that a native gate prepares for Python: limits, an operation of keys and costs, refusals.

use headgate_policy::costs::Cost;
use headgate_policy::selection::{Parts, Resolved};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use crate::gate::NativeGate;
use crate::gate_limits::{DecideOptions, Limits, Refusal};
use crate::gate_subject::ReadError;
use crate::operation::Operation;

impl NativeGate {
    /// The refusal of rules, some of which insist on an identity that the subject lacks.
    #[cold]
    pub fn refusal(
        &self,
        py: Python<'_>,
        limits: &Limits,
        resolved: &Resolved<'_, Limits>,
        refused: Vec<bool>,
    ) -> PyResult<Refusal> {
        limits.refusals.of(py, refused, |refused| {
            let rules = PyTuple::new(py, &resolved.selection.rules)?;
            self.resolver.bind(py).call_method1("refusal_of", (rules, PyTuple::new(py, refused)?))
        })
    }

    /// A `headgate.policy.resolver.Resolved`: (the limits, the operation for them, the rule and unit of each group).
    pub fn resolved_for_python<'py>(
        &self,
        py: Python<'py>,
        resolved: &Resolved<'_, Limits>,
        cost: Cost<'_>,
    ) -> Result<Bound<'py, PyAny>, ReadError> {
        let operation = self.operation(py, resolved, &DecideOptions { commit: true, now_us: None, cost })?;
        let Some(limits) = &resolved.query.limits else {
            let nothing = PyTuple::empty(py);
            return Ok((&self.free.0, operation, &nothing, &nothing).into_pyobject(py)?.into_any());
        };
        let bound = match resolved.refused() {
            Some(refused) => self.refusal(py, limits, resolved, refused)?.settled.into_bound(py),
            None => limits.bound.bind(py).clone(),
        };
        Ok((bound, operation, &limits.rules, &limits.units).into_pyobject(py)?.into_any())
    }

    /// The operation of keys and costs for limits in Python.
    pub fn operation<'py>(
        &self,
        py: Python<'py>,
        resolved: &Resolved<'_, Limits>,
        options: &DecideOptions<'py, '_>,
    ) -> Result<Bound<'py, Operation>, ReadError> {
        let key = |parts: Option<Parts<'_>>| -> PyResult<Bound<'py, PyAny>> {
            match parts {
                Some(parts) => Ok(PyTuple::new(py, parts)?.into_any()),
                None => Ok(py.None().into_bound(py)),
            }
        };
        let keys: SmallVec<[Bound<'py, PyAny>; 4]> = resolved.keys().map(key).collect::<PyResult<_>>()?;
        let (groups, cost) = (&resolved.query.groups, options.cost);
        let keys = PyTuple::new(py, groups.iter().map(|group| &keys[group.key]))?;
        let costs = PyTuple::new(py, groups.iter().map(|group| cost.of(group)))?;
        Ok(Bound::new(
            py,
            Operation::new(
                keys.unbind(),
                costs.unbind(),
                options.commit,
                options.now_us.clone().map(Bound::unbind),
                None,
            ),
        )?)
    }
}
