//! What came of the requests of a log, summed up; the native twin of `headgate.replay.sums`.

use headgate_core::hash::KeyHash;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::replay_keys::{Keys, Parts, Texts, Together, ToldKeys};
use crate::replay_series::{Series, Steps};

const MINUTE_US: i64 = 60_000_000;

/// What one rule did.
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
    together: Vec<Together>,
    texts: Texts,
    by_rules: FxHashMap<Box<[usize]>, usize>,
    /// Which of those were asked last.
    last: usize,
    /// The step that quiet requests are counted in: from the one moment to before the other.
    since_us: i64,
    until_us: i64,
    quiet: u64,
    allowed: u64,
    denied: u64,
    cost_allowed: i128,
    cost_denied: i128,
    first_us: Option<i64>,
    last_us: Option<i64>,
}

impl Sums {
    /// Of so many rules.
    pub fn new(steps: Steps, rules: usize) -> Self {
        Self {
            steps,
            series: Series::default(),
            rules: (0..rules).map(|_| RuleSums::default()).collect(),
            together: Vec::new(),
            texts: Texts::default(),
            by_rules: FxHashMap::default(),
            last: 0,
            since_us: 0,
            until_us: 0,
            quiet: 0,
            allowed: 0,
            denied: 0,
            cost_allowed: 0,
            cost_denied: 0,
            first_us: None,
            last_us: None,
        }
    }

    /// The number of rules that are asked together.
    #[inline]
    pub fn together(&mut self, rules: &[usize]) -> usize {
        if self.together.get(self.last).is_some_and(|last| *last.rules == *rules) {
            return self.last;
        }
        self.last = match self.by_rules.get(rules) {
            Some(number) => *number,
            None => self.new_together(rules),
        };
        self.last
    }

    #[cold]
    fn new_together(&mut self, rules: &[usize]) -> usize {
        let number = self.together.len();
        self.together.push(Together::of(rules));
        self.by_rules.insert(rules.into(), number);
        number
    }

    /// A request of a moment: the step that it is in begins, where it is not that of the one before.
    #[inline]
    pub fn arrive(&mut self, time_us: i64) {
        self.last_us = Some(time_us);
        if self.since_us <= time_us && time_us < self.until_us {
            return;
        }
        self.hand_on();
        self.first_us.get_or_insert(time_us);
        let step_us = self.steps.lengths_us[self.series.level];
        self.since_us = time_us.div_euclid(step_us) * step_us;
        self.until_us = self.since_us + step_us;
    }

    /// Count a request of keys that were seen before; where they are.
    #[inline]
    pub fn see(&mut self, together: usize, keys: impl Iterator<Item = KeyHash>) -> Option<u32> {
        self.together[together].see(keys)
    }

    /// Count a request of keys that were not, and whose texts are these.
    pub fn see_new(&mut self, together: usize, keys: Keys, parts: SmallVec<[Parts; 4]>) -> PyResult<u32> {
        for (key, parts) in keys.iter().zip(parts) {
            self.texts.entry(*key).or_insert(parts);
        }
        self.together[together].see_new(keys)
    }

    /// The texts of a key that was seen.
    pub fn parts_of(&self, key: KeyHash) -> Parts {
        self.texts.get(&key).cloned().flatten()
    }

    /// Count a request that passes, and that no rule refuses.
    #[inline]
    pub fn pass(&mut self, together: usize, cost: i64) {
        self.together[together].quiet += 1;
        self.quiet += 1;
        self.cost_allowed += i128::from(cost);
    }

    /// Count which rules refuse a request of keys that are in this place.
    pub fn refuse_keys(&mut self, together: usize, place: u32, refusing: &[bool]) {
        self.together[together].refuse(place, refusing);
    }

    /// Count a request that some rules refuse, if only shadows.
    pub fn refuse(&mut self, together: usize, time_us: i64, allowed: bool, refusing: &[bool], cost: i64) {
        let (passed, denied) = (u64::from(allowed), u64::from(!allowed));
        self.allowed += passed;
        self.denied += denied;
        *(if allowed { &mut self.cost_allowed } else { &mut self.cost_denied }) += i128::from(cost);
        self.series.add(&self.steps, time_us, passed, denied);
        for (place, refuses) in self.together[together].rules.iter().zip(refusing) {
            let rule = &mut self.rules[*place];
            rule.matched += 1;
            rule.series.add(&self.steps, time_us, u64::from(!refuses), u64::from(*refuses));
            if *refuses {
                rule.refused += 1;
                *rule.refused_minutes.entry(time_us.div_euclid(MINUTE_US)).or_default() += 1;
            }
        }
    }

    /// Add what passed quietly in the last step to the sums.
    fn hand_on(&mut self) {
        if self.quiet > 0 {
            self.allowed += self.quiet;
            self.series.add(&self.steps, self.since_us, self.quiet, 0);
            self.quiet = 0;
        }
        for together in self.together.iter_mut().filter(|together| together.quiet > 0) {
            for place in &together.rules {
                let rule = &mut self.rules[*place];
                rule.matched += together.quiet;
                rule.series.add(&self.steps, self.since_us, together.quiet, 0);
            }
            together.quiet = 0;
        }
    }

    /// All of it, as `headgate.replay.native_sums` reads it.
    pub fn told<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.hand_on();
        let (rules, mut told) = (PyList::empty(py), ToldKeys::of(&self.texts));
        for (place, rule) in self.rules.iter().enumerate() {
            let minutes = PyDict::new(py);
            for (minute, count) in &rule.refused_minutes {
                minutes.set_item(minute, count)?;
            }
            let (hits, refusals) = self.keys_of(py, place, &mut told)?;
            rules.append((rule.matched, rule.refused, minutes, rule.series.told(py)?, hits, refusals))?;
        }
        let costs = (self.cost_allowed, self.cost_denied);
        (self.allowed, self.denied, costs, self.series.told(py)?, self.first_us, self.last_us, rules).into_pyobject(py)
    }

    /// (requests, refusals) of a rule, by the parts of its keys.
    fn keys_of<'py>(
        &self,
        py: Python<'py>,
        place: usize,
        told: &mut ToldKeys<'py, '_>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let mut sums: FxHashMap<KeyHash, (u64, u64)> = FxHashMap::default();
        for together in &self.together {
            let Some(own) = together.rules.iter().position(|rule| *rule == place) else {
                continue;
            };
            for (key, requests, refused) in together.of_rule(own) {
                let sum = sums.entry(key).or_default();
                *sum = (sum.0 + requests, sum.1 + refused);
            }
        }
        let (hits, refusals) = (PyDict::new(py), PyDict::new(py));
        for (key, (requests, refused)) in sums {
            let parts = told.key(py, key)?;
            hits.set_item(parts, requests)?;
            if refused > 0 {
                refusals.set_item(parts, refused)?;
            }
        }
        Ok((hits, refusals))
    }

    /// Requests by what they were counted by (of each rule, by its place) and as, each once, whatever the number of
    /// rules.
    pub fn counted<'py>(
        &self,
        py: Python<'py>,
        by: &[Bound<'py, PyAny>],
        kinds: &[usize],
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut sums: FxHashMap<(usize, KeyHash), u64> = FxHashMap::default();
        for together in &self.together {
            for (keys, requests) in together.keys() {
                for (own, place) in together.rules.iter().enumerate() {
                    let name = (kinds[*place], keys[own]);
                    let before = (0..own).any(|other| (kinds[together.rules[other]], keys[other]) == name);
                    if !before {
                        *sums.entry(name).or_default() += requests;
                    }
                }
            }
        }
        let (counted, mut told) = (PyDict::new(py), ToldKeys::of(&self.texts));
        for ((kind, key), requests) in sums {
            counted.set_item((&by[kind], told.key(py, key)?), requests)?;
        }
        Ok(counted)
    }
}
