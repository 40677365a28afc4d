//! What answers the checks of the front door: the native `headgate.service.checks`.

use std::sync::Arc;
use std::time::Instant;

use headgate_core::shard::registered::Registered;
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_server::decide::{Answer, Check, Decide, Question, Reply};

use crate::bound::OwnLimits;
pub use crate::described::Unit;
use crate::described::{Body, Reader};
use crate::figures::Tally;
use crate::forwarded::Forwarded;
use crate::header_text::Names;
use crate::judge::{Asking, Judge};
use crate::replies;
use crate::table::{LeftToPython, Table};

/// A policy on a table, asked by gateways and by bodies of JSON.
pub struct Checks<T> {
    judge: Judge<T>,
    names: Names,
    units: Vec<Unit>,
}

impl<T: Table> Checks<T> {
    /// A policy, the limits of each of its rules, which the table knows, and its units, in its order.
    ///
    /// What is decided is counted in `tally`.
    pub fn new(
        policy: Policy,
        rules: Vec<OwnLimits<Arc<Registered>>>,
        units: Vec<Unit>,
        table: T,
        tally: &Tally,
    ) -> Self {
        let counters = tally.counters(policy.rules.iter().map(|rule| rule.name.clone()));
        let names = Names::of(&policy);
        Self { judge: Judge::new(policy, rules, table, counters), names, units }
    }

    fn forwarded(&self, check: &Check<'_>, ruleset: &str, rest: &str, bare: bool) -> Result<Reply, LeftToPython> {
        let began = Instant::now();
        let ruleset = self.judge.resolver().ruleset(ruleset).ok_or(LeftToPython)?;
        let subject = Forwarded::new(check, rest, &self.names)?;
        self.judge.prepare(&subject, Cost::ONE, ruleset, Asking::Alone, |prepared| {
            Ok(self.judge.decide(&prepared, began, |told, decision| replies::forwarded(told, decision, bare))?)
        })
    }

    fn described(&self, body: &[u8]) -> Result<Reply, LeftToPython> {
        let resolver = self.judge.resolver();
        let reader = Reader { units: &self.units, headers: self.names.len() };
        let several = match reader.read(body)? {
            Body::Several(several) => several,
            Body::One(one) => {
                let began = Instant::now();
                let ruleset = one.ruleset(resolver)?;
                return self.judge.prepare(&*one, one.cost(), ruleset, Asking::Alone, |prepared| {
                    Ok(replies::one(self.judge.decide(&prepared, began, replies::decision_json)?))
                });
            }
        };
        // Nothing is charged before it is known that all of them are answered here.
        let mut all = Vec::with_capacity(several.len());
        for one in &several {
            let ruleset = one.ruleset(resolver)?;
            let kept = self.judge.prepare(one, one.cost(), ruleset, Asking::Among, |prepared| Ok(prepared.kept()));
            all.push(kept?);
        }
        let mut decisions: Vec<Option<String>> = Vec::with_capacity(all.len());
        for prepared in &all {
            match self.judge.decide(prepared, Instant::now(), replies::decision_json) {
                Ok(decision) => decisions.push(Some(decision)),
                Err(failed) if decisions.is_empty() => return Err(failed.into()),
                Err(_) => break, // each further one would take as long to fail
            }
        }
        decisions.resize(all.len(), None);
        Ok(replies::several(&decisions))
    }
}

impl<T: Table> Decide for Checks<T> {
    fn decide(&self, check: &Check<'_>) -> Answer {
        let reply = match check.question {
            Question::Forwarded { ruleset, path, bare } => self.forwarded(check, ruleset, path, bare),
            Question::Described { body } => self.described(body),
        };
        reply.map_or(Answer::Pass, Answer::Reply)
    }
}
