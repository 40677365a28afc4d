//! The native gate: a policy on a store, which resolves and decides without Python's code.

use headgate_core::table::answer::Mode;
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_policy::resolver::Resolver;
use headgate_policy::selection::Resolved;
use headgate_policy::subject::Subject;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

use crate::arguments::check_now;
use crate::descriptor_subject::PythonDescriptor;
use crate::gate_costs::CostReader;
use crate::gate_limits::{Binder, DecideOptions, GateAnswer, Limits};
use crate::gate_policy::read_policy;
use crate::gate_subject::{Classes, PythonRequest, ReadError};

/// `headgate.policy.compiled.ALL_RULES`.
const ALL_RULES: &str = "default";

/// A policy on a store.
#[pyclass(frozen, module = "headgate._native")]
pub struct NativeGate {
    pub gate: Resolver<Limits>,
    /// The `headgate.policy.resolver.Resolver` that binds limits, and makes refusals for lack of an identity.
    pub resolver: Py<PyAny>,
    classes: Classes,
    /// Reads costs.
    pub costs: CostReader,
    /// The names of the headers that the policy reads.
    names: Box<[Py<PyString>]>,
    /// The number of the ruleset that applies where none is named.
    all_rules: usize,
    /// The object that stands in for limits where no rule applies, and its decision.
    pub free: (Py<PyAny>, Py<PyAny>),
}

#[pymethods]
impl NativeGate {
    /// The native gate of a resolver's policy; None where only Python can apply that.
    #[staticmethod]
    fn of(resolver: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = resolver.py();
        let policy = match read_policy(&resolver.getattr("policy")?) {
            Ok(policy) => policy,
            Err(ReadError::NeedsPython) => return Ok(None),
            Err(ReadError::Raised(error)) => return Err(error),
        };
        let Some(all_rules) = policy.rulesets.iter().position(|ruleset| *ruleset.name == *ALL_RULES) else {
            return Ok(None);
        };
        let names = policy.headers.iter().map(|name| PyString::intern(py, name).unbind()).collect();
        let free = py.import("headgate.policy.resolver")?.getattr("FREE")?;
        let passes = free.call_method1("decide", (py.None(),))?;
        let costs = CostReader::new(py, &policy)?;
        Ok(Some(Self {
            gate: Resolver::new(policy),
            costs,
            resolver: resolver.clone().unbind(),
            classes: Classes::new(py)?,
            names,
            all_rules,
            free: (free.unbind(), passes.unbind()),
        }))
    }

    fn decide_at<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        now_us: Bound<'py, PyAny>,
        cost: &Bound<'py, PyAny>,
        ruleset: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(cost) = self.costs.read(self.policy(), cost)? else {
            return Ok(None);
        };
        let Some(number) = self.ruleset(ruleset) else {
            return Ok(None);
        };
        self.resolve_request(request, number, |resolved| {
            let options = DecideOptions { commit: true, now_us: Some(now_us.clone()), cost: cost.cost() };
            let for_python = self.resolved_for_python(py, resolved, cost.cost())?;
            let decision = self.decide(py, resolved, &options)?;
            Ok((decision, for_python).into_pyobject(py)?.into_any())
        })
    }

    fn resolve<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        cost: &Bound<'py, PyAny>,
        ruleset: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(cost) = self.costs.read(self.policy(), cost)? else {
            return Ok(None);
        };
        let Some(number) = self.ruleset(ruleset) else {
            return Ok(None);
        };
        self.resolve_request(request, number, |resolved| self.resolved_for_python(py, resolved, cost.cost()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.resolver)?;
        visit.call(&self.free.0)?;
        visit.call(&self.free.1)?;
        self.gate.visit_limits(|limits| {
            visit.call(&limits.bound)?;
            visit.call(&limits.native)?;
            visit.call(&limits.units)?;
            visit.call(&limits.rules)?;
            limits.refusals.traverse(&visit)
        })
    }
}

impl NativeGate {
    /// The number of the ruleset that has all rules.
    #[inline]
    pub fn all_rules(&self) -> usize {
        self.all_rules
    }

    /// The names of the headers that the policy reads, by number.
    #[inline]
    pub fn names(&self) -> &[Py<PyString>] {
        &self.names
    }

    /// The number of the ruleset of a name; None for any other object.
    pub fn ruleset(&self, name: &Bound<'_, PyAny>) -> Option<usize> {
        self.gate.ruleset(name.cast::<PyString>().ok()?.to_str().ok()?)
    }

    /// Decide for a request by the rules of a ruleset, and charge it if `commit`; None where only Python can.
    #[inline]
    pub fn decide_request<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        cost: Cost<'_>,
        ruleset: usize,
        commit: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let options = DecideOptions { commit, now_us: None, cost };
        self.resolve_request(request, ruleset, |resolved| self.decide(request.py(), resolved, &options))
    }

    /// Call `then` with the rules that apply to a request; None where only Python can resolve it.
    #[inline]
    fn resolve_request<'py, R>(
        &self,
        request: &Bound<'py, PyAny>,
        ruleset: usize,
        then: impl for<'a> FnOnce(&Resolved<'a, Limits>) -> Result<R, ReadError>,
    ) -> PyResult<Option<R>> {
        match PythonRequest::of(request, &self.classes, &self.names) {
            Some(subject) => self.resolve_subject(request.py(), &subject, ruleset, then),
            None => self.resolve_descriptor(request, ruleset, then),
        }
    }

    #[cold]
    fn resolve_descriptor<'py, R>(
        &self,
        descriptor: &Bound<'py, PyAny>,
        ruleset: usize,
        then: impl for<'a> FnOnce(&Resolved<'a, Limits>) -> Result<R, ReadError>,
    ) -> PyResult<Option<R>> {
        PythonDescriptor::of(descriptor, &self.classes)
            .map_or(Ok(None), |subject| self.resolve_subject(descriptor.py(), &subject, ruleset, then))
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        self.gate.policy()
    }

    /// Call `then` with the rules that apply to a subject; None where only Python can resolve it.
    #[inline]
    pub fn resolve_subject<S: Subject<Error = ReadError>, R>(
        &self,
        py: Python<'_>,
        subject: &S,
        ruleset: usize,
        then: impl for<'a> FnOnce(&Resolved<'a, Limits>) -> Result<R, ReadError>,
    ) -> PyResult<Option<R>> {
        match self.gate.resolve(subject, ruleset, &Binder(self.resolver.bind(py)), then) {
            Ok(result) => Ok(Some(result)),
            Err(ReadError::NeedsPython) => Ok(None),
            Err(ReadError::Raised(error)) => Err(error),
        }
    }

    #[inline]
    fn decide<'py>(
        &self,
        py: Python<'py>,
        resolved: &Resolved<'_, Limits>,
        options: &DecideOptions<'py, '_>,
    ) -> Result<Bound<'py, PyAny>, ReadError> {
        match self.query_limits(py, resolved, options)? {
            GateAnswer::Free => Ok(self.passes(py)),
            GateAnswer::Decided(decision) => Ok(Bound::new(py, decision)?.into_any()),
            GateAnswer::FromPython(decision) => Ok(decision),
        }
    }

    /// The decision for a request to which no rule applies.
    pub fn passes<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.free.1.bind(py).clone()
    }

    /// Query the limits that apply.
    #[inline]
    pub fn query_limits<'py>(
        &self,
        py: Python<'py>,
        resolved: &Resolved<'_, Limits>,
        options: &DecideOptions<'py, '_>,
    ) -> Result<GateAnswer<'py>, ReadError> {
        let Some(limits) = &resolved.query.limits else {
            return Ok(GateAnswer::Free);
        };
        if let Some(refused) = resolved.refused() {
            return Ok(GateAnswer::FromPython(self.refusal(py, limits, resolved, refused)?.decision.into_bound(py)));
        }
        let Some(native) = &limits.native else {
            let operation = self.operation(py, resolved, options)?;
            return Ok(GateAnswer::FromPython(
                limits.bound.bind(py).call_method1(intern!(py, "decide"), (operation,))?,
            ));
        };
        let (bound, cost) = (native.get(), options.cost);
        let mut keys = SmallVec::new();
        resolved.hash_keys(bound.seed(), &mut keys)?;
        let groups = &resolved.query.groups[..];
        let of_group = |group: usize| (keys[groups[group].key], cost.of(&groups[group]));
        let now_us = options.now_us.as_ref().map(check_now).transpose()?;
        let mode = Mode { commit: options.commit, max_delay_us: None };
        Ok(GateAnswer::Decided(bound.decide_groups(py, groups.len(), of_group, now_us, mode)?))
    }
}
