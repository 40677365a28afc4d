//! The limits of rules that apply together, and the parts of answers that depend on these limits alone.

use std::ops::Range;
use std::sync::Arc;

use headgate_answers::{Limits, NamedLimit};
use headgate_core::algorithms::transition::{NEVER, Reading};
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Readings};
use headgate_policy::compiled::{ANY_TIER, Policy};
use headgate_policy::selection::Bind;
use http::HeaderValue;

use crate::figures::{Outcome, Stripe};
use crate::table::{LeftToPython, Table};

/// A limit of a rule, as the store knows it and as it is reported to clients.
#[derive(Clone, Debug)]
pub struct RuleLimit<L> {
    /// The limit in the store; in a table these are its integers and its scope.
    pub limit: L,
    /// The unit that it counts, by its place in `Policy::units`.
    pub unit: usize,
    /// The names and numbers that answers are written from.
    pub named: NamedLimit,
    /// Its member of RateLimit-Policy.
    pub policy_item: Box<str>,
}

/// A tier and its limits; None where only Python can query them.
pub type LimitsOfTier<L> = (Box<str>, Option<Vec<RuleLimit<L>>>);

/// The limits of rules, by the places of these in the policy.
type LimitsByRule<'a, L> = Vec<(usize, &'a [RuleLimit<L>])>;

/// The limits of one rule of a policy, as checks use them.
#[derive(Clone, Debug)]
pub struct RuleLimits<L> {
    /// Whether the answer to a single request may be delayed: Python handles that wait.
    pub waits: bool,
    /// The limits of each tier, `ANY_TIER` for all others; None where only Python can query them.
    pub tiers: Vec<LimitsOfTier<L>>,
}

impl<L> RuleLimits<L> {
    fn of(&self, tier: &str) -> Option<&[RuleLimit<L>]> {
        let named = |name: &str| self.tiers.iter().find(|(tier, _)| **tier == *name);
        named(tier).or_else(|| named(ANY_TIER))?.1.as_deref()
    }
}

/// A limit that a query checks.
#[derive(Debug)]
pub struct CheckedLimit<L> {
    /// The limit in the store.
    pub limit: L,
    /// Whether it only watches.
    pub shadow: bool,
    /// The group of a decision that it is checked for.
    pub group: usize,
}

/// Where limits are decided.
pub trait Store {
    /// A limit, as it is known there.
    type Limit: Clone;
    /// Limits that one query checks together.
    type Query;

    /// The query that checks the limits of these rules, by their places in the policy, for a tier.
    fn query(
        &self,
        rules: &[usize],
        tier: &str,
        limits: Vec<CheckedLimit<Self::Limit>>,
    ) -> Result<Self::Query, LeftToPython>;
}

impl<T: Table> Store for T {
    type Limit = Arc<Registered>;
    type Query = Box<[CheckedLimit<Arc<Registered>>]>;

    fn query(
        &self,
        _: &[usize],
        _: &str,
        limits: Vec<CheckedLimit<Arc<Registered>>>,
    ) -> Result<Self::Query, LeftToPython> {
        let registered: Vec<_> = limits.iter().map(|checked| Arc::clone(&checked.limit)).collect();
        if self.fits(&registered) { Ok(limits.into()) } else { Err(LeftToPython) }
    }
}

/// Limits of rules that apply together, for a tier.
#[derive(Debug)]
pub struct BoundLimits<A> {
    /// The query to the store.
    pub query: A,
    /// Whether a limit counts requests in flight: a check has no end at which it would be released.
    pub(crate) in_flight: bool,
    /// Whether a limit may delay a request.
    pub(crate) waits: bool,
    pub(crate) reported: ReportedLimits,
    /// The limits that a refusal for lack of an identity reports, where they differ.
    refusal: Option<ReportedLimits>,
}

impl<A> BoundLimits<A> {
    /// The limits that a refusal for lack of an identity reports.
    pub(crate) fn refusal(&self) -> &ReportedLimits {
        self.refusal.as_ref().unwrap_or(&self.reported)
    }
}

/// Limits as they are reported to clients and counted in the figures.
#[derive(Debug)]
pub struct ReportedLimits {
    pub(crate) limits: Limits,
    /// The value of RateLimit-Policy; None where every limit is a shadow.
    pub(crate) policy: Option<HeaderValue>,
    rules: Box<[CountedRule]>,
}

#[derive(Debug)]
struct CountedRule {
    /// Its place in the policy.
    rule: usize,
    shadow: bool,
    limits: Range<usize>,
}

impl ReportedLimits {
    /// The limits of a decision that checked none.
    pub(crate) fn none() -> Self {
        Self { limits: Limits { all: vec![], policy: None }, policy: None, rules: [].into() }
    }

    fn new<'a, L: 'a>(
        policy: &Policy,
        rules: impl Iterator<Item = (usize, &'a [RuleLimit<L>])>,
    ) -> Result<Self, LeftToPython> {
        let (mut all, mut items, mut counted_rules) = (Vec::new(), Vec::new(), Vec::new());
        for (rule, limits) in rules {
            let (shadow, start) = (policy.rules[rule].shadow, all.len());
            for limit in limits {
                all.push(limit.named.clone());
                if !limit.named.form.shadow {
                    items.push(&*limit.policy_item);
                }
            }
            counted_rules.push(CountedRule { rule, shadow, limits: start..all.len() });
        }
        let text = (!items.is_empty()).then(|| items.join(", ").into_boxed_str());
        let value = text.as_deref().map(|text| HeaderValue::try_from(text).map_err(|_| LeftToPython)).transpose()?;
        Ok(Self { limits: Limits { all, policy: text }, policy: value, rules: counted_rules.into() })
    }

    /// The refusal of a request that lacks identities: for each rule whether it refuses; its quota is nothing.
    pub(crate) fn refuse(&self, refused: &[bool]) -> Answer {
        let mut readings = Vec::with_capacity(self.limits.all.len());
        for (rule, refused) in self.rules.iter().zip(refused) {
            for limit in &self.limits.all[rule.limits.clone()] {
                readings.push(match refused {
                    true => Reading { retry_after_us: NEVER, ..Reading::default() },
                    false => Reading { remaining: limit.form.quota, ..Reading::default() },
                });
            }
        }
        let binds = |(reading, limit): (&Reading, &NamedLimit)| !limit.form.shadow && !reading.allowed();
        let binding = readings.iter().zip(&self.limits.all).position(binds).and_then(|place| u16::try_from(place).ok());
        Answer { allowed: false, full: None, binding, readings: Readings::Many(readings.into()) }
    }

    /// Count a decision for each rule: one with several limits refuses if one of them does.
    pub(crate) fn count(&self, answer: &Answer, stripe: Stripe<'_>) {
        let readings = answer.readings.all();
        if readings.is_empty() {
            stripe.count_without_rule(answer.allowed);
        }
        for rule in &self.rules {
            let mut limits = readings[rule.limits.clone()].iter();
            let Some(first) = limits.next() else {
                continue;
            };
            let is_refused = !first.allowed() || limits.any(|reading| !reading.allowed());
            let outcome = match (rule.shadow, is_refused) {
                (true, true) => Outcome::ShadowRefused,
                (true, false) => Outcome::ShadowAllowed,
                (false, true) => Outcome::Refused,
                (false, false) if answer.allowed => Outcome::Allowed,
                (false, false) => Outcome::Blocked,
            };
            stripe.count(rule.rule, outcome);
        }
    }
}

/// Puts the limits of rules together.
pub(crate) struct Binder<'a, S: Store> {
    pub(crate) policy: &'a Policy,
    pub(crate) rules: &'a [RuleLimits<S::Limit>],
    pub(crate) store: &'a S,
}

impl<S: Store> Bind for Binder<'_, S> {
    type Limits = Arc<BoundLimits<S::Query>>;
    type Error = LeftToPython;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Self::Limits, LeftToPython> {
        let limits_by_rule = self.limits_of(rules, tier)?;
        let (mut query, mut groups, mut in_flight) = (Vec::new(), 0, false);
        for (index, limits) in &limits_by_rule {
            let rule = &self.policy.rules[*index];
            let units = rule.units(tier);
            for limit in *limits {
                let group = units.iter().position(|unit| *unit == limit.unit).ok_or(LeftToPython)?;
                in_flight |= limit.named.form.in_flight;
                query.push(CheckedLimit { limit: limit.limit.clone(), shadow: rule.shadow, group: groups + group });
            }
            groups += units.len();
        }
        let query = self.store.query(rules, tier, query)?;
        let reported = ReportedLimits::new(self.policy, limits_by_rule.into_iter())?;
        let refusal = match tier {
            ANY_TIER => None,
            _ => Some(ReportedLimits::new(self.policy, self.limits_of(rules, ANY_TIER)?.into_iter())?),
        };
        Ok(Arc::new(BoundLimits {
            in_flight,
            waits: rules.iter().any(|index| self.rules[*index].waits),
            query,
            reported,
            refusal,
        }))
    }
}

impl<'a, S: Store> Binder<'a, S> {
    fn limits_of(&self, rules: &[usize], tier: &str) -> Result<LimitsByRule<'a, S::Limit>, LeftToPython> {
        rules.iter().map(|index| Ok((*index, self.rules[*index].of(tier).ok_or(LeftToPython)?))).collect()
    }
}
