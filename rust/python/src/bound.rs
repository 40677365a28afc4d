//! Limits bound to a table and a clock: the hot path.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use headgate_core::hash::{KeyHash, Seed};
use headgate_core::holding::record::HoldId;
use headgate_core::limit::Algorithm;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Check, Mode};
use headgate_core::table::known_hold::Measured;
use headgate_core::table::settling::{CallerLimits, HoldRequest, HoldTimes, Reserved};
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::amounts::{amounts_of, check_lease, extensions_of, lease_of, remember_of};
use crate::any_table::{AnyTable, headgate_error};
use crate::arguments::{AnyCost, Cost, check_ago, check_now, hash_key, single_cost};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::decisions::Decisions;
use crate::limit_reader::LimitReader;
use crate::operation::Operation;
use crate::registration::{register, table_of};
use crate::reservation::{HoldMethods, Reservation, TableAnswer};
use crate::settlement::{Settlement, conflict, extension, misuse, outcome_name};
use crate::state::read_state;
use crate::whole_id::WholeId;

const HIT: Mode = Mode { commit: true, max_delay_us: None };
const PEEK: Mode = Mode { commit: false, max_delay_us: None };
/// Keys judged between two moments at which other threads may run.
const CHUNK: usize = 1024;

/// The operations of reservations of native limits.
static HOLD_METHODS: HoldMethods = HoldMethods {
    reader: LimitReader {
        definitions: |bound| Ok(bound.cast::<BoundLimits>()?.get().definitions(bound.py())),
        read: |bound, measured| Ok(bound.cast::<BoundLimits>()?.get().answer_of(measured)),
    },
    settle: |bound, id, actuals| BoundLimits::settle(bound.cast::<BoundLimits>()?, id, actuals, None),
    extend: |bound, id, lease_us, more| {
        bound.cast::<BoundLimits>()?.get().extend_hold(bound.py(), id, lease_us, more, None)
    },
};

type Checks<'limit> = SmallVec<[Check<'limit>; 4]>;

/// One limit of a set.
struct Member {
    limit: Arc<Registered>,
    shadow: bool,
    /// The group whose key and cost it is checked with.
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
    /// The group of each limit.
    group_of: Box<[u16]>,
    /// The least time that holds are remembered for.
    remember_us: i64,
    /// The limit that counts requests in flight, if one does.
    in_flight: Option<usize>,
    /// The callers that wait in this process for places in flight, by the places of their keys, and the function that
    /// notifies them.
    waiting: OnceLock<(Py<PyDict>, Py<PyAny>)>,
    /// The waiting lines that the store keeps for all processes.
    line: OnceLock<Py<PyAny>>,
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
        let group_of = members.iter().map(|member| member.group as u16).collect();
        let in_flight = members.iter().position(|member| member.limit.limit.algorithm == Algorithm::Concurrent);
        let holding = py.import("headgate.holding")?;
        let remember_us = holding.call_method1("remembered_us", (&definitions, 0))?.extract()?;
        let definitions = definitions.unbind();
        let (members, waiting, line) = (members.into(), OnceLock::new(), OnceLock::new());
        Ok(Self { clock, table, definitions, members, groups, group_of, remember_us, in_flight, waiting, line })
    }

    #[pyo3(signature = (key, cost = AnyCost::Units(1), *, id = None), text_signature = "($self, key, cost=1, *, id=None)")]
    fn hit(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        cost: AnyCost,
        id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Decision> {
        match id {
            None => self.decide_key(py, key, cost, HIT),
            Some(name) => self.hit_once(py, key, cost, name),
        }
    }

    #[pyo3(signature = (key, cost = AnyCost::Units(1)), text_signature = "($self, key, cost=1)")]
    fn peek(&self, py: Python<'_>, key: &Bound<'_, PyAny>, cost: AnyCost) -> PyResult<Decision> {
        self.decide_key(py, key, cost, PEEK)
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
        self.check_can_hit()?;
        // All keys and costs are read before any is charged: bad input charges no key.
        let mut requests = Vec::with_capacity(keys.len());
        for start in (0..keys.len()).step_by(CHUNK) {
            // Referring to a chunk of keys first fetches their memory at once, not one after another.
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

    /// Hold `cost` units of a key for `lease` seconds.
    #[pyo3(
        signature = (key, cost = AnyCost::Units(1), lease = None, id = None, lease_us = None, remember = None),
        text_signature = "($self, key, cost=1, lease=None, id=None, lease_us=None, remember=None)"
    )]
    #[allow(clippy::too_many_arguments)] // the arguments of `Limiter.reserve`
    fn hold<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        cost: AnyCost,
        lease: Option<&Bound<'py, PyAny>>,
        id: Option<&Bound<'py, PyAny>>,
        lease_us: Option<&Bound<'py, PyAny>>,
        remember: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let this = slf.get();
        let hash = hash_key(key, this.table.seed())?;
        let cost = this.units(slf.py(), cost)?;
        let lease_us = lease_of(lease, lease_us)?;
        let remember_us = this.remember_us.max(remember_of(remember)?);
        let place = this.place(hash)?;
        let Some(name) = id else {
            return this.hold_new(slf, hash, cost, place, HoldTimes { lease_us, remember_us });
        };
        let id = WholeId::named(key, name, place)?;
        let checks: Checks<'_> = this.members.iter().map(|member| member.check(hash, cost)).collect();
        let costs: SmallVec<[i64; 4]> = SmallVec::from_elem(cost, this.groups);
        let request = HoldRequest { named: true, ..this.request(id, lease_us, remember_us, &costs) };
        let (answer, repeated, _) = this.hold_checks(&checks, request, this.clock.now_us(slf.py())?, None)?;
        Reservation::new(slf, &HOLD_METHODS, TableAnswer::All(answer), id, repeated, lease_us)
    }

    /// Call `freed` from now on with the place of an id when its hold is settled here, and `waiting` is not empty.
    fn call_when_freed(&self, waiting: Py<PyDict>, freed: Py<PyAny>) {
        let _ = self.waiting.set((waiting, freed));
    }

    /// Set `line`.
    fn keep_line(&self, line: Py<PyAny>) {
        let _ = self.line.set(line);
    }

    #[getter]
    fn line(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.line.get().map(|line| line.clone_ref(py))
    }

    /// `hold` is a `headgate.holding.Hold`; gives a `headgate.holding.Reserved`.
    fn reserve<'py>(
        &self,
        py: Python<'py>,
        operation: &Bound<'py, Operation>,
        hold: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operation = operation.get();
        if !operation.commit {
            return Err(PyValueError::new_err("what is held is charged: the operation has to commit"));
        }
        let (name, lease_us, remember_us, at_once): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>, bool) =
            hold.extract()?;
        if at_once {
            self.check_can_hit()?;
        }
        let (keys, costs) = (operation.keys.bind(py), operation.costs.bind(py));
        let checks = self.checks(keys, costs)?;
        let costs: SmallVec<[i64; 4]> =
            costs.iter().map(|cost| cost.extract::<Cost>().map(|cost| cost.0)).collect::<PyResult<_>>()?;
        let lease_us = if at_once { 0 } else { check_lease(&lease_us)? };
        let holding = py.import("headgate.holding")?;
        let remember_us: i64 = holding.call_method1("check_remember", (remember_us,))?.extract()?;
        let id = match keys.iter().next() {
            Some(key) if !name.is_none() => {
                WholeId::named(&key, &name, self.place(hash_key(&key, self.table.seed())?)?)?
            }
            Some(key) => {
                let place = self.place(hash_key(&key, self.table.seed())?)?;
                WholeId { digest: self.table.new_id(), place }
            }
            None => WholeId { digest: self.table.new_id(), place: 0 },
        };
        let request = self.request(id, lease_us, self.remember_us.max(remember_us), &costs);
        let now_us = self.moment_us(py, operation.now_us.as_ref().map(|now_us| now_us.bind(py)))?;
        let (answer, repeated, digest) = self.hold_checks(
            &checks,
            HoldRequest { at_once, named: !name.is_none(), ..request },
            now_us,
            operation.max_delay_us,
        )?;
        let decision = Decision::new(self.definitions.clone_ref(py), answer);
        holding.call_method1("Reserved", (decision, WholeId { digest, ..id }.text(py), repeated))
    }

    #[pyo3(signature = (id, actual = None, *, now_us = None))]
    fn commit<'py>(
        slf: &Bound<'py, Self>,
        id: &Bound<'py, PyAny>,
        actual: Option<&Bound<'py, PyAny>>,
        now_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Settlement>> {
        let id = WholeId::read(id)?;
        let actuals = match actual {
            Some(actual) => amounts_of(actual, || Ok(slf.get().definitions(slf.py())))?,
            None => SmallVec::from_elem(None, 1),
        };
        Self::settle(slf, id, &actuals, now_us)
    }

    #[pyo3(signature = (whole_id, lease_us, more, /, *, now_us = None))]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        whole_id: &Bound<'py, PyAny>,
        lease_us: &Bound<'py, PyAny>,
        more: &Bound<'py, PyAny>,
        now_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = WholeId::read(whole_id)?;
        let more = extensions_of(more, || Ok(self.definitions(py)))?;
        self.extend_hold(py, id, check_lease(lease_us)?, &more, now_us)
    }

    #[pyo3(signature = (key, name, /))]
    fn id_of<'py>(&self, key: &Bound<'py, PyAny>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
        let place = self.place(hash_key(key, self.table.seed())?)?;
        Ok(WholeId::named(key, name, place)?.text(key.py()))
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
        let mut states: SmallVec<[(&Registered, KeyHash); 4]> = SmallVec::with_capacity(self.members.len());
        for member in &self.members {
            states.push((&*member.limit, hash_key(&keys.get_item(member.group)?, self.table.seed())?));
        }
        let found = self.table.reset(&states, now_us)?;
        if self.in_flight.is_some() {
            for place in states.iter().map(|(_, key)| self.place(*key)).collect::<PyResult<BTreeSet<_>>>()? {
                self.notify_waiting(py, place)?;
            }
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
    /// The seed that keys are hashed with.
    pub fn seed(&self) -> &Seed {
        self.table.seed()
    }

    /// Decide for (a key, a cost) of each of so many groups, at `now_us` or the clock's moment.
    #[inline]
    pub fn decide_groups(
        &self,
        py: Python<'_>,
        groups: usize,
        of_group: impl Fn(usize) -> (KeyHash, i64),
        now_us: Option<i64>,
        mode: Mode,
    ) -> PyResult<Decision> {
        let now_us = now_us.map_or_else(|| self.clock.now_us(py), Ok)?;
        let answer = self.answer_groups(groups, of_group, now_us, mode)?;
        Ok(Decision::new(self.definitions.clone_ref(py), answer))
    }

    /// Prefetch the states that `answer_groups` will read, of the key of each group.
    #[inline]
    pub fn fetch_groups(&self, of_group: impl Fn(usize) -> KeyHash) {
        for member in &self.members {
            self.table.fetch(&member.check(of_group(member.group), 0));
        }
    }

    /// The answer that `decide_groups` makes its decision of.
    #[inline]
    pub fn answer_groups(
        &self,
        groups: usize,
        of_group: impl Fn(usize) -> (KeyHash, i64),
        now_us: i64,
        mode: Mode,
    ) -> PyResult<Answer> {
        if groups != self.groups {
            return Err(PyValueError::new_err(format!("these limits take {} keys and costs", self.groups)));
        }
        let checks: Checks<'_> = self
            .members
            .iter()
            .map(|member| {
                let (key, cost) = of_group(member.group);
                member.check(key, cost)
            })
            .collect();
        for check in &checks {
            self.table.fetch(check);
        }
        self.answer(&checks, now_us, mode)
    }

    /// The group of each limit.
    #[inline]
    pub fn group_of(&self) -> &[u16] {
        &self.group_of
    }

    #[inline]
    fn decide_key(&self, py: Python<'_>, key: &Bound<'_, PyAny>, cost: AnyCost, mode: Mode) -> PyResult<Decision> {
        self.decide_hash(py, hash_key(key, self.table.seed())?, self.units(py, cost)?, mode)
    }

    /// A cost in the unit that these limits count.
    #[inline]
    fn units(&self, py: Python<'_>, cost: AnyCost) -> PyResult<i64> {
        match cost {
            AnyCost::Units(number) => Ok(number),
            AnyCost::Other(cost) => single_cost(self.definitions.bind(py), &cost),
        }
    }

    /// The definitions of the limits.
    pub fn definitions(&self, py: Python<'_>) -> Py<PyTuple> {
        self.definitions.clone_ref(py)
    }

    /// Raise ArgumentError where a limit counts requests in flight: a hit would never end.
    #[inline]
    fn check_can_hit(&self) -> PyResult<()> {
        self.in_flight.map_or(Ok(()), |index| Err(never_ends(&self.members[index].limit.text)))
    }

    /// The requested moment, or the clock's.
    #[inline]
    fn moment_us(&self, py: Python<'_>, now_us: Option<&Bound<'_, PyAny>>) -> PyResult<i64> {
        now_us.map_or_else(|| self.clock.now_us(py), check_now)
    }

    /// The registered limits, which holds are settled through.
    #[inline]
    fn registered_limits(&self) -> CallerLimits<'_> {
        self.members.iter().map(|member| &*member.limit).collect()
    }

    /// The place of a key, as the ids of its holds have it.
    #[inline]
    fn place(&self, key: KeyHash) -> PyResult<u16> {
        self.table.place_of(key)
    }

    #[cold]
    fn hit_once(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        cost: AnyCost,
        name: &Bound<'_, PyAny>,
    ) -> PyResult<Decision> {
        self.check_can_hit()?;
        let cost = self.units(py, cost)?;
        let hash = hash_key(key, self.table.seed())?;
        let id = WholeId::named(key, name, self.place(hash)?)?;
        let checks: Checks<'_> = self.members.iter().map(|member| member.check(hash, cost)).collect();
        let costs: SmallVec<[i64; 4]> = SmallVec::from_elem(cost, self.groups);
        let request = self.request(id, 0, self.remember_us, &costs);
        let (answer, ..) = self.hold_checks(
            &checks,
            HoldRequest { at_once: true, named: true, ..request },
            self.clock.now_us(py)?,
            None,
        )?;
        Ok(Decision::new(self.definitions.clone_ref(py), answer))
    }

    /// Hold units of a key under a new id.
    #[inline(always)]
    fn hold_new<'py>(
        &self,
        slf: &Bound<'py, Self>,
        key: KeyHash,
        cost: i64,
        place: u16,
        times: HoldTimes,
    ) -> PyResult<Bound<'py, Reservation>> {
        let (now_us, lease_us) = (self.clock.now_us(slf.py())?, times.lease_us);
        if let [only] = &*self.members {
            let check = only.check(key, cost);
            if let Some((digest, measured)) = self.table.reserve_one(&check, times, now_us)? {
                return Reservation::new(
                    slf,
                    &HOLD_METHODS,
                    TableAnswer::One(measured),
                    WholeId { digest, place },
                    false,
                    lease_us,
                );
            }
        }
        let costs: SmallVec<[i64; 4]> = SmallVec::from_elem(cost, self.groups);
        let id = WholeId { digest: self.table.new_id(), place };
        let request = self.request(id, lease_us, times.remember_us, &costs);
        let checks: Checks<'_> = self.members.iter().map(|member| member.check(key, cost)).collect();
        let (answer, repeated, digest) = self.hold_checks(&checks, request, now_us, None)?;
        Reservation::new(slf, &HOLD_METHODS, TableAnswer::All(answer), WholeId { digest, place }, repeated, lease_us)
    }

    /// (the key of each limit, the place of the first key), from a key for each group.
    pub fn keys_of(&self, keys: &Bound<'_, PyTuple>) -> PyResult<(Box<[KeyHash]>, u16)> {
        if keys.len() != self.groups {
            return Err(PyValueError::new_err(format!("these limits take {} keys", self.groups)));
        }
        let groups: Vec<KeyHash> = keys.iter().map(|key| hash_key(&key, self.seed())).collect::<PyResult<_>>()?;
        let place = groups.first().map_or(Ok(0), |first| self.place(*first))?;
        Ok((self.members.iter().map(|member| groups[member.group]).collect(), place))
    }

    /// Raise ValueError for a count other than one for each group.
    pub fn check_groups(&self, count: usize) -> PyResult<()> {
        if count == self.groups {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("these limits are of {} groups, not {count}", self.groups)))
    }

    /// Hold a cost for each group under a new id, where the key of each limit is known.
    pub fn hold_groups<'py>(
        slf: &Bound<'py, Self>,
        keys: &[KeyHash],
        place: u16,
        costs: &[i64],
        lease_us: i64,
        id_suffix: &Py<PyString>,
    ) -> PyResult<Bound<'py, Reservation>> {
        let (this, py) = (slf.get(), slf.py());
        let members = this.members.iter().zip(keys);
        let checks: Checks<'_> = members.map(|(member, key)| member.check(*key, costs[member.group])).collect();
        for check in &checks {
            this.table.fetch(check);
        }
        let id = WholeId { digest: this.table.new_id(), place };
        let request = this.request(id, lease_us, this.remember_us, costs);
        let (answer, repeated, digest) = this.hold_checks(&checks, request, this.clock.now_us(py)?, None)?;
        let id = WholeId { digest, place };
        Reservation::with_id_suffix(slf, &HOLD_METHODS, answer, id, repeated, lease_us, id_suffix.clone_ref(py))
    }

    #[inline]
    fn request<'own>(
        &'own self,
        id: WholeId,
        lease_us: i64,
        remember_us: i64,
        costs: &'own [i64],
    ) -> HoldRequest<'own> {
        HoldRequest {
            id: id.digest,
            lease_us,
            remember_us,
            at_once: false,
            named: false,
            costs,
            groups: &self.group_of,
        }
    }

    /// Decide and hold checks: (the answer, whether it is that of an earlier call, the id).
    #[inline]
    fn hold_checks(
        &self,
        checks: &[Check<'_>],
        request: HoldRequest<'_>,
        now_us: i64,
        max_delay_us: Option<i64>,
    ) -> PyResult<(Answer, bool, HoldId)> {
        if checks.is_empty() {
            return Ok((self.table.apply(checks, now_us, HIT)?, false, request.id));
        }
        match self.table.reserve(checks, &request, now_us, Mode { commit: true, max_delay_us })? {
            Reserved::Decided(answer, id) => Ok((answer, false, id)),
            Reserved::Repeated(answer) => Ok((answer, true, request.id)),
            Reserved::Conflict(with) => Err(conflict(with, request.costs)),
        }
    }

    /// Settle a hold, and notify the callers that wait for its places.
    #[inline]
    fn settle<'py>(
        slf: &Bound<'py, Self>,
        id: WholeId,
        actuals: &[Option<i64>],
        now_us: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, Settlement>> {
        let settlement = Self::settle_without_notify(slf, id, actuals, now_us)?;
        slf.get().notify_waiting(slf.py(), id.place)?;
        Ok(settlement)
    }

    /// Settle a hold of several limits, and give the outcome alone; see `settle`.
    #[inline]
    pub fn settle_outcome(slf: &Bound<'_, Self>, id: WholeId, actuals: &[Option<i64>]) -> PyResult<&'static str> {
        let (this, py) = (slf.get(), slf.py());
        let now_us = this.clock.now_us(py)?;
        let outcome =
            this.table.commit_outcome(id.digest, usize::from(id.place), actuals, &this.registered_limits(), now_us)?;
        let outcome = outcome.map_err(|fault| misuse(fault, actuals.len(), |salt| this.name_of(py, salt)))?;
        this.notify_waiting(py, id.place)?;
        Ok(outcome_name(outcome))
    }

    /// The answer of the only limit to a hold.
    fn answer_of(&self, measured: &Measured) -> Answer {
        let only = &self.members[0];
        Answer::of_one(only.shadow, measured.reading(&only.limit.limit))
    }

    #[inline]
    fn notify_waiting(&self, py: Python<'_>, place: u16) -> PyResult<()> {
        self.table.notify_freed(place);
        if let Some((waiting, freed)) = self.waiting.get()
            && !waiting.bind(py).is_empty()
        {
            freed.call1(py, (place,))?;
        }
        Ok(())
    }

    #[inline]
    fn settle_without_notify<'py>(
        slf: &Bound<'py, Self>,
        id: WholeId,
        actuals: &[Option<i64>],
        now_us: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, Settlement>> {
        let (this, py) = (slf.get(), slf.py());
        let now_us = this.moment_us(py, now_us)?;
        if let ([only], [actual]) = (&*this.members, actuals)
            && let Some(settled_one) =
                this.table.commit_one(id.digest, usize::from(id.place), *actual, &only.limit, now_us)?
        {
            return Bound::new(py, Settlement::of_one(slf, &HOLD_METHODS.reader, settled_one));
        }
        let settlement =
            this.table.commit(id.digest, usize::from(id.place), actuals, &this.registered_limits(), now_us)?;
        let settlement = settlement.map_err(|fault| misuse(fault, actuals.len(), |salt| this.name_of(py, salt)))?;
        Bound::new(py, Settlement::new(this.definitions.clone_ref(py), settlement))
    }

    /// Extend a hold.
    pub fn extend_hold<'py>(
        &self,
        py: Python<'py>,
        id: WholeId,
        lease_us: i64,
        more: &[i64],
        now_us: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let now_us = self.moment_us(py, now_us)?;
        let result =
            self.table.extend(id.digest, usize::from(id.place), lease_us, more, &self.registered_limits(), now_us)?;
        let result = result.map_err(|fault| misuse(fault, more.len(), |salt| self.name_of(py, salt)))?;
        extension(py, &self.definitions, result)
    }

    /// The name of a limit, in quotes.
    fn name_of(&self, py: Python<'_>, salt: u64) -> PyResult<String> {
        let index = self.members.iter().position(|member| member.limit.salt == salt).unwrap_or_default();
        Ok(self.definitions.bind(py).get_item(index)?.getattr("name")?.repr()?.to_string())
    }

    #[inline]
    fn decide_hash(&self, py: Python<'_>, key: KeyHash, cost: i64, mode: Mode) -> PyResult<Decision> {
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

    /// The checks of a key and a cost for each group, whose states are prefetched.
    #[inline(always)]
    fn checks(&self, keys: &Bound<'_, PyTuple>, costs: &Bound<'_, PyTuple>) -> PyResult<Checks<'_>> {
        if keys.len() != self.groups || costs.len() != self.groups {
            return Err(PyValueError::new_err(format!("these limits take {} keys and costs", self.groups)));
        }
        let mut groups: SmallVec<[(KeyHash, i64); 4]> = SmallVec::new();
        let mut last: Option<(Borrowed<'_, '_, PyAny>, KeyHash)> = None;
        for (key, cost) in keys.iter_borrowed().zip(costs.iter_borrowed()) {
            // Rules that count by the same identity pass the same object.
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
        Ok(Decision::new(self.definitions.clone_ref(py), self.answer(checks, now_us, mode)?))
    }

    #[inline]
    fn answer(&self, checks: &[Check<'_>], now_us: i64, mode: Mode) -> PyResult<Answer> {
        if self.in_flight.is_some() {
            if mode.commit {
                self.check_can_hit()?;
            }
            return self.table.apply_in_flight(checks, now_us, mode);
        }
        self.table.apply(checks, now_us, mode)
    }
}

impl Member {
    #[inline]
    fn check(&self, key: KeyHash, cost: i64) -> Check<'_> {
        Check { limit: &self.limit, key, cost, shadow: self.shadow }
    }
}

#[cold]
fn never_ends(text: &str) -> PyErr {
    let message = format!("\"{text}\" counts what is in flight, and a hit never ends: reserve, and commit at the end");
    headgate_error("ArgumentError", message)
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

/// Any iterable as a list; a list is returned as it is.
fn sequence<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    if let Ok(list) = values.cast::<PyList>() {
        return Ok(list.clone());
    }
    values.py().get_type::<PyList>().call1((values,))?.cast_into().map_err(PyErr::from)
}
