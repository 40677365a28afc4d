//! A batch of what the front door asks of a store that is waited for, with one crossing to Python each way.

use headgate_checks::queue::{Asked, Batch, Outcome};
use headgate_policy::keys::decode_key;
use headgate_redis::bulks::{Bulk, Bulks};
use headgate_server::decide::Reply;
use http::StatusCode;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use crate::decision::Decision;
use crate::late_limits::{Choice, Chosen};
use crate::operation::Operation;
use crate::redis_calls::RedisCalls;

const PROBLEM: &str = "application/problem+json";

/// A check that is left to Python, by its place, and the reply to its call.
type Left<'py> = (usize, Bound<'py, PyAny>);

/// Checks that were taken together, by their places.
#[pyclass(module = "headgate._native")]
pub struct CheckBatch {
    /// None once all that waited were told.
    batch: Option<Batch<Choice>>,
    /// What was packed: its place, and whether that was done here.
    sent: Vec<(usize, bool)>,
}

#[pymethods]
impl CheckBatch {
    fn __len__(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::len)
    }

    /// The places of checks that only Python can ask about: long keys, and limits without `RedisCalls`.
    fn odd(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let mut odd = Vec::new();
        for place in 0..self.__len__() {
            let asked = self.asked(place)?;
            let can_pack = match &asked.bound.asked.bound(py)?.calls {
                Some(calls) => calls.get().0.can_pack(&asked.keys),
                None => false,
            };
            if !can_pack {
                odd.push(place);
            }
        }
        Ok(odd)
    }

    /// The places of checks whose refusal is among what is known, by the names of `RefusalMemory`.
    fn known(&self, py: Python<'_>, known: &Bound<'_, PyDict>) -> PyResult<Vec<usize>> {
        let mut places = Vec::new();
        for place in 0..self.__len__() {
            let asked = self.asked(place)?;
            let chosen = asked.bound.asked.bound(py)?;
            if chosen.remembers {
                let keys = PyTuple::new(py, asked.key_of.iter().map(|key| &*asked.keys[*key]))?;
                if known.contains((chosen.number, keys, PyTuple::new(py, &asked.costs)?))? {
                    places.push(place);
                }
            }
        }
        Ok(places)
    }

    /// The limits of a check.
    fn limits(&self, py: Python<'_>, place: usize) -> PyResult<Py<PyAny>> {
        Ok(self.asked(place)?.bound.asked.bound(py)?.limits.clone_ref(py))
    }

    /// What they are asked.
    fn operation(&self, py: Python<'_>, place: usize) -> PyResult<Operation> {
        let asked = self.asked(place)?;
        let keys: SmallVec<[Bound<'_, PyTuple>; 2]> =
            asked.keys.iter().map(|key| PyTuple::new(py, decode_key(key))).collect::<PyResult<_>>()?;
        let keys = PyTuple::new(py, asked.key_of.iter().map(|key| &keys[*key]))?;
        Ok(Operation::new(keys.unbind(), PyTuple::new(py, &asked.costs)?.unbind(), true, None, None))
    }

    /// The calls of all checks, and how many they are; None where only Python can ask about some of them.
    #[pyo3(signature = (now_us, /))]
    fn pack_usual<'py>(
        &mut self,
        py: Python<'py>,
        now_us: Option<i64>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
        let batch = self.batch()?;
        let mut commands = Vec::with_capacity(192 * batch.len());
        for place in 0..batch.len() {
            let asked = self.asked(place)?;
            match &asked.bound.asked.bound(py)?.calls {
                Some(calls) if calls.get().0.can_pack(&asked.keys) => pack(calls, asked, now_us, &mut commands),
                _ => return Ok(None),
            }
        }
        self.sent = (0..batch.len()).map(|place| (place, true)).collect();
        Ok(Some((PyBytes::new(py, &commands), self.sent.len())))
    }

    /// The calls of all checks that nothing came of yet, and how many: those in `packed` as they are there.
    #[pyo3(signature = (packed, now_us, /))]
    fn pack<'py>(
        &mut self,
        py: Python<'py>,
        packed: &Bound<'py, PyDict>,
        now_us: Option<i64>,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let mut commands = Vec::with_capacity(192 * self.__len__());
        let mut sent = Vec::with_capacity(self.__len__());
        let has_own = !packed.is_empty();
        let batch = self.batch()?;
        for place in 0..batch.len() {
            if batch.outcome(place).is_some() {
                continue;
            }
            if has_own && let Some(own) = packed.get_item(place)? {
                commands.extend_from_slice(own.cast::<PyBytes>()?.as_bytes());
                sent.push((place, false));
                continue;
            }
            let asked = self.asked(place)?;
            let calls = asked.bound.asked.bound(py)?.calls.as_ref();
            let calls = calls.ok_or_else(|| PyValueError::new_err("these calls are packed by Python"))?;
            pack(calls, asked, now_us, &mut commands);
            sent.push((place, true));
        }
        let count = sent.len();
        self.sent = sent;
        Ok((PyBytes::new(py, &commands), count))
    }

    /// Take note of what the replies to these calls mean, from the bytes that came of them.
    ///
    /// Gives (how many bytes they are, the places of refusals that are to be remembered). Nothing is taken note of, and
    /// the number is 0 where they are not whole yet, and negative where one of them is not as usual.
    fn read_bytes(&mut self, data: &[u8]) -> PyResult<(isize, Vec<usize>)> {
        let (mut reader, mut answers) = (Bulks(data), Vec::with_capacity(self.sent.len()));
        for (place, is_own) in &self.sent {
            let reply = match reader.next() {
                Bulk::Complete(reply) if *is_own => reply,
                Bulk::Partial => return Ok((0, vec![])),
                _ => return Ok((-1, vec![])),
            };
            let asked = self.asked(*place)?;
            let calls = asked.bound.asked.known().and_then(|chosen| chosen.calls.as_ref());
            match calls.and_then(|calls| calls.get().0.read(reply, &asked.costs)) {
                Some(answer) => answers.push(answer),
                None => return Ok((-1, vec![])),
            }
        }
        let length = data.len() - reader.0.len();
        let mut refused = Vec::new();
        for ((place, _), answer) in std::mem::take(&mut self.sent).into_iter().zip(answers) {
            if !answer.allowed && self.asked(place)?.bound.asked.known().is_some_and(|chosen| chosen.remembers) {
                refused.push(place);
            }
            self.settle(place, Outcome::Decided(answer, ""));
        }
        Ok((length as isize, refused))
    }

    /// Take note of what the replies to these calls mean.
    ///
    /// Gives (what is left to Python, each with its reply; the places of refusals that are to be remembered).
    fn read<'py>(&mut self, replies: &Bound<'py, PyList>) -> PyResult<(Vec<Left<'py>>, Vec<usize>)> {
        if replies.len() != self.sent.len() {
            return Err(PyValueError::new_err("there are not as many replies as calls"));
        }
        let sent = std::mem::take(&mut self.sent);
        let (mut left, mut refused) = (Vec::new(), Vec::new());
        for ((place, is_own), reply) in sent.into_iter().zip(replies) {
            let asked = self.asked(place)?;
            let chosen = asked.bound.asked.known();
            let answer = match (chosen.and_then(|chosen| chosen.calls.as_ref()), reply.cast::<PyBytes>()) {
                (Some(calls), Ok(bytes)) if is_own => calls.get().0.read(bytes.as_bytes(), &asked.costs),
                _ => None,
            };
            let Some(answer) = answer else {
                left.push((place, reply));
                continue;
            };
            if !answer.allowed && chosen.is_some_and(|chosen| chosen.remembers) {
                refused.push(place);
            }
            self.settle(place, Outcome::Decided(answer, ""));
        }
        Ok((left, refused))
    }

    /// The places of checks that were charged, of which `of_state` of `Refusals` may tell a refusal.
    fn charged(&self, py: Python<'_>, of_state: &Bound<'_, PyDict>) -> PyResult<Vec<usize>> {
        let mut places = Vec::new();
        for place in 0..self.__len__() {
            let asked = self.asked(place)?;
            let is_charged =
                matches!(self.batch()?.outcome(place), Some(Outcome::Decided(answer, "")) if answer.allowed);
            if let (true, Some(chosen)) = (is_charged, asked.bound.asked.known())
                && changes(py, asked, chosen, of_state)?
            {
                places.push(place);
            }
        }
        Ok(places)
    }

    /// What was decided.
    fn decision(&self, py: Python<'_>, place: usize) -> PyResult<Decision> {
        match (self.batch()?.outcome(place), self.asked(place)?.bound.asked.known()) {
            (Some(Outcome::Decided(answer, degraded)), Some(chosen)) => {
                Ok(Decision::made(chosen.definitions.clone_ref(py), answer.clone(), degraded))
            }
            _ => Err(PyValueError::new_err("it is not decided")),
        }
    }

    /// Take note of a decision.
    fn decided(&mut self, place: usize, decision: &Decision) {
        let (answer, degraded) = decision.answer();
        self.settle(place, Outcome::Decided(answer.clone(), degraded));
    }

    /// Take note of a failure: a status, and the problem body that tells of it.
    fn failed(&mut self, place: usize, status: u16, body: &[u8]) -> PyResult<()> {
        let status = StatusCode::from_u16(status).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let body = body.to_vec().into();
        self.settle(place, Outcome::Failed(Reply { status, content_type: PROBLEM, fields: vec![], body }));
        Ok(())
    }

    /// The places of which nothing is known.
    fn open(&self) -> Vec<usize> {
        let batch = self.batch.as_ref();
        batch.map_or(vec![], |batch| (0..batch.len()).filter(|place| batch.outcome(*place).is_none()).collect())
    }

    /// Tell all clients that wait what came of their checks.
    fn finish(&mut self) {
        self.batch = None;
    }
}

impl CheckBatch {
    pub fn new(batch: Batch<Choice>) -> Self {
        Self { batch: Some(batch), sent: vec![] }
    }

    fn batch(&self) -> PyResult<&Batch<Choice>> {
        self.batch.as_ref().ok_or_else(|| PyValueError::new_err("all of it is told"))
    }

    fn asked(&self, place: usize) -> PyResult<&Asked<Choice>> {
        self.batch()?.check(place).ok_or_else(|| PyIndexError::new_err("there is no such check"))
    }

    fn settle(&mut self, place: usize, outcome: Outcome) {
        if let Some(batch) = &mut self.batch {
            batch.settle(place, outcome);
        }
    }
}

/// Add the call of a check.
fn pack(calls: &Py<RedisCalls>, asked: &Asked<Choice>, now_us: Option<i64>, commands: &mut Vec<u8>) {
    let keys: SmallVec<[&str; 4]> = asked.key_of.iter().map(|key| &*asked.keys[*key]).collect();
    calls.get().0.pack(&keys, &asked.costs, now_us, commands);
}

/// Whether a charge changes a state that is known.
fn changes(py: Python<'_>, asked: &Asked<Choice>, chosen: &Chosen, of_state: &Bound<'_, PyDict>) -> PyResult<bool> {
    for (place, group) in &chosen.places {
        if of_state.contains((place.bind(py), &*asked.keys[asked.key_of[*group]]))? {
            return Ok(true);
        }
    }
    Ok(false)
}
