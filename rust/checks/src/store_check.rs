//! What is asked of a store that answers later, and what waits for it.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::bound::BoundLimits;
use crate::event_loop::{Delivery, EventLoop};
use crate::outcome::{Outcome, Outcomes};

/// What is asked of a store about one request; nothing of it depends on the request any more.
#[derive(Debug)]
pub struct StoreCheck<C> {
    /// The limits, with what the store's owner knows of them.
    pub bound: Arc<BoundLimits<C>>,
    /// The text of each key.
    pub keys: SmallVec<[Box<str>; 2]>,
    /// For each group of the limits which key it has.
    pub key_of: SmallVec<[usize; 4]>,
    /// For each group what it is charged.
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

/// What bounds how many wait.
pub enum Admission {
    /// Places among those that are not answered yet.
    Counted { _slots: UnansweredChecks },
    /// The turn of a long list, and how far it has come.
    Turn(Box<Turn>),
}

/// So many checks among those that are not answered yet.
pub struct UnansweredChecks {
    pub unanswered: Arc<AtomicUsize>,
    pub count: usize,
}

impl Drop for UnansweredChecks {
    fn drop(&mut self) {
        self.unanswered.fetch_sub(self.count, Relaxed);
    }
}

/// How far a long list has come, which is decided in more than one batch.
pub struct Turn {
    /// How many of its checks were taken.
    pub taken: usize,
    /// What came of those whose batches are finished.
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

    /// Take checks of a long list, of as many limits as are left, at least one; gives which it takes.
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

    /// Take note of what came of the checks that a batch took: those that wait can be told, or more is to be asked.
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

/// What a batch made of one asking.
pub enum BatchResult<C> {
    /// All that is to be told, and where.
    Complete(Option<EventLoop>, Delivery),
    /// More is to be decided.
    Unfinished(PendingRequest<C>),
}
