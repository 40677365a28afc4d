//! Counts decisions: the figures of `headgate.observe.prometheus`, read when they are shown.
//!
//! Each thread counts in a stripe of its own, so that no two write to the same memory, and none takes a lock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

/// The results that a decision may have for a rule.
pub const RESULTS: [&str; 5] = ["allowed", "refused", "blocked", "shadow_allowed", "shadow_refused"];

/// The name that stands for decisions to which no rule applied.
pub const NO_RULE: &str = "none";

/// The substitutes that may decide where the store does not.
pub const DEGRADED: [&str; 3] = ["local", "open", "closed"];

/// The upper ends of the first buckets of seconds, in nanoseconds; the last bucket has no end.
pub const BUCKETS_NS: [u64; 14] = [
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
    10_000_000, 50_000_000,
];

const BUCKETS: usize = BUCKETS_NS.len() + 1;
const MOST_STRIPES: usize = 16;
/// Counters at the start of a stripe: buckets, their nanoseconds, and the substitutes that decided.
const SECONDS_AT: usize = BUCKETS;
const DEGRADED_AT: usize = SECONDS_AT + 1;
const RULES_AT: usize = DEGRADED_AT + DEGRADED.len();
/// Counters that lie unused at both ends of a stripe, so that no neighbour shares its cache lines.
const MARGIN: usize = 16;

/// The result of a decision for a rule, by its place in `RESULTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Allowed,
    /// This rule refused.
    Refused,
    /// Another rule refused.
    Blocked,
    /// A shadow rule would have let it pass.
    ShadowAllowed,
    /// A shadow rule would have refused.
    ShadowRefused,
}

/// All figures at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// How many decisions had a result for a rule; results that never occurred are left out.
    pub decisions: BTreeMap<(Box<str>, &'static str), u64>,
    /// How many decisions a substitute for the store made, in the order of `DEGRADED`.
    pub degraded: [u64; DEGRADED.len()],
    /// How many decisions took so long: each bucket for itself, the last one without an end.
    pub buckets: [u64; BUCKETS],
    /// The nanoseconds that all decisions took.
    pub total_ns: u64,
}

impl Figures {
    fn add(&mut self, counters: &Counters) {
        for stripe in &counters.stripes {
            let count = |place: usize| stripe[MARGIN + place].load(Relaxed);
            for (place, bucket) in self.buckets.iter_mut().enumerate() {
                *bucket += count(place);
            }
            self.total_ns = self.total_ns.wrapping_add(count(SECONDS_AT));
            for (place, degraded) in self.degraded.iter_mut().enumerate() {
                *degraded += count(DEGRADED_AT + place);
            }
            for (rule, name) in counters.rules.iter().enumerate() {
                for (place, result) in RESULTS.into_iter().enumerate() {
                    let count = count(RULES_AT + rule * RESULTS.len() + place);
                    if count > 0 {
                        *self.decisions.entry((name.clone(), result)).or_default() += count;
                    }
                }
            }
        }
    }
}

/// The figures of one policy, counted on many threads.
#[derive(Debug)]
pub struct Counters {
    /// The names of the rules; the last one stands for decisions to which no rule applied.
    rules: Box<[Box<str>]>,
    stripes: Box<[Box<[AtomicU64]>]>,
}

impl Counters {
    fn new(rules: impl Iterator<Item = Box<str>>) -> Self {
        let rules: Box<[Box<str>]> = rules.chain([NO_RULE.into()]).collect();
        let length = 2 * MARGIN + RULES_AT + rules.len() * RESULTS.len();
        let stripes = available_parallelism().map_or(1, usize::from).clamp(1, MOST_STRIPES);
        let stripe = |_| (0..length).map(|_| AtomicU64::new(0)).collect();
        Self { rules, stripes: (0..stripes).map(stripe).collect() }
    }

    /// The stripe of the calling thread.
    pub fn stripe(&self) -> Stripe<'_> {
        Stripe { counters: &self.stripes[thread_number() % self.stripes.len()], no_rule: self.rules.len() - 1 }
    }
}

/// The stripe of one thread.
#[derive(Clone, Copy)]
pub struct Stripe<'a> {
    counters: &'a [AtomicU64],
    no_rule: usize,
}

impl Stripe<'_> {
    /// Count the outcome of a decision for a rule, by its place in the policy.
    pub fn count(&self, rule: usize, outcome: Outcome) {
        self.add(RULES_AT + rule * RESULTS.len() + outcome as usize, 1);
    }

    /// Count a decision to which no rule applied, or none with a limit.
    pub fn count_without_rule(&self, allowed: bool) {
        self.count(self.no_rule, if allowed { Outcome::Allowed } else { Outcome::Refused });
    }

    /// Count the substitute that decided in place of the store, if one did.
    pub fn count_degraded(&self, degraded: &str) {
        if let Some(place) = DEGRADED.into_iter().position(|one| one == degraded) {
            self.add(DEGRADED_AT + place, 1);
        }
    }

    /// Count how long a decision took.
    pub fn count_time(&self, taken: Duration) {
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        self.add(BUCKETS_NS.partition_point(|end| *end < taken_ns), 1);
        self.add(SECONDS_AT, taken_ns);
    }

    fn add(&self, place: usize, count: u64) {
        self.counters[MARGIN + place].fetch_add(count, Relaxed);
    }
}

/// The figures of a service over all policies that were in force: they never fall when a policy is replaced.
#[derive(Debug, Default)]
pub struct Tally(Mutex<PolicyCounters>);

#[derive(Debug, Default)]
struct PolicyCounters {
    in_use: Vec<Arc<Counters>>,
    /// Of policies that are no longer in force.
    past: Figures,
}

impl Tally {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counters for another policy, whose rules have these names.
    pub fn counters(&self, rules: impl Iterator<Item = Box<str>>) -> Arc<Counters> {
        let counters = Arc::new(Counters::new(rules));
        let mut policies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        policies.forget_unused();
        policies.in_use.push(Arc::clone(&counters));
        counters
    }

    /// All that was counted until now.
    pub fn figures(&self) -> Figures {
        let mut policies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        policies.forget_unused();
        let mut figures = policies.past.clone();
        for counters in &policies.in_use {
            figures.add(counters);
        }
        figures
    }
}

impl PolicyCounters {
    fn forget_unused(&mut self) {
        let past = &mut self.past;
        self.in_use.retain_mut(|counters| match Arc::get_mut(counters) {
            None => true,
            // No other thread has it, or will have it: all of their counts are in it.
            Some(counters) => {
                past.add(counters);
                false
            }
        });
    }
}

/// A number of the calling thread, small where there are few.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|own| {
        own.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Relaxed);
            own.set(Some(number));
            number
        })
    })
}
