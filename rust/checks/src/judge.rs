//! Decides requests for a policy on a table, and counts the decisions.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use headgate_answers::Verdict;
use headgate_core::hash::KeyHash;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Check, Readings};
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_policy::resolver::Resolver;
use headgate_policy::selection::Resolved;
use headgate_policy::subject::Subject;
use smallvec::SmallVec;

use crate::bound::{Binder, BoundLimits, CheckedLimit, ReportedLimits, RuleLimits};
use crate::figures::Counters;
use crate::table::{Failed, LeftToPython, Table};

/// How long Python answers all checks once the table could not decide one: another process may be holding it.
const RESPITE_US: i64 = 1_000_000;

/// Limits that one query to a table checks together.
type TableLimits = BoundLimits<Box<[CheckedLimit<Arc<Registered>>]>>;

/// A policy on a table.
pub struct Judge<T> {
    resolver: Resolver<Arc<TableLimits>>,
    rules: Vec<RuleLimits<Arc<Registered>>>,
    table: T,
    counters: Arc<Counters>,
    /// The limits that are reported where no rule applies: none.
    free: ReportedLimits,
    /// The moment until which Python answers; 0 where it need not.
    resting_until_us: AtomicI64,
}

/// The query to the table for a request; it borrows nothing from the request.
pub enum Prepared<B> {
    /// No rule applies.
    Free,
    /// For each rule whether it refuses, as the request lacks an identity.
    Refused(B, Vec<bool>),
    /// A key and a cost for each group.
    Query(B, SmallVec<[(KeyHash, i64); 4]>),
}

impl Prepared<&Arc<TableLimits>> {
    /// The same, which owns its limits.
    pub fn into_owned(self) -> Prepared<Arc<TableLimits>> {
        match self {
            Self::Free => Prepared::Free,
            Self::Refused(bound, refused) => Prepared::Refused(Arc::clone(bound), refused),
            Self::Query(bound, groups) => Prepared::Query(Arc::clone(bound), groups),
        }
    }
}

/// How a request is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMode {
    /// By itself: Python delays it where a rule says so.
    Single,
    /// In a list with others, which are never delayed.
    InList,
}

impl<T: Table> Judge<T> {
    pub fn new(policy: Policy, rules: Vec<RuleLimits<Arc<Registered>>>, table: T, counters: Arc<Counters>) -> Self {
        let (free, resting_until_us) = (ReportedLimits::none(), AtomicI64::new(0));
        Self { resolver: Resolver::new(policy), rules, table, counters, free, resting_until_us }
    }

    pub fn resolver(&self) -> &Resolver<Arc<TableLimits>> {
        &self.resolver
    }

    /// Call `then` with the query for a subject, and give what it returns.
    pub fn prepare<S: Subject<Error = LeftToPython>, R>(
        &self,
        subject: &S,
        cost: Cost<'_>,
        ruleset: usize,
        mode: CheckMode,
        then: impl FnOnce(Prepared<&Arc<TableLimits>>) -> Result<R, LeftToPython>,
    ) -> Result<R, LeftToPython> {
        let binder = Binder { policy: self.resolver.policy(), rules: &self.rules, store: &self.table };
        self.resolver.resolve(subject, ruleset, &binder, |resolved| then(self.prepared(resolved, cost, mode)?))
    }

    fn prepared<'a>(
        &self,
        resolved: &'a Resolved<'_, Arc<TableLimits>>,
        cost: Cost<'_>,
        mode: CheckMode,
    ) -> Result<Prepared<&'a Arc<TableLimits>>, LeftToPython> {
        let Some(bound) = &resolved.query.limits else {
            return Ok(Prepared::Free);
        };
        if bound.waits && mode == CheckMode::Single {
            return Err(LeftToPython);
        }
        if let Some(refused) = resolved.refused() {
            return Ok(Prepared::Refused(bound, refused));
        }
        if bound.in_flight {
            return Err(LeftToPython);
        }
        if self.is_resting()? {
            return Err(LeftToPython);
        }
        let mut keys = SmallVec::new();
        resolved.hash_keys(self.table.seed(), &mut keys)?;
        let groups = resolved.query.groups.iter();
        Ok(Prepared::Query(bound, groups.map(|group| (keys[group.key], cost.of(group))).collect()))
    }

    /// Decide a request, count the decision, and give what `write` returns for it.
    pub fn decide<B: Borrow<Arc<TableLimits>>, R>(
        &self,
        prepared: &Prepared<B>,
        start: Instant,
        write: impl FnOnce(&ReportedLimits, Verdict<'_>) -> R,
    ) -> Result<R, Failed> {
        let (reported, answer) = match prepared {
            Prepared::Free => {
                let readings = Readings::Many([].into());
                (&self.free, Answer { allowed: true, full: None, binding: None, readings })
            }
            Prepared::Refused(bound, refused) => {
                let reported = bound.borrow().refusal();
                (reported, reported.refuse(refused))
            }
            Prepared::Query(bound, groups) => {
                let bound = bound.borrow();
                (&bound.reported, self.query_table(bound, groups)?)
            }
        };
        let stripe = self.counters.stripe();
        stripe.count_time(start.elapsed());
        let (verdict, degraded) = (Verdict::of(&answer), Verdict::of(&answer).degraded);
        stripe.count_degraded(degraded);
        reported.count(&answer, stripe);
        Ok(write(reported, verdict))
    }

    fn query_table(&self, bound: &TableLimits, groups: &[(KeyHash, i64)]) -> Result<Answer, Failed> {
        let now_us = self.table.now_us()?;
        let checks: SmallVec<[Check<'_>; 4]> = bound
            .query
            .iter()
            .map(|checked| {
                let (key, cost) = groups[checked.group];
                Check { limit: &checked.limit, key, cost, shadow: checked.shadow }
            })
            .collect();
        let answer = self.table.decide(&checks, now_us);
        if answer.is_err() {
            self.resting_until_us.store(now_us.saturating_add(RESPITE_US), Relaxed);
        }
        answer
    }

    fn is_resting(&self) -> Result<bool, Failed> {
        let until_us = self.resting_until_us.load(Relaxed);
        if until_us == 0 {
            return Ok(false);
        }
        let is_resting = self.table.now_us()? < until_us;
        if !is_resting {
            self.resting_until_us.store(0, Relaxed);
        }
        Ok(is_resting)
    }
}
