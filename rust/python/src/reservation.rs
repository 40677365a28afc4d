//! What was held, as the caller has it.

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
use crate::measured::LimitsOf;
use crate::settlement::Settlement;
use crate::whole_id::WholeId;

type Settle = for<'py> fn(&Bound<'py, PyAny>, WholeId, &[Option<i64>]) -> PyResult<Bound<'py, Settlement>>;
type Extend = for<'py> fn(&Bound<'py, PyAny>, WholeId, i64, &[i64]) -> PyResult<Bound<'py, PyAny>>;

/// What a reservation asks of the native limits that made it.
pub struct Keeper {
    pub limits: LimitsOf,
    pub settle: Settle,
    pub extend: Extend,
}

/// What a table answered: of one limit that admitted, or of any.
pub enum Told {
    One(Measured),
    All(Answer),
}

/// What was decided: by a table, or by another store.
enum Decided {
    Native(Py<PyAny>, &'static Keeper, Told, WholeId),
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
    decided: Decided,
    /// Whether this id was held before: nothing was charged now.
    #[pyo3(get)]
    repeated: bool,
    /// Microseconds of its lease, as it was reserved with.
    #[pyo3(get)]
    lease_us: i64,
    settled: AtomicBool,
    /// What stands behind the id; None where nothing does.
    made_of: Option<Py<PyString>>,
}

impl Reservation {
    /// What a table held.
    #[inline]
    pub fn held<'py>(
        bound: &Bound<'py, impl PyClass>,
        keeper: &'static Keeper,
        told: Told,
        id: WholeId,
        repeated: bool,
        lease_us: i64,
    ) -> PyResult<Bound<'py, Self>> {
        let decided = Decided::Native(bound.clone().into_any().unbind(), keeper, told, id);
        let settled = AtomicBool::new(false);
        Bound::new(bound.py(), Self { decided, repeated, lease_us, settled, made_of: None })
    }

    /// What a table held of groups; what they are made of stands behind the id.
    pub fn made_of<'py>(
        bound: &Bound<'py, impl PyClass>,
        keeper: &'static Keeper,
        answer: Answer,
        id: WholeId,
        repeated: bool,
        lease_us: i64,
        made_of: Py<PyString>,
    ) -> PyResult<Bound<'py, Self>> {
        let decided = Decided::Native(bound.clone().into_any().unbind(), keeper, Told::All(answer), id);
        let settled = AtomicBool::new(false);
        Bound::new(bound.py(), Self { decided, repeated, lease_us, settled, made_of: Some(made_of) })
    }

    /// The id of what a table held; None where another store did.
    #[inline]
    pub fn native_id(&self) -> Option<WholeId> {
        match &self.decided {
            Decided::Native(_, _, _, id) => Some(*id),
            Decided::Python(..) => None,
        }
    }

    /// It was settled through this very object.
    #[inline]
    pub fn note_settled(&self) {
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
        Ok(Self { decided: Decided::Python(bound, decision, id), repeated, lease_us, settled, made_of: None })
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.decided {
            Decided::Native(_, _, Told::One(_), _) => Ok(true),
            Decided::Native(_, _, Told::All(answer), _) => Ok(answer.allowed),
            Decided::Python(_, decision, _) => decision.bind(py).is_truthy(),
        }
    }

    /// The whole id, which settles it anywhere.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        match &self.decided {
            Decided::Native(_, _, _, id) => match &self.made_of {
                None => id.text(py),
                Some(made_of) => PyString::new(py, &format!("{}{}", id.text(py), made_of.bind(py))),
            },
            Decided::Python(_, _, id) => id.bind(py).clone(),
        }
    }

    /// What was decided; where `repeated`, the first time.
    #[getter]
    fn decision<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.decided {
            Decided::Native(bound, keeper, told, _) => {
                let answer = match told {
                    Told::One(measured) => (keeper.limits.read)(bound.bind(py), measured)?,
                    Told::All(answer) => answer.clone(),
                };
                let decision = Decision::new((keeper.limits.definitions)(bound.bind(py))?, answer);
                Ok(Bound::new(py, decision)?.into_any())
            }
            Decided::Python(_, decision, _) => Ok(decision.bind(py).clone()),
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
        let settlement = match &self.decided {
            Decided::Native(bound, keeper, _, id) => {
                let actuals = match actual {
                    Some(actual) => amounts_of(actual, || (keeper.limits.definitions)(bound.bind(py)))?,
                    None => SmallVec::from_elem(None, 1),
                };
                (keeper.settle)(bound.bind(py), *id, &actuals)?.into_any()
            }
            Decided::Python(bound, _, id) => bound.bind(py).call_method1("commit", (id, actual))?,
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
        match &self.decided {
            Decided::Native(bound, keeper, _, id) => {
                let more = extensions_of(&more, || (keeper.limits.definitions)(bound.bind(py)))?;
                (keeper.extend)(bound.bind(py), *id, lease_us, &more)
            }
            Decided::Python(bound, _, id) => bound.bind(py).call_method1("extend", (id, lease_us, (more,))),
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
        let left = leave(slf, kind);
        if left.as_ref().is_err_and(|error| is_interrupt(slf.py(), error)) {
            let _ = leave(slf, kind); // a lease that is extended on and on would never end
        }
        left
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let allowed = if self.__bool__(py)? { "True" } else { "False" };
        let repeated = if self.repeated { "True" } else { "False" };
        Ok(format!("Reservation(id='{}', allowed={allowed}, repeated={repeated})", self.id(py)))
    }
}

/// What happens where a block ends.
fn leave(reservation: &Bound<'_, Reservation>, kind: &Bound<'_, PyAny>) -> PyResult<()> {
    reservation.py().import("headgate.reservation")?.call_method1("leave", (reservation, kind)).map(drop)
}

/// Whether the handler of a signal raised this: what Headgate raises itself is of another kind.
fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    let own = py.import("headgate.errors").and_then(|errors| errors.getattr("HeadgateError"));
    own.is_ok_and(|own| !error.is_instance(py, &own))
}
