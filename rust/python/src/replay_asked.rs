//! What the limits are asked about a request of a log, and what they say: the steps of judging one.
//!
//! The steps of many requests are taken together where they can be, for each of them waits for other memory.

use headgate_core::hash::KeyHash;
use headgate_core::table::answer::Mode;
use headgate_policy::compiled::ANY_TIER;
use headgate_policy::costs::{Cost, Group};
use headgate_policy::selection::{self, Resolved};
use headgate_policy::subject::Subject;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::bound::BoundLimits;
use crate::gate::NativeGate;
use crate::gate_limits::{DetachedBinder, Limits};
use crate::gate_subject::Trouble;
use crate::replay_keys::{NO_KEY, Parts};
use crate::replay_sums::Sums;

const HIT: Mode = Mode { commit: true, max_delay_us: None };

/// The moment of a request that is refused, and the rules that do, by their places in the policy, each with its key;
/// None for one that passes.
pub type Told = Option<(i64, Vec<(usize, Parts)>)>;

/// What is asked of some rules for one tier, but for the keys.
struct Asked {
    /// None where no rule applies.
    bound: Option<Py<BoundLimits>>,
    groups: Box<[Group]>,
    /// Each rule that has limits, with the place of its key.
    rules: Box<[(usize, usize)]>,
    /// The places of these rules in the policy.
    places: Box<[usize]>,
    /// Which rules are counted together.
    together: usize,
}

impl Asked {
    /// Whether it is asked of other limits than those that are bound there, or by other keys.
    fn is(&self, resolved: &Resolved<'_, Limits>) -> bool {
        let all = &resolved.selection.rules;
        let same = |(one, other): (&Group, &Group)| one.rule == other.rule && one.key == other.key;
        self.groups.len() == resolved.query.groups.len()
            && self.groups.iter().zip(&resolved.query.groups).all(same)
            && self.rules.iter().zip(&self.places).all(|((rule, _), place)| all[*rule] == *place)
    }
}

/// A request that is prepared: which limits are asked, by which keys.
pub struct Waiting {
    time_us: i64,
    cost: i64,
    asked: usize,
    /// Of each key that its rules have.
    hashes: SmallVec<[KeyHash; 4]>,
    /// Of each rule whether it refuses for lack of an identity, where one does.
    refused: SmallVec<[bool; 4]>,
    /// Where its keys are counted.
    place: u32,
}

/// All that was asked so far.
#[derive(Default)]
pub struct AskedBefore {
    all: Vec<Asked>,
    /// By the address of the limits, which are kept.
    by_bound: FxHashMap<usize, SmallVec<[usize; 1]>>,
    last: usize,
}

impl AskedBefore {
    /// Which limits a request asks, and by which keys.
    #[inline]
    pub fn prepare<S: Subject<Error = Trouble>>(
        &mut self,
        gate: &NativeGate,
        sums: &mut Sums,
        subject: &S,
        time_us: i64,
        cost: i64,
    ) -> Result<Waiting, Trouble> {
        let bind = DetachedBinder(&gate.resolver);
        gate.gate.resolve(subject, gate.all_rules(), &bind, |resolved| {
            let asked = self.place_of(sums, resolved)?;
            let (mut hashes, mut refused) = (SmallVec::new(), SmallVec::new());
            if let Some(bound) = &self.all[asked].bound {
                let seed = bound.get().seed();
                match resolved.refused() {
                    None => resolved.hash_keys(seed, &mut hashes)?,
                    Some(lack) => {
                        resolved.hash_present_keys(seed, NO_KEY, &mut hashes)?;
                        // As `headgate.policy.resolver.Resolver.refusal_of` says it, by limits for any tier.
                        let all = &gate.policy().rules;
                        let has_limits = |rule: usize| !all[resolved.selection.rules[rule]].units(ANY_TIER).is_empty();
                        let rules = self.all[asked].rules.iter();
                        refused = rules.map(|(rule, _)| lack[*rule] && has_limits(*rule)).collect();
                        if !refused.contains(&true) {
                            return Err(Trouble::Python);
                        }
                    }
                }
            }
            Ok(Waiting { time_us, cost, asked, hashes, refused, place: 0 })
        })
    }

    /// Where what is asked is; only what the native core decides is asked here.
    #[inline]
    fn place_of(&mut self, sums: &mut Sums, resolved: &Resolved<'_, Limits>) -> Result<usize, Trouble> {
        let bound = match &resolved.query.limits {
            None => None,
            Some(limits) => Some(limits.native.as_ref().ok_or(Trouble::Python)?),
        };
        let address = bound.map_or(0, |bound| bound.as_ptr().addr());
        let address_of = |asked: &Asked| asked.bound.as_ref().map_or(0, |bound| bound.as_ptr().addr());
        if self.all.get(self.last).is_some_and(|last| address_of(last) == address && last.is(resolved)) {
            return Ok(self.last);
        }
        let known = self.by_bound.get(&address).into_iter().flatten();
        self.last = match known.copied().find(|place| self.all[*place].is(resolved)) {
            Some(place) => place,
            None => self.add(sums, bound, address, resolved),
        };
        Ok(self.last)
    }

    #[cold]
    fn add(
        &mut self,
        sums: &mut Sums,
        bound: Option<&Py<BoundLimits>>,
        address: usize,
        resolved: &Resolved<'_, Limits>,
    ) -> usize {
        let groups = resolved.query.groups.clone();
        // The groups of a rule stand together.
        let mut rules: Vec<(usize, usize)> = groups.iter().map(|group| (group.rule, group.key)).collect();
        rules.dedup_by_key(|(rule, _)| *rule);
        let places: Box<[usize]> = rules.iter().map(|(rule, _)| resolved.selection.rules[*rule]).collect();
        let bound = bound.map(|bound| Python::attach(|py| bound.clone_ref(py)));
        let together = sums.together(&places);
        self.all.push(Asked { bound, groups, rules: rules.into(), places, together });
        self.by_bound.entry(address).or_default().push(self.all.len() - 1);
        self.all.len() - 1
    }

    /// Count the keys of a request.
    #[inline]
    pub fn see<S: Subject<Error = Trouble>>(
        &self,
        gate: &NativeGate,
        sums: &mut Sums,
        subject: &S,
        waiting: &mut Waiting,
    ) -> Result<(), Trouble> {
        let asked = &self.all[waiting.asked];
        let keys = asked.rules.iter().map(|(_, key)| waiting.hashes[*key]);
        waiting.place = match sums.see(asked.together, keys.clone()) {
            Some(place) => place,
            None => sums.see_new(asked.together, keys.collect(), parts_of(gate, subject, &asked.rules)?)?,
        };
        Ok(())
    }

    /// Have the states that a request is decided by come from memory.
    #[inline]
    pub fn fetch(&self, waiting: &Waiting) {
        let asked = &self.all[waiting.asked];
        if let (Some(bound), true) = (&asked.bound, waiting.refused.is_empty()) {
            bound.get().fetch_groups(|group| waiting.hashes[asked.groups[group].key]);
        }
    }

    /// Decide, charge and count.
    #[inline]
    pub fn decide(
        &self,
        sums: &mut Sums,
        waiting: Waiting,
        tell: Option<&mut impl FnMut(Told)>,
    ) -> Result<(), Trouble> {
        let Waiting { time_us, cost, asked, hashes, refused: mut refusing, place } = waiting;
        let asked = &self.all[asked];
        let mut allowed = refusing.is_empty();
        if let (Some(bound), true) = (&asked.bound, allowed) {
            let (bound, cost) = (bound.get(), Cost { times: cost, amounts: &[] });
            let of_group = |group: usize| (hashes[asked.groups[group].key], cost.of(&asked.groups[group]));
            let answer = bound.answer_groups(asked.groups.len(), of_group, time_us, HIT)?;
            allowed = answer.allowed;
            for (reading, group) in answer.readings.all().iter().zip(bound.group_of()) {
                if !reading.allowed() {
                    refusing.resize(asked.rules.len(), false);
                    let rule = asked.groups[usize::from(*group)].rule;
                    let own = asked.rules.iter().position(|(own, _)| *own == rule);
                    own.into_iter().for_each(|own| refusing[own] = true);
                }
            }
        }
        sums.arrive(time_us);
        if refusing.is_empty() {
            sums.pass(asked.together, cost);
        } else {
            sums.refuse_keys(asked.together, place, &refusing);
            sums.refuse(asked.together, time_us, allowed, &refusing, cost);
        }
        if let Some(tell) = tell {
            let each = asked.rules.iter().zip(&asked.places).zip(&refusing).filter(|(_, refuses)| **refuses);
            let by = each.map(|(((_, key), place), _)| (*place, sums.parts_of(hashes[*key])));
            tell((!allowed).then(|| (time_us, by.collect())));
        }
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.all.iter().try_for_each(|asked| visit.call(&asked.bound))
    }
}

/// The texts of the keys of these rules.
#[cold]
fn parts_of<S: Subject<Error = Trouble>>(
    gate: &NativeGate,
    subject: &S,
    rules: &[(usize, usize)],
) -> Result<SmallVec<[Parts; 4]>, Trouble> {
    gate.gate.resolve(subject, gate.all_rules(), &DetachedBinder(&gate.resolver), |resolved| {
        let owned = |key: selection::Parts<'_>| key.iter().map(|part| Box::from(*part)).collect();
        let all: SmallVec<[Parts; 4]> = resolved.keys().map(|key| key.map(owned)).collect();
        Ok(rules.iter().map(|(_, key)| all[*key].clone()).collect())
    })
}
