//! Answers the checks of the front door for a policy on a store that answers later, such as a Redis.
//!
//! All queries of a request are prepared here before any of them is submitted to the `Queue`.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use headgate_answers::Verdict;
use headgate_core::table::answer::{Answer, Readings};
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_policy::resolver::Resolver;
use headgate_policy::subject::Subject;
use headgate_server::decide::{self, Check, Decide, InPieces, Later, Pieces, Question, Reply, at_once};
use smallvec::{SmallVec, smallvec};
use tokio::sync::OwnedSemaphorePermit;

use crate::bound::{Binder, BoundLimits, CheckedLimit, ReportedLimits, RuleLimits, Store};
use crate::checks::{FEW, Unit, is_long_list};
use crate::described::{Body, Described, Reader};
use crate::figures::{Counters, Tally};
use crate::forwarded::Forwarded;
use crate::header_text::Names;
use crate::judge::CheckMode;
use crate::late_prepared::{Prepared, prepared};
use crate::queue::{Outcome, Queue};
use crate::replies;
use crate::table::LeftToPython;

/// The owner of a store, which represents limits that are checked together.
pub trait Owner: Send + Sync {
    /// Its representation of them.
    type Choice: Send + Sync + 'static;

    /// Limits of these rules, by their places in the policy, for a tier.
    fn choice(&self, rules: &[usize], tier: &str) -> Self::Choice;
}

/// A store of an owner.
struct OwnerStore<O>(O);

impl<O: Owner> Store for OwnerStore<O> {
    type Limit = ();
    type Query = O::Choice;

    fn query(&self, rules: &[usize], tier: &str, _: Vec<CheckedLimit<()>>) -> Result<O::Choice, LeftToPython> {
        Ok(self.0.choice(rules, tier))
    }
}

/// A policy on a store that answers later, which answers gateways and bodies of JSON.
pub struct LateChecks<O: Owner>(Arc<InForce<O>>);

struct InForce<O: Owner> {
    resolver: Resolver<Arc<BoundLimits<O::Choice>>>,
    rules: Vec<RuleLimits<()>>,
    store: OwnerStore<O>,
    queue: Arc<Queue<O::Choice>>,
    counters: Arc<Counters>,
    names: Names,
    units: Vec<Unit>,
}

/// A check of a list, whose answer is known or will be.
enum ListedCheck<C> {
    Written(String),
    /// Submitted to the store, with its limits; its answer is the next one to arrive.
    Submitted(Arc<BoundLimits<C>>),
}

impl<O: Owner + 'static> LateChecks<O> {
    /// A policy, the limits of each of its rules, and its units, in its order.
    ///
    /// All decisions are counted in `tally`.
    pub fn new(
        policy: Policy,
        rules: Vec<RuleLimits<()>>,
        units: Vec<Unit>,
        owner: O,
        queue: Arc<Queue<O::Choice>>,
        tally: &Tally,
    ) -> Self {
        let counters = tally.counters(policy.rules.iter().map(|rule| rule.name.clone()));
        let names = Names::of(&policy);
        let (resolver, store) = (Resolver::new(policy), OwnerStore(owner));
        Self(Arc::new(InForce { resolver, rules, store, queue, counters, names, units }))
    }

    fn described(&self, body: &Bytes) -> Result<decide::Answer, LeftToPython> {
        let start = Instant::now();
        if !is_long_list(body) {
            match self.0.reader().read(body)? {
                Body::One(one) => return self.0.described(&one, start),
                Body::Several(several) if several.len() <= FEW => {
                    return at_once(self.0.several(several, None, start));
                }
                Body::Several(_) => {}
            }
        }
        let (policy, body) = (Arc::clone(&self.0), body.clone());
        Ok(decide::Answer::InPieces(InPieces::new(async move {
            let turn = policy.queue.turn().await;
            let answer = match policy.reader().read(&body) {
                Ok(Body::Several(several)) => policy.several(several, turn, start).await,
                _ => Err(LeftToPython),
            };
            answer.unwrap_or(decide::Answer::Pass)
        })))
    }
}

impl<O: Owner> InForce<O> {
    fn reader(&self) -> Reader<'_> {
        Reader { units: &self.units, headers: self.names.len() }
    }

    fn prepare<S: Subject<Error = LeftToPython>>(
        &self,
        subject: &S,
        cost: Cost<'_>,
        ruleset: usize,
        mode: CheckMode,
    ) -> Result<Prepared<O::Choice>, LeftToPython> {
        let binder = Binder { policy: self.resolver.policy(), rules: &self.rules, store: &self.store };
        self.resolver.resolve(subject, ruleset, &binder, |resolved| prepared(resolved, cost, mode))
    }

    fn forwarded(
        &self,
        check: &Check<'_>,
        ruleset: &str,
        rest: &str,
        bare: bool,
    ) -> Result<decide::Answer, LeftToPython> {
        let start = Instant::now();
        let ruleset = self.resolver.ruleset(ruleset).ok_or(LeftToPython)?;
        let subject = Forwarded::new(check, rest, &self.names)?;
        let prepared = self.prepare(&subject, Cost::ONE, ruleset, CheckMode::Single)?;
        let write = move |reported: &ReportedLimits, verdict: Verdict<'_>| replies::forwarded(reported, verdict, bare);
        self.answer(prepared, start, write, move |failure| if bare { replies::without_body(failure) } else { failure })
    }

    fn described(&self, one: &Described<'_>, start: Instant) -> Result<decide::Answer, LeftToPython> {
        let prepared = self.prepare(one, one.cost(), one.ruleset(&self.resolver)?, CheckMode::Single)?;
        let write =
            |reported: &ReportedLimits, verdict: Verdict<'_>| replies::one(replies::decision_json(reported, verdict));
        self.answer(prepared, start, write, |failure| failure)
    }

    /// The answers to a list, all of which is prepared before the store is queried; a long one has a turn.
    async fn several(
        &self,
        several: Vec<Described<'_>>,
        turn: Option<OwnedSemaphorePermit>,
        start: Instant,
    ) -> Result<decide::Answer, LeftToPython> {
        let (mut pieces, mut all) = (Pieces::begin(), Vec::with_capacity(several.len()));
        for one in several {
            all.push(self.prepare(&one, one.cost(), one.ruleset(&self.resolver)?, CheckMode::InList)?);
            pieces.next().await;
        }
        self.answer_several(all, turn, start)
    }

    /// The answer to one check, as it is written from a decision or a failure.
    fn answer(
        &self,
        prepared: Prepared<O::Choice>,
        start: Instant,
        write: impl Fn(&ReportedLimits, Verdict<'_>) -> Reply + Send + 'static,
        fail: impl Fn(Reply) -> Reply + Send + 'static,
    ) -> Result<decide::Answer, LeftToPython> {
        let check = match prepared {
            Prepared::Free => return Ok(decide::Answer::Reply(self.reply_free(start, write))),
            Prepared::Refused(bound, refused) => {
                return Ok(decide::Answer::Reply(self.reply_refused(&bound, &refused, start, write)));
            }
            Prepared::Query(check) => check,
        };
        let (bound, counters) = (Arc::clone(&check.bound), Arc::clone(&self.counters));
        let outcomes = self.queue.submit(smallvec![check]).ok_or(LeftToPython)?;
        Ok(decide::Answer::Later(Later::new(async move {
            match outcomes.await.ok().and_then(|mut outcomes| outcomes.pop().flatten()) {
                Some(Outcome::Decided(answer, degraded)) => {
                    write(&bound.reported, counted(&counters, &bound.reported, &answer, degraded, start))
                }
                Some(Outcome::Failed(failure)) => fail(failure),
                None => fail(replies::lost()),
            }
        })))
    }

    /// The answers to the checks of one body, each by itself; the queries to the store are submitted together.
    fn answer_several(
        &self,
        prepared: Vec<Prepared<O::Choice>>,
        turn: Option<OwnedSemaphorePermit>,
        start: Instant,
    ) -> Result<decide::Answer, LeftToPython> {
        let (mut all, mut checks) = (Vec::with_capacity(prepared.len()), SmallVec::new());
        let (mut free, mut refusals) = (Vec::new(), Vec::new());
        for (place, one) in prepared.into_iter().enumerate() {
            all.push(match one {
                Prepared::Free => {
                    free.push(place);
                    ListedCheck::Written(String::new())
                }
                Prepared::Refused(bound, refused) => {
                    refusals.push((place, bound, refused));
                    ListedCheck::Written(String::new())
                }
                Prepared::Query(one) => {
                    let bound = Arc::clone(&one.bound);
                    checks.push(one);
                    ListedCheck::Submitted(bound)
                }
            });
        }
        // Checks that are left to Python are counted there: nothing is counted before the store is queried.
        let outcomes = match (checks.is_empty(), turn) {
            (true, _) => None,
            (false, None) => Some(self.queue.submit(checks).ok_or(LeftToPython)?),
            (false, Some(turn)) => Some(self.queue.submit_list(checks, turn)),
        };
        for place in free {
            all[place] = ListedCheck::Written(self.reply_free(start, replies::decision_json));
        }
        for (place, bound, refused) in refusals {
            all[place] = ListedCheck::Written(self.reply_refused(&bound, &refused, start, replies::decision_json));
        }
        let counters = Arc::clone(&self.counters);
        Ok(decide::Answer::Later(Later::new(async move {
            let mut outcomes = match outcomes {
                Some(outcomes) => outcomes.await.unwrap_or_default().into_iter(),
                None => SmallVec::new().into_iter(),
            };
            let (mut pieces, mut written) = (Pieces::begin(), Vec::with_capacity(all.len()));
            for listed in all {
                written.push(match listed {
                    ListedCheck::Written(json) => json,
                    ListedCheck::Submitted(bound) => match outcomes.next().flatten() {
                        Some(Outcome::Decided(answer, degraded)) => {
                            let verdict = counted(&counters, &bound.reported, &answer, degraded, start);
                            replies::decision_json(&bound.reported, verdict)
                        }
                        Some(Outcome::Failed(failure)) => replies::failed(&failure),
                        None => replies::failed(&replies::lost()),
                    },
                });
                pieces.next().await;
            }
            replies::all(&written)
        })))
    }

    fn reply_free<R>(&self, start: Instant, write: impl Fn(&ReportedLimits, Verdict<'_>) -> R) -> R {
        let answer = Answer { allowed: true, full: None, binding: None, readings: Readings::Many([].into()) };
        let reported = ReportedLimits::none();
        write(&reported, counted(&self.counters, &reported, &answer, "", start))
    }

    fn reply_refused<R>(
        &self,
        bound: &BoundLimits<O::Choice>,
        refused: &[bool],
        start: Instant,
        write: impl Fn(&ReportedLimits, Verdict<'_>) -> R,
    ) -> R {
        let reported = bound.refusal();
        let answer = reported.refuse(refused);
        write(reported, counted(&self.counters, reported, &answer, "", start))
    }
}

/// Count a decision, and give it as it is reported.
fn counted<'a>(
    counters: &Counters,
    reported: &ReportedLimits,
    answer: &'a Answer,
    degraded: &'a str,
    start: Instant,
) -> Verdict<'a> {
    let stripe = counters.stripe();
    stripe.count_time(start.elapsed());
    stripe.count_degraded(degraded);
    reported.count(answer, stripe);
    Verdict { answer, degraded }
}

impl<O: Owner + 'static> Decide for LateChecks<O> {
    fn decide(&self, check: &Check<'_>) -> decide::Answer {
        let answer = match check.question {
            Question::Forwarded { ruleset, path, bare } => self.0.forwarded(check, ruleset, path, bare),
            Question::Described { body } => self.described(body),
        };
        answer.unwrap_or(decide::Answer::Pass)
    }
}
