//! A batch of checks of the front door on a store that is waited for, with one crossing to Python each way.

use headgate_checks::queue::{Batch, Outcome, StoreCheck};
use headgate_policy::keys::decode_key;
use headgate_redis::bulks::{Bulk, Bulks};
use headgate_server::decide::Reply;
use http::StatusCode;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use crate::decision::Decision;
use crate::late_limits::{BoundChoice, Choice};
use crate::operation::Operation;
use crate::redis_calls::RedisCalls;

const PROBLEM: &str = "application/problem+json";

/// A check that is left to Python, by its place, and the reply to its call.
type UnreadReply<'py> = (usize, Bound<'py, PyAny>);

/// Checks that were taken together, by their places.
#[pyclass(module = "headgate._native")]
pub struct CheckBatch {
    /// None once all outcomes were delivered.
    batch: Option<Batch<Choice>>,
    /// The calls that were packed: the place of each, and whether it was packed here.
    sent: Vec<(usize, bool)>,
}

#[pymethods]
impl CheckBatch {
    fn __len__(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::len)
    }

    /// The places of checks that only Python can query: long keys, and limits without `RedisCalls`.
    fn unusual(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let mut unusual = Vec::new();
        for place in 0..self.__len__() {
            let check = self.check(place)?;
            let can_pack = match &check.bound.query.bind_limits(py)?.calls {
                Some(calls) => calls.get().0.can_pack(&check.keys),
                None => false,
            };
            if !can_pack {
                unusual.push(place);
            }
        }
        Ok(unusual)
    }

    /// The places of checks whose refusal is remembered, by the names of `RefusalMemory`.
    fn remembered(&self, py: Python<'_>, refusals: &Bound<'_, PyDict>) -> PyResult<Vec<usize>> {
        let mut places = Vec::new();
        for place in 0..self.__len__() {
            let check = self.check(place)?;
            let bound = check.bound.query.bind_limits(py)?;
            if bound.remembers {
                let keys = PyTuple::new(py, check.key_of.iter().map(|key| &*check.keys[*key]))?;
                if refusals.contains((bound.number, keys, PyTuple::new(py, &check.costs)?))? {
                    places.push(place);
                }
            }
        }
        Ok(places)
    }

    /// The limits of a check.
    fn limits(&self, py: Python<'_>, place: usize) -> PyResult<Py<PyAny>> {
        Ok(self.check(place)?.bound.query.bind_limits(py)?.limits.clone_ref(py))
    }

    /// The operation of a check.
    fn operation(&self, py: Python<'_>, place: usize) -> PyResult<Operation> {
        let check = self.check(place)?;
        let keys: SmallVec<[Bound<'_, PyTuple>; 2]> =
            check.keys.iter().map(|key| PyTuple::new(py, decode_key(key))).collect::<PyResult<_>>()?;
        let keys = PyTuple::new(py, check.key_of.iter().map(|key| &keys[*key]))?;
        Ok(Operation::new(keys.unbind(), PyTuple::new(py, &check.costs)?.unbind(), true, None, None))
    }

    /// The calls of all checks, and how many they are; None where only Python can query some of them.
    #[pyo3(signature = (now_us, /))]
    fn pack_usual<'py>(
        &mut self,
        py: Python<'py>,
        now_us: Option<i64>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
        let batch = self.batch()?;
        let mut commands = Vec::with_capacity(192 * batch.len());
        for place in 0..batch.len() {
            let check = self.check(place)?;
            match &check.bound.query.bind_limits(py)?.calls {
                Some(calls) if calls.get().0.can_pack(&check.keys) => pack(calls, check, now_us, &mut commands),
                _ => return Ok(None),
            }
        }
        self.sent = (0..batch.len()).map(|place| (place, true)).collect();
        Ok(Some((PyBytes::new(py, &commands), self.sent.len())))
    }

    /// The calls of all checks without an outcome, and how many: those in `packed` as they are there.
    #[pyo3(signature = (packed, now_us, /))]
    fn pack<'py>(
        &mut self,
        py: Python<'py>,
        packed: &Bound<'py, PyDict>,
        now_us: Option<i64>,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let mut commands = Vec::with_capacity(192 * self.__len__());
        let mut sent = Vec::with_capacity(self.__len__());
        let has_packed = !packed.is_empty();
        let batch = self.batch()?;
        for place in 0..batch.len() {
            if batch.outcome(place).is_some() {
                continue;
            }
            if has_packed && let Some(packed_call) = packed.get_item(place)? {
                commands.extend_from_slice(packed_call.cast::<PyBytes>()?.as_bytes());
                sent.push((place, false));
                continue;
            }
            let check = self.check(place)?;
            let calls = check.bound.query.bind_limits(py)?.calls.as_ref();
            let calls = calls.ok_or_else(|| PyValueError::new_err("these calls are packed by Python"))?;
            pack(calls, check, now_us, &mut commands);
            sent.push((place, true));
        }
        let count = sent.len();
        self.sent = sent;
        Ok((PyBytes::new(py, &commands), count))
    }

    /// Record the outcomes that the replies to these calls mean, from the received bytes.
    ///
    /// Gives (how many bytes they are, the places of refusals that are to be remembered). Nothing is recorded, and the
    /// number is 0 where they are incomplete, and negative where one of them is unusual.
    fn read_bytes(&mut self, data: &[u8]) -> PyResult<(isize, Vec<usize>)> {
        let (mut reader, mut answers) = (Bulks(data), Vec::with_capacity(self.sent.len()));
        for (place, is_native) in &self.sent {
            let reply = match reader.next() {
                Bulk::Complete(reply) if *is_native => reply,
                Bulk::Partial => return Ok((0, vec![])),
                _ => return Ok((-1, vec![])),
            };
            let check = self.check(*place)?;
            let calls = check.bound.query.bound_limits().and_then(|bound| bound.calls.as_ref());
            match calls.and_then(|calls| calls.get().0.read(reply, &check.costs)) {
                Some(answer) => answers.push(answer),
                None => return Ok((-1, vec![])),
            }
        }
        let length = data.len() - reader.0.len();
        let mut refused = Vec::new();
        for ((place, _), answer) in std::mem::take(&mut self.sent).into_iter().zip(answers) {
            if !answer.allowed && self.check(place)?.bound.query.bound_limits().is_some_and(|bound| bound.remembers) {
                refused.push(place);
            }
            self.settle(place, Outcome::Decided(answer, ""));
        }
        Ok((length as isize, refused))
    }

    /// Record the outcomes that the replies to these calls mean.
    ///
    /// Gives (the checks left to Python, each with its reply; the places of refusals that are to be remembered).
    fn read<'py>(&mut self, replies: &Bound<'py, PyList>) -> PyResult<(Vec<UnreadReply<'py>>, Vec<usize>)> {
        if replies.len() != self.sent.len() {
            return Err(PyValueError::new_err("there are not as many replies as calls"));
        }
        let sent = std::mem::take(&mut self.sent);
        let (mut unread, mut refused) = (Vec::new(), Vec::new());
        for ((place, is_native), reply) in sent.into_iter().zip(replies) {
            let check = self.check(place)?;
            let bound = check.bound.query.bound_limits();
            let answer = match (bound.and_then(|bound| bound.calls.as_ref()), reply.cast::<PyBytes>()) {
                (Some(calls), Ok(bytes)) if is_native => calls.get().0.read(bytes.as_bytes(), &check.costs),
                _ => None,
            };
            let Some(answer) = answer else {
                unread.push((place, reply));
                continue;
            };
            if !answer.allowed && bound.is_some_and(|bound| bound.remembers) {
                refused.push(place);
            }
            self.settle(place, Outcome::Decided(answer, ""));
        }
        Ok((unread, refused))
    }

    /// The places of checks that were charged, of which `of_state` of `Refusals` may tell a refusal.
    fn charged(&self, py: Python<'_>, of_state: &Bound<'_, PyDict>) -> PyResult<Vec<usize>> {
        let mut places = Vec::new();
        for place in 0..self.__len__() {
            let check = self.check(place)?;
            let is_charged =
                matches!(self.batch()?.outcome(place), Some(Outcome::Decided(answer, "")) if answer.allowed);
            if let (true, Some(bound)) = (is_charged, check.bound.query.bound_limits())
                && changes(py, check, bound, of_state)?
            {
                places.push(place);
            }
        }
        Ok(places)
    }

    /// The decision of a check.
    fn decision(&self, py: Python<'_>, place: usize) -> PyResult<Decision> {
        match (self.batch()?.outcome(place), self.check(place)?.bound.query.bound_limits()) {
            (Some(Outcome::Decided(answer, degraded)), Some(bound)) => {
                Ok(Decision::with_degraded(bound.definitions.clone_ref(py), answer.clone(), degraded))
            }
            _ => Err(PyValueError::new_err("it is not decided")),
        }
    }

    /// Record a decision.
    fn decided(&mut self, place: usize, decision: &Decision) {
        let (answer, degraded) = decision.answer();
        self.settle(place, Outcome::Decided(answer.clone(), degraded));
    }

    /// Record a failure: a status, and the problem body that reports it.
    fn failed(&mut self, place: usize, status: u16, body: &[u8]) -> PyResult<()> {
        let status = StatusCode::from_u16(status).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let body = body.to_vec().into();
        self.settle(place, Outcome::Failed(Reply { status, content_type: PROBLEM, fields: vec![], body }));
        Ok(())
    }

    /// The places of checks without an outcome.
    fn open(&self) -> Vec<usize> {
        let batch = self.batch.as_ref();
        batch.map_or(vec![], |batch| (0..batch.len()).filter(|place| batch.outcome(*place).is_none()).collect())
    }

    /// Deliver all outcomes to the clients that wait.
    fn finish(&mut self) {
        self.batch = None;
    }
}

impl CheckBatch {
    pub fn new(batch: Batch<Choice>) -> Self {
        Self { batch: Some(batch), sent: vec![] }
    }

    fn batch(&self) -> PyResult<&Batch<Choice>> {
        self.batch.as_ref().ok_or_else(|| PyValueError::new_err("this batch is finished"))
    }

    fn check(&self, place: usize) -> PyResult<&StoreCheck<Choice>> {
        self.batch()?.check(place).ok_or_else(|| PyIndexError::new_err("there is no such check"))
    }

    fn settle(&mut self, place: usize, outcome: Outcome) {
        if let Some(batch) = &mut self.batch {
            batch.settle(place, outcome);
        }
    }
}

/// Add the call of a check.
fn pack(calls: &Py<RedisCalls>, check: &StoreCheck<Choice>, now_us: Option<i64>, commands: &mut Vec<u8>) {
    let keys: SmallVec<[&str; 4]> = check.key_of.iter().map(|key| &*check.keys[*key]).collect();
    calls.get().0.pack(&keys, &check.costs, now_us, commands);
}

/// Whether a charge changes a state that a remembered refusal depends on.
fn changes(
    py: Python<'_>,
    check: &StoreCheck<Choice>,
    bound: &BoundChoice,
    of_state: &Bound<'_, PyDict>,
) -> PyResult<bool> {
    for (place, group) in &bound.places {
        if of_state.contains((place.bind(py), &*check.keys[check.key_of[*group]]))? {
            return Ok(true);
        }
    }
    Ok(false)
}
