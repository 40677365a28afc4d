//! Holds at the border: their ids, and what comes of them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use headgate_core::holding::record::HoldId;
use headgate_core::limit::LARGEST;
use headgate_core::table::answer::Answer;
use headgate_core::table::known_hold::SettledOne;
use headgate_core::table::settling::{Conflict, Extension, Misuse, Outcome, Settlement as CoreSettlement, Standing};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::any_table::headgate_error;
use crate::bound::BoundLimits;
use crate::decision::Decision;

/// `headgate.holding.HOUR_US`.
pub const HOUR_US: i64 = 3_600_000_000;
/// `headgate.holding.LONGEST_LEASE_US`.
const LONGEST_LEASE_US: i64 = 31 * 24 * HOUR_US;
/// How a whole id begins.
const PREFIX: &[u8; 2] = b"h1";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const SETTLED: &str = "settled";
const ALREADY_SETTLED: &str = "already settled";
const UNKNOWN: &str = "unknown";

/// A whole id: what a hold is found by, and the shard that it is in.
#[derive(Clone, Copy)]
pub struct WholeId {
    pub digest: HoldId,
    pub place: u16,
}

impl WholeId {
    /// Read a whole id; `headgate.holding.read_id` has the messages.
    #[inline]
    pub fn read(id: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = id.cast::<PyString>()
            && let Ok(text) = text.to_str()
            && let Some(id) = Self::decode(text.as_bytes())
        {
            return Ok(id);
        }
        let (digest, place): ([u8; 16], u16) = call(id, "read_id")?.extract()?;
        Ok(Self { digest: HoldId(digest), place })
    }

    /// The id of a name within a key.
    pub fn named(key: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>, place: u16) -> PyResult<Self> {
        let text = key.py().import("headgate.keys")?.call_method1("encode_key", (key,))?;
        let id = key.py().import("headgate.holding")?.call_method1("whole_id", (text, name, place))?;
        Self::read(&id)
    }

    #[inline]
    fn decode(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; 18];
        if text.len() != 26 || !text.starts_with(PREFIX) {
            return None;
        }
        for (four, three) in text[2..].chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
            let mut word = 0;
            for letter in four {
                word = word << 6 | u32::from(value_of(*letter)?);
            }
            three.copy_from_slice(&word.to_be_bytes()[1..]);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&bytes[..16]);
        Some(Self { digest: HoldId(digest), place: u16::from_be_bytes([bytes[16], bytes[17]]) })
    }

    /// As text; `headgate.holding.write_id`.
    pub fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(&self.digest.0);
        bytes[16..].copy_from_slice(&self.place.to_be_bytes());
        let mut text = [0; 26];
        text[..2].copy_from_slice(PREFIX);
        for (three, four) in bytes.chunks_exact(3).zip(text[2..].chunks_exact_mut(4)) {
            let word = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
            for (index, letter) in four.iter_mut().enumerate() {
                *letter = ALPHABET[(word >> (18 - 6 * index)) as usize & 63];
            }
        }
        PyString::new(py, std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[inline]
fn value_of(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

/// Call a function of `headgate.holding`, which knows all forms and writes all messages.
fn call<'py>(value: &Bound<'py, PyAny>, function: &str) -> PyResult<Bound<'py, PyAny>> {
    value.py().import("headgate.holding")?.call_method1(function, (value,))
}

/// An amount; `headgate.holding.check_amount`.
#[inline]
pub fn check_amount(amount: &Bound<'_, PyAny>) -> PyResult<i64> {
    if amount.is_exact_instance_of::<PyInt>()
        && let Ok(number) = amount.extract::<i64>()
        && (0..=LARGEST).contains(&number)
    {
        return Ok(number);
    }
    call(amount, "check_amount")?.extract()
}

/// What a hold really cost: an amount for each group, or one for all; `headgate.holding.amounts_of`.
#[inline]
pub fn amounts_of(amounts: &Bound<'_, PyAny>) -> PyResult<SmallVec<[Option<i64>; 2]>> {
    let one = |amount: &Bound<'_, PyAny>| if amount.is_none() { Ok(None) } else { check_amount(amount).map(Some) };
    if let Ok(each) = amounts.cast::<PyTuple>() {
        return each.iter().map(|amount| one(&amount)).collect();
    }
    if let Ok(each) = amounts.cast::<PyList>() {
        return each.iter().map(|amount| one(&amount)).collect();
    }
    Ok(SmallVec::from_elem(one(amounts)?, 1))
}

/// A lease in microseconds; `headgate.holding.check_lease`.
#[inline]
pub fn check_lease(lease_us: &Bound<'_, PyAny>) -> PyResult<i64> {
    if lease_us.is_exact_instance_of::<PyInt>()
        && let Ok(number) = lease_us.extract::<i64>()
        && (1..=LONGEST_LEASE_US).contains(&number)
    {
        return Ok(number);
    }
    call(lease_us, "check_lease")?.extract()
}

/// A lease from seconds, or as it was given; `headgate.holding.lease_of`.
#[inline]
pub fn lease_of(lease: Option<&Bound<'_, PyAny>>, lease_us: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
    let Some(seconds) = lease else {
        return lease_us.map_or(Ok(60_000_000), check_lease);
    };
    if lease_us.is_none()
        && seconds.is_exact_instance_of::<PyInt>()
        && let Ok(number) = seconds.extract::<i64>()
        && (1..=LONGEST_LEASE_US / 1_000_000).contains(&number)
    {
        return Ok(number * 1_000_000);
    }
    let py = seconds.py();
    py.import("headgate.holding")?.call_method1("lease_of", (seconds, lease_us))?.extract()
}

/// A time to remember from seconds; `headgate.holding.remember_of`.
pub fn remember_of(remember: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
    remember.map_or(Ok(0), |seconds| call(seconds, "remember_of")?.extract())
}

/// The error of an id that is that of another hold.
#[cold]
pub fn conflict(conflict: Conflict, costs: &[i64]) -> PyErr {
    let shown = |costs: &[i64]| match costs {
        [one] => one.to_string(),
        many => format!("({})", many.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let kind = |is_hit: bool| if is_hit { "a hit" } else { "a hold" };
    let message = match conflict {
        Conflict::Kind { former_is_hit } => {
            format!("this id is that of {}, and is now given to {}", kind(former_is_hit), kind(!former_is_hit))
        }
        Conflict::Costs(former) => {
            format!("this id was given with cost {}, and is now given with {}", shown(&former), shown(costs))
        }
        Conflict::Limits => "this id was given with other limits; what is new needs an id of its own".into(),
        Conflict::Keys => "this id was given with other keys; what is new needs an id of its own".into(),
    };
    headgate_error("ConflictingId", message)
}

/// The error of amounts that a hold cannot be settled or extended with; `name` is what a limit of a salt is called.
#[cold]
pub fn misuse(misuse: Misuse, amounts: usize, name: impl Fn(u64) -> PyResult<String>) -> PyErr {
    let message = match misuse {
        Misuse::Amounts(groups) => format!("this hold has {groups} amounts, not {amounts}"),
        Misuse::Debt(actual, salt) => {
            let name = name(salt).unwrap_or_else(|_| "a limit".into());
            format!("{actual} for {name} is so large a debt that its numbers pass 2**52")
        }
    };
    headgate_error("ArgumentError", message)
}

/// What an outcome is called.
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Settled => SETTLED,
        Outcome::AlreadySettled => ALREADY_SETTLED,
        Outcome::Unknown => UNKNOWN,
        Outcome::Extended => "extended",
        Outcome::Refused => "refused",
        Outcome::Lapsed => "lapsed",
    }
}

/// The numbers of limits, as `headgate.holding.Standing`.
pub fn standings<'py>(py: Python<'py>, definitions: &Py<PyTuple>, after: &[Standing]) -> PyResult<Bound<'py, PyTuple>> {
    let kind = py.import("headgate.holding")?.getattr("Standing")?;
    let mut each = Vec::with_capacity(after.len());
    for standing in after {
        let definition = definitions.bind(py).get_item(standing.asked)?;
        each.push(kind.call1((definition, standing.remaining, standing.reset_after_us))?);
    }
    PyTuple::new(py, each)
}

/// `headgate.holding.Extension`.
pub fn extension<'py>(py: Python<'py>, definitions: &Py<PyTuple>, came: Extension) -> PyResult<Bound<'py, PyAny>> {
    let after = standings(py, definitions, &came.after)?;
    let decision = came.answer.map(|answer| Decision::new(definitions.clone_ref(py), answer));
    py.import("headgate.holding")?.call_method1("Extension", (outcome_name(came.outcome), after, decision))
}

/// What a settlement tells: of one limit, as most do, of several, or as Python told it.
enum Told {
    One(Py<PyTuple>, SettledOne),
    Many(Py<PyTuple>, Box<CoreSettlement>),
    Python(Option<Vec<i64>>, Py<PyTuple>),
}

/// The answer to `commit`; the native twin of `headgate.holding.Settlement`.
#[pyclass(frozen, module = "headgate.holding")]
pub struct Settlement {
    outcome: &'static str,
    told: Told,
}

impl Settlement {
    /// What came of a commit.
    pub fn new(definitions: Py<PyTuple>, came: CoreSettlement) -> Self {
        Self { outcome: outcome_name(came.outcome), told: Told::Many(definitions, Box::new(came)) }
    }

    /// What came of settling a hold of one limit.
    #[inline]
    pub fn of_one(definitions: Py<PyTuple>, one: SettledOne) -> Self {
        Self { outcome: SETTLED, told: Told::One(definitions, one) }
    }

    /// The units of each group that count; none where no hold is known.
    fn each(&self) -> Option<&[i64]> {
        match &self.told {
            Told::One(_, one) => Some(std::slice::from_ref(&one.actual)),
            Told::Many(_, came) => (came.outcome != Outcome::Unknown).then_some(&came.actuals),
            Told::Python(actuals, _) => actuals.as_deref(),
        }
    }
}

#[pymethods]
impl Settlement {
    #[new]
    fn from_python(
        py: Python<'_>,
        outcome: &str,
        actuals: Option<Vec<i64>>,
        after: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let outcome = [SETTLED, ALREADY_SETTLED, UNKNOWN].into_iter().find(|name| *name == outcome);
        let after: Vec<Bound<'_, PyAny>> = after.try_iter()?.collect::<PyResult<_>>()?;
        Ok(Self {
            outcome: outcome.ok_or_else(|| PyValueError::new_err("no such outcome"))?,
            told: Told::Python(actuals, PyTuple::new(py, after)?.unbind()),
        })
    }

    #[getter]
    fn outcome(&self) -> &'static str {
        self.outcome
    }

    #[getter]
    fn actuals<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.each().map(|actuals| PyTuple::new(py, actuals)).transpose()
    }

    #[getter]
    fn actual(&self) -> Option<i64> {
        self.each()?.first().copied()
    }

    #[getter]
    fn after<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match &self.told {
            Told::One(definitions, one) => {
                let SettledOne { remaining, reset_after_us, .. } = *one;
                standings(py, definitions, &[Standing { asked: 0, remaining, reset_after_us }])
            }
            Told::Many(definitions, came) => standings(py, definitions, &came.after),
            Told::Python(_, after) => Ok(after.bind(py).clone()),
        }
    }

    fn __repr__(&self) -> String {
        let actual = self.actual().map_or("None".to_owned(), |actual| actual.to_string());
        format!("Settlement(outcome='{}', actual={actual})", self.outcome)
    }
}

/// What was decided: by a table, or by another store.
enum Decided {
    Native(Py<BoundLimits>, Answer, WholeId),
    Python(Py<PyAny>, Py<PyAny>, Py<PyString>),
}

/// What was held; the native twin of `headgate.reservation.Reservation`.
#[pyclass(frozen, module = "headgate.reservation")]
pub struct Reservation {
    decided: Decided,
    #[pyo3(get)]
    repeated: bool,
    #[pyo3(get)]
    lease_us: i64,
    settled: AtomicBool,
}

impl Reservation {
    /// What a table held.
    #[inline]
    pub fn new(bound: Py<BoundLimits>, answer: Answer, id: WholeId, repeated: bool, lease_us: i64) -> Self {
        Self { decided: Decided::Native(bound, answer, id), repeated, lease_us, settled: AtomicBool::new(false) }
    }
}

#[pymethods]
impl Reservation {
    /// `reserved` is a `headgate.holding.Reserved`.
    #[new]
    fn from_python(bound: Py<PyAny>, reserved: &Bound<'_, PyAny>, lease_us: i64) -> PyResult<Self> {
        let (decision, id, repeated): (Py<PyAny>, Py<PyString>, bool) = reserved.extract()?;
        Ok(Self { decided: Decided::Python(bound, decision, id), repeated, lease_us, settled: AtomicBool::new(false) })
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.decided {
            Decided::Native(_, answer, _) => Ok(answer.allowed),
            Decided::Python(_, decision, _) => decision.bind(py).is_truthy(),
        }
    }

    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        match &self.decided {
            Decided::Native(_, _, id) => id.text(py),
            Decided::Python(_, _, id) => id.bind(py).clone(),
        }
    }

    #[getter]
    fn decision<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.decided {
            Decided::Native(bound, answer, _) => {
                let decision = Decision::new(bound.get().definitions(py), answer.clone());
                Ok(Bound::new(py, decision)?.into_any())
            }
            Decided::Python(_, decision, _) => Ok(decision.bind(py).clone()),
        }
    }

    #[getter]
    fn settled(&self) -> bool {
        self.settled.load(Relaxed)
    }

    #[pyo3(signature = (actual = None))]
    fn commit<'py>(&self, py: Python<'py>, actual: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let settlement = match &self.decided {
            Decided::Native(bound, _, id) => {
                let actuals = match actual {
                    Some(actual) => amounts_of(actual)?,
                    None => SmallVec::from_elem(None, 1),
                };
                Bound::new(py, bound.get().settle(py, *id, &actuals, None)?)?.into_any()
            }
            Decided::Python(bound, _, id) => bound.bind(py).call_method1("commit", (id, actual))?,
        };
        self.settled.store(true, Relaxed);
        Ok(settlement)
    }

    fn cancel<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.commit(py, Some(PyInt::new(py, 0).as_any()))
    }

    #[pyo3(signature = (lease = None, more = None, *, lease_us = None))]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        lease: Option<&Bound<'py, PyAny>>,
        more: Option<&Bound<'py, PyAny>>,
        lease_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lease_us = if lease.is_none() && lease_us.is_none() { self.lease_us } else { lease_of(lease, lease_us)? };
        let more = match more {
            Some(more) => more.clone(),
            None => PyInt::new(py, 0).into_any(),
        };
        match &self.decided {
            Decided::Native(bound, _, id) => {
                let more = extensions_of(&more)?;
                bound.get().lengthen(py, *id, lease_us, &more, None)
            }
            Decided::Python(bound, _, id) => bound.bind(py).call_method1("extend", (id, lease_us, (more,))),
        }
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("headgate.reservation")?.call_method1("enter", (slf,))
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        slf.py().import("headgate.reservation")?.call_method1("leave", (slf, kind)).map(|_| ())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let allowed = if self.__bool__(py)? { "True" } else { "False" };
        let repeated = if self.repeated { "True" } else { "False" };
        Ok(format!("Reservation(id='{}', allowed={allowed}, repeated={repeated})", self.id(py)))
    }
}

/// What is to be held on top: an amount for each group, or one for all.
pub fn extensions_of(more: &Bound<'_, PyAny>) -> PyResult<SmallVec<[i64; 2]>> {
    let each: PyResult<Vec<Bound<'_, PyAny>>> = if more.is_instance_of::<PyTuple>() || more.is_instance_of::<PyList>() {
        more.try_iter()?.collect()
    } else {
        return Ok(SmallVec::from_elem(check_amount(more)?, 1));
    };
    each?.iter().map(check_amount).collect()
}
