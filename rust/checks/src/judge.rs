//! Decides requests for a policy on a table, and counts what was decided.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use headgate_answers::Told;
use headgate_core::hash::KeyHash;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Check, Readings};
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_policy::resolver::Resolver;
use headgate_policy::selection::Resolved;
use headgate_policy::subject::Subject;
use smallvec::SmallVec;

use crate::bound::{AskedLimit, Binder, BoundLimits, OwnLimits, ToldLimits};
use crate::figures::Counters;
use crate::table::{Failed, LeftToPython, Table};

/// How long Python answers all checks once the table could not decide one: it may be held up by another process.
const RESPITE_US: i64 = 1_000_000;

/// Limits that a table is asked for together.
type OnTable = BoundLimits<Box<[AskedLimit<Arc<Registered>>]>>;

/// A policy on a table.
pub struct Judge<T> {
    resolver: Resolver<Arc<OnTable>>,
    rules: Vec<OwnLimits<Arc<Registered>>>,
    table: T,
    counters: Arc<Counters>,
    /// What is told where no rule applies.
    free: ToldLimits,
    /// Until then Python answers; 0 where it need not.
    rests_until_us: AtomicI64,
}

/// What is asked of the table for a request; nothing of it depends on the request any more.
pub enum Prepared<B> {
    /// No rule applies.
    Free,
    /// For each rule whether it refuses, as the request lacks an identity.
    Refused(B, Vec<bool>),
    /// A key and a cost for each group.
    Asked(B, SmallVec<[(KeyHash, i64); 4]>),
}

impl Prepared<&Arc<OnTable>> {
    /// The same, for longer.
    pub fn kept(self) -> Prepared<Arc<OnTable>> {
        match self {
            Self::Free => Prepared::Free,
            Self::Refused(bound, refused) => Prepared::Refused(Arc::clone(bound), refused),
            Self::Asked(bound, groups) => Prepared::Asked(Arc::clone(bound), groups),
        }
    }
}

/// How a request is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// By itself: Python lets it wait where a rule says so.
    Alone,
    /// Among others, which do not wait.
    Among,
}

impl<T: Table> Judge<T> {
    pub fn new(policy: Policy, rules: Vec<OwnLimits<Arc<Registered>>>, table: T, counters: Arc<Counters>) -> Self {
        let (free, rests_until_us) = (ToldLimits::none(), AtomicI64::new(0));
        Self { resolver: Resolver::new(policy), rules, table, counters, free, rests_until_us }
    }

    pub fn resolver(&self) -> &Resolver<Arc<OnTable>> {
        &self.resolver
    }

    /// What `then` makes of what is to be asked of the table.
    pub fn prepare<S: Subject<Error = LeftToPython>, R>(
        &self,
        subject: &S,
        cost: Cost<'_>,
        ruleset: usize,
        asking: Asking,
        then: impl FnOnce(Prepared<&Arc<OnTable>>) -> Result<R, LeftToPython>,
    ) -> Result<R, LeftToPython> {
        let binder = Binder { policy: self.resolver.policy(), rules: &self.rules, store: &self.table };
        self.resolver.resolve(subject, ruleset, &binder, |resolved| then(self.prepared(resolved, cost, asking)?))
    }

    fn prepared<'a>(
        &self,
        resolved: &'a Resolved<'_, Arc<OnTable>>,
        cost: Cost<'_>,
        asking: Asking,
    ) -> Result<Prepared<&'a Arc<OnTable>>, LeftToPython> {
        let Some(bound) = &resolved.asked.limits else {
            return Ok(Prepared::Free);
        };
        if bound.waits && asking == Asking::Alone {
            return Err(LeftToPython);
        }
        if let Some(refused) = resolved.refused() {
            return Ok(Prepared::Refused(bound, refused));
        }
        if bound.in_flight {
            return Err(LeftToPython);
        }
        if self.rests()? {
            return Err(LeftToPython);
        }
        let mut keys = SmallVec::new();
        resolved.hash_keys(self.table.seed(), &mut keys)?;
        let groups = resolved.asked.groups.iter();
        Ok(Prepared::Asked(bound, groups.map(|group| (keys[group.key], cost.of(group))).collect()))
    }

    /// Decide a request and count it, and give what `write` makes of the decision.
    pub fn decide<B: Borrow<Arc<OnTable>>, R>(
        &self,
        prepared: &Prepared<B>,
        began: Instant,
        write: impl FnOnce(&ToldLimits, Told<'_>) -> R,
    ) -> Result<R, Failed> {
        let (told, answer) = match prepared {
            Prepared::Free => {
                let readings = Readings::Many([].into());
                (&self.free, Answer { allowed: true, full: None, binding: None, readings })
            }
            Prepared::Refused(bound, refused) => {
                let told = bound.borrow().refusal();
                (told, told.refuse(refused))
            }
            Prepared::Asked(bound, groups) => {
                let bound = bound.borrow();
                (&bound.told, self.ask(bound, groups)?)
            }
        };
        let own = self.counters.own();
        own.count_time(began.elapsed());
        let (decided, degraded) = (Told::of(&answer), Told::of(&answer).degraded);
        own.count_degraded(degraded);
        told.count(&answer, own);
        Ok(write(told, decided))
    }

    fn ask(&self, bound: &OnTable, groups: &[(KeyHash, i64)]) -> Result<Answer, Failed> {
        let now_us = self.table.now_us()?;
        let checks: SmallVec<[Check<'_>; 4]> = bound
            .asked
            .iter()
            .map(|one| {
                let (key, cost) = groups[one.group];
                Check { limit: &one.limit, key, cost, shadow: one.shadow }
            })
            .collect();
        let answer = self.table.decide(&checks, now_us);
        if answer.is_err() {
            self.rests_until_us.store(now_us.saturating_add(RESPITE_US), Relaxed);
        }
        answer
    }

    fn rests(&self) -> Result<bool, Failed> {
        let until_us = self.rests_until_us.load(Relaxed);
        if until_us == 0 {
            return Ok(false);
        }
        let rests = self.table.now_us()? < until_us;
        if !rests {
            self.rests_until_us.store(0, Relaxed);
        }
        Ok(rests)
    }
}
