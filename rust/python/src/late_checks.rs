//! Native checks for Python on a store that is waited for: they answer the front door, Python has them decided.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use headgate_checks::late_checks;
use headgate_server::decide::{Answer, Question, Reply};
use pyo3::prelude::*;

use crate::check_queue::CheckQueue;
use crate::checks::{CheckTally, ReplyParts, RuleParts, decide_check, read_rule_limits, reply_parts, units_of};
use crate::gate_policy::read_policy;
use crate::gate_subject::ReadError;
use crate::late_limits::LimitBinder;

/// Answers checks as the Python service does, once the store has answered.
#[pyclass(frozen, module = "headgate._native")]
pub struct LateChecks {
    /// Decides for the front door.
    pub decider: Arc<late_checks::LateChecks<LimitBinder>>,
}

#[pymethods]
impl LateChecks {
    /// None for a policy that only Python can apply.
    #[staticmethod]
    fn of(
        policy: &Bound<'_, PyAny>,
        rules: Vec<RuleParts<'_>>,
        money: Vec<bool>,
        resolver: Py<PyAny>,
        queue: &CheckQueue,
        tally: &CheckTally,
    ) -> PyResult<Option<Self>> {
        let policy = match read_policy(policy) {
            Ok(policy) => policy,
            Err(ReadError::NeedsPython) => return Ok(None),
            Err(ReadError::Raised(error)) => return Err(error),
        };
        let rule_limits = read_rule_limits(&policy, rules, &money, |_| Ok(Some(())))?;
        let units = units_of(&policy, money);
        let (binder, queue) = (LimitBinder(Arc::new(resolver)), Arc::clone(&queue.queue));
        Ok(Some(Self {
            decider: Arc::new(late_checks::LateChecks::new(policy, rule_limits, units, binder, queue, &tally.0)),
        }))
    }

    #[allow(clippy::too_many_arguments)] // what a request of a gateway has
    fn forwarded(
        &self,
        ruleset: &str,
        path: &str,
        bare: bool,
        method: &str,
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        peer: &str,
    ) -> PyResult<Option<LateReply>> {
        let question = Question::Forwarded { ruleset, path, bare };
        Ok(LateReply::of(decide_check(&*self.decider, question, method, headers, peer)?))
    }

    fn described(&self, body: &[u8]) -> PyResult<Option<LateReply>> {
        let question = Question::Described { body: &Bytes::copy_from_slice(body) };
        Ok(LateReply::of(decide_check(&*self.decider, question, "POST", vec![], "127.0.0.1")?))
    }
}

type ReplyFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A reply that is there, or comes when its batch has been decided.
#[pyclass(frozen, module = "headgate._native")]
pub struct LateReply(Mutex<ReplyState>);

enum ReplyState {
    Ready(Reply),
    Waiting(ReplyFuture),
}

impl LateReply {
    fn of(answer: Answer) -> Option<Self> {
        let state = match answer {
            Answer::Pass | Answer::InPieces(_) => return None, // `decide_check` resolves answers in pieces
            Answer::Reply(reply) => ReplyState::Ready(reply),
            Answer::Later(later) => ReplyState::Waiting(later.reply()),
        };
        Some(Self(Mutex::new(state)))
    }
}

#[pymethods]
impl LateReply {
    /// The reply; None while it is waited for.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Option<ReplyParts<'py>>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let ReplyState::Waiting(waiting) = &mut *state
            && let Poll::Ready(reply) = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            *state = ReplyState::Ready(reply);
        }
        match &*state {
            ReplyState::Ready(reply) => reply_parts(py, reply).map(Some),
            ReplyState::Waiting(_) => Ok(None),
        }
    }
}
