//! The answer for one request; the native twin of `headgate.decision.Decision`.

use headgate_answers::Verdict;
use headgate_core::algorithms::transition::{NEVER, Reading};
use headgate_core::table::answer::{Answer, OnFull, Readings};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

/// The substitutes that may decide where a store does not, as `headgate.decision.ON_STORE_ERROR`.
const DEGRADED: [&str; 3] = ["local", "open", "closed"];

/// The substitute that decided where the table was full.
#[inline]
fn degraded(full: Option<OnFull>) -> &'static str {
    match full {
        None => "",
        Some(OnFull::Pass) => "open",
        Some(OnFull::Forget | OnFull::Refuse) => "closed",
    }
}

/// The answer for one request: yes, not until then, or never. `bool(decision)` is `allowed`.
///
/// `limit`, `remaining` and `reset_after` are those of `binding`, the binding limit: of those that refuse the one with
/// the longest wait, else the one nearest to refusing. They are None where no limit applied. `retry_after` is 0.0 when
/// allowed and None when waiting cannot help. `degraded` says what decided where the store did not, see `OnStoreError`.
#[pyclass(frozen, module = "headgate.decision")]
pub struct Decision {
    definitions: Py<PyTuple>,
    answer: Answer,
    degraded: &'static str,
}

impl Decision {
    /// The answer of a table.
    #[inline]
    pub fn new(definitions: Py<PyTuple>, answer: Answer) -> Self {
        let degraded = degraded(answer.full);
        Self { definitions, answer, degraded }
    }

    /// An answer, with the substitute that gave it.
    pub fn with_degraded(definitions: Py<PyTuple>, answer: Answer, degraded: &'static str) -> Self {
        Self { definitions, answer, degraded }
    }

    /// The answer, and what decided in place of the store.
    pub fn answer(&self) -> (&Answer, &'static str) {
        (&self.answer, self.degraded)
    }

    /// The same again.
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { definitions: self.definitions.clone_ref(py), answer: self.answer.clone(), degraded: self.degraded }
    }

    /// Shows the collector what it refers to.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.definitions)
    }

    /// The definitions of its limits.
    pub fn definitions_of<'py>(&self, py: Python<'py>) -> Bound<'py, PyTuple> {
        self.definitions.bind(py).clone()
    }

    /// Whether it passes at once, by its store's decision.
    pub fn passes_at_once(&self) -> bool {
        self.answer.allowed && self.degraded.is_empty() && self.readings().iter().all(|reading| reading.delay_us == 0)
    }

    pub fn is_allowed(&self) -> bool {
        self.answer.allowed
    }

    pub fn readings(&self) -> &[Reading] {
        self.answer.readings.all()
    }

    /// The decision as it is reported to clients.
    pub fn verdict(&self) -> Verdict<'_> {
        Verdict { answer: &self.answer, degraded: self.degraded }
    }

    fn binding_index(&self) -> Option<usize> {
        self.answer.binding.map(usize::from)
    }

    fn binding_reading(&self) -> Option<&Reading> {
        self.binding_index().map(|index| &self.readings()[index])
    }

    fn definition<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        self.definitions.bind(py).get_item(index)
    }

    fn limit_reading<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let definition = self.definition(py, index)?;
        let (allowed, remaining, reset_after_us, retry_after_us, next_after_us, delay_us) =
            fields(&self.readings()[index]);
        let numbers = (definition, allowed, remaining, reset_after_us, retry_after_us, next_after_us, delay_us);
        module(py)?.getattr("LimitReading")?.call1(numbers)
    }
}

#[pymethods]
impl Decision {
    #[new]
    #[pyo3(signature = (definitions, readings, *, allowed, binding, degraded = ""))]
    fn from_python(
        definitions: Py<PyTuple>,
        readings: Vec<Fields>,
        allowed: bool,
        binding: Option<u16>,
        degraded: &str,
    ) -> PyResult<Self> {
        let readings: Vec<Reading> = readings
            .into_iter()
            .map(|(_, remaining, reset_after_us, retry_after_us, next_after_us, delay_us)| Reading {
                remaining,
                reset_after_us,
                retry_after_us: retry_after_us.unwrap_or(NEVER),
                next_after_us,
                delay_us,
            })
            .collect();
        if binding.is_some_and(|binding| usize::from(binding) >= readings.len()) {
            return Err(PyValueError::new_err("binding names no reading"));
        }
        let degraded = DEGRADED.into_iter().find(|name| *name == degraded).unwrap_or("");
        let answer = Answer { allowed, full: None, readings: Readings::Many(readings.into()), binding };
        Ok(Self { definitions, answer, degraded })
    }

    fn __bool__(&self) -> bool {
        self.answer.allowed
    }

    /// Whether the request may pass.
    #[getter]
    fn allowed(&self) -> bool {
        self.answer.allowed
    }

    /// The limits that were asked, in their order.
    #[getter]
    fn definitions<'py>(&self, py: Python<'py>) -> Bound<'py, PyTuple> {
        self.definitions_of(py)
    }

    /// What decided where the store did not: "local", "open" or "closed"; empty where it did.
    #[getter]
    fn degraded(&self) -> &'static str {
        self.degraded
    }

    /// The numbers of `limits`, in the order of a `Reading`; cheaper to read where few are needed.
    #[getter(readings)]
    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.readings().iter().map(fields).collect::<SmallVec<[Fields; 12]>>())
    }

    /// Every limit's own numbers, in the order of the limits.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let readings: PyResult<Vec<_>> =
            (0..self.readings().len()).map(|index| self.limit_reading(py, index)).collect();
        PyTuple::new(py, readings?)
    }

    /// The limits that refuse by themselves, including shadow limits; usually none.
    #[getter]
    fn refusals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let refusing = self.readings().iter().enumerate().filter(|(_, reading)| !reading.allowed());
        let readings: PyResult<Vec<_>> = refusing.map(|(index, _)| self.limit_reading(py, index)).collect();
        PyTuple::new(py, readings?)
    }

    /// The binding limit; None where no limit applied.
    #[getter]
    fn binding<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.binding_index().map(|index| self.limit_reading(py, index)).transpose()
    }

    /// The binding limit's quota.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        let Some(index) = self.binding_index() else {
            return Ok(None);
        };
        self.definition(py, index)?.getattr("limit")?.getattr("quota")?.extract()
    }

    /// The name of the binding limit's rule; empty outside a policy.
    #[getter]
    fn rule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.binding_index() {
            Some(index) => self.definition(py, index)?.getattr("rule"),
            None => Ok(PyString::new(py, "").into_any()),
        }
    }

    /// The greatest cost that the binding limit would still admit now.
    #[getter]
    fn remaining(&self) -> Option<i64> {
        self.binding_reading().map(|reading| reading.remaining)
    }

    /// Microseconds until the binding limit is as if never used.
    #[getter]
    fn reset_after_us(&self) -> Option<i64> {
        self.binding_reading().map(|reading| reading.reset_after_us)
    }

    /// Microseconds until this request would pass: 0 when allowed, None for never.
    #[getter]
    fn retry_after_us(&self) -> Option<i64> {
        if self.answer.allowed { Some(0) } else { self.binding_reading().and_then(retry_after_us) }
    }

    /// Microseconds an admitted caller waits before it proceeds; above 0 only for queues.
    #[getter]
    fn delay_us(&self) -> i64 {
        self.readings().iter().map(|reading| reading.delay_us).max().unwrap_or(0)
    }

    /// Seconds until the binding limit is as if never used.
    #[getter]
    fn reset_after(&self) -> Option<f64> {
        self.reset_after_us().map(seconds)
    }

    /// Seconds until this request would pass: 0.0 when allowed, None for never.
    #[getter]
    fn retry_after(&self) -> Option<f64> {
        self.retry_after_us().map(seconds)
    }

    /// Seconds an admitted caller waits before it proceeds; above 0 only for queues.
    #[getter]
    fn delay(&self) -> f64 {
        seconds(self.delay_us())
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        module(slf.py())?.getattr("describe")?.call1((slf,))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let class = module(py)?.getattr("Reading")?;
        let readings: PyResult<Vec<_>> = self.readings().iter().map(|reading| class.call1(fields(reading))).collect();
        let readings = PyTuple::new(py, readings?)?;
        let arguments = (self.definitions.bind(py), readings, self.answer.allowed, self.answer.binding, self.degraded);
        Ok((module(py)?.getattr("_rebuild")?, arguments.into_pyobject(py)?.into_any()))
    }
}

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("headgate.decision")
}

/// A reading as `headgate.decision.Reading` has it.
type Fields = (bool, i64, i64, Option<i64>, i64, i64);

fn fields(reading: &Reading) -> Fields {
    let Reading { remaining, reset_after_us, next_after_us, delay_us, .. } = *reading;
    (reading.allowed(), remaining, reset_after_us, retry_after_us(reading), next_after_us, delay_us)
}

fn retry_after_us(reading: &Reading) -> Option<i64> {
    (reading.retry_after_us != NEVER).then_some(reading.retry_after_us)
}

fn seconds(duration_us: i64) -> f64 {
    duration_us as f64 / 1e6
}
