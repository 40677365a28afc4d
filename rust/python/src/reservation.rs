//! The reservation that a caller gets for held units; the native twin of `headgate.reservation.Reservation`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use headgate_core::table::answer::Answer;
use headgate_core::table::known_hold::Measured;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use pyo3::{PyClass, PyTypeInfo};
use smallvec::SmallVec;

use crate::amounts::{amounts_of, extensions_of, lease_of};
use crate::decision::Decision;
use crate::limit_reader::LimitReader;
use crate::settlement::Settlement;
use crate::whole_id::WholeId;

type Settle = for<'py> fn(&Bound<'py, PyAny>, WholeId, &[Option<i64>]) -> PyResult<Bound<'py, Settlement>>;
type Extend = for<'py> fn(&Bound<'py, PyAny>, WholeId, i64, &[i64]) -> PyResult<Bound<'py, PyAny>>;

/// The operations of the native limits that made a reservation.
pub struct HoldMethods {
    pub reader: LimitReader,
    pub settle: Settle,
    pub extend: Extend,
}

/// The answer of a table: of one limit that admitted, or of any limits.
pub enum TableAnswer {
    One(Measured),
    All(Answer),
}

/// The limits that hold the units, with their decision and the id: those of a table, or of another store.
enum Source {
    Native(Py<PyAny>, &'static HoldMethods, TableAnswer, WholeId),
    Python(Py<PyAny>, Py<PyAny>, Py<PyString>),
}

/// Units that are held until they are settled; `bool(reservation)` is whether they are.
///
/// `id` settles it anywhere, in another process too. `repeated` tells that this id was held before: nothing was
/// charged now, and `decision` is the first one. `settled` is whether it was settled through this very object.
///
/// As a context manager it raises RateLimited where it was refused, and extends its lease by itself, at a third of it,
/// while the block runs. A block that ends without settling it settles it as held; one that raises cancels it.
#[pyclass(frozen, module = "headgate.reservation")]
pub struct Reservation {
    source: Source,
    /// Whether this id was held before: nothing was charged now.
    #[pyo3(get)]
    repeated: bool,
    /// Microseconds of its lease, as it was reserved with.
    #[pyo3(get)]
    lease_us: i64,
    settled: AtomicBool,
    /// The text that follows the id; None where none does.
    id_suffix: Option<Py<PyString>>,
}

impl Reservation {
    /// A reservation that a table holds.
    #[inline]
    pub fn new<'py>(
        bound: &Bound<'py, impl PyClass>,
        methods: &'static HoldMethods,
        table_answer: TableAnswer,
        id: WholeId,
        repeated: bool,
        lease_us: i64,
    ) -> PyResult<Bound<'py, Self>> {
        let source = Source::Native(bound.clone().into_any().unbind(), methods, table_answer, id);
        let settled = AtomicBool::new(false);
        Bound::new(bound.py(), Self { source, repeated, lease_us, settled, id_suffix: None })
    }

    /// A reservation of groups that a table holds; the text that describes the groups follows the id.
    pub fn with_id_suffix<'py>(
        bound: &Bound<'py, impl PyClass>,
        methods: &'static HoldMethods,
        answer: Answer,
        id: WholeId,
        repeated: bool,
        lease_us: i64,
        id_suffix: Py<PyString>,
    ) -> PyResult<Bound<'py, Self>> {
        let source = Source::Native(bound.clone().into_any().unbind(), methods, TableAnswer::All(answer), id);
        let settled = AtomicBool::new(false);
        Bound::new(bound.py(), Self { source, repeated, lease_us, settled, id_suffix: Some(id_suffix) })
    }

    /// The id of a hold of a table; None where another store holds it.
    #[inline]
    pub fn native_id(&self) -> Option<WholeId> {
        match &self.source {
            Source::Native(_, _, _, id) => Some(*id),
            Source::Python(..) => None,
        }
    }

    /// Record that it was settled through this very object.
    #[inline]
    pub fn mark_settled(&self) {
        self.settled.store(true, Relaxed);
    }
}

#[pymethods]
impl Reservation {
    /// `reserved` is a `headgate.holding.Reserved`.
    #[new]
    fn from_python(bound: Py<PyAny>, reserved: &Bound<'_, PyAny>, lease_us: i64) -> PyResult<Self> {
        let (decision, id, repeated): (Py<PyAny>, Py<PyString>, bool) = reserved.extract()?;
        let settled = AtomicBool::new(false);
        Ok(Self { source: Source::Python(bound, decision, id), repeated, lease_us, settled, id_suffix: None })
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.source {
            Source::Native(_, _, TableAnswer::One(_), _) => Ok(true),
            Source::Native(_, _, TableAnswer::All(answer), _) => Ok(answer.allowed),
            Source::Python(_, decision, _) => decision.bind(py).is_truthy(),
        }
    }

    /// The whole id, which settles it anywhere.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        match &self.source {
            Source::Native(_, _, _, id) => match &self.id_suffix {
                None => id.text(py),
                Some(id_suffix) => PyString::new(py, &format!("{}{}", id.text(py), id_suffix.bind(py))),
            },
            Source::Python(_, _, id) => id.bind(py).clone(),
        }
    }

    /// What was decided; where `repeated`, the first time.
    #[getter]
    fn decision<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.source {
            Source::Native(bound, methods, table_answer, _) => {
                let answer = match table_answer {
                    TableAnswer::One(measured) => (methods.reader.read)(bound.bind(py), measured)?,
                    TableAnswer::All(answer) => answer.clone(),
                };
                let decision = Decision::new((methods.reader.definitions)(bound.bind(py))?, answer);
                Ok(Bound::new(py, decision)?.into_any())
            }
            Source::Python(_, decision, _) => Ok(decision.bind(py).clone()),
        }
    }

    /// Whether it was settled through this very object.
    #[getter]
    fn settled(&self) -> bool {
        self.settled.load(Relaxed)
    }

    /// Settle it with what it really cost; None is as much as is held. See `Limiter.commit`.
    #[pyo3(signature = (actual = None))]
    fn commit<'py>(&self, py: Python<'py>, actual: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let settlement = match &self.source {
            Source::Native(bound, methods, _, id) => {
                let actuals = match actual {
                    Some(actual) => amounts_of(actual, || (methods.reader.definitions)(bound.bind(py)))?,
                    None => SmallVec::from_elem(None, 1),
                };
                (methods.settle)(bound.bind(py), *id, &actuals)?.into_any()
            }
            Source::Python(bound, _, id) => bound.bind(py).call_method1("commit", (id, actual))?,
        };
        self.settled.store(true, Relaxed);
        Ok(settlement)
    }

    /// Settle it as if it had never been.
    fn cancel<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.commit(py, Some(PyInt::new(py, 0).as_any()))
    }

    /// Let its lease end `lease` seconds from now (as long as at first), and hold `more`. See `Limiter.extend`.
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
        match &self.source {
            Source::Native(bound, methods, _, id) => {
                let more = extensions_of(&more, || (methods.reader.definitions)(bound.bind(py)))?;
                (methods.extend)(bound.bind(py), *id, lease_us, &more)
            }
            Source::Python(bound, _, id) => bound.bind(py).call_method1("extend", (id, lease_us, (more,))),
        }
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let entered = slf.py().import("headgate.reservation")?.call_method1("enter", (slf,));
        if entered.as_ref().is_err_and(|error| is_interrupt(slf.py(), error)) {
            let _ = leave(slf, PyKeyboardInterrupt::type_object(slf.py()).as_any());
        }
        entered
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let result = leave(slf, kind);
        if result.as_ref().is_err_and(|error| is_interrupt(slf.py(), error)) {
            let _ = leave(slf, kind); // else its lease would be extended for ever
        }
        result
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let allowed = if self.__bool__(py)? { "True" } else { "False" };
        let repeated = if self.repeated { "True" } else { "False" };
        Ok(format!("Reservation(id='{}', allowed={allowed}, repeated={repeated})", self.id(py)))
    }
}

/// End the block of a context manager.
fn leave(reservation: &Bound<'_, Reservation>, kind: &Bound<'_, PyAny>) -> PyResult<()> {
    reservation.py().import("headgate.reservation")?.call_method1("leave", (reservation, kind)).map(drop)
}

/// Whether the handler of a signal raised this: the errors of Headgate itself are of another kind.
fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    let headgate_error = py.import("headgate.errors").and_then(|errors| errors.getattr("HeadgateError"));
    headgate_error.is_ok_and(|headgate_error| !error.is_instance(py, &headgate_error))
}
