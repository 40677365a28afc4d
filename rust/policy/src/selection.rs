//! Rules that apply together: which identities they read, how their keys are built, and which limits they check.

use std::sync::OnceLock;

use headgate_core::hash::{KeyHash, Seed};
use smallvec::SmallVec;

use crate::compiled::{ANY_TIER, Policy};
use crate::costs::Group;
use crate::extract::{Extracted, extract, tier_of};
use crate::identity::{ANONYMOUS, EVERYONE, Identity, REPEATED_IDENTITY, Source};
use crate::keys::hash_key;
use crate::matching::Candidate;
use crate::subject::Subject;
use crate::value::NeedsPython;

/// Binds limits to a store.
pub trait Bind {
    /// Limits bound to it.
    type Limits;
    /// Why they could not be bound.
    type Error;

    /// The limits of these rules, by their places in the policy, for a tier.
    fn bind(&self, rules: &[usize], tier: &str) -> Result<Self::Limits, Self::Error>;
}

/// The parts of a key.
pub type Parts<'a> = SmallVec<[&'a str; 4]>;

/// The query to the limits of some rules for one tier, without its keys.
pub struct TierQuery<L> {
    /// The limits; None where no rule applies.
    pub limits: Option<L>,
    /// Each unit that a rule's limits count is a group, with the rule's key and a cost of its own.
    pub groups: Box<[Group]>,
}

/// An identity as a rule's key reads it, with the endpoint of a request whose framework reports none.
#[derive(Clone, Debug, PartialEq)]
struct Extractor {
    identity: Identity,
    template: Box<str>,
}

/// How a rule's key is built from the values that extractors give.
#[derive(Clone, Debug, PartialEq)]
struct Recipe {
    members: SmallVec<[usize; 2]>,
    refuses_missing: bool,
    refuses_repeated: bool,
}

/// Rules that apply together, and all that is known in advance about subjects that they apply to.
pub struct Selection<L> {
    /// Their places in the policy.
    pub rules: Box<[usize]>,
    extractors: Box<[Extractor]>,
    recipes: Box<[Recipe]>,
    /// The recipe of each rule's key.
    recipe_of: Box<[usize]>,
    /// The tiers that the limits depend on; none where they depend on no tier.
    tiers: Box<[Box<str>]>,
    /// Of each of these tiers, and of all others.
    queries: Box<[OnceLock<TierQuery<L>>]>,
}

impl<L> Selection<L> {
    /// Of candidates that apply.
    pub fn new<'a>(policy: &'a Policy, chosen: impl Iterator<Item = &'a Candidate>) -> Self {
        let (mut rules, mut recipe_of) = (Vec::new(), Vec::new());
        let (mut extractors, mut recipes, mut tiers) = (Vec::new(), Vec::new(), Vec::new());
        for candidate in chosen {
            let rule = &policy.rules[candidate.rule];
            let members = rule.key.members.iter().map(|identity| {
                let template = if identity.source == Source::Endpoint { candidate.template.clone() } else { "".into() };
                place_of(&mut extractors, Extractor { identity: identity.clone(), template })
            });
            let (refuses_missing, refuses_repeated) = (rule.key.refuses_missing, rule.key.refuses_repeated);
            let recipe = Recipe { members: members.collect(), refuses_missing, refuses_repeated };
            recipe_of.push(place_of(&mut recipes, recipe));
            if rule.is_tiered() {
                for limits in &rule.limits {
                    place_of(&mut tiers, limits.tier.clone());
                }
            }
            rules.push(candidate.rule);
        }
        Self {
            rules: rules.into(),
            extractors: extractors.into(),
            recipes: recipes.into(),
            recipe_of: recipe_of.into(),
            queries: (0..=tiers.len()).map(|_| OnceLock::new()).collect(),
            tiers: tiers.into(),
        }
    }

    /// All limits that were bound.
    pub fn limits(&self) -> impl Iterator<Item = &L> {
        self.queries.iter().filter_map(OnceLock::get).filter_map(|query| query.limits.as_ref())
    }

    /// Call `then` with the query and the keys for a subject that these rules apply to.
    #[inline]
    pub fn resolve<S: Subject, B: Bind<Limits = L, Error = S::Error>, R>(
        &self,
        policy: &Policy,
        subject: &S,
        bind: &B,
        then: impl for<'a> FnOnce(&Resolved<'a, L>) -> Result<R, S::Error>,
    ) -> Result<R, S::Error> {
        let query = self.query_for(policy, subject, bind)?;
        let mut resolved = Resolved { selection: self, query, extracted: SmallVec::new() };
        for one in &self.extractors {
            resolved.extracted.push(extract(&one.identity, &one.template, subject)?);
        }
        then(&resolved)
    }

    #[inline]
    fn query_for<S: Subject, B: Bind<Limits = L, Error = S::Error>>(
        &self,
        policy: &Policy,
        subject: &S,
        bind: &B,
    ) -> Result<&TierQuery<L>, S::Error> {
        let place = match &policy.tiers {
            Some(tiers) if !self.tiers.is_empty() => {
                let tier = tier_of(tiers, subject)?;
                self.tiers.iter().position(|one| **one == *tier).unwrap_or(self.tiers.len())
            }
            _ => self.tiers.len(),
        };
        if let Some(query) = self.queries[place].get() {
            return Ok(query);
        }
        let tier = self.tiers.get(place).map_or(ANY_TIER, |tier| &**tier);
        let query = self.new_query(policy, tier, bind)?;
        Ok(self.queries[place].get_or_init(|| query))
    }

    #[cold]
    fn new_query<B: Bind<Limits = L>>(&self, policy: &Policy, tier: &str, bind: &B) -> Result<TierQuery<L>, B::Error> {
        let mut groups = Vec::new();
        for (rule, index) in self.rules.iter().enumerate() {
            let definition = &policy.rules[*index];
            groups.extend(definition.units(tier).iter().map(|unit| Group {
                rule,
                key: self.recipe_of[rule],
                unit: *unit,
                cost: definition.costs[*unit],
            }));
        }
        let limits = if self.rules.is_empty() { None } else { Some(bind.bind(&self.rules, tier)?) };
        Ok(TierQuery { limits, groups: groups.into() })
    }
}

/// The rules that apply to a subject, the query to their limits, and the keys.
pub struct Resolved<'a, L> {
    /// The rules.
    pub selection: &'a Selection<L>,
    /// The query to their limits.
    pub query: &'a TierQuery<L>,
    extracted: SmallVec<[Extracted<'a>; 4]>,
}

impl<'a, L> Resolved<'a, L> {
    /// For each rule whether it refuses for lack of an identity, where one does.
    #[inline]
    pub fn refused(&self) -> Option<Vec<bool>> {
        if self.extracted.iter().all(|extracted| matches!(extracted, Extracted::Present { .. })) {
            return None;
        }
        let recipes = &self.selection.recipes;
        if !recipes.iter().any(|recipe| self.refuses(recipe)) {
            return None; // their keys have stand-ins for what is missing
        }
        Some(self.selection.recipe_of.iter().map(|recipe| self.refuses(&recipes[*recipe])).collect())
    }

    /// Add the hashes of the keys, each once: `Group::key` says which is a group's.
    #[inline]
    pub fn hash_keys(&self, seed: &Seed, hashes: &mut SmallVec<[KeyHash; 4]>) -> Result<(), NeedsPython> {
        for recipe in &self.selection.recipes {
            hashes.push(self.hash_of(recipe, seed).ok_or(NeedsPython)?);
        }
        Ok(())
    }

    /// `hash_keys` where a rule refuses for lack of an identity: `none` stands for the key of one that does.
    #[cold]
    pub fn hash_present_keys(
        &self,
        seed: &Seed,
        none: KeyHash,
        hashes: &mut SmallVec<[KeyHash; 4]>,
    ) -> Result<(), NeedsPython> {
        for recipe in &self.selection.recipes {
            let refuses = self.refuses(recipe);
            hashes.push(if refuses { none } else { self.hash_of(recipe, seed).ok_or(NeedsPython)? });
        }
        Ok(())
    }

    /// The parts of the keys, each key once; None for that of a rule that refuses.
    pub fn keys(&self) -> impl Iterator<Item = Option<Parts<'_>>> {
        self.selection.recipes.iter().map(|recipe| (!self.refuses(recipe)).then(|| self.parts_of(recipe)))
    }

    fn refuses(&self, recipe: &Recipe) -> bool {
        recipe.members.iter().any(|member| match self.extracted[*member] {
            Extracted::Missing => recipe.refuses_missing,
            Extracted::Repeated(_) => recipe.refuses_repeated,
            Extracted::Present { .. } => false,
        })
    }

    /// The hash of a key; that of one or two parts, as most are, is made without a list of them.
    #[inline]
    fn hash_of(&self, recipe: &Recipe, seed: &Seed) -> Option<KeyHash> {
        match recipe.members[..] {
            [only] => match self.one_or_two(only) {
                Some((None, value)) => return hash_key(&[value], seed),
                Some((Some(name), value)) => return hash_key(&[name, value], seed),
                None => {}
            },
            [one, other] => {
                if let (Some((None, one)), Some((None, other))) = (self.one_or_two(one), self.one_or_two(other)) {
                    return hash_key(&[one, other], seed);
                }
            }
            _ => {}
        }
        self.hash_of_parts(recipe, seed)
    }

    /// The parts that an extractor gave, or that stand in for a missing identity, where there are no more than two.
    #[inline]
    fn one_or_two(&self, member: usize) -> Option<(Option<&str>, &str)> {
        match &self.extracted[member] {
            Extracted::Present { names, value } => match names[..] {
                [] => Some((None, value)),
                [name] => Some((Some(name), value)),
                _ => None,
            },
            Extracted::Missing => Some((Some(ANONYMOUS), &*self.selection.extractors[member].identity.name)),
            Extracted::Repeated(_) => None,
        }
    }

    /// `hash_of` of any parts.
    #[inline(never)]
    fn hash_of_parts(&self, recipe: &Recipe, seed: &Seed) -> Option<KeyHash> {
        hash_key(&self.parts_of(recipe), seed)
    }

    /// `anonymous` and the name stand in for a missing identity.
    fn parts_of(&self, recipe: &Recipe) -> Parts<'_> {
        let mut parts = Parts::new();
        if recipe.members.is_empty() {
            parts.push(EVERYONE);
        }
        for member in &recipe.members {
            match &self.extracted[*member] {
                Extracted::Missing => parts.extend([ANONYMOUS, &*self.selection.extractors[*member].identity.name]),
                Extracted::Repeated(name) => parts.extend([REPEATED_IDENTITY, name]),
                Extracted::Present { names, value } => {
                    for name in names {
                        parts.push(name);
                    }
                    parts.push(value);
                }
            }
        }
        parts
    }
}

fn place_of<T: PartialEq>(known: &mut Vec<T>, one: T) -> usize {
    known.iter().position(|other| *other == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    })
}
