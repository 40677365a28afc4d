//! Checks that were taken together to be decided.

use std::mem::take;
use std::sync::Arc;

use crate::asked::{Asked, Asking, Settled};
use crate::home::{Home, Told};
use crate::outcome::Outcome;
use crate::waiting_checks::WaitingChecks;

/// Checks that were taken together, by number; dropped, what was decided is told.
pub struct Batch<C: Send + Sync + 'static> {
    askings: Vec<Taken<C>>,
    /// For each check of which asking it is, and which of its checks.
    places: Vec<(usize, usize)>,
    outcomes: Vec<Option<Outcome>>,
    queue: Arc<WaitingChecks<C>>,
}

/// A request to the door with how many of its checks were taken: the next ones, all of them but for a long list.
pub struct Taken<C> {
    /// The request.
    pub asking: Asking<C>,
    /// The first of its checks.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl<C: Send + Sync + 'static> Batch<C> {
    pub(crate) fn new(askings: Vec<Taken<C>>, queue: Arc<WaitingChecks<C>>) -> Self {
        let count = askings.iter().map(|taken| taken.count).sum();
        let mut places = Vec::with_capacity(count);
        for (number, taken) in askings.iter().enumerate() {
            places.extend((taken.first..taken.first + taken.count).map(|check| (number, check)));
        }
        Self { askings, places, outcomes: (0..count).map(|_| None).collect(), queue }
    }

    /// How many checks.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A check; None for a number that is none.
    pub fn check(&self, number: usize) -> Option<&Asked<C>> {
        let (asking, check) = *self.places.get(number)?;
        self.askings.get(asking)?.asking.checks.get(check)
    }

    /// What came of a check, as far as it is known.
    pub fn outcome(&self, number: usize) -> Option<&Outcome> {
        self.outcomes.get(number)?.as_ref()
    }

    /// Take note of what came of a check.
    pub fn settle(&mut self, number: usize, outcome: Outcome) {
        if let Some(place) = self.outcomes.get_mut(number) {
            *place = Some(outcome);
        }
    }
}

impl<C: Send + Sync + 'static> Drop for Batch<C> {
    /// Tell all that wait; each thread is woken once. A long list of which more is to be decided waits again.
    fn drop(&mut self) {
        let mut by_home: Vec<(Home, Vec<Told>)> = Vec::new();
        let mut rest = Vec::new();
        let mut outcomes = take(&mut self.outcomes).into_iter();
        for Taken { asking, count, .. } in take(&mut self.askings) {
            let (home, told) = match asking.settle(outcomes.by_ref().take(count)) {
                Settled::Rest(asking) => {
                    rest.push(asking);
                    continue;
                }
                Settled::Told(None, told) => {
                    told.tell();
                    continue;
                }
                Settled::Told(Some(home), told) => (home, told),
            };
            match by_home.iter_mut().find(|(known, _)| known.is(&home)) {
                Some((_, all)) => all.push(told),
                None => by_home.push((home, vec![told])),
            }
        }
        let mut due = self.queue.finish(rest, !by_home.is_empty());
        for (home, all) in by_home {
            home.tell(all, due.take());
        }
    }
}
