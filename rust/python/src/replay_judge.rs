//! Judges the requests of logs in blocks: what a policy would have done with each.

use headgate_logs::entries::{Entries, Entry};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::gate::NativeGate;
use crate::gate_subject::ReadError;
use crate::log_block::{LogBlock, Other};
use crate::log_subject::{LineSubject, LogSubject};
use crate::replay_keys::{Parts, key_of};
use crate::replay_limits::{JudgedRefusal, PreparedRequest, RuleQueries};
use crate::replay_series::Steps;
use crate::replay_sums::Sums;

/// Lines that take each step together.
const BATCH: usize = 64;

/// A policy that judges entries of logs, and the sums of its judgements; see `headgate.replay.judging`.
#[pyclass(module = "headgate._native")]
pub struct ReplayJudge {
    gate: Py<NativeGate>,
    sums: Sums,
    queries: RuleQueries,
}

#[pymethods]
impl ReplayJudge {
    #[new]
    fn new(gate: Py<NativeGate>, steps_us: Vec<i64>, most_steps: usize) -> Self {
        let rules = gate.get().policy().rules.len();
        let steps = Steps { lengths_us: steps_us.into(), most: most_steps };
        Self { gate, sums: Sums::new(steps, rules), queries: RuleQueries::default() }
    }

    /// Judge entries from `start` on until one that only Python can judge; gives its index, or that after the last.
    #[pyo3(signature = (block, start, refusals = None, /))]
    fn judge(
        &mut self,
        py: Python<'_>,
        block: &LogBlock,
        start: usize,
        refusals: Option<&Bound<'_, PyList>>,
    ) -> PyResult<usize> {
        let entries = block.entries();
        let (mut at, mut judged) = (start, Vec::new());
        let end = loop {
            let mut report = refusals.map(|_| |one| judged.push(one));
            // Lines need no Python: another thread may run it meanwhile.
            let outcome = py.detach(|| self.judge_lines(entries, &mut at, report.as_mut()));
            if outcome.is_err() {
                break outcome;
            }
            let Some(Entry::Other(other)) = entries.get(at) else {
                break Ok(());
            };
            if let Err(failure) = self.judge_other(py, other, report.as_mut()) {
                break Err(failure);
            }
            at += 1;
        };
        if let Some(refusals) = refusals {
            for one in judged {
                refusals.append(one.map(|refusal| refusal_of(py, refusal)).transpose()?)?;
            }
        }
        match end {
            Ok(()) | Err(ReadError::NeedsPython) => Ok(at),
            Err(ReadError::Raised(error)) => Err(error),
        }
    }

    /// Count a request that Python has judged, by the places of its rules and whether each refuses.
    fn note(&mut self, time_us: i64, rules: Vec<usize>, refusing: Vec<bool>, allowed: bool, cost: i64) {
        self.sums.begin_step(time_us);
        let rule_set = self.sums.rule_set_of(&rules);
        if refusing.contains(&true) {
            self.sums.count_refused(rule_set, time_us, allowed, &refusing, cost);
        } else {
            self.sums.count_passed(rule_set, cost);
        }
    }

    fn sums<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.sums.export(py)
    }

    fn requests_by_key<'py>(
        &self,
        py: Python<'py>,
        by: Vec<Bound<'py, PyAny>>,
        kinds: Vec<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.sums.requests_by_key(py, &by, &kinds)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.gate)?;
        self.queries.traverse(&visit)
    }
}

impl ReplayJudge {
    /// Judge lines from `at` on, until an entry of another kind, or a line that only Python can judge.
    fn judge_lines(
        &mut self,
        entries: &Entries<Other>,
        at: &mut usize,
        mut report: Option<&mut impl FnMut(JudgedRefusal)>,
    ) -> Result<(), ReadError> {
        let (gate, sums, queries) = (self.gate.get(), &mut self.sums, &mut self.queries);
        let mut batch: Vec<(LineSubject<'_>, PreparedRequest)> = Vec::with_capacity(BATCH);
        loop {
            let mut failure = Ok(());
            while batch.len() < BATCH
                && let Some(Entry::Line(line)) = entries.get(*at + batch.len())
            {
                let subject = LineSubject(line);
                match queries.prepare(gate, sums, &subject, line.time_us, 1) {
                    Ok(request) => batch.push((subject, request)),
                    Err(found) => {
                        failure = Err(found);
                        break;
                    }
                }
            }
            let is_last = batch.len() < BATCH;
            for (subject, request) in &mut batch {
                queries.count_keys(gate, sums, subject, request)?;
            }
            for (_, request) in &batch {
                queries.fetch(request);
            }
            for (_, request) in batch.drain(..) {
                queries.decide(sums, request, report.as_mut())?;
                *at += 1;
            }
            if is_last {
                return failure;
            }
        }
    }

    /// Judge an entry that Python has read.
    fn judge_other(
        &mut self,
        py: Python<'_>,
        entry: &Other,
        report: Option<&mut impl FnMut(JudgedRefusal)>,
    ) -> Result<(), ReadError> {
        let (gate, sums) = (self.gate.get(), &mut self.sums);
        let entry = entry.bind(py);
        let subject = LogSubject::of(entry, gate.names()).ok_or(ReadError::NeedsPython)?;
        let cost = subject.cost().ok_or(ReadError::NeedsPython)?;
        let mut request = self.queries.prepare(gate, sums, &subject, subject.time_us()?, cost)?;
        self.queries.count_keys(gate, sums, &subject, &mut request)?;
        self.queries.fetch(&request);
        self.queries.decide(sums, request, report)
    }
}

fn refusal_of<'py>(py: Python<'py>, (time_us, by): (i64, Vec<(usize, Parts)>)) -> PyResult<Bound<'py, PyTuple>> {
    let rules: Vec<_> = by.iter().map(|(place, parts)| Ok((*place, key_of(py, parts)?))).collect::<PyResult<_>>()?;
    (time_us, PyTuple::new(py, rules)?).into_pyobject(py)
}
