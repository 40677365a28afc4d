//! Requests of logs, judged in blocks: what a policy would have done with each.

use headgate_logs::entries::{Entries, Entry};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::gate::NativeGate;
use crate::gate_subject::Trouble;
use crate::log_block::{LogBlock, Other};
use crate::log_subject::{LineSubject, LogSubject};
use crate::replay_asked::{AskedBefore, Told, Waiting};
use crate::replay_keys::{Parts, key_of};
use crate::replay_series::Steps;
use crate::replay_sums::Sums;

/// So many lines are judged step by step together.
const BATCH: usize = 64;

/// A policy that judges entries of logs, and what it judged; see `headgate.replay.judging`.
#[pyclass(module = "headgate._native")]
pub struct ReplayJudge {
    gate: Py<NativeGate>,
    sums: Sums,
    asked: AskedBefore,
}

#[pymethods]
impl ReplayJudge {
    #[new]
    fn new(gate: Py<NativeGate>, steps_us: Vec<i64>, most_steps: usize) -> Self {
        let rules = gate.get().policy().rules.len();
        let steps = Steps { lengths_us: steps_us.into(), most: most_steps };
        Self { gate, sums: Sums::new(steps, rules), asked: AskedBefore::default() }
    }

    /// Judge entries from `start` on until one that only Python can judge; where that is, or behind the last.
    #[pyo3(signature = (block, start, told = None, /))]
    fn judge(
        &mut self,
        py: Python<'_>,
        block: &LogBlock,
        start: usize,
        told: Option<&Bound<'_, PyList>>,
    ) -> PyResult<usize> {
        let entries = block.entries();
        let (mut at, mut judged) = (start, Vec::new());
        let done = loop {
            let mut tell = told.map(|_| |one| judged.push(one));
            // Lines need no Python: another thread reads on meanwhile.
            let came = py.detach(|| self.judge_lines(entries, &mut at, tell.as_mut()));
            if came.is_err() {
                break came;
            }
            let Some(Entry::Other(other)) = entries.get(at) else {
                break Ok(());
            };
            if let Err(trouble) = self.judge_other(py, other, tell.as_mut()) {
                break Err(trouble);
            }
            at += 1;
        };
        if let Some(told) = told {
            for one in judged {
                told.append(one.map(|refusal| refusal_of(py, refusal)).transpose()?)?;
            }
        }
        match done {
            Ok(()) | Err(Trouble::Python) => Ok(at),
            Err(Trouble::Raised(error)) => Err(error),
        }
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
        visit.call(&self.gate)?;
        self.asked.traverse(&visit)
    }
}

impl ReplayJudge {
    /// Judge lines from `at` on, until an entry that is none, or a line that only Python can judge.
    fn judge_lines(
        &mut self,
        entries: &Entries<Other>,
        at: &mut usize,
        mut tell: Option<&mut impl FnMut(Told)>,
    ) -> Result<(), Trouble> {
        let (gate, sums, asked) = (self.gate.get(), &mut self.sums, &mut self.asked);
        let mut batch: Vec<(LineSubject<'_>, Waiting)> = Vec::with_capacity(BATCH);
        loop {
            let mut trouble = Ok(());
            while batch.len() < BATCH
                && let Some(Entry::Line(line)) = entries.get(*at + batch.len())
            {
                let subject = LineSubject(line);
                match asked.prepare(gate, sums, &subject, line.time_us, 1) {
                    Ok(waiting) => batch.push((subject, waiting)),
                    Err(found) => {
                        trouble = Err(found);
                        break;
                    }
                }
            }
            let is_last = batch.len() < BATCH;
            for (subject, waiting) in &mut batch {
                asked.see(gate, sums, subject, waiting)?;
            }
            for (_, waiting) in &batch {
                asked.fetch(waiting);
            }
            for (_, waiting) in batch.drain(..) {
                asked.decide(sums, waiting, tell.as_mut())?;
                *at += 1;
            }
            if is_last {
                return trouble;
            }
        }
    }

    /// Judge an entry that Python has read.
    fn judge_other(
        &mut self,
        py: Python<'_>,
        entry: &Other,
        tell: Option<&mut impl FnMut(Told)>,
    ) -> Result<(), Trouble> {
        let (gate, sums) = (self.gate.get(), &mut self.sums);
        let entry = entry.bind(py);
        let subject = LogSubject::of(entry, gate.names()).ok_or(Trouble::Python)?;
        let cost = subject.cost().ok_or(Trouble::Python)?;
        let mut waiting = self.asked.prepare(gate, sums, &subject, subject.time_us()?, cost)?;
        self.asked.see(gate, sums, &subject, &mut waiting)?;
        self.asked.fetch(&waiting);
        self.asked.decide(sums, waiting, tell)
    }
}

fn refusal_of<'py>(py: Python<'py>, (time_us, by): (i64, Vec<(usize, Parts)>)) -> PyResult<Bound<'py, PyTuple>> {
    let rules: Vec<_> = by.iter().map(|(place, parts)| Ok((*place, key_of(py, parts)?))).collect::<PyResult<_>>()?;
    (time_us, PyTuple::new(py, rules)?).into_pyobject(py)
}
