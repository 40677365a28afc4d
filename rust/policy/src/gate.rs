//! A policy on a table, which decides for subjects: all rules that apply together, all or none.

use std::convert::Infallible;
use std::sync::Arc;

use headgate_core::hash::KeyHash;
use headgate_core::limit::Algorithm;
use headgate_core::shard::registered::Registered;
use headgate_core::table::Table;
use headgate_core::table::answer::{Answer, Check, Mode};
use headgate_core::table::storage::Storage;
use smallvec::SmallVec;

use crate::compiled::{Policy, Rule};
use crate::costs::{Cost, Group};
use crate::resolver::Resolver;
use crate::selection::Bind;
use crate::subject::Subject;

/// A limit of a rule, as the gate's table knows it.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// Its integers and its scope.
    pub limit: Arc<Registered>,
    /// The unit that it counts, by its place in `Policy::units`.
    pub unit: usize,
}

/// The limits of a rule for one tier, `ANY_TIER` for all others.
pub type LimitsOfTier = (Box<str>, Vec<RuleLimit>);

/// Limits of the rules that apply, each with the group that it is checked for.
pub struct Limits {
    checked: Box<[(Arc<Registered>, bool, usize)]>,
    /// Whether one of them counts requests in flight.
    in_flight: bool,
}

impl Limits {
    /// The check of each limit, of the keys that its group names.
    #[inline]
    fn checks<'limit>(
        &'limit self,
        keys: &[KeyHash],
        groups: &[Group],
        cost: Cost<'_>,
        mut each: impl FnMut(Check<'limit>),
    ) {
        for (limit, shadow, group) in &self.checked {
            let group = &groups[*group];
            each(Check { limit, key: keys[group.key], cost: cost.of(group), shadow: *shadow });
        }
    }
}

/// The answer of a gate.
#[derive(Clone, Debug)]
pub enum Decision {
    /// No rule applies: it passes.
    Free,
    /// It lacks an identity that a rule insists on: for each rule that applies, by its place in the policy, whether it
    /// refuses.
    Refused(Vec<(usize, bool)>),
    /// A limit of the rules that apply, these by their places in the policy, counts requests in flight: one that is
    /// charged without being held would never end. Nothing was charged.
    NeverEnds(Vec<usize>),
    /// The answer of the limits of the rules that apply, these by their places in the policy.
    Decided(Answer, Vec<usize>),
}

/// A policy on a table.
pub struct Gate<S: Storage> {
    resolver: Resolver<Limits>,
    table: Table<S>,
    /// Of each rule, by tier.
    limits: Vec<Vec<LimitsOfTier>>,
}

impl<S: Storage> Gate<S> {
    /// A policy, and the limits of each of its rules by tier, which the table knows.
    pub fn new(policy: Policy, limits: Vec<Vec<LimitsOfTier>>, table: Table<S>) -> Self {
        Self { resolver: Resolver::new(policy), table, limits }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        self.resolver.policy()
    }

    /// Decide for a subject at a moment, and charge it if `mode` says so; `ruleset` is a place in the policy.
    pub fn decide<T: Subject>(
        &self,
        subject: &T,
        cost: Cost<'_>,
        ruleset: usize,
        now_us: i64,
        mode: Mode,
    ) -> Result<Decision, T::Error>
    where
        T::Error: From<S::Error> + From<Infallible>,
    {
        let bind = Binder { policy: self.resolver.policy(), limits: &self.limits, error: std::marker::PhantomData };
        self.resolver.resolve(subject, ruleset, &bind, |resolved| {
            let rules = &resolved.selection.rules;
            let Some(limits) = &resolved.query.limits else {
                return Ok(Decision::Free);
            };
            if let Some(refused) = resolved.refused() {
                return Ok(Decision::Refused(rules.iter().copied().zip(refused).collect()));
            }
            if limits.in_flight && mode.commit {
                return Ok(Decision::NeverEnds(rules.to_vec()));
            }
            let (mut keys, mut checks) = (SmallVec::new(), SmallVec::<[Check<'_>; 4]>::new());
            resolved.hash_keys(self.table.seed(), &mut keys)?;
            limits.checks(&keys, &resolved.query.groups, cost, |check| {
                self.table.fetch(&check);
                checks.push(check);
            });
            let answer = match limits.in_flight {
                true => self.table.apply_in_flight(&checks, now_us, mode)?,
                false => self.table.apply(&checks, now_us, mode)?,
            };
            Ok(Decision::Decided(answer, rules.to_vec()))
        })
    }
}

/// Puts the limits of rules together.
struct Binder<'gate, E> {
    policy: &'gate Policy,
    limits: &'gate [Vec<LimitsOfTier>],
    error: std::marker::PhantomData<E>,
}

impl<E> Bind for Binder<'_, E> {
    type Limits = Limits;
    type Error = E;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Limits, E> {
        let mut all = Vec::new();
        let mut groups = 0;
        for index in rules {
            let rule: &Rule = &self.policy.rules[*index];
            let units = rule.units(tier);
            let by_tier = self.limits[*index].iter();
            let of_tier = by_tier
                .clone()
                .find(|(name, _)| **name == *tier)
                .or_else(|| by_tier.clone().find(|(name, _)| name.is_empty()));
            for limit in of_tier.map_or(&[][..], |(_, limits)| limits) {
                let group = units.iter().position(|unit| *unit == limit.unit).unwrap_or_default();
                all.push((Arc::clone(&limit.limit), rule.shadow, groups + group));
            }
            groups += units.len();
        }
        let in_flight = all.iter().any(|(limit, ..)| limit.limit.algorithm == Algorithm::Concurrent);
        Ok(Limits { checked: all.into(), in_flight })
    }
}
