//! Requests of logs, judged in blocks: what a policy would have done with each.

use headgate_core::table::answer::Mode;
use headgate_policy::selection::{Cost, Resolved};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;

use crate::gate::NativeGate;
use crate::gate_limits::Limits;
use crate::gate_subject::Trouble;
use crate::log_subject::LogSubject;
use crate::replay_series::Steps;
use crate::replay_sums::{Keys, Parts, Sums};

const HIT: Mode = Mode { commit: true, max_delay_us: None };

/// What is known of the rules that refuse a request.
type Refusing = SmallVec<[bool; 4]>;

/// A policy that judges entries of logs, and what it judged; see `headgate.replay.judging`.
#[pyclass(module = "headgate._native")]
pub struct ReplayJudge {
    gate: Py<NativeGate>,
    sums: Sums,
}

#[pymethods]
impl ReplayJudge {
    #[new]
    fn new(gate: Py<NativeGate>, steps_us: Vec<i64>, most_steps: usize) -> Self {
        let rules = gate.get().policy().rules.len();
        let steps = Steps { lengths_us: steps_us.into(), most: most_steps };
        Self { gate, sums: Sums::new(steps, rules) }
    }

    /// Judge entries from `start` on until one that only Python can judge; where that is, or behind the last.
    #[pyo3(signature = (entries, start, told = None, /))]
    fn judge(
        &mut self,
        py: Python<'_>,
        entries: &Bound<'_, PyList>,
        start: usize,
        told: Option<&Bound<'_, PyList>>,
    ) -> PyResult<usize> {
        for index in start..entries.len() {
            let entry = entries.get_item(index)?;
            if !self.judge_one(py, &entry, told)? {
                return Ok(index);
            }
        }
        Ok(entries.len())
    }

    /// Count a request that Python has judged, by the places of its rules and whether each refuses.
    fn note(&mut self, time_us: i64, rules: Vec<usize>, refusing: Vec<bool>, allowed: bool, cost: i64) {
        self.sums.arrive(time_us);
        let together = self.sums.together(&rules);
        if refusing.contains(&true) {
            self.sums.refuse(together, time_us, allowed, &refusing, cost);
        } else {
            self.sums.pass(together, cost);
        }
    }

    fn sums<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.sums.told(py)
    }

    fn counted<'py>(
        &self,
        py: Python<'py>,
        by: Vec<Bound<'py, PyAny>>,
        kinds: Vec<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.sums.counted(py, &by, &kinds)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.gate)
    }
}

impl ReplayJudge {
    /// Judge one entry; false where only Python can.
    #[inline]
    fn judge_one(
        &mut self,
        py: Python<'_>,
        entry: &Bound<'_, PyAny>,
        told: Option<&Bound<'_, PyList>>,
    ) -> PyResult<bool> {
        let gate = self.gate.get();
        let sums = &mut self.sums;
        let Some(subject) = LogSubject::of(entry, gate.names()) else {
            return Ok(false);
        };
        let Some(cost) = subject.cost() else {
            return Ok(false);
        };
        let time_us = subject.time_us()?;
        let judged = gate
            .resolved_for(py, &subject, gate.all_rules(), |resolved| judge(py, sums, resolved, time_us, cost, told))?;
        Ok(judged.is_some())
    }
}

/// Decide, charge and count.
#[inline]
fn judge(
    py: Python<'_>,
    sums: &mut Sums,
    resolved: &Resolved<'_, Limits>,
    time_us: i64,
    cost: i64,
    told: Option<&Bound<'_, PyList>>,
) -> Result<(), Trouble> {
    let groups = &resolved.asked.groups[..];
    let mut hashes = SmallVec::new();
    let (mut allowed, mut refusing) = (true, Refusing::new());
    // Each rule that has limits, with the place of its key: its groups stand together.
    let mut rules: SmallVec<[(usize, usize); 4]> = SmallVec::new();
    for group in groups {
        if rules.last().is_none_or(|(rule, _)| *rule != group.rule) {
            rules.push((group.rule, group.key));
        }
    }
    if let Some(limits) = &resolved.asked.limits {
        let Some(native) = &limits.native else {
            return Err(Trouble::Python);
        };
        if resolved.refused().is_some() {
            return Err(Trouble::Python);
        }
        let (bound, cost) = (native.get(), Cost { times: cost, told: &[] });
        resolved.hash_keys(bound.seed(), &mut hashes)?;
        let of_group = |group: usize| (hashes[groups[group].key], cost.of(&groups[group]));
        let answer = bound.answer_groups(py, groups.len(), of_group, Some(time_us), HIT)?;
        allowed = answer.allowed;
        for (reading, group) in answer.readings.all().iter().zip(bound.group_of()) {
            if !reading.allowed() {
                refusing.resize(rules.len(), false);
                let rule = groups[usize::from(*group)].rule;
                rules.iter().position(|(own, _)| *own == rule).into_iter().for_each(|own| refusing[own] = true);
            }
        }
    }
    let places: SmallVec<[usize; 4]> = rules.iter().map(|(rule, _)| resolved.selection.rules[*rule]).collect();
    let parts = || -> PyResult<Parts> {
        let all: SmallVec<[_; 4]> = resolved.keys().collect();
        let of_rule =
            |(_, key): &(usize, usize)| Ok(PyTuple::new(py, all[*key].as_deref().unwrap_or_default())?.unbind());
        rules.iter().map(of_rule).collect()
    };
    sums.arrive(time_us);
    let together = sums.together(&places);
    let keys: Keys = rules.iter().map(|(_, key)| hashes[*key]).collect();
    sums.see(together, &keys, &refusing, parts)?;
    if refusing.is_empty() {
        sums.pass(together, cost);
    } else {
        sums.refuse(together, time_us, allowed, &refusing, cost);
    }
    if let Some(told) = told {
        if allowed {
            told.append(py.None())?;
        } else {
            let each = places.iter().zip(parts()?).zip(&refusing).filter(|(_, refuses)| **refuses);
            told.append(PyTuple::new(py, each.map(|((place, parts), _)| (*place, parts)).collect::<Vec<_>>())?)?;
        }
    }
    Ok(())
}
