//! What came of the requests of a log, summed up; the native twin of `headgate.replay.sums`.

use headgate_core::hash::KeyHash;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

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

/// The hashes of the keys of rules that were asked together.
pub type Keys = SmallVec<[KeyHash; 4]>;

/// The parts of the keys of rules that were asked together.
pub type Parts = SmallVec<[Py<PyTuple>; 4]>;

/// Rules that were asked together, by their places in the policy, and the requests of each of their keys.
struct Together {
    rules: Box<[usize]>,
    /// Requests of this step that no rule refused.
    quiet: u64,
    /// Where the requests of some keys are counted. What is looked for with each request is kept small.
    places: FxHashMap<u128, u32>,
    requests: Vec<u64>,
    keys: Vec<(Keys, Parts)>,
    /// How many each rule refused, where one did.
    refused: FxHashMap<u32, SmallVec<[u64; 4]>>,
}

impl Together {
    /// Where the requests of these keys are counted.
    #[inline]
    fn place_of(&mut self, keys: &Keys, parts: impl FnOnce() -> PyResult<Parts>) -> PyResult<u32> {
        // Keyed hashes of 128 bits tell keys apart here as they do in the table.
        let both = |key: &KeyHash| u128::from(key.shard) << 64 | u128::from(key.tag);
        let name = keys.iter().fold(0_u128, |name, key| name.rotate_left(23) ^ both(key));
        if let Some(place) = self.places.get(&name) {
            return Ok(*place);
        }
        let place = u32::try_from(self.keys.len()).map_err(|_| PyOverflowError::new_err("a log has too many keys"))?;
        self.keys.push((keys.clone(), parts()?));
        self.requests.push(0);
        self.places.insert(name, place);
        Ok(place)
    }

    /// (a key of a rule, its parts, its requests, how many of them the rule refused).
    fn of_rule(&self, own: usize) -> impl Iterator<Item = (KeyHash, &Py<PyTuple>, u64, u64)> {
        self.keys.iter().zip(&self.requests).zip(0..).map(move |(((keys, parts), requests), place)| {
            let refused = self.refused.get(&place).map_or(0, |refused| refused[own]);
            (keys[own], &parts[own], *requests, refused)
        })
    }
}

/// All sums of one policy.
pub struct Sums {
    steps: Steps,
    series: Series,
    rules: Vec<RuleSums>,
    together: Vec<Together>,
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
        self.together.push(Together {
            rules: rules.into(),
            quiet: 0,
            places: FxHashMap::default(),
            requests: Vec::new(),
            keys: Vec::new(),
            refused: FxHashMap::default(),
        });
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

    /// Count the keys of a request, and which of the rules refuse it; nothing where none does.
    #[inline]
    pub fn see(
        &mut self,
        together: usize,
        keys: &Keys,
        refusing: &[bool],
        parts: impl FnOnce() -> PyResult<Parts>,
    ) -> PyResult<()> {
        let together = &mut self.together[together];
        let place = together.place_of(keys, parts)?;
        together.requests[place as usize] += 1;
        if !refusing.is_empty() {
            let refused = together.refused.entry(place).or_insert_with(|| SmallVec::from_elem(0, refusing.len()));
            refused.iter_mut().zip(refusing).for_each(|(count, refuses)| *count += u64::from(*refuses));
        }
        Ok(())
    }

    /// Count a request that passes, and that no rule refuses.
    #[inline]
    pub fn pass(&mut self, together: usize, cost: i64) {
        self.together[together].quiet += 1;
        self.quiet += 1;
        self.cost_allowed += i128::from(cost);
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
        let rules = PyList::empty(py);
        for (place, rule) in self.rules.iter().enumerate() {
            let minutes = PyDict::new(py);
            for (minute, count) in &rule.refused_minutes {
                minutes.set_item(minute, count)?;
            }
            let (hits, refusals) = self.keys_of(py, place)?;
            rules.append((rule.matched, rule.refused, minutes, rule.series.told(py)?, hits, refusals))?;
        }
        let costs = (self.cost_allowed, self.cost_denied);
        (self.allowed, self.denied, costs, self.series.told(py)?, self.first_us, self.last_us, rules).into_pyobject(py)
    }

    /// (requests, refusals) of a rule, by the parts of its keys.
    fn keys_of<'py>(&self, py: Python<'py>, place: usize) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let mut sums: FxHashMap<KeyHash, (&Py<PyTuple>, u64, u64)> = FxHashMap::default();
        for together in &self.together {
            let Some(own) = together.rules.iter().position(|rule| *rule == place) else {
                continue;
            };
            for (key, parts, requests, refused) in together.of_rule(own) {
                let sum = sums.entry(key).or_insert((parts, 0, 0));
                sum.1 += requests;
                sum.2 += refused;
            }
        }
        let (hits, refusals) = (PyDict::new(py), PyDict::new(py));
        for (parts, requests, refused) in sums.into_values() {
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
        let mut sums: FxHashMap<(usize, KeyHash), (&Py<PyTuple>, u64)> = FxHashMap::default();
        for together in &self.together {
            for ((keys, parts), requests) in together.keys.iter().zip(&together.requests) {
                for (own, place) in together.rules.iter().enumerate() {
                    let name = (kinds[*place], keys[own]);
                    let before = (0..own).any(|other| (kinds[together.rules[other]], keys[other]) == name);
                    if !before {
                        sums.entry(name).or_insert((&parts[own], 0)).1 += requests;
                    }
                }
            }
        }
        let counted = PyDict::new(py);
        for ((kind, _), (parts, requests)) in sums {
            counted.set_item((&by[kind], parts), requests)?;
        }
        Ok(counted)
    }
}
