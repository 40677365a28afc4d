//! The results of settling and extending holds, and the errors where that is impossible.

use headgate_core::algorithms::transition::Reading;
use headgate_core::table::known_hold::SettledOne;
use headgate_core::table::settling::{Conflict, Extension, Misuse, Outcome, Settlement as CoreSettlement, Standing};
use pyo3::PyClass;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::any_table::headgate_error;
use crate::decision::Decision;
use crate::limit_reader::LimitReader;

const SETTLED: &str = "settled";
const ALREADY_SETTLED: &str = "already settled";
const UNKNOWN: &str = "unknown";

/// The error of an id that belongs to another hold.
#[cold]
pub fn conflict(conflict: Conflict, costs: &[i64]) -> PyErr {
    let shown = |costs: &[i64]| match costs {
        [cost] => cost.to_string(),
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

/// The error of amounts that a hold cannot be settled or extended with; `name` gives the name of the limit of a salt.
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

/// The name of an outcome.
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
        let definition = definitions.bind(py).get_item(standing.limit)?;
        each.push(kind.call1((definition, standing.remaining, standing.reset_after_us))?);
    }
    PyTuple::new(py, each)
}

/// `headgate.holding.Extension`.
pub fn extension<'py>(py: Python<'py>, definitions: &Py<PyTuple>, extension: Extension) -> PyResult<Bound<'py, PyAny>> {
    let after = standings(py, definitions, &extension.after)?;
    let decision = extension.answer.map(|answer| Decision::new(definitions.clone_ref(py), answer));
    py.import("headgate.holding")?.call_method1("Extension", (outcome_name(extension.outcome), after, decision))
}

/// The results of a settlement: of one limit, as most are, of several, or as Python gave them.
enum Results {
    One(Py<PyAny>, &'static LimitReader, SettledOne),
    Many(Py<PyTuple>, Box<CoreSettlement>),
    Python(Option<Vec<i64>>, Py<PyTuple>, &'static str),
}

/// The answer to `commit`.
///
/// `outcome` is "settled", "already settled" or "unknown". `actuals` has for each group the units that count: those
/// of the first settling, whatever a later one says; None for "unknown". A limiter tells them in the order in which its
/// limits write their units. `after` has the numbers of each limit at this moment, in the order of the limits; none for
/// "unknown".
///
/// `degraded` is "" where the store settled it. "local": the hold was made in this process in place of the store, and
/// was settled there. "later": the store does not answer; the settlement is kept and sent to it as soon as it does, and
/// `after` is empty, `actuals` None if it was to be settled as held. "lost": the store does not answer and too many
/// settlements are kept already; the outcome is "unknown".
#[pyclass(frozen, module = "headgate.holding")]
pub struct Settlement {
    outcome: &'static str,
    results: Results,
}

impl Settlement {
    /// The settlement of a hold of any limits.
    pub fn new(definitions: Py<PyTuple>, settlement: CoreSettlement) -> Self {
        Self { outcome: outcome_name(settlement.outcome), results: Results::Many(definitions, Box::new(settlement)) }
    }

    /// The settlement of a hold of one limit.
    #[inline]
    pub fn of_one(bound: &Bound<'_, impl PyClass>, reader: &'static LimitReader, settled_one: SettledOne) -> Self {
        Self { outcome: SETTLED, results: Results::One(bound.clone().into_any().unbind(), reader, settled_one) }
    }

    /// The units of each group that count; None where no hold is known.
    fn counted_units(&self) -> Option<&[i64]> {
        match &self.results {
            Results::One(_, _, settled_one) => Some(std::slice::from_ref(&settled_one.actual)),
            Results::Many(_, settlement) => (settlement.outcome != Outcome::Unknown).then_some(&settlement.actuals),
            Results::Python(actuals, _, _) => actuals.as_deref(),
        }
    }
}

#[pymethods]
impl Settlement {
    #[new]
    #[pyo3(signature = (outcome, actuals, after, degraded = ""))]
    fn from_python(
        py: Python<'_>,
        outcome: &str,
        actuals: Option<Vec<i64>>,
        after: &Bound<'_, PyAny>,
        degraded: &str,
    ) -> PyResult<Self> {
        let outcome = [SETTLED, ALREADY_SETTLED, UNKNOWN].into_iter().find(|name| *name == outcome);
        let degraded = ["", "local", "later", "lost"].into_iter().find(|name| *name == degraded);
        let after: Vec<Bound<'_, PyAny>> = after.try_iter()?.collect::<PyResult<_>>()?;
        Ok(Self {
            outcome: outcome.ok_or_else(|| PyValueError::new_err("no such outcome"))?,
            results: Results::Python(
                actuals,
                PyTuple::new(py, after)?.unbind(),
                degraded.ok_or_else(|| PyValueError::new_err("no such choice"))?,
            ),
        })
    }

    /// "settled", "already settled" or "unknown".
    #[getter]
    fn outcome(&self) -> &'static str {
        self.outcome
    }

    /// For each group the units that count; None for "unknown".
    #[getter]
    fn actuals<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.counted_units().map(|actuals| PyTuple::new(py, actuals)).transpose()
    }

    /// The units that count, of the first group where there are several; None for "unknown".
    #[getter]
    fn actual(&self) -> Option<i64> {
        self.counted_units()?.first().copied()
    }

    /// The numbers of each limit at this moment, in the order of the limits.
    #[getter]
    fn after<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match &self.results {
            Results::One(bound, reader, settled_one) => {
                let answer = (reader.read)(bound.bind(py), &settled_one.measured)?;
                let Reading { remaining, reset_after_us, .. } = answer.readings.all()[0];
                let definitions = (reader.definitions)(bound.bind(py))?;
                standings(py, &definitions, &[Standing { limit: 0, remaining, reset_after_us }])
            }
            Results::Many(definitions, settlement) => standings(py, definitions, &settlement.after),
            Results::Python(_, after, _) => Ok(after.bind(py).clone()),
        }
    }

    /// "" where the store settled it, else "local", "later" or "lost".
    #[getter]
    fn degraded(&self) -> &'static str {
        match &self.results {
            Results::Python(_, _, degraded) => degraded,
            Results::One(..) | Results::Many(..) => "",
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let arguments = (self.outcome, self.actuals(py)?, self.after(py)?, self.degraded()).into_pyobject(py)?;
        Ok((py.get_type::<Self>(), arguments))
    }

    fn __repr__(&self) -> String {
        let actual = self.actual().map_or("None".to_owned(), |actual| actual.to_string());
        let degraded = match self.degraded() {
            "" => String::new(),
            degraded => format!(", degraded='{degraded}'"),
        };
        format!("Settlement(outcome='{}', actual={actual}{degraded})", self.outcome)
    }
}
