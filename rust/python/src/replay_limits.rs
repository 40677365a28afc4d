//! The queries to limits for the requests of a log: the steps of judging one.
//!
//! Many requests take each step together where possible, for each of them waits for other memory.

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
use crate::gate_subject::ReadError;
use crate::replay_keys::{NO_KEY, Parts};
use crate::replay_sums::Sums;

const HIT: Mode = Mode { commit: true, max_delay_us: None };

/// The moment of a refused request, and the rules that refuse it, by their places in the policy, each with its key;
/// None for one that passes.
pub type JudgedRefusal = Option<(i64, Vec<(usize, Parts)>)>;

/// The query to some rules for one tier, without its keys.
struct RuleQuery {
    /// None where no rule applies.
    bound: Option<Py<BoundLimits>>,
    groups: Box<[Group]>,
    /// Each rule that has limits, with the place of its key.
    rules: Box<[(usize, usize)]>,
    /// The places of these rules in the policy.
    places: Box<[usize]>,
    /// The number of the set of rules that are counted together.
    rule_set: usize,
}

impl RuleQuery {
    /// Whether it has the rules and the keys of the resolved request; the limits are compared by their address.
    fn matches(&self, resolved: &Resolved<'_, Limits>) -> bool {
        let selected = &resolved.selection.rules;
        let same = |(one, other): (&Group, &Group)| one.rule == other.rule && one.key == other.key;
        self.groups.len() == resolved.query.groups.len()
            && self.groups.iter().zip(&resolved.query.groups).all(same)
            && self.rules.iter().zip(&self.places).all(|((rule, _), place)| selected[*rule] == *place)
    }
}

/// A request that is prepared: its query and its keys.
pub struct PreparedRequest {
    time_us: i64,
    cost: i64,
    query: usize,
    /// The hash of each key of its rules.
    hashes: SmallVec<[KeyHash; 4]>,
    /// For each rule whether it refuses for lack of an identity, where one does.
    refused: SmallVec<[bool; 4]>,
    /// The place where its keys are counted.
    key_place: u32,
}

/// All queries so far.
#[derive(Default)]
pub struct RuleQueries {
    queries: Vec<RuleQuery>,
    /// By the address of the limits, which stay alive.
    by_limits: FxHashMap<usize, SmallVec<[usize; 1]>>,
    last: usize,
}

impl RuleQueries {
    /// Prepare a request: find its query and its keys.
    #[inline]
    pub fn prepare<S: Subject<Error = ReadError>>(
        &mut self,
        gate: &NativeGate,
        sums: &mut Sums,
        subject: &S,
        time_us: i64,
        cost: i64,
    ) -> Result<PreparedRequest, ReadError> {
        let bind = DetachedBinder(&gate.resolver);
        gate.gate.resolve(subject, gate.all_rules(), &bind, |resolved| {
            let query = self.query_for(sums, resolved)?;
            let (mut hashes, mut refused) = (SmallVec::new(), SmallVec::new());
            if let Some(bound) = &self.queries[query].bound {
                let seed = bound.get().seed();
                match resolved.refused() {
                    None => resolved.hash_keys(seed, &mut hashes)?,
                    Some(lacking) => {
                        resolved.hash_present_keys(seed, NO_KEY, &mut hashes)?;
                        // As `headgate.policy.resolver.Resolver.refusal_of` decides, by limits for any tier.
                        let rules = &gate.policy().rules;
                        let has_limits =
                            |rule: usize| !rules[resolved.selection.rules[rule]].units(ANY_TIER).is_empty();
                        let limited = self.queries[query].rules.iter();
                        refused = limited.map(|(rule, _)| lacking[*rule] && has_limits(*rule)).collect();
                        if !refused.contains(&true) {
                            return Err(ReadError::NeedsPython);
                        }
                    }
                }
            }
            Ok(PreparedRequest { time_us, cost, query, hashes, refused, key_place: 0 })
        })
    }

    /// The index of the query of a request; an error where the native core does not decide it.
    #[inline]
    fn query_for(&mut self, sums: &mut Sums, resolved: &Resolved<'_, Limits>) -> Result<usize, ReadError> {
        let bound = match &resolved.query.limits {
            None => None,
            Some(limits) => Some(limits.native.as_ref().ok_or(ReadError::NeedsPython)?),
        };
        let address = bound.map_or(0, |bound| bound.as_ptr().addr());
        let address_of = |query: &RuleQuery| query.bound.as_ref().map_or(0, |bound| bound.as_ptr().addr());
        if self.queries.get(self.last).is_some_and(|last| address_of(last) == address && last.matches(resolved)) {
            return Ok(self.last);
        }
        let candidates = self.by_limits.get(&address).into_iter().flatten();
        self.last = match candidates.copied().find(|index| self.queries[*index].matches(resolved)) {
            Some(index) => index,
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
        // The groups of a rule are adjacent.
        let mut rules: Vec<(usize, usize)> = groups.iter().map(|group| (group.rule, group.key)).collect();
        rules.dedup_by_key(|(rule, _)| *rule);
        let places: Box<[usize]> = rules.iter().map(|(rule, _)| resolved.selection.rules[*rule]).collect();
        let bound = bound.map(|bound| Python::attach(|py| bound.clone_ref(py)));
        let rule_set = sums.rule_set_of(&places);
        self.queries.push(RuleQuery { bound, groups, rules: rules.into(), places, rule_set });
        self.by_limits.entry(address).or_default().push(self.queries.len() - 1);
        self.queries.len() - 1
    }

    /// Count the keys of a request.
    #[inline]
    pub fn count_keys<S: Subject<Error = ReadError>>(
        &self,
        gate: &NativeGate,
        sums: &mut Sums,
        subject: &S,
        request: &mut PreparedRequest,
    ) -> Result<(), ReadError> {
        let query = &self.queries[request.query];
        let keys = query.rules.iter().map(|(_, key)| request.hashes[*key]);
        request.key_place = match sums.count_keys(query.rule_set, keys.clone()) {
            Some(key_place) => key_place,
            None => sums.count_new_keys(query.rule_set, keys.collect(), parts_of(gate, subject, &query.rules)?)?,
        };
        Ok(())
    }

    /// Prefetch the states that decide a request.
    #[inline]
    pub fn fetch(&self, request: &PreparedRequest) {
        let query = &self.queries[request.query];
        if let (Some(bound), true) = (&query.bound, request.refused.is_empty()) {
            bound.get().fetch_groups(|group| request.hashes[query.groups[group].key]);
        }
    }

    /// Decide, charge and count.
    #[inline]
    pub fn decide(
        &self,
        sums: &mut Sums,
        request: PreparedRequest,
        report: Option<&mut impl FnMut(JudgedRefusal)>,
    ) -> Result<(), ReadError> {
        let PreparedRequest { time_us, cost, query, hashes, refused: mut refusing, key_place } = request;
        let query = &self.queries[query];
        let mut allowed = refusing.is_empty();
        if let (Some(bound), true) = (&query.bound, allowed) {
            let (bound, cost) = (bound.get(), Cost { times: cost, amounts: &[] });
            let of_group = |group: usize| (hashes[query.groups[group].key], cost.of(&query.groups[group]));
            let answer = bound.answer_groups(query.groups.len(), of_group, time_us, HIT)?;
            allowed = answer.allowed;
            for (reading, group) in answer.readings.all().iter().zip(bound.group_of()) {
                if !reading.allowed() {
                    refusing.resize(query.rules.len(), false);
                    let rule = query.groups[usize::from(*group)].rule;
                    let index = query.rules.iter().position(|(limited, _)| *limited == rule);
                    index.into_iter().for_each(|index| refusing[index] = true);
                }
            }
        }
        sums.begin_step(time_us);
        if refusing.is_empty() {
            sums.count_passed(query.rule_set, cost);
        } else {
            sums.count_refused_keys(query.rule_set, key_place, &refusing);
            sums.count_refused(query.rule_set, time_us, allowed, &refusing, cost);
        }
        if let Some(report) = report {
            let each = query.rules.iter().zip(&query.places).zip(&refusing).filter(|(_, refuses)| **refuses);
            let by = each.map(|(((_, key), place), _)| (*place, sums.parts_of(hashes[*key])));
            report((!allowed).then(|| (time_us, by.collect())));
        }
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.queries.iter().try_for_each(|query| visit.call(&query.bound))
    }
}

/// The texts of the keys of these rules.
#[cold]
fn parts_of<S: Subject<Error = ReadError>>(
    gate: &NativeGate,
    subject: &S,
    rules: &[(usize, usize)],
) -> Result<SmallVec<[Parts; 4]>, ReadError> {
    gate.gate.resolve(subject, gate.all_rules(), &DetachedBinder(&gate.resolver), |resolved| {
        let owned = |key: selection::Parts<'_>| key.iter().map(|part| Box::from(*part)).collect();
        let all: SmallVec<[Parts; 4]> = resolved.keys().map(|key| key.map(owned)).collect();
        Ok(rules.iter().map(|(_, key)| all[*key].clone()).collect())
    })
}
