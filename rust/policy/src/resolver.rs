//! From a subject to what a store is asked: the limits of the rules that apply, their keys and their costs.
//!
//! A `Resolver` has one policy, and limits bound to one store by whoever made it. What it remembers is bounded, and
//! read without a lock.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::compiled::Policy;
use crate::matching::{Candidates, Chosen, Kind, Matcher};
use crate::path_match::{Matched, PathMatch};
use crate::remembered::Remembered;
use crate::selection::{Bind, Resolved, Selection};
use crate::subject::Subject;

const LEAST_PLANS: usize = 64;
const MOST_PLANS: usize = 4096;
const MOST_ODD_PLANS: usize = 256;
const MOST_SELECTIONS: usize = 128;

/// One policy on one store.
pub struct Resolver<L> {
    matcher: Matcher,
    plans: Remembered<PlanName, Plan<L>>,
    /// Of lists of hosts and of paths that are read in several ways: clients make up as many as they like, which must
    /// not take the room of the others.
    odd_plans: Remembered<PlanName, Plan<L>>,
}

/// What a policy sees in a method, hosts and a path, and which of its rules are asked.
#[derive(PartialEq)]
struct PlanName {
    kind: Kind,
    paths: Paths,
    ruleset: usize,
}

/// Whose templates match a path.
#[derive(PartialEq, Eq, Hash)]
enum Paths {
    /// By the number of a match that is known in advance.
    Known(u32),
    /// Of a path with forms that match differently.
    Other(PathMatch),
}

impl PlanName {
    #[inline]
    fn is(&self, kind: &Kind, matched: &Matched<'_>, ruleset: usize) -> bool {
        let same_paths = match (&self.paths, matched.number) {
            (Paths::Known(own), Some(number)) => *own == number,
            (Paths::Other(own), None) => *own == *matched.paths,
            _ => false,
        };
        same_paths && self.kind == *kind && self.ruleset == ruleset
    }
}

/// What is known in advance of subjects of one kind.
struct Plan<L> {
    candidates: Candidates,
    /// The rules that apply whatever else a subject has; None where headers or its client's address decide.
    always: Option<Selection<L>>,
    selections: Remembered<Chosen, Selection<L>>,
}

impl<L> Resolver<L> {
    /// A policy whose limits are yet to be bound.
    pub fn new(policy: Policy) -> Self {
        let matcher = Matcher::new(policy);
        let kinds = matcher.kinds().saturating_mul(matcher.policy.rulesets.len());
        Self {
            plans: Remembered::new(kinds.clamp(LEAST_PLANS, MOST_PLANS)),
            odd_plans: Remembered::new(MOST_ODD_PLANS),
            matcher,
        }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.matcher.policy
    }

    /// The number of the ruleset of a name.
    pub fn ruleset(&self, name: &str) -> Option<usize> {
        self.policy().rulesets.iter().position(|ruleset| *ruleset.name == *name)
    }

    /// All limits that were bound and are remembered.
    pub fn limits(&self) -> impl Iterator<Item = &L> {
        let plans = self.plans.values().chain(self.odd_plans.values());
        plans.flat_map(|plan| plan.always.iter().chain(plan.selections.values())).flat_map(Selection::limits)
    }

    /// Call `then` with what applies to a subject, of the rules of a ruleset.
    pub fn resolve<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        subject: &S,
        ruleset: usize,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        let kind = self.matcher.kind(subject)?;
        let matched = self.matcher.match_path(subject.path()?);
        let mut hasher = FxHasher::default();
        (&kind, ruleset).hash(&mut hasher);
        match matched.number {
            Some(number) => number.hash(&mut hasher),
            None => matched.paths.hash(&mut hasher),
        }
        let hash = hasher.finish();
        let plans = if kind.is_odd() || matched.is_odd { &self.odd_plans } else { &self.plans };
        if let Some(plan) = plans.find(hash, |name| name.is(&kind, &matched, ruleset)) {
            return self.in_plan(plan, subject, bind, then);
        }
        let plan = self.plan(&kind, &matched.paths, ruleset);
        let paths = matched.number.map_or_else(|| Paths::Other(matched.paths.into_owned()), Paths::Known);
        let made = plans.keep(hash, PlanName { kind, paths, ruleset }, plan);
        self.in_plan(&made.1, subject, bind, then)
    }

    fn in_plan<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        plan: &Plan<L>,
        subject: &S,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        if let Some(selection) = &plan.always {
            return then(&selection.resolved(self.policy(), subject, bind)?);
        }
        let chosen = self.matcher.select(&plan.candidates, subject)?;
        let mut hasher = FxHasher::default();
        chosen.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(selection) = plan.selections.find(hash, |name| *name == chosen) {
            return then(&selection.resolved(self.policy(), subject, bind)?);
        }
        let selection = self.selection(&plan.candidates, &chosen);
        let made = plan.selections.keep(hash, chosen, selection);
        then(&made.1.resolved(self.policy(), subject, bind)?)
    }

    #[cold]
    fn plan(&self, kind: &Kind, paths: &PathMatch, ruleset: usize) -> Plan<L> {
        let candidates = self.matcher.candidates(kind, paths, ruleset);
        if candidates.look_further {
            let open = candidates.rules.len().min(usize::BITS as usize - 1);
            let most = MOST_SELECTIONS.min(1 << open.min(16));
            return Plan { candidates, always: None, selections: Remembered::new(most) };
        }
        let chosen = self.matcher.always(&candidates);
        let always = Some(self.selection(&candidates, &chosen));
        Plan { candidates, always, selections: Remembered::new(0) }
    }

    #[cold]
    fn selection(&self, candidates: &Candidates, chosen: &Chosen) -> Selection<L> {
        Selection::new(self.policy(), chosen.iter().map(|place| &candidates.rules[usize::from(*place)]))
    }
}
