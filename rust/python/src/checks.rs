//! Native checks for Python: a policy on a table, which answers the front door.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use headgate_answers::NamedLimit;
use headgate_checks::bound::{RuleLimit, RuleLimits};
use headgate_checks::checks::{self, Unit};
use headgate_checks::figures::{DEGRADED, Figures, Tally};
use headgate_checks::table::{self, Failed};
use headgate_core::hash::Seed;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Check, Mode};
use headgate_policy::compiled::Policy;
use headgate_server::decide::{self, Decide, Question, Reply};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::any_table::AnyTable;
use crate::clock::Clock;
use crate::fields::PythonForm;
use crate::gate_policy::read_policy;
use crate::gate_subject::ReadError;
use crate::registration::{register, table_of};

const HIT: Mode = Mode { commit: true, max_delay_us: None };

/// A table of Python's, and the clock that a gate obeys.
pub struct ClockedTable {
    table: Arc<AnyTable>,
    clock: Clock,
}

impl table::Table for ClockedTable {
    fn seed(&self) -> &Seed {
        self.table.seed()
    }

    fn now_us(&self) -> Result<i64, Failed> {
        self.clock.now_us_alone().map_err(|_| Failed)
    }

    fn fits(&self, limits: &[Arc<Registered>]) -> bool {
        self.table.fits(limits.iter().map(|registered| &registered.limit))
    }

    fn decide(&self, checks: &[Check<'_>], now_us: i64) -> Result<Answer, Failed> {
        for check in checks {
            self.table.fetch(check);
        }
        self.table.apply_or_fail(checks, now_us, HIT).ok_or(Failed)
    }
}

/// A limit as `headgate.service.checks.native_checks` describes it.
#[derive(FromPyObject)]
pub struct ReportedLimit<'py> {
    /// A `headgate.decision.NamedLimit`.
    definition: Bound<'py, PyAny>,
    form: PythonForm,
    text: String,
    unit: String,
    policy_item: String,
}

/// A tier and its limits; None where only Python can query them.
type TierParts<'py> = (String, Option<Vec<ReportedLimit<'py>>>);

/// Whether a request of a rule may wait, and the limits of its tiers.
pub type RuleParts<'py> = (bool, Vec<TierParts<'py>>);

/// Figures of native checks, over all policies that were in force.
#[pyclass(frozen, module = "headgate._native")]
pub struct CheckTally(pub Tally);

/// A `headgate.observe.prometheus.DecisionCounts`.
type DecisionCounts = (HashMap<(String, &'static str), u64>, HashMap<&'static str, u64>, Vec<u64>, f64);

#[pymethods]
impl CheckTally {
    #[new]
    fn new() -> Self {
        Self(Tally::new())
    }

    fn figures(&self) -> DecisionCounts {
        let Figures { decisions, degraded, buckets, total_ns } = self.0.figures();
        let decisions = decisions.into_iter().map(|((rule, result), count)| ((rule.into(), result), count)).collect();
        let degraded = DEGRADED.into_iter().zip(degraded).filter(|(_, count)| *count > 0).collect();
        (decisions, degraded, buckets.to_vec(), total_ns as f64 / 1e9)
    }
}

/// Answers checks as the Python service does.
#[pyclass(frozen, module = "headgate._native")]
pub struct Checks {
    /// Decides for the front door.
    pub decider: Arc<checks::Checks<ClockedTable>>,
}

#[pymethods]
impl Checks {
    /// None for a policy that only Python can apply.
    #[staticmethod]
    fn of(
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        rules: Vec<RuleParts<'_>>,
        money: Vec<bool>,
        table: &Bound<'_, PyAny>,
        clock: Option<Py<PyAny>>,
        tally: &CheckTally,
    ) -> PyResult<Option<Self>> {
        let policy = match read_policy(policy) {
            Ok(policy) => policy,
            Err(ReadError::NeedsPython) => return Ok(None),
            Err(ReadError::Raised(error)) => return Err(error),
        };
        let table = table_of(table)?;
        let clock = Clock::new(clock, table.anchor_us());
        let now_us = clock.now_us(py)?;
        let rule_limits =
            read_rule_limits(&policy, rules, &money, |definition| register_if_room(&table, definition, now_us))?;
        let units = units_of(&policy, money);
        let decider = checks::Checks::new(policy, rule_limits, units, ClockedTable { table, clock }, &tally.0);
        Ok(Some(Self { decider: Arc::new(decider) }))
    }

    #[allow(clippy::too_many_arguments)] // what a request of a gateway has
    fn forwarded<'py>(
        &self,
        py: Python<'py>,
        ruleset: &str,
        path: &str,
        bare: bool,
        method: &str,
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        peer: &str,
    ) -> PyResult<Option<ReplyParts<'py>>> {
        let question = Question::Forwarded { ruleset, path, bare };
        reply_or_none(py, decide_check(&*self.decider, question, method, headers, peer)?)
    }

    fn described<'py>(&self, py: Python<'py>, body: &[u8]) -> PyResult<Option<ReplyParts<'py>>> {
        let body = &Bytes::copy_from_slice(body);
        reply_or_none(py, decide_check(&*self.decider, Question::Described { body }, "POST", vec![], "127.0.0.1")?)
    }
}

/// The immediate answer of a decider to a check that Python describes.
pub fn decide_check(
    decider: &impl Decide,
    question: Question<'_>,
    method: &str,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    peer: &str,
) -> PyResult<decide::Answer> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_bytes(&name).map_err(bad)?, HeaderValue::from_bytes(&value).map_err(bad)?);
    }
    let method = Method::from_bytes(method.as_bytes()).map_err(bad)?;
    let peer: IpAddr = peer.parse().map_err(bad)?;
    Ok(decider.decide(&decide::Check { question, method: &method, headers: &map, peer: &peer.to_string() }).at_once())
}

/// A reply that is there; None where Python is to answer.
fn reply_or_none(py: Python<'_>, answer: decide::Answer) -> PyResult<Option<ReplyParts<'_>>> {
    match answer {
        decide::Answer::Reply(reply) => reply_parts(py, &reply).map(Some),
        _ => Ok(None), // a table never answers later
    }
}

/// (status, type of the body, body, header fields).
pub type ReplyParts<'py> = (u16, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>);

/// A reply.
pub fn reply_parts<'py>(py: Python<'py>, reply: &Reply) -> PyResult<ReplyParts<'py>> {
    let pair = |(name, value): &(HeaderName, HeaderValue)| {
        (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes()))
    };
    Ok((
        reply.status.as_u16(),
        PyBytes::new(py, reply.content_type.as_bytes()),
        PyBytes::new(py, &reply.body),
        PyList::new(py, reply.fields.iter().map(pair))?,
    ))
}

fn bad(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The limits of each rule for checks; `register_limit` gives one in the store, None where only Python can query it.
pub fn read_rule_limits<L>(
    policy: &Policy,
    rules: Vec<RuleParts<'_>>,
    money: &[bool],
    mut register_limit: impl FnMut(&Bound<'_, PyAny>) -> PyResult<Option<L>>,
) -> PyResult<Vec<RuleLimits<L>>> {
    if rules.len() != policy.rules.len() || money.len() != policy.units.len() {
        return Err(PyValueError::new_err("these are the limits and units of another policy"));
    }
    let mut rule_limits = Vec::with_capacity(rules.len());
    for (waits, tier_parts) in rules {
        let mut tiers = Vec::with_capacity(tier_parts.len());
        for (tier, reported) in tier_parts {
            let limits = reported
                .map(|reported| read_limits(&policy.units, reported, &mut register_limit))
                .transpose()?
                .flatten();
            tiers.push((tier.into(), limits));
        }
        rule_limits.push(RuleLimits { waits, tiers });
    }
    Ok(rule_limits)
}

/// The units of a policy as bodies name them.
pub fn units_of(policy: &Policy, money: Vec<bool>) -> Vec<Unit> {
    let units = policy.units.iter().zip(money);
    units.map(|(name, is_money)| Unit { name: name.clone(), is_money }).collect()
}

fn read_limits<L>(
    units: &[Box<str>],
    reported_limits: Vec<ReportedLimit<'_>>,
    register_limit: &mut impl FnMut(&Bound<'_, PyAny>) -> PyResult<Option<L>>,
) -> PyResult<Option<Vec<RuleLimit<L>>>> {
    let mut limits = Vec::with_capacity(reported_limits.len());
    for reported in reported_limits {
        let unit_name: String = reported.definition.getattr("limit")?.getattr("of")?.extract()?;
        let Some(unit) = units.iter().position(|name| **name == *unit_name) else {
            return Ok(None);
        };
        let Some(limit) = register_limit(&reported.definition)? else {
            return Ok(None);
        };
        let name: String = reported.definition.getattr("name")?.extract()?;
        let rule: String = reported.definition.getattr("rule")?.extract()?;
        limits.push(RuleLimit {
            limit,
            unit,
            named: NamedLimit {
                form: reported.form.into(),
                name: name.into(),
                rule: rule.into(),
                text: reported.text.into(),
                unit: reported.unit.into(),
            },
            policy_item: reported.policy_item.into(),
        });
    }
    Ok(Some(limits))
}

/// A limit in a table; None where it has no room for it now, which Python then tries again.
fn register_if_room(table: &AnyTable, definition: &Bound<'_, PyAny>, now_us: i64) -> PyResult<Option<Arc<Registered>>> {
    let py = definition.py();
    match register(table, definition, now_us) {
        Ok(limit) => Ok(Some(limit)),
        Err(error) if error.is_instance(py, &py.import("headgate.errors")?.getattr("StoreError")?) => Ok(None),
        Err(error) => Err(error),
    }
}
