//! The limits of rules that apply together, and what is the same in all answers about them.

use std::ops::Range;
use std::sync::Arc;

use headgate_answers::{Limits, NamedLimit};
use headgate_core::algorithms::transition::{NEVER, Reading};
use headgate_core::limit::Algorithm;
use headgate_core::shard::registered::Registered;
use headgate_core::table::answer::{Answer, Readings};
use headgate_policy::compiled::{ANY_TIER, Policy};
use headgate_policy::selection::Bind;
use http::HeaderValue;

use crate::figures::{Outcome, Own};
use crate::table::{LeftToPython, Table};

/// A limit of a rule, as the table knows it, and as clients are told of it.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// Its integers and its scope.
    pub limit: Arc<Registered>,
    /// What it counts, by its place in `Policy::units`.
    pub unit: usize,
    /// What answers are written from.
    pub told: NamedLimit,
    /// Its member of RateLimit-Policy.
    pub policy_item: Box<str>,
}

/// What a rule of a policy has for checks.
#[derive(Clone, Debug)]
pub struct OwnLimits {
    /// Whether a request that asks alone may have to wait for an answer: Python lets it wait.
    pub waits: bool,
    /// The limits of each tier, `ANY_TIER` for all others; None where Python has to ask them.
    pub tiers: Vec<(Box<str>, Option<Vec<RuleLimit>>)>,
}

impl OwnLimits {
    fn of(&self, tier: &str) -> Option<&[RuleLimit]> {
        let named = |name: &str| self.tiers.iter().find(|(own, _)| **own == *name);
        named(tier).or_else(|| named(ANY_TIER))?.1.as_deref()
    }
}

/// A limit that is asked.
#[derive(Debug)]
pub(crate) struct AskedLimit {
    pub(crate) limit: Arc<Registered>,
    pub(crate) shadow: bool,
    /// Which of a decision's groups it is asked for.
    pub(crate) group: usize,
}

/// Limits of rules that apply together, for a tier.
#[derive(Debug)]
pub(crate) struct BoundLimits {
    pub(crate) asked: Box<[AskedLimit]>,
    /// Whether one counts what is in flight: a check would never end.
    pub(crate) in_flight: bool,
    /// Whether one lets a request wait.
    pub(crate) waits: bool,
    pub(crate) told: ToldLimits,
    /// What a refusal for lack of an identity is about, where that differs.
    refusal: Option<ToldLimits>,
}

impl BoundLimits {
    /// What a refusal for lack of an identity is about.
    pub(crate) fn refusal(&self) -> &ToldLimits {
        self.refusal.as_ref().unwrap_or(&self.told)
    }
}

/// Limits as clients are told of them, and as they are counted.
#[derive(Debug)]
pub(crate) struct ToldLimits {
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

impl ToldLimits {
    /// Of a decision that no limit was asked for.
    pub(crate) fn none() -> Self {
        Self { limits: Limits { all: vec![], policy: None }, policy: None, rules: [].into() }
    }

    fn new<'a>(policy: &Policy, rules: impl Iterator<Item = (usize, &'a [RuleLimit])>) -> Result<Self, LeftToPython> {
        let (mut all, mut items, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        for (rule, limits) in rules {
            let (shadow, start) = (policy.rules[rule].shadow, all.len());
            for limit in limits {
                all.push(limit.told.clone());
                if !limit.told.form.shadow {
                    items.push(&*limit.policy_item);
                }
            }
            counted.push(CountedRule { rule, shadow, limits: start..all.len() });
        }
        let text = (!items.is_empty()).then(|| items.join(", ").into_boxed_str());
        let value = text.as_deref().map(|text| HeaderValue::try_from(text).map_err(|_| LeftToPython)).transpose()?;
        Ok(Self { limits: Limits { all, policy: text }, policy: value, rules: counted.into() })
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
    pub(crate) fn count(&self, answer: &Answer, own: Own<'_>) {
        let readings = answer.readings.all();
        if readings.is_empty() {
            own.count_without_rule(answer.allowed);
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
            own.count(rule.rule, outcome);
        }
    }
}

/// Puts the limits of rules together.
pub(crate) struct Binder<'a, T> {
    pub(crate) policy: &'a Policy,
    pub(crate) rules: &'a [OwnLimits],
    pub(crate) table: &'a T,
}

impl<T: Table> Bind for Binder<'_, T> {
    type Limits = Arc<BoundLimits>;
    type Error = LeftToPython;

    fn bind(&self, rules: &[usize], tier: &str) -> Result<Arc<BoundLimits>, LeftToPython> {
        let of_tier = self.limits_of(rules, tier)?;
        let (mut asked, mut groups) = (Vec::new(), 0);
        for (index, limits) in &of_tier {
            let rule = &self.policy.rules[*index];
            let units = rule.units(tier);
            for limit in *limits {
                let group = units.iter().position(|unit| *unit == limit.unit).ok_or(LeftToPython)?;
                asked.push(AskedLimit { limit: Arc::clone(&limit.limit), shadow: rule.shadow, group: groups + group });
            }
            groups += units.len();
        }
        let limits: Vec<_> = asked.iter().map(|one| Arc::clone(&one.limit)).collect();
        if !self.table.fits(&limits) {
            return Err(LeftToPython);
        }
        let told = ToldLimits::new(self.policy, of_tier.into_iter())?;
        let refusal = match tier {
            ANY_TIER => None,
            _ => Some(ToldLimits::new(self.policy, self.limits_of(rules, ANY_TIER)?.into_iter())?),
        };
        Ok(Arc::new(BoundLimits {
            in_flight: limits.iter().any(|limit| limit.limit.algorithm == Algorithm::Concurrent),
            waits: rules.iter().any(|index| self.rules[*index].waits),
            asked: asked.into(),
            told,
            refusal,
        }))
    }
}

impl<'a, T> Binder<'a, T> {
    fn limits_of(&self, rules: &[usize], tier: &str) -> Result<Vec<(usize, &'a [RuleLimit])>, LeftToPython> {
        rules.iter().map(|index| Ok((*index, self.rules[*index].of(tier).ok_or(LeftToPython)?))).collect()
    }
}
