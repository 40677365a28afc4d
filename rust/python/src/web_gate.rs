//! The native gate in front of an application: one call reads a request where its server put it, decides, and writes
//! the fields that report what remains.

use headgate_policy::costs::Cost;
use headgate_policy::subject::Subject;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::decision::Decision;
use crate::environ_subject::EnvironSubject;
use crate::fields::RateLimitFields;
use crate::gate::NativeGate;
use crate::gate_limits::{DecideOptions, Fields, GateAnswer, Limits};
use crate::gate_subject::ReadError;
use crate::key_text::KeyText;
use crate::route_outcome::{RouteAnswer, RouteOutcome};
use crate::scope_subject::{ScopeSubject, is_type};
use crate::sender::{FieldStarter, send_with_fields};
use crate::web_reading::Reading;

/// How the response to a request that passes at once gets its fields.
enum FieldMode {
    /// RateLimit-Policy and RateLimit, by the writer that this function gives for limits.
    Fields { writer_of: Py<PyAny>, encoded: bool },
    /// It gets none.
    Nothing,
    /// Python adds them.
    Python,
}

/// The outcome of a request.
enum Outcome<'py> {
    /// It passes at once, and these fields report what remains.
    Passes(Bound<'py, PyList>),
    /// It passes without fields.
    PassesSilently,
    /// A decision that Python reports, or an awaitable of one.
    Decision(Bound<'py, PyAny>),
}

/// For a request that passes at once, the callable that sends its response with the fields; else the decision, None
/// where only Python can decide.
pub type Passing<'py> = Result<Bound<'py, PyAny>, Option<Bound<'py, PyAny>>>;

/// Decides for the requests of one application or route.
#[pyclass(frozen, module = "headgate._native")]
pub struct WebGate {
    gate: Py<NativeGate>,
    ruleset: usize,
    cost: i64,
    websockets: bool,
    /// Whether these are plain limits: a request to which they do not apply counts as not decided.
    plain: bool,
    field_mode: FieldMode,
    reading: Reading,
}

#[pymethods]
impl WebGate {
    #[staticmethod]
    #[pyo3(signature = (gate, *, ruleset, cost, writer_of, encoded, of_framework, websockets, plain, endpoint))]
    #[allow(clippy::too_many_arguments)] // callers pass them by keyword
    fn of(
        gate: Bound<'_, NativeGate>,
        ruleset: &str,
        cost: i64,
        writer_of: Option<Bound<'_, PyAny>>,
        encoded: bool,
        of_framework: bool,
        websockets: bool,
        plain: bool,
        endpoint: &str,
    ) -> PyResult<Option<Self>> {
        let policy = gate.get().policy();
        let Some(ruleset) = policy.rulesets.iter().position(|known| *known.name == *ruleset) else {
            return Ok(None);
        };
        let reading = Reading::new(gate.py(), policy, of_framework, plain, endpoint);
        if !reading.is_possible() {
            return Ok(None);
        }
        let field_mode = match writer_of {
            None => FieldMode::Python,
            Some(writer_of) if writer_of.is_callable() => FieldMode::Fields { writer_of: writer_of.unbind(), encoded },
            Some(nothing) if !nothing.is_truthy()? => FieldMode::Nothing,
            Some(_) => return Err(PyValueError::new_err("writer_of is a function, False, or None")),
        };
        Ok(Some(Self { gate: gate.unbind(), ruleset, cost, websockets, plain, field_mode, reading }))
    }

    #[getter]
    fn distinguishes_endpoints(&self) -> bool {
        self.reading.distinguishes_endpoints()
    }

    fn decide<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        send: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.sender(py, scope, send).map(|outcome| outcome.map_or_else(|decision| decision, Some))
    }

    fn decide_route<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        endpoint: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(scope) = scope.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        self.route_outcome(py, scope, endpoint)?.map(|outcome| outcome.into_tuple(py)).transpose()
    }

    fn decide_view<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        endpoint: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(environ) = environ.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        let subject = EnvironSubject::new(environ, &self.reading, self.reading.endpoint_or(endpoint));
        self.endpoint_outcome(py, &subject)?.map(|outcome| outcome.into_tuple(py)).transpose()
    }

    fn decide_environ<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        start_response: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.starter(py, environ, start_response).map(|outcome| outcome.map_or_else(|decision| decision, Some))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let FieldMode::Fields { writer_of, .. } = &self.field_mode {
            visit.call(writer_of)?;
        }
        visit.call(&self.gate)
    }
}

impl WebGate {
    /// Decide for the request of a scope: for one that passes at once, gives the callable that replaces its `send`.
    #[inline]
    pub fn sender<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        send: &Bound<'py, PyAny>,
    ) -> PyResult<Passing<'py>> {
        let Ok(scope) = scope.cast_exact::<PyDict>() else {
            return Ok(Err(None));
        };
        let is_judged =
            is_type(scope, &self.reading, "http")? || (self.websockets && is_type(scope, &self.reading, "websocket")?);
        if !is_judged {
            return Ok(Err(None));
        }
        let subject = ScopeSubject::new(scope, &self.reading, self.reading.endpoint_or(""));
        Ok(match self.outcome(py, &subject)? {
            None => Err(None),
            Some(Outcome::Decision(decision)) => Err(Some(decision)),
            Some(Outcome::PassesSilently) => Ok(send.clone()),
            Some(Outcome::Passes(fields)) => Ok(send_with_fields(send, &fields)?),
        })
    }

    /// Decide for the request of an environ, likewise for its `start_response`.
    #[inline]
    pub fn starter<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        start_response: &Bound<'py, PyAny>,
    ) -> PyResult<Passing<'py>> {
        let Ok(environ) = environ.cast_exact::<PyDict>() else {
            return Ok(Err(None));
        };
        Ok(match self.outcome(py, &EnvironSubject::new(environ, &self.reading, self.reading.endpoint_or("")))? {
            None => Err(None),
            Some(Outcome::Decision(decision)) => Err(Some(decision)),
            Some(Outcome::PassesSilently) => Ok(start_response.clone()),
            Some(Outcome::Passes(fields)) => {
                Ok(Bound::new(py, FieldStarter::new(start_response.clone().unbind(), fields.unbind()))?.into_any())
            }
        })
    }

    /// The outcome of a request; None where only Python can decide it.
    #[inline]
    fn outcome<'py, S: Subject<Error = ReadError>>(
        &self,
        py: Python<'py>,
        subject: &S,
    ) -> PyResult<Option<Outcome<'py>>> {
        let gate = self.gate.get();
        let options = DecideOptions { commit: true, now_us: None, cost: Cost { times: self.cost, amounts: &[] } };
        gate.resolve_subject(py, subject, self.ruleset, |resolved| {
            Ok(match gate.query_limits(py, resolved, &options)? {
                GateAnswer::Free if !matches!(self.field_mode, FieldMode::Python) => Outcome::PassesSilently,
                GateAnswer::Free if self.plain => return Err(ReadError::NeedsPython),
                GateAnswer::Free => Outcome::Decision(gate.passes(py)),
                GateAnswer::FromPython(decision) => Outcome::Decision(decision),
                GateAnswer::Decided(decision) => self.outcome_of(py, resolved.query.limits.as_ref(), decision)?,
            })
        })
    }

    /// The outcome of a request to an endpoint; None where only Python can decide it.
    #[inline]
    fn endpoint_outcome<'py, S: Subject<Error = ReadError>>(
        &self,
        py: Python<'py>,
        subject: &S,
    ) -> PyResult<Option<RouteOutcome<'py>>> {
        let gate = self.gate.get();
        let options = DecideOptions { commit: true, now_us: None, cost: Cost { times: self.cost, amounts: &[] } };
        gate.resolve_subject(py, subject, self.ruleset, |resolved| {
            let (answer, fields) = match gate.query_limits(py, resolved, &options)? {
                GateAnswer::Free => return Err(ReadError::NeedsPython),
                GateAnswer::FromPython(decision) => (RouteAnswer::FromPython(decision), None),
                GateAnswer::Decided(decision) => {
                    let fields = self.fields(py, resolved.query.limits.as_ref(), &decision)?;
                    (RouteAnswer::Decided(decision), fields)
                }
            };
            let key = resolved.keys().next().flatten().map(KeyText::new);
            Ok(RouteOutcome { answer, fields, key })
        })
    }

    /// The outcome of a request to a route; None where only Python can decide it.
    #[inline]
    pub fn route_outcome<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyDict>,
        endpoint: &str,
    ) -> PyResult<Option<RouteOutcome<'py>>> {
        self.endpoint_outcome(py, &ScopeSubject::new(scope, &self.reading, self.reading.endpoint_or(endpoint)))
    }

    /// The outcome of a decision of the native core.
    #[inline]
    fn outcome_of<'py>(&self, py: Python<'py>, limits: Option<&Limits>, decision: Decision) -> PyResult<Outcome<'py>> {
        Ok(match self.fields(py, limits, &decision)? {
            Some(fields) if fields.is_empty() => Outcome::PassesSilently,
            Some(fields) => Outcome::Passes(fields),
            None => Outcome::Decision(Bound::new(py, decision)?.into_any()),
        })
    }

    /// The fields of a request that passes at once; None where there is more to do, or where Python adds them.
    #[inline]
    fn fields<'py>(
        &self,
        py: Python<'py>,
        limits: Option<&Limits>,
        decision: &Decision,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        if !decision.passes_at_once() {
            return Ok(None);
        }
        match (&self.field_mode, limits) {
            (FieldMode::Nothing, _) => Ok(Some(PyList::empty(py))),
            (FieldMode::Fields { writer_of, encoded }, Some(limits)) => {
                let writer = writer(py, &limits.fields, writer_of, *encoded, decision)?;
                writer.map(|writer| writer.get().write(py, decision)).transpose()
            }
            _ => Ok(None),
        }
    }
}

/// The writer of the fields of decisions on these limits; None where Python writes them.
#[inline]
fn writer<'py, 'own>(
    py: Python<'py>,
    fields: &'own Fields,
    writer_of: &Py<PyAny>,
    encoded: bool,
    decision: &Decision,
) -> PyResult<Option<&'own Py<RateLimitFields>>> {
    let place = if encoded { &fields.encoded } else { &fields.text };
    if let Some(known) = place.get() {
        return Ok(known.as_ref());
    }
    let created = writer_of.bind(py).call1((decision.definitions_of(py),))?;
    let created = created.cast_into::<RateLimitFields>().ok().map(Bound::unbind);
    Ok(place.get_or_init(|| created).as_ref())
}
