//! Sums of the judged requests of a log; the native twin of `headgate.replay.sums`.

use headgate_core::hash::KeyHash;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::replay_keys::{Keys, Parts, PythonKeys, RuleSet, Texts};
use crate::replay_series::{Series, Steps};

const MINUTE_US: i64 = 60_000_000;

/// The counts of one rule.
#[derive(Default)]
struct RuleSums {
    matched: u64,
    refused: u64,
    refused_minutes: FxHashMap<i64, u64>,
    series: Series,
}

/// All sums of one policy.
pub struct Sums {
    steps: Steps,
    series: Series,
    rules: Vec<RuleSums>,
    rule_sets: Vec<RuleSet>,
    texts: Texts,
    by_rules: FxHashMap<Box<[usize]>, usize>,
    /// The last rule set that was used.
    last: usize,
    /// The step that unrefused requests are counted in: from `since_us` to before `until_us`.
    since_us: i64,
    until_us: i64,
    unrefused: u64,
    allowed: u64,
    denied: u64,
    cost_allowed: i128,
    cost_denied: i128,
    first_us: Option<i64>,
    last_us: Option<i64>,
}

impl Sums {
    /// The sums of so many rules.
    pub fn new(steps: Steps, rules: usize) -> Self {
        Self {
            steps,
            series: Series::default(),
            rules: (0..rules).map(|_| RuleSums::default()).collect(),
            rule_sets: Vec::new(),
            texts: Texts::default(),
            by_rules: FxHashMap::default(),
            last: 0,
            since_us: 0,
            until_us: 0,
            unrefused: 0,
            allowed: 0,
            denied: 0,
            cost_allowed: 0,
            cost_denied: 0,
            first_us: None,
            last_us: None,
        }
    }

    /// The number of the set of these rules.
    #[inline]
    pub fn rule_set_of(&mut self, rules: &[usize]) -> usize {
        if self.rule_sets.get(self.last).is_some_and(|last| *last.rules == *rules) {
            return self.last;
        }
        self.last = match self.by_rules.get(rules) {
            Some(number) => *number,
            None => self.new_rule_set(rules),
        };
        self.last
    }

    #[cold]
    fn new_rule_set(&mut self, rules: &[usize]) -> usize {
        let number = self.rule_sets.len();
        self.rule_sets.push(RuleSet::of(rules));
        self.by_rules.insert(rules.into(), number);
        number
    }

    /// Begin the step of a request at a moment, where it is not that of the request before.
    #[inline]
    pub fn begin_step(&mut self, time_us: i64) {
        self.last_us = Some(time_us);
        if self.since_us <= time_us && time_us < self.until_us {
            return;
        }
        self.flush_step();
        self.first_us.get_or_insert(time_us);
        let step_us = self.steps.lengths_us[self.series.level];
        self.since_us = time_us.div_euclid(step_us) * step_us;
        self.until_us = self.since_us + step_us;
    }

    /// Count a request of known keys, and give their place; None where they are new.
    #[inline]
    pub fn count_keys(&mut self, rule_set: usize, keys: impl Iterator<Item = KeyHash>) -> Option<u32> {
        self.rule_sets[rule_set].count_keys(keys)
    }

    /// Count a request of new keys, which have these texts.
    pub fn count_new_keys(&mut self, rule_set: usize, keys: Keys, parts: SmallVec<[Parts; 4]>) -> PyResult<u32> {
        for (key, parts) in keys.iter().zip(parts) {
            self.texts.entry(*key).or_insert(parts);
        }
        self.rule_sets[rule_set].count_new_keys(keys)
    }

    /// The parts of a known key.
    pub fn parts_of(&self, key: KeyHash) -> Parts {
        self.texts.get(&key).cloned().flatten()
    }

    /// Count a request that passes, and that no rule refuses.
    #[inline]
    pub fn count_passed(&mut self, rule_set: usize, cost: i64) {
        self.rule_sets[rule_set].unrefused += 1;
        self.unrefused += 1;
        self.cost_allowed += i128::from(cost);
    }

    /// Count which rules refuse a request of the keys at this place.
    pub fn count_refused_keys(&mut self, rule_set: usize, place: u32, refusing: &[bool]) {
        self.rule_sets[rule_set].count_refused(place, refusing);
    }

    /// Count a request that some rules refuse, even if only shadow rules.
    pub fn count_refused(&mut self, rule_set: usize, time_us: i64, allowed: bool, refusing: &[bool], cost: i64) {
        let (passed, denied) = (u64::from(allowed), u64::from(!allowed));
        self.allowed += passed;
        self.denied += denied;
        *(if allowed { &mut self.cost_allowed } else { &mut self.cost_denied }) += i128::from(cost);
        self.series.add(&self.steps, time_us, passed, denied);
        for (place, refuses) in self.rule_sets[rule_set].rules.iter().zip(refusing) {
            let rule = &mut self.rules[*place];
            rule.matched += 1;
            rule.series.add(&self.steps, time_us, u64::from(!refuses), u64::from(*refuses));
            if *refuses {
                rule.refused += 1;
                *rule.refused_minutes.entry(time_us.div_euclid(MINUTE_US)).or_default() += 1;
            }
        }
    }

    /// Add the unrefused requests of the last step to the sums.
    fn flush_step(&mut self) {
        if self.unrefused > 0 {
            self.allowed += self.unrefused;
            self.series.add(&self.steps, self.since_us, self.unrefused, 0);
            self.unrefused = 0;
        }
        for rule_set in self.rule_sets.iter_mut().filter(|rule_set| rule_set.unrefused > 0) {
            for place in &rule_set.rules {
                let rule = &mut self.rules[*place];
                rule.matched += rule_set.unrefused;
                rule.series.add(&self.steps, self.since_us, rule_set.unrefused, 0);
            }
            rule_set.unrefused = 0;
        }
    }

    /// All sums, as `headgate.replay.sums.AllSums`.
    pub fn export<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.flush_step();
        let (rules, mut python_keys) = (PyList::empty(py), PythonKeys::of(&self.texts));
        for (place, rule) in self.rules.iter().enumerate() {
            let minutes = PyDict::new(py);
            for (minute, count) in &rule.refused_minutes {
                minutes.set_item(minute, count)?;
            }
            let (hits, refusals) = self.keys_of(py, place, &mut python_keys)?;
            rules.append((rule.matched, rule.refused, minutes, rule.series.export(py)?, hits, refusals))?;
        }
        let costs = (self.cost_allowed, self.cost_denied);
        (self.allowed, self.denied, costs, self.series.export(py)?, self.first_us, self.last_us, rules)
            .into_pyobject(py)
    }

    /// (requests, refusals) of a rule, by the parts of its keys.
    fn keys_of<'py>(
        &self,
        py: Python<'py>,
        place: usize,
        python_keys: &mut PythonKeys<'py, '_>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let mut sums: FxHashMap<KeyHash, (u64, u64)> = FxHashMap::default();
        for rule_set in &self.rule_sets {
            let Some(index) = rule_set.rules.iter().position(|rule| *rule == place) else {
                continue;
            };
            for (key, requests, refused) in rule_set.of_rule(index) {
                let sum = sums.entry(key).or_default();
                *sum = (sum.0 + requests, sum.1 + refused);
            }
        }
        let (hits, refusals) = (PyDict::new(py), PyDict::new(py));
        for (key, (requests, refused)) in sums {
            let parts = python_keys.key(py, key)?;
            hits.set_item(parts, requests)?;
            if refused > 0 {
                refusals.set_item(parts, refused)?;
            }
        }
        Ok((hits, refusals))
    }

    /// Requests by identities (`kinds` has each rule's index in `by`) and key, each once, whatever the number of rules.
    pub fn requests_by_key<'py>(
        &self,
        py: Python<'py>,
        by: &[Bound<'py, PyAny>],
        kinds: &[usize],
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut sums: FxHashMap<(usize, KeyHash), u64> = FxHashMap::default();
        for rule_set in &self.rule_sets {
            for (keys, requests) in rule_set.keys() {
                for (index, place) in rule_set.rules.iter().enumerate() {
                    let name = (kinds[*place], keys[index]);
                    let before = (0..index).any(|other| (kinds[rule_set.rules[other]], keys[other]) == name);
                    if !before {
                        *sums.entry(name).or_default() += requests;
                    }
                }
            }
        }
        let (requests_by_key, mut python_keys) = (PyDict::new(py), PythonKeys::of(&self.texts));
        for ((kind, key), requests) in sums {
            requests_by_key.set_item((&by[kind], python_keys.key(py, key)?), requests)?;
        }
        Ok(requests_by_key)
    }
}
