//! What answers the checks of the front door for a policy on a store that answers later, such as a Redis.
//!
//! What is asked is prepared here, in full, before any of it is: `Queue` has it from then on.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use headgate_answers::Told;
use headgate_core::table::answer::{Answer, Readings};
use headgate_policy::compiled::Policy;
use headgate_policy::costs::Cost;
use headgate_policy::resolver::Resolver;
use headgate_policy::subject::Subject;
use headgate_server::decide::{self, Check, Decide, InPieces, Later, Pieces, Question, Reply, at_once};
use smallvec::{SmallVec, smallvec};
use tokio::sync::OwnedSemaphorePermit;

use crate::bound::{AskedLimit, Binder, BoundLimits, OwnLimits, Store, ToldLimits};
use crate::checks::{FEW, Unit, is_long_list};
use crate::described::{Body, Described, Reader};
use crate::figures::{Counters, Tally};
use crate::forwarded::Forwarded;
use crate::header_text::Names;
use crate::judge::Asking;
use crate::late_prepared::{Prepared, prepared};
use crate::queue::{Outcome, Queue};
use crate::replies;
use crate::table::LeftToPython;

/// What the owner of a store makes of limits that are asked together.
pub trait Owner: Send + Sync {
    /// What it knows of them.
    type Choice: Send + Sync + 'static;

    /// Limits of these rules, by their places in the policy, for a tier.
    fn choice(&self, rules: &[usize], tier: &str) -> Self::Choice;
}

/// A store of an owner.
struct Owned<O>(O);

impl<O: Owner> Store for Owned<O> {
    type Limit = ();
    type Asked = O::Choice;

    fn asked(&self, rules: &[usize], tier: &str, _: Vec<AskedLimit<()>>) -> Result<O::Choice, LeftToPython> {
        Ok(self.0.choice(rules, tier))
    }
}

/// A policy on a store that answers later, asked by gateways and by bodies of JSON.
pub struct LateChecks<O: Owner>(Arc<InForce<O>>);

struct InForce<O: Owner> {
    resolver: Resolver<Arc<BoundLimits<O::Choice>>>,
    rules: Vec<OwnLimits<()>>,
    store: Owned<O>,
    queue: Arc<Queue<O::Choice>>,
    counters: Arc<Counters>,
    names: Names,
    units: Vec<Unit>,
}

/// A check whose answer is known, or will be.
enum Begun<C> {
    Known(String),
    /// Its limits; the answer is the next one that comes.
    Asked(Arc<BoundLimits<C>>),
}

impl<O: Owner + 'static> LateChecks<O> {
    /// A policy, the limits of each of its rules, and its units, in its order.
    ///
    /// What is decided is counted in `tally`.
    pub fn new(
        policy: Policy,
        rules: Vec<OwnLimits<()>>,
        units: Vec<Unit>,
        owner: O,
        queue: Arc<Queue<O::Choice>>,
        tally: &Tally,
    ) -> Self {
        let counters = tally.counters(policy.rules.iter().map(|rule| rule.name.clone()));
        let names = Names::of(&policy);
        let (resolver, store) = (Resolver::new(policy), Owned(owner));
        Self(Arc::new(InForce { resolver, rules, store, queue, counters, names, units }))
    }

    fn described(&self, body: &Bytes) -> Result<decide::Answer, LeftToPython> {
        let began = Instant::now();
        if !is_long_list(body) {
            match self.0.reader().read(body)? {
                Body::One(one) => return self.0.described(&one, began),
                Body::Several(several) if several.len() <= FEW => return at_once(self.0.several(several, None, began)),
                Body::Several(_) => {}
            }
        }
        let (policy, body) = (Arc::clone(&self.0), body.clone());
        Ok(decide::Answer::InPieces(InPieces::new(async move {
            let turn = policy.queue.turn().await;
            let answer = match policy.reader().read(&body) {
                Ok(Body::Several(several)) => policy.several(several, turn, began).await,
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
        asking: Asking,
    ) -> Result<Prepared<O::Choice>, LeftToPython> {
        let binder = Binder { policy: self.resolver.policy(), rules: &self.rules, store: &self.store };
        self.resolver.resolve(subject, ruleset, &binder, |resolved| prepared(resolved, cost, asking))
    }

    fn forwarded(
        &self,
        check: &Check<'_>,
        ruleset: &str,
        rest: &str,
        bare: bool,
    ) -> Result<decide::Answer, LeftToPython> {
        let began = Instant::now();
        let ruleset = self.resolver.ruleset(ruleset).ok_or(LeftToPython)?;
        let subject = Forwarded::new(check, rest, &self.names)?;
        let prepared = self.prepare(&subject, Cost::ONE, ruleset, Asking::Alone)?;
        let write = move |told: &ToldLimits, decision: Told<'_>| replies::forwarded(told, decision, bare);
        self.answer(prepared, began, write, move |failure| if bare { replies::without_body(failure) } else { failure })
    }

    fn described(&self, one: &Described<'_>, began: Instant) -> Result<decide::Answer, LeftToPython> {
        let prepared = self.prepare(one, one.cost(), one.ruleset(&self.resolver)?, Asking::Alone)?;
        let write = |told: &ToldLimits, decision: Told<'_>| replies::one(replies::decision_json(told, decision));
        self.answer(prepared, began, write, |failure| failure)
    }

    /// The answers to a list, which is prepared whole before the store is asked; a long one has a turn.
    async fn several(
        &self,
        several: Vec<Described<'_>>,
        turn: Option<OwnedSemaphorePermit>,
        began: Instant,
    ) -> Result<decide::Answer, LeftToPython> {
        let (mut pieces, mut all) = (Pieces::begin(), Vec::with_capacity(several.len()));
        for one in several {
            all.push(self.prepare(&one, one.cost(), one.ruleset(&self.resolver)?, Asking::Among)?);
            pieces.next().await;
        }
        self.answer_several(all, turn, began)
    }

    /// The answer to one check, as it is written from a decision or a failure.
    fn answer(
        &self,
        prepared: Prepared<O::Choice>,
        began: Instant,
        write: impl Fn(&ToldLimits, Told<'_>) -> Reply + Send + 'static,
        fail: impl Fn(Reply) -> Reply + Send + 'static,
    ) -> Result<decide::Answer, LeftToPython> {
        let asked = match prepared {
            Prepared::Free => return Ok(decide::Answer::Reply(self.told_free(began, write))),
            Prepared::Refused(bound, refused) => {
                return Ok(decide::Answer::Reply(self.told_refused(&bound, &refused, began, write)));
            }
            Prepared::Asked(asked) => asked,
        };
        let (bound, counters) = (Arc::clone(&asked.bound), Arc::clone(&self.counters));
        let outcomes = self.queue.ask(smallvec![asked]).ok_or(LeftToPython)?;
        Ok(decide::Answer::Later(Later::new(async move {
            match outcomes.await.ok().and_then(|mut outcomes| outcomes.pop().flatten()) {
                Some(Outcome::Decided(answer, degraded)) => {
                    write(&bound.told, counted(&counters, &bound.told, &answer, degraded, began))
                }
                Some(Outcome::Failed(failure)) => fail(failure),
                None => fail(replies::lost()),
            }
        })))
    }

    /// The answers to checks of one body, each by itself; those of the store are asked for together.
    fn answer_several(
        &self,
        prepared: Vec<Prepared<O::Choice>>,
        turn: Option<OwnedSemaphorePermit>,
        began: Instant,
    ) -> Result<decide::Answer, LeftToPython> {
        let (mut all, mut asked) = (Vec::with_capacity(prepared.len()), SmallVec::new());
        let (mut free, mut refusals) = (Vec::new(), Vec::new());
        for (place, one) in prepared.into_iter().enumerate() {
            all.push(match one {
                Prepared::Free => {
                    free.push(place);
                    Begun::Known(String::new())
                }
                Prepared::Refused(bound, refused) => {
                    refusals.push((place, bound, refused));
                    Begun::Known(String::new())
                }
                Prepared::Asked(one) => {
                    let bound = Arc::clone(&one.bound);
                    asked.push(one);
                    Begun::Asked(bound)
                }
            });
        }
        // What is left to Python is counted there: nothing is counted before the store is asked.
        let outcomes = match (asked.is_empty(), turn) {
            (true, _) => None,
            (false, None) => Some(self.queue.ask(asked).ok_or(LeftToPython)?),
            (false, Some(turn)) => Some(self.queue.ask_list(asked, turn)),
        };
        for place in free {
            all[place] = Begun::Known(self.told_free(began, replies::decision_json));
        }
        for (place, bound, refused) in refusals {
            all[place] = Begun::Known(self.told_refused(&bound, &refused, began, replies::decision_json));
        }
        let counters = Arc::clone(&self.counters);
        Ok(decide::Answer::Later(Later::new(async move {
            let mut came = match outcomes {
                Some(outcomes) => outcomes.await.unwrap_or_default().into_iter(),
                None => SmallVec::new().into_iter(),
            };
            let (mut pieces, mut written) = (Pieces::begin(), Vec::with_capacity(all.len()));
            for begun in all {
                written.push(match begun {
                    Begun::Known(json) => json,
                    Begun::Asked(bound) => match came.next().flatten() {
                        Some(Outcome::Decided(answer, degraded)) => {
                            let decision = counted(&counters, &bound.told, &answer, degraded, began);
                            replies::decision_json(&bound.told, decision)
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

    fn told_free<R>(&self, began: Instant, write: impl Fn(&ToldLimits, Told<'_>) -> R) -> R {
        let answer = Answer { allowed: true, full: None, binding: None, readings: Readings::Many([].into()) };
        let told = ToldLimits::none();
        write(&told, counted(&self.counters, &told, &answer, "", began))
    }

    fn told_refused<R>(
        &self,
        bound: &BoundLimits<O::Choice>,
        refused: &[bool],
        began: Instant,
        write: impl Fn(&ToldLimits, Told<'_>) -> R,
    ) -> R {
        let told = bound.refusal();
        let answer = told.refuse(refused);
        write(told, counted(&self.counters, told, &answer, "", began))
    }
}

/// A decision as it is told, once it is counted.
fn counted<'a>(
    counters: &Counters,
    told: &ToldLimits,
    answer: &'a Answer,
    degraded: &'a str,
    began: Instant,
) -> Told<'a> {
    let own = counters.own();
    own.count_time(began.elapsed());
    own.count_degraded(degraded);
    told.count(answer, own);
    Told { answer, degraded }
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
