//! Answers the checks of the front door: the native twin of `headgate.service.checks`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use headgate_core::shard::registered::Registered;
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_server::decide::{Answer, Check, Decide, InPieces, Pieces, Question, Reply, at_once};

use crate::bound::RuleLimits;
pub use crate::described::Unit;
use crate::described::{Body, Described, Reader};
use crate::figures::Tally;
use crate::forwarded::Forwarded;
use crate::header_text::Names;
use crate::judge::{CheckMode, Judge};
use crate::replies;
use crate::table::{LeftToPython, Table};

/// Requests that are decided in one go, at most.
pub(crate) const FEW: usize = 32;

/// A list that is longer, in bytes, is not even read in one go with others like it.
const SHORT: usize = 4096;

/// A policy on a table, which answers gateways and bodies of JSON.
pub struct Checks<T>(Arc<InForce<T>>);

struct InForce<T> {
    judge: Judge<T>,
    names: Names,
    units: Vec<Unit>,
}

impl<T: Table + 'static> Checks<T> {
    /// A policy, the limits of each of its rules, which the table knows, and its units, in its order.
    ///
    /// All decisions are counted in `tally`.
    pub fn new(
        policy: Policy,
        rules: Vec<RuleLimits<Arc<Registered>>>,
        units: Vec<Unit>,
        table: T,
        tally: &Tally,
    ) -> Self {
        let counters = tally.counters(policy.rules.iter().map(|rule| rule.name.clone()));
        let names = Names::of(&policy);
        Self(Arc::new(InForce { judge: Judge::new(policy, rules, table, counters), names, units }))
    }

    fn described(&self, body: &Bytes) -> Result<Answer, LeftToPython> {
        if is_long_list(body) {
            return Ok(self.in_pieces(body));
        }
        match self.0.reader().read(body)? {
            Body::One(one) => self.0.described(&one).map(Answer::Reply),
            Body::Several(several) if several.len() <= FEW => at_once(self.0.several(several)).map(Answer::Reply),
            Body::Several(_) => Ok(self.in_pieces(body)),
        }
    }

    /// Read and decide a list, letting others have the thread in between; all of it by this policy.
    fn in_pieces(&self, body: &Bytes) -> Answer {
        let (policy, body) = (Arc::clone(&self.0), body.clone());
        Answer::InPieces(InPieces::new(async move {
            let reply = match policy.reader().read(&body) {
                Ok(Body::Several(several)) => policy.several(several).await,
                _ => Err(LeftToPython),
            };
            reply.map_or(Answer::Pass, Answer::Reply)
        }))
    }
}

impl<T: Table> InForce<T> {
    fn reader(&self) -> Reader<'_> {
        Reader { units: &self.units, headers: self.names.len() }
    }

    fn forwarded(&self, check: &Check<'_>, ruleset: &str, rest: &str, bare: bool) -> Result<Reply, LeftToPython> {
        let start = Instant::now();
        let ruleset = self.judge.resolver().ruleset(ruleset).ok_or(LeftToPython)?;
        let subject = Forwarded::new(check, rest, &self.names)?;
        self.judge.prepare(&subject, Cost::ONE, ruleset, CheckMode::Single, |prepared| {
            Ok(self.judge.decide(&prepared, start, |reported, verdict| replies::forwarded(reported, verdict, bare))?)
        })
    }

    fn described(&self, one: &Described<'_>) -> Result<Reply, LeftToPython> {
        let start = Instant::now();
        let ruleset = one.ruleset(self.judge.resolver())?;
        self.judge.prepare(one, one.cost(), ruleset, CheckMode::Single, |prepared| {
            Ok(replies::one(self.judge.decide(&prepared, start, replies::decision_json)?))
        })
    }

    /// Nothing is charged before all requests are known to be answerable here.
    async fn several(&self, several: Vec<Described<'_>>) -> Result<Reply, LeftToPython> {
        let mut pieces = Pieces::begin();
        let mut all = Vec::with_capacity(several.len());
        for one in several {
            let ruleset = one.ruleset(self.judge.resolver())?;
            let owned =
                self.judge.prepare(&one, one.cost(), ruleset, CheckMode::InList, |prepared| Ok(prepared.into_owned()));
            all.push(owned?);
            pieces.next().await;
        }
        let mut decisions: Vec<Option<String>> = Vec::with_capacity(all.len());
        for prepared in &all {
            match self.judge.decide(prepared, Instant::now(), replies::decision_json) {
                Ok(decision) => decisions.push(Some(decision)),
                Err(failed) if decisions.is_empty() => return Err(failed.into()),
                Err(_) => break, // each further one would take as long to fail
            }
            pieces.next().await;
        }
        decisions.resize(all.len(), None);
        Ok(replies::several(&decisions))
    }
}

impl<T: Table + 'static> Decide for Checks<T> {
    fn decide(&self, check: &Check<'_>) -> Answer {
        let answer = match check.question {
            Question::Forwarded { ruleset, path, bare } => {
                self.0.forwarded(check, ruleset, path, bare).map(Answer::Reply)
            }
            Question::Described { body } => self.described(body),
        };
        answer.unwrap_or(Answer::Pass)
    }
}

/// Whether a body begins as a list of requests, and has room for many.
pub(crate) fn is_long_list(body: &[u8]) -> bool {
    let opened = body.trim_ascii_start().strip_prefix(b"{");
    body.len() > SHORT && opened.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"requests\""))
}
