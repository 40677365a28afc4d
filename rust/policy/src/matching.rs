//! Which rules of a policy apply to a subject.
//!
//! Which may apply depends on its method, host and path alone; headers, entries, the client's address and the tier are
//! left to be examined then. A `Matcher` is a policy prepared for that, once.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::compiled::{Conditions, Policy};
use crate::key_parts::hosts_of;
use crate::path_match::{Matched, PathMatch, rooted};
use crate::path_tree::PathTree;
use crate::plain_path::PlainPath;
use crate::sorted::sorted;
use crate::subject::Subject;
use crate::text::partition;

/// The endpoint of requests whose path no template of a rule has matched.
const ANY_PATH: &str = "/**";

/// A method and hosts as far as a policy distinguishes them, by number: 0 for all that it does not name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    method: usize,
    hosts: SmallVec<[usize; 2]>,
}

impl Kind {
    /// Whether it has several hosts that the policy distinguishes: there are more such lists than a cache can hold.
    pub fn has_several_hosts(&self) -> bool {
        self.hosts.len() > 1
    }
}

/// A rule that may apply to a subject, and the template that its path matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the policy.
    pub rule: usize,
    /// The endpoint of a request whose framework reports none.
    pub template: Box<str>,
}

/// The exemptions and rules that may apply, given the method, host and path of a subject.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// The exemptions, by their places in the policy.
    pub exempt: Vec<usize>,
    /// In the order of the policy.
    pub rules: Vec<Candidate>,
    /// Whether headers or the client's address decide which of these apply.
    pub look_further: bool,
}

/// Which of some candidates apply, by their places.
pub type Chosen = SmallVec<[u16; 16]>;

/// A policy, ready to be matched.
pub struct Matcher {
    /// The policy.
    pub policy: Policy,
    methods: Vec<Box<str>>,
    /// "" for all others, exact hosts, then parents.
    host_names: Vec<Box<str>>,
    /// The places of these.
    hosts: FxHashMap<Box<str>, usize>,
    parent_hosts: FxHashMap<Box<str>, usize>,
    /// Bytes of the longest of these.
    longest_parent: usize,
    paths: PathTree,
}

impl Matcher {
    /// A policy, ready to be matched.
    pub fn new(policy: Policy) -> Self {
        let policy = sorted(policy);
        let all_conditions = || policy.exempt.iter().chain(policy.rules.iter().map(|rule| &rule.conditions));
        let methods = each_once(all_conditions().flat_map(|conditions| &conditions.methods));
        let hosts = each_once(all_conditions().flat_map(|conditions| &conditions.hosts));
        let parents = each_once(all_conditions().flat_map(|conditions| &conditions.parent_hosts));
        let host_names: Vec<Box<str>> = [&["".into()], &*hosts, &*parents].concat();
        let longest_parent = parents.iter().map(|parent| parent.len()).max().unwrap_or(0);
        let parent_hosts = parents.into_iter().zip(1 + hosts.len()..).collect();
        let hosts = hosts.into_iter().zip(1..).collect();
        let rules = (0..).zip(policy.rules.iter().map(|rule| &rule.conditions));
        let exempt = (0..).zip(&policy.exempt).map(|(index, conditions)| (exemption(index), conditions));
        let paths = PathTree::new(
            rules
                .chain(exempt)
                .flat_map(|(owner, conditions)| conditions.paths.iter().map(move |template| (owner, &**template))),
        );
        Self { methods, host_names, hosts, parent_hosts, longest_parent, paths, policy }
    }

    /// How many kinds of subjects there may be of one host each, by their numbers; see `plain_kind`.
    pub fn plain_kinds(&self) -> usize {
        if self.host_names.len() > 1 { 0 } else { (self.methods.len() + 1).saturating_mul(self.paths.count()) }
    }

    /// The number of a subject's kind under a policy that names no hosts: below `plain_kinds`.
    #[inline]
    pub fn plain_kind<S: Subject>(&self, subject: &S, path_number: u32) -> Result<usize, S::Error> {
        Ok(self.method_number(subject)? * self.paths.count() + path_number as usize)
    }

    /// How many kinds of subjects there may be, except for those of unusual paths and of lists of hosts.
    pub fn kinds(&self) -> usize {
        (self.methods.len() + 1).saturating_mul(self.host_names.len()).saturating_mul(self.paths.count())
    }

    /// Whose templates match a path, which may carry a query that is ignored.
    #[inline]
    pub fn match_path(&self, path: &str) -> Matched<'_> {
        match self.paths.match_plain(PlainPath::before_query(path)) {
            Some(matched) => matched, // by far most
            None => self.paths.match_path(partition(path, '?').0),
        }
    }

    /// Whose templates match the path of a subject.
    #[inline]
    pub fn match_subject<S: Subject>(&self, subject: &S) -> Result<Matched<'_>, S::Error> {
        let matched = self.match_path(subject.path()?);
        Ok(match subject.other_path()? {
            None => matched,
            Some(other) => rooted(matched, &self.match_path(&other)),
        })
    }

    /// The kind of a subject: its method and hosts as the policy distinguishes them.
    pub fn kind<S: Subject>(&self, subject: &S) -> Result<Kind, S::Error> {
        let method = self.method_number(subject)?;
        let mut hosts: SmallVec<[usize; 2]> = SmallVec::new();
        if self.host_names.len() == 1 {
            hosts.push(0);
            return Ok(Kind { method, hosts });
        }
        for host in hosts_of(subject.host()?)? {
            hosts.push(self.host_kind(&host));
        }
        if hosts.len() > 1 {
            hosts.sort_unstable();
            hosts.dedup();
        }
        Ok(Kind { method, hosts })
    }

    /// The place of a subject's method among those that the policy names, from 1 on; 0 for any other.
    #[inline]
    fn method_number<S: Subject>(&self, subject: &S) -> Result<usize, S::Error> {
        let sent = if self.methods.is_empty() { "" } else { subject.method()? };
        Ok(self.methods.iter().position(|method| **method == *sent).map_or(0, |place| place + 1))
    }

    /// The exemptions and rules of a ruleset that may apply to subjects of this kind whose path matches so.
    pub fn candidates(&self, kind: &Kind, paths: &PathMatch, ruleset: usize) -> Candidates {
        let method = kind.method.checked_sub(1).map_or("", |place| &*self.methods[place]);
        let hosts: SmallVec<[&str; 2]> = kind.hosts.iter().map(|place| &*self.host_names[*place]).collect();
        let (policy, has) = (&self.policy, &self.policy.rulesets[ruleset].has);
        let mut rules = Vec::new();
        for (index, rule) in policy.rules.iter().enumerate() {
            let conditions = &rule.conditions;
            let found = paths.template_of(owner(index));
            if has[index] && (found.is_some() || conditions.paths.is_empty()) && conditions.is_for(method, &hosts) {
                let template = found.map_or(ANY_PATH, |template| self.paths.template(template));
                rules.push(Candidate { rule: index, template: template.into() });
            }
        }
        let is_exempt = |(index, conditions): &(usize, &Conditions)| {
            let matches_path = conditions.paths.is_empty() || paths.is_surely(exemption(owner(*index)));
            matches_path && conditions.is_surely_for(method, &hosts)
        };
        let exempt: Vec<usize> = policy.exempt.iter().enumerate().filter(is_exempt).map(|(index, _)| index).collect();
        let look_further = exempt.iter().any(|index| policy.exempt[*index].look_further())
            || rules.iter().any(|one| policy.rules[one.rule].conditions.look_further());
        Candidates { exempt, rules, look_further }
    }

    /// The candidates that apply to a subject; none where it is exempt.
    pub fn select<S: Subject>(&self, candidates: &Candidates, subject: &S) -> Result<Chosen, S::Error> {
        for index in &candidates.exempt {
            if self.policy.exempt[*index].are_met(subject, true)? {
                return Ok(Chosen::new());
            }
        }
        let mut chosen = Chosen::new();
        for (place, candidate) in (0..).zip(&candidates.rules) {
            if self.policy.rules[candidate.rule].conditions.are_met(subject, false)? {
                chosen.push(place);
            }
        }
        self.drop_idle_defaults(candidates, &mut chosen);
        Ok(chosen)
    }

    /// The candidates that apply whatever else a subject has.
    pub fn always(&self, candidates: &Candidates) -> Chosen {
        if !candidates.exempt.is_empty() {
            return Chosen::new();
        }
        let mut chosen = (0..).zip(&candidates.rules).map(|(place, _)| place).collect();
        self.drop_idle_defaults(candidates, &mut chosen);
        chosen
    }

    /// Keep default rules only where no other enforced one is there.
    fn drop_idle_defaults(&self, candidates: &Candidates, chosen: &mut Chosen) {
        let rule = |place: u16| &self.policy.rules[candidates.rules[usize::from(place)].rule];
        if chosen.iter().any(|place| !rule(*place).default && !rule(*place).shadow) {
            chosen.retain(|place| !rule(*place).default);
        }
    }

    /// The number that stands for all hosts that the conditions do not distinguish from this one.
    fn host_kind(&self, host: &str) -> usize {
        let exact = self.hosts.get(host);
        // Parents begin with a dot; the longest is below all the others that it is below of.
        let longest = host.len().saturating_sub(self.longest_parent);
        let dots = host.match_indices('.').map(|(dot, _)| dot).filter(|dot| *dot >= longest);
        let mut parents = dots.filter_map(|dot| self.parent_hosts.get(&host[dot..]));
        exact.or_else(|| parents.next()).copied().unwrap_or(0)
    }
}

/// The owner of the templates of the rule at this place.
fn owner(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

/// The owner of the templates of the exemption at this place.
fn exemption(index: i32) -> i32 {
    -1 - index
}

fn each_once<'a>(names: impl Iterator<Item = &'a Box<str>>) -> Vec<Box<str>> {
    let mut once: Vec<Box<str>> = Vec::new();
    for name in names {
        if !once.contains(name) {
            once.push(name.clone());
        }
    }
    once
}
