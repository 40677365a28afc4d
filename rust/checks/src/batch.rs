//! Checks that were taken together to be decided.

use std::mem::take;
use std::sync::Arc;

use crate::event_loop::{Delivery, EventLoop};
use crate::outcome::Outcome;
use crate::store_check::{BatchResult, PendingRequest, StoreCheck};
use crate::waiting_checks::WaitingChecks;

/// Checks that are decided together, by number. Dropping the batch sends the outcomes to all that wait for them.
pub struct Batch<C: Send + Sync + 'static> {
    requests: Vec<Taken<C>>,
    /// For each check the index of its request, and its index among the checks of that request.
    places: Vec<(usize, usize)>,
    outcomes: Vec<Option<Outcome>>,
    queue: Arc<WaitingChecks<C>>,
}

/// A request to the door with how many of its checks were taken: the next ones, all of them but for a long list.
pub struct Taken<C> {
    /// The request.
    pub request: PendingRequest<C>,
    /// The first of its checks.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl<C: Send + Sync + 'static> Batch<C> {
    pub(crate) fn new(requests: Vec<Taken<C>>, queue: Arc<WaitingChecks<C>>) -> Self {
        let count = requests.iter().map(|taken| taken.count).sum();
        let mut places = Vec::with_capacity(count);
        for (number, taken) in requests.iter().enumerate() {
            places.extend((taken.first..taken.first + taken.count).map(|check| (number, check)));
        }
        Self { requests, places, outcomes: (0..count).map(|_| None).collect(), queue }
    }

    /// How many checks.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A check; None for a number out of range.
    pub fn check(&self, number: usize) -> Option<&StoreCheck<C>> {
        let (request, check) = *self.places.get(number)?;
        self.requests.get(request)?.request.checks.get(check)
    }

    /// The outcome of a check; None while it is unknown.
    pub fn outcome(&self, number: usize) -> Option<&Outcome> {
        self.outcomes.get(number)?.as_ref()
    }

    /// Record the outcome of a check.
    pub fn settle(&mut self, number: usize, outcome: Outcome) {
        if let Some(place) = self.outcomes.get_mut(number) {
            *place = Some(outcome);
        }
    }
}

impl<C: Send + Sync + 'static> Drop for Batch<C> {
    /// Send all outcomes; each thread is woken once. A long list with checks left to decide waits again.
    fn drop(&mut self) {
        let mut by_event_loop: Vec<(EventLoop, Vec<Delivery>)> = Vec::new();
        let mut unfinished = Vec::new();
        let mut outcomes = take(&mut self.outcomes).into_iter();
        for Taken { request, count, .. } in take(&mut self.requests) {
            let (event_loop, delivery) = match request.settle(outcomes.by_ref().take(count)) {
                BatchResult::Unfinished(request) => {
                    unfinished.push(request);
                    continue;
                }
                BatchResult::Complete(None, delivery) => {
                    delivery.send();
                    continue;
                }
                BatchResult::Complete(Some(event_loop), delivery) => (event_loop, delivery),
            };
            match by_event_loop.iter_mut().find(|(known, _)| known.is_same(&event_loop)) {
                Some((_, deliveries)) => deliveries.push(delivery),
                None => by_event_loop.push((event_loop, vec![delivery])),
            }
        }
        let mut wake = self.queue.finish(unfinished, !by_event_loop.is_empty());
        for (event_loop, deliveries) in by_event_loop {
            event_loop.send(deliveries, wake.take());
        }
    }
}
