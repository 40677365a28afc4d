//! Limits bound to a table and a clock: the hot path.

use std::sync::Arc;

use headgate_core::hash::{KeyHash, Seed};
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Check, Mode};
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use crate::any_table::{AnyTable, headgate_error};
use crate::arguments::{AnyCost, Cost, check_ago, check_now, hash_key, single_cost};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::decisions::Decisions;
use crate::operation::Operation;
use crate::registration::{register, table_of};
use crate::state::read_state;

const HIT: Mode = Mode { commit: true, max_delay_us: None };
const PEEK: Mode = Mode { commit: false, max_delay_us: None };
/// Keys judged between two moments at which other threads may run.
const CHUNK: usize = 1024;

type Checks<'limit> = SmallVec<[Check<'limit>; 4]>;

/// One limit of a set.
struct Member {
    limit: Arc<Registered>,
    shadow: bool,
    /// Which of a decision's keys and costs it is checked with.
    group: usize,
}

/// Limits bound to a table and a clock.
#[pyclass(frozen, module = "headgate._native")]
pub struct BoundLimits {
    table: Arc<AnyTable>,
    definitions: Py<PyTuple>,
    members: Box<[Member]>,
    groups: usize,
    clock: Clock,
}

#[pymethods]
impl BoundLimits {
    #[new]
    #[pyo3(signature = (table, definitions, clock = None))]
    fn new(table: &Bound<'_, PyAny>, definitions: Bound<'_, PyTuple>, clock: Option<Py<PyAny>>) -> PyResult<Self> {
        let py = table.py();
        let table = table_of(table)?;
        let clock = Clock::new(clock, table.anchor_us());
        let now_us = clock.now_us(py)?;
        let mut members = Vec::with_capacity(definitions.len());
        for definition in definitions.iter() {
            members.push(Member {
                limit: register(&table, &definition, now_us)?,
                shadow: definition.getattr("shadow")?.extract()?,
                group: definition.getattr("group")?.extract()?,
            });
        }
        table.check_fit(members.iter().map(|member| &member.limit.limit))?;
        let groups = members.iter().map(|member| member.group + 1).max().unwrap_or(0);
        Ok(Self { clock, table, definitions: definitions.unbind(), members: members.into(), groups })
    }

    #[pyo3(signature = (key, cost = AnyCost::Units(1)), text_signature = "($self, key, cost=1)")]
    fn hit(&self, py: Python<'_>, key: &Bound<'_, PyAny>, cost: AnyCost) -> PyResult<Decision> {
        self.one(py, key, cost, HIT)
    }

    #[pyo3(signature = (key, cost = AnyCost::Units(1)), text_signature = "($self, key, cost=1)")]
    fn peek(&self, py: Python<'_>, key: &Bound<'_, PyAny>, cost: AnyCost) -> PyResult<Decision> {
        self.one(py, key, cost, PEEK)
    }

    #[pyo3(signature = (keys, costs = None))]
    fn hit_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        costs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decisions> {
        let keys = sequence(keys)?;
        let costs = Costs::read(costs, keys.len())?;
        // All keys and costs are read before any is charged: bad input charges no key.
        let mut requests = Vec::with_capacity(keys.len());
        for start in (0..keys.len()).step_by(CHUNK) {
            // Taking hold of a chunk of keys first fetches their memory at once, not one after another.
            let end = keys.len().min(start + CHUNK);
            let chunk: PyResult<Vec<_>> = (start..end).map(|index| keys.get_item(index)).collect();
            for (index, key) in (start..end).zip(chunk?) {
                requests.push((hash_key(&key, self.table.seed())?, costs.at(index)?));
            }
        }
        let now_us = self.clock.now_us(py)?;
        let mut answers = Vec::with_capacity(requests.len());
        let mut checks = Vec::with_capacity(CHUNK * self.members.len());
        for chunk in requests.chunks(CHUNK) {
            checks.clear();
            for (key, cost) in chunk {
                checks.extend(self.members.iter().map(|member| member.check(*key, *cost)));
            }
            self.table.apply_each(&checks, self.members.len(), now_us, HIT, |answer| answers.push(answer))?;
            // Other threads may run here; with a GIL only here, so that a fork never meets a locked shard.
            py.detach(|| ());
        }
        Ok(Decisions::new(self.definitions.clone_ref(py), answers))
    }

    fn decide(&self, py: Python<'_>, operation: &Bound<'_, Operation>) -> PyResult<Decision> {
        let operation = operation.get();
        let checks = self.checks(operation.keys.bind(py), operation.costs.bind(py))?;
        let now_us = match &operation.now_us {
            Some(now_us) => check_now(now_us.bind(py))?,
            None => self.clock.now_us(py)?,
        };
        self.apply(py, &checks, now_us, Mode { commit: operation.commit, max_delay_us: operation.max_delay_us })
    }

    /// `receipt` is a `headgate.operation.Receipt`.
    fn give_back(&self, py: Python<'_>, receipt: &Bound<'_, PyAny>, ago_us: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = receipt.getattr(intern!(py, "keys"))?.cast_into::<PyTuple>()?;
        let costs = receipt.getattr(intern!(py, "costs"))?.cast_into::<PyTuple>()?;
        let charged: Option<Vec<bool>> = receipt.getattr(intern!(py, "charged"))?.extract()?;
        let decided_here = receipt.getattr(intern!(py, "degraded"))?.is_truthy().map(|degraded| !degraded)?;
        let mut checks = self.checks(&keys, &costs)?;
        let ago_us = check_ago(ago_us)?;
        if let Some(charged) = charged {
            if charged.len() != checks.len() {
                let message = format!("these are {} limits, not {}", checks.len(), charged.len());
                return Err(PyValueError::new_err(message));
            }
            let mut charged = charged.into_iter();
            checks.retain(|_| charged.next().unwrap_or(true));
        }
        let now_us = self.clock.now_us(py)?;
        if decided_here {
            self.table.give_back(&checks, now_us, (now_us - ago_us).max(0))?;
        }
        Ok(())
    }

    fn reset(&self, py: Python<'_>, keys: &Bound<'_, PyTuple>) -> PyResult<bool> {
        let now_us = self.clock.now_us(py)?;
        let mut found = false;
        for member in &self.members {
            let key = hash_key(&keys.get_item(member.group)?, self.table.seed())?;
            found |= self.table.reset(&member.limit, key, now_us)?;
        }
        Ok(found)
    }

    #[pyo3(signature = (keys, now_us = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyTuple>,
        now_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let now_us = match now_us {
            Some(now_us) => check_now(now_us)?,
            None => self.clock.now_us(py)?,
        };
        let states = PyList::empty(py);
        for member in &self.members {
            let key = hash_key(&keys.get_item(member.group)?, self.table.seed())?;
            states.append(read_state(py, &self.table, &member.limit, key, now_us)?)?;
        }
        Ok(states)
    }
}

impl BoundLimits {
    /// What keys are hashed with.
    pub fn seed(&self) -> &Seed {
        self.table.seed()
    }

    /// Decide for one unit of a key that is hashed, and charge it.
    pub fn hit_hashed(&self, py: Python<'_>, key: KeyHash) -> PyResult<Decision> {
        self.of_one(py, key, 1, HIT)
    }

    #[inline]
    fn one(&self, py: Python<'_>, key: &Bound<'_, PyAny>, cost: AnyCost, mode: Mode) -> PyResult<Decision> {
        let cost = match cost {
            AnyCost::Units(number) => number,
            AnyCost::Other(cost) => single_cost(self.definitions.bind(py), &cost)?,
        };
        self.of_one(py, hash_key(key, self.table.seed())?, cost, mode)
    }

    #[inline]
    fn of_one(&self, py: Python<'_>, key: KeyHash, cost: i64, mode: Mode) -> PyResult<Decision> {
        if let [only] = &*self.members {
            let check = only.check(key, cost);
            self.table.fetch(&check);
            return self.apply(py, &[check], self.clock.now_us(py)?, mode);
        }
        let checks: Checks<'_> = self.members.iter().map(|member| member.check(key, cost)).collect();
        for check in &checks {
            self.table.fetch(check);
        }
        self.apply(py, &checks, self.clock.now_us(py)?, mode)
    }

    /// The checks of a key and a cost for each group, which are looked for from here on.
    #[inline(always)]
    fn checks(&self, keys: &Bound<'_, PyTuple>, costs: &Bound<'_, PyTuple>) -> PyResult<Checks<'_>> {
        if keys.len() != self.groups || costs.len() != self.groups {
            return Err(PyValueError::new_err(format!("these limits take {} keys and costs", self.groups)));
        }
        let mut groups: SmallVec<[(KeyHash, i64); 4]> = SmallVec::new();
        let mut last: Option<(Borrowed<'_, '_, PyAny>, KeyHash)> = None;
        for (key, cost) in keys.iter_borrowed().zip(costs.iter_borrowed()) {
            // Rules that count by the same identity hand in the same object.
            let hash = match last {
                Some((same, hash)) if same.is(key) => hash,
                _ => hash_key(&key, self.table.seed())?,
            };
            last = Some((key, hash));
            groups.push((hash, cost.extract::<Cost>()?.0));
        }
        let checks: Checks<'_> = self
            .members
            .iter()
            .map(|member| {
                let (key, cost) = groups[member.group];
                member.check(key, cost)
            })
            .collect();
        for check in &checks {
            self.table.fetch(check);
        }
        Ok(checks)
    }

    #[inline]
    fn apply(&self, py: Python<'_>, checks: &[Check<'_>], now_us: i64, mode: Mode) -> PyResult<Decision> {
        let answer = self.table.apply(checks, now_us, mode)?;
        Ok(Decision::new(self.definitions.clone_ref(py), answer))
    }
}

impl Member {
    #[inline]
    fn check(&self, key: KeyHash, cost: i64) -> Check<'_> {
        Check { limit: &self.limit, key, cost, shadow: self.shadow }
    }
}

/// The costs of many requests: one for all, or one each.
enum Costs<'py> {
    All(i64),
    Each(Bound<'py, PyList>),
}

impl<'py> Costs<'py> {
    fn read(costs: Option<&Bound<'py, PyAny>>, requests: usize) -> PyResult<Self> {
        let Some(costs) = costs else {
            return Ok(Self::All(1));
        };
        if !costs.hasattr("__iter__")? {
            return Ok(Self::All(costs.extract::<Cost>()?.0));
        }
        let costs = sequence(costs)?;
        if costs.len() != requests {
            let message = format!("{requests} keys need as many costs, not {}", costs.len());
            return Err(headgate_error("ArgumentError", message));
        }
        Ok(Self::Each(costs))
    }

    fn at(&self, index: usize) -> PyResult<i64> {
        match self {
            Self::All(cost) => Ok(*cost),
            Self::Each(costs) => Ok(costs.get_item(index)?.extract::<Cost>()?.0),
        }
    }
}

/// Any iterable as a list; a list is taken as it is.
fn sequence<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    if let Ok(list) = values.cast::<PyList>() {
        return Ok(list.clone());
    }
    values.py().get_type::<PyList>().call1((values,))?.cast_into().map_err(PyErr::from)
}
