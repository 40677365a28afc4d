//! Checks that are submitted to a store that answers later, and the requests that wait for them.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::bound::BoundLimits;
use crate::event_loop::{Delivery, EventLoop};
use crate::outcome::{Outcome, Outcomes};

/// The check of one request by a store; it borrows nothing from the request.
#[derive(Debug)]
pub struct StoreCheck<C> {
    /// The limits, with the representation that the store's owner has of them.
    pub bound: Arc<BoundLimits<C>>,
    /// The text of each key.
    pub keys: SmallVec<[Box<str>; 2]>,
    /// For each group of the limits the index of its key.
    pub key_of: SmallVec<[usize; 4]>,
    /// For each group its cost.
    pub costs: SmallVec<[i64; 4]>,
}

/// The checks of one request to the door, which are decided in their order.
pub struct PendingRequest<C> {
    pub checks: SmallVec<[StoreCheck<C>; 1]>,
    pub sender: oneshot::Sender<Outcomes>,
    /// The thread that waits for the answers; None where it has no event loop.
    pub event_loop: Option<EventLoop>,
    pub admission: Admission,
}

/// The bound under which a request waits.
pub enum Admission {
    /// Slots among the checks that are not answered yet.
    Counted { _slots: UnansweredChecks },
    /// The turn of a long list, and its progress.
    Turn(Box<Turn>),
}

/// The share that a request has of the count of unanswered checks; released when dropped.
pub struct UnansweredChecks {
    pub unanswered: Arc<AtomicUsize>,
    pub count: usize,
}

impl Drop for UnansweredChecks {
    fn drop(&mut self) {
        self.unanswered.fetch_sub(self.count, Relaxed);
    }
}

/// The progress of a long list, which is decided in more than one batch.
pub struct Turn {
    /// How many of its checks were taken.
    pub taken: usize,
    /// The outcomes of those whose batches are finished.
    pub outcomes: Outcomes,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// A list of so many checks, of which none was taken.
    pub fn new(checks: usize, permit: OwnedSemaphorePermit) -> Self {
        Self { taken: 0, outcomes: Outcomes::with_capacity(checks), _permit: permit }
    }
}

impl<C> PendingRequest<C> {
    /// The first check that was not taken yet.
    pub fn next(&self) -> usize {
        match &self.admission {
            Admission::Counted { .. } => 0,
            Admission::Turn(turn) => turn.taken,
        }
    }

    /// Take checks of a long list with up to `left` limits, at least one check; gives how many.
    pub fn take_piece(&mut self, left: usize) -> usize {
        let first = self.next();
        let mut limits = 0;
        let fits = |check: &&StoreCheck<C>| {
            limits += check.costs.len();
            limits <= left
        };
        let count = self.checks[first..].iter().take_while(fits).count().max(1);
        if let Admission::Turn(turn) = &mut self.admission {
            turn.taken += count;
        }
        count
    }

    /// Record the outcomes of the checks that a batch took: they can be delivered, or more checks are to be decided.
    pub fn settle(mut self, outcomes: impl Iterator<Item = Option<Outcome>>) -> BatchResult<C> {
        let Admission::Turn(turn) = &mut self.admission else {
            return BatchResult::Complete(
                self.event_loop,
                Delivery { outcomes: outcomes.collect(), sender: self.sender },
            );
        };
        turn.outcomes.extend(outcomes);
        if turn.taken < self.checks.len() {
            return BatchResult::Unfinished(self);
        }
        let outcomes = take(&mut turn.outcomes);
        BatchResult::Complete(self.event_loop, Delivery { outcomes, sender: self.sender })
    }
}

/// The state of a request after a batch.
pub enum BatchResult<C> {
    /// All outcomes are known; they are delivered on that event loop.
    Complete(Option<EventLoop>, Delivery),
    /// More is to be decided.
    Unfinished(PendingRequest<C>),
}
