//! The native gate in front of an application: one call reads a request where its server put it, decides, and says
//! what remains.

use headgate_policy::costs::Cost;
use headgate_policy::subject::Subject;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::decided_at::{CameAt, DecidedAt};
use crate::decision::Decision;
use crate::environ_subject::EnvironSubject;
use crate::fields::RateLimitFields;
use crate::gate::NativeGate;
use crate::gate_limits::{Asking, Fields, Limits, Said};
use crate::gate_subject::Trouble;
use crate::key_text::KeyText;
use crate::scope_subject::{ScopeSubject, is_type};
use crate::sender::{FieldStarter, adding};
use crate::web_reading::Reading;

/// What a response says of a request that passes at once.
enum Telling {
    /// RateLimit-Policy and RateLimit, by what this function gives for limits.
    Fields { writer_of: Py<PyAny>, encoded: bool },
    /// Nothing.
    Nothing,
    /// What Python says.
    Python,
}

/// What becomes of a request.
enum Came<'py> {
    /// It passes at once, and these fields say what remains.
    Passes(Bound<'py, PyList>),
    /// It passes, and there is nothing to say.
    Silently,
    /// A decision that Python tells, or an awaitable of one.
    Told(Bound<'py, PyAny>),
}

/// What a request that passes at once is answered by, which then tells what remains; else the decision, None where only
/// Python can say it.
pub type Passing<'py> = Result<Bound<'py, PyAny>, Option<Bound<'py, PyAny>>>;

/// Decides for the requests of one application or route.
#[pyclass(frozen, module = "headgate._native")]
pub struct WebGate {
    gate: Py<NativeGate>,
    ruleset: usize,
    cost: i64,
    websockets: bool,
    /// Whether these are plain limits: a request that they are not for is none that was decided.
    plain: bool,
    telling: Telling,
    reading: Reading,
}

#[pymethods]
impl WebGate {
    #[staticmethod]
    #[pyo3(signature = (gate, *, ruleset, cost, telling, encoded, of_framework, websockets, plain, endpoint))]
    #[allow(clippy::too_many_arguments)] // each is named where it is given
    fn of(
        gate: Bound<'_, NativeGate>,
        ruleset: &str,
        cost: i64,
        telling: Option<Bound<'_, PyAny>>,
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
        let telling = match telling {
            None => Telling::Python,
            Some(writer_of) if writer_of.is_callable() => Telling::Fields { writer_of: writer_of.unbind(), encoded },
            Some(nothing) if !nothing.is_truthy()? => Telling::Nothing,
            Some(_) => return Err(PyValueError::new_err("what tells is a function, False, or None")),
        };
        Ok(Some(Self { gate: gate.unbind(), ruleset, cost, websockets, plain, telling, reading }))
    }

    #[getter]
    fn tells_endpoints_apart(&self) -> bool {
        self.reading.tells_endpoints_apart()
    }

    fn ask<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        send: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.sender(py, scope, send).map(|came| came.map_or_else(|decided| decided, Some))
    }

    fn ask_route<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyAny>,
        endpoint: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(scope) = scope.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        self.at_route(py, scope, endpoint)?.map(|decided| decided.told(py)).transpose()
    }

    fn ask_view<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        endpoint: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(environ) = environ.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        let subject = EnvironSubject::new(environ, &self.reading, self.reading.endpoint_or(endpoint));
        self.decide_at(py, &subject)?.map(|decided| decided.told(py)).transpose()
    }

    fn ask_environ<'py>(
        &self,
        py: Python<'py>,
        environ: &Bound<'py, PyAny>,
        start_response: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.starter(py, environ, start_response).map(|came| came.map_or_else(|decided| decided, Some))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Telling::Fields { writer_of, .. } = &self.telling {
            visit.call(writer_of)?;
        }
        visit.call(&self.gate)
    }
}

impl WebGate {
    /// Decide for the request of a scope: one that passes at once is answered by what is given back for its `send`.
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
        Ok(match self.decide(py, &subject)? {
            None => Err(None),
            Some(Came::Told(told)) => Err(Some(told)),
            Some(Came::Silently) => Ok(send.clone()),
            Some(Came::Passes(fields)) => Ok(adding(send, &fields)?),
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
        Ok(match self.decide(py, &EnvironSubject::new(environ, &self.reading, self.reading.endpoint_or("")))? {
            None => Err(None),
            Some(Came::Told(told)) => Err(Some(told)),
            Some(Came::Silently) => Ok(start_response.clone()),
            Some(Came::Passes(fields)) => {
                Ok(Bound::new(py, FieldStarter::new(start_response.clone().unbind(), fields.unbind()))?.into_any())
            }
        })
    }

    /// What becomes of a request; None where only Python can say it.
    #[inline]
    fn decide<'py, S: Subject<Error = Trouble>>(&self, py: Python<'py>, subject: &S) -> PyResult<Option<Came<'py>>> {
        let gate = self.gate.get();
        let asking = Asking { commit: true, now_us: None, cost: Cost { times: self.cost, amounts: &[] } };
        gate.resolved_for(py, subject, self.ruleset, |resolved| {
            Ok(match gate.say(py, resolved, &asking)? {
                Said::Free if !matches!(self.telling, Telling::Python) => Came::Silently,
                Said::Free if self.plain => return Err(Trouble::Python),
                Said::Free => Came::Told(gate.passes(py)),
                Said::Came(came) => Came::Told(came),
                Said::Decided(decision) => self.told(py, resolved.query.limits.as_ref(), decision)?,
            })
        })
    }

    /// What is decided of a request to an endpoint; None where only Python can say it.
    #[inline]
    fn decide_at<'py, S: Subject<Error = Trouble>>(
        &self,
        py: Python<'py>,
        subject: &S,
    ) -> PyResult<Option<DecidedAt<'py>>> {
        let gate = self.gate.get();
        let asking = Asking { commit: true, now_us: None, cost: Cost { times: self.cost, amounts: &[] } };
        gate.resolved_for(py, subject, self.ruleset, |resolved| {
            let (came, fields) = match gate.say(py, resolved, &asking)? {
                Said::Free => return Err(Trouble::Python),
                Said::Came(came) => (CameAt::Told(came), None),
                Said::Decided(decision) => {
                    let fields = self.fields(py, resolved.query.limits.as_ref(), &decision)?;
                    (CameAt::Decided(decision), fields)
                }
            };
            let key = resolved.keys().next().flatten().map(KeyText::new);
            Ok(DecidedAt { came, fields, key })
        })
    }

    /// What is decided of a request to a route; None where only Python can say it.
    #[inline]
    pub fn at_route<'py>(
        &self,
        py: Python<'py>,
        scope: &Bound<'py, PyDict>,
        endpoint: &str,
    ) -> PyResult<Option<DecidedAt<'py>>> {
        self.decide_at(py, &ScopeSubject::new(scope, &self.reading, self.reading.endpoint_or(endpoint)))
    }

    /// What is told of a decision of the native core.
    #[inline]
    fn told<'py>(&self, py: Python<'py>, limits: Option<&Limits>, decision: Decision) -> PyResult<Came<'py>> {
        Ok(match self.fields(py, limits, &decision)? {
            Some(fields) if fields.is_empty() => Came::Silently,
            Some(fields) => Came::Passes(fields),
            None => Came::Told(Bound::new(py, decision)?.into_any()),
        })
    }

    /// The fields of a request that passes at once; None where there is more to do, or Python tells it.
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
        match (&self.telling, limits) {
            (Telling::Nothing, _) => Ok(Some(PyList::empty(py))),
            (Telling::Fields { writer_of, encoded }, Some(limits)) => {
                let writer = writer(py, &limits.fields, writer_of, *encoded, decision)?;
                writer.map(|writer| writer.get().write(py, decision)).transpose()
            }
            _ => Ok(None),
        }
    }
}

/// What writes the fields of decisions on these limits; None where Python does.
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
    let made = writer_of.bind(py).call1((decision.definitions_of(py),))?;
    let made = made.cast_into::<RateLimitFields>().ok().map(Bound::unbind);
    Ok(place.get_or_init(|| made).as_ref())
}
