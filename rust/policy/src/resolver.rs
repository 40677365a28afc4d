//! From a subject to the query for a store: the limits of the rules that apply, their keys and their costs.
//!
//! A `Resolver` has one policy, and limits that its creator bound to one store. Its caches are bounded, and read
//! without a lock.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustc_hash::FxHasher;

use crate::cache::Cache;
use crate::compiled::Policy;
use crate::matching::{Candidates, Chosen, Kind, Matcher};
use crate::path_match::{Matched, PathMatch};
use crate::selection::{Bind, Resolved, Selection};
use crate::subject::Subject;

const LEAST_PLANS: usize = 64;
const MOST_PLANS: usize = 4096;
const MOST_SELECTIONS: usize = 1024;
/// Entries that each cache retains beyond these, as long as they are used.
const MOST_RECENT: usize = 512;

/// One policy on one store.
pub struct Resolver<L> {
    matcher: Matcher,
    /// Of the kinds of a policy that names no hosts, where these are few enough for each to have a place: by ruleset,
    /// then by their numbers.
    plain: Box<[OnceLock<Plan<L>>]>,
    plans: Cache<PlanKey, Plan<L>>,
    /// Of lists of hosts and of paths that are read in several ways: clients can make up any number, which must
    /// not take the room of the others.
    unusual_plans: Cache<PlanKey, Plan<L>>,
    /// Of all plans whose rules headers or the client's address decide: by the plan's number, and which of its rules.
    selections: Cache<(u64, Chosen), Selection<L>>,
    /// The number of the next plan.
    next_plan: AtomicU64,
}

/// The kind of a method, hosts and a path under a policy, and the ruleset that is checked.
#[derive(PartialEq)]
struct PlanKey {
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

impl PlanKey {
    #[inline]
    fn is(&self, kind: &Kind, matched: &Matched<'_>, ruleset: usize) -> bool {
        let same_paths = match (&self.paths, matched.number) {
            (Paths::Known(known), Some(number)) => *known == number,
            (Paths::Other(paths), None) => *paths == *matched.paths,
            _ => false,
        };
        same_paths && self.kind == *kind && self.ruleset == ruleset
    }
}

/// The rules for subjects of one kind, as far as they are known in advance.
struct Plan<L> {
    number: u64,
    candidates: Candidates,
    /// The rules that apply whatever else a subject has; None where headers or its client's address decide.
    always: Option<Selection<L>>,
}

impl<L> Resolver<L> {
    /// A policy whose limits are yet to be bound.
    pub fn new(policy: Policy) -> Self {
        let matcher = Matcher::new(policy);
        let kinds = matcher.kinds().saturating_mul(matcher.policy.rulesets.len());
        let plain = matcher.plain_kinds().saturating_mul(matcher.policy.rulesets.len());
        let plain = if plain <= MOST_PLANS { plain } else { 0 };
        Self {
            plain: (0..plain).map(|_| OnceLock::new()).collect(),
            plans: Cache::new(kinds.clamp(LEAST_PLANS, MOST_PLANS), MOST_RECENT),
            unusual_plans: Cache::new(0, MOST_RECENT),
            selections: Cache::new(MOST_SELECTIONS, MOST_RECENT),
            next_plan: AtomicU64::new(0),
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

    /// Visit all limits that were bound and are cached, except for some of those that another thread is looking up.
    pub fn visit_limits<E>(&self, mut visit: impl FnMut(&L) -> Result<(), E>) -> Result<(), E> {
        let mut visit_plan = |plan: &Plan<L>| plan.always.iter().flat_map(Selection::limits).try_for_each(&mut visit);
        self.plain.iter().filter_map(OnceLock::get).try_for_each(&mut visit_plan)?;
        for plans in [&self.plans, &self.unusual_plans] {
            plans.visit(&mut visit_plan)?;
        }
        self.selections.visit(|selection| selection.limits().try_for_each(&mut visit))
    }

    /// Call `then` with the rules of a ruleset that apply to a subject.
    pub fn resolve<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        subject: &S,
        ruleset: usize,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        let matched = self.matcher.match_subject(subject)?;
        if let Some(number) = matched.number
            && !self.plain.is_empty()
        {
            let place = ruleset * self.matcher.plain_kinds() + self.matcher.plain_kind(subject, number)?;
            if let Some(place) = self.plain.get(place) {
                let plan = match place.get() {
                    Some(plan) => plan,
                    None => {
                        let plan = self.plan(&self.matcher.kind(subject)?, &matched.paths, ruleset);
                        place.get_or_init(|| plan)
                    }
                };
                return self.in_plan(plan, subject, bind, then);
            }
        }
        self.resolve_by_name(subject, matched, ruleset, bind, then)
    }

    /// `resolve` of a kind that has no place of its own.
    fn resolve_by_name<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        subject: &S,
        matched: Matched<'_>,
        ruleset: usize,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        let kind = self.matcher.kind(subject)?;
        let mut hasher = FxHasher::default();
        (&kind, ruleset).hash(&mut hasher);
        match matched.number {
            Some(number) => number.hash(&mut hasher),
            None => matched.paths.hash(&mut hasher),
        }
        let hash = hasher.finish();
        let plans = if kind.has_several_hosts() || matched.is_unusual { &self.unusual_plans } else { &self.plans };
        if let Some(plan) = plans.find(hash, |key| key.is(&kind, &matched, ruleset)) {
            return self.in_plan(plan, subject, bind, then);
        }
        let matches = |key: &PlanKey| key.is(&kind, &matched, ruleset);
        let entry = plans.find_recent(hash, matches).unwrap_or_else(|| {
            let plan = self.plan(&kind, &matched.paths, ruleset);
            let paths = matched.number.map_or_else(|| Paths::Other(matched.paths.clone().into_owned()), Paths::Known);
            plans.get_or_insert(hash, PlanKey { kind: kind.clone(), paths, ruleset }, plan)
        });
        self.in_plan(&entry.1, subject, bind, then)
    }

    fn in_plan<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        plan: &Plan<L>,
        subject: &S,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        if let Some(selection) = &plan.always {
            return selection.resolve(self.policy(), subject, bind, then);
        }
        let chosen = self.matcher.select(&plan.candidates, subject)?;
        let mut hasher = FxHasher::default();
        (plan.number, &chosen).hash(&mut hasher);
        let (hash, selections) = (hasher.finish(), &self.selections);
        let matches = |key: &(u64, Chosen)| key.0 == plan.number && key.1 == chosen;
        if let Some(selection) = selections.find(hash, matches) {
            return selection.resolve(self.policy(), subject, bind, then);
        }
        let entry = selections.find_recent(hash, matches).unwrap_or_else(|| {
            let selection = self.selection(&plan.candidates, &chosen);
            selections.get_or_insert(hash, (plan.number, chosen.clone()), selection)
        });
        entry.1.resolve(self.policy(), subject, bind, then)
    }

    #[cold]
    fn plan(&self, kind: &Kind, paths: &PathMatch, ruleset: usize) -> Plan<L> {
        let candidates = self.matcher.candidates(kind, paths, ruleset);
        let number = self.next_plan.fetch_add(1, Relaxed);
        let always = if candidates.look_further {
            None
        } else {
            Some(self.selection(&candidates, &self.matcher.always(&candidates)))
        };
        Plan { number, candidates, always }
    }

    #[cold]
    fn selection(&self, candidates: &Candidates, chosen: &Chosen) -> Selection<L> {
        Selection::new(self.policy(), chosen.iter().map(|place| &candidates.rules[usize::from(*place)]))
    }
}
