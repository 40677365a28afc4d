//! What is asked of a store that answers later, and what waits for it.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::bound::BoundLimits;
use crate::home::{Home, Told};
use crate::outcome::{Outcome, Outcomes};

/// What is asked of a store about one request; nothing of it depends on the request any more.
#[derive(Debug)]
pub struct Asked<C> {
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
pub struct Asking<C> {
    pub checks: SmallVec<[Asked<C>; 1]>,
    pub answers: oneshot::Sender<Outcomes>,
    /// The thread that waits for the answers; None where it has no event loop.
    pub home: Option<Home>,
    pub place: Place,
}

/// What bounds how many wait.
pub enum Place {
    /// Places among those that are not answered yet.
    Counted { _places: Counted },
    /// The turn of a long list, and how far it has come.
    Turn(Box<Turn>),
}

/// So many checks among those that are not answered yet.
pub struct Counted {
    pub unanswered: Arc<AtomicUsize>,
    pub count: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.unanswered.fetch_sub(self.count, Relaxed);
    }
}

/// How far a long list has come, which is decided in more than one batch.
pub struct Turn {
    /// How many of its checks were taken.
    pub taken: usize,
    /// What came of those whose batches are finished.
    pub came: Outcomes,
    _permit: OwnedSemaphorePermit,
}

impl Turn {
    /// A list of so many checks, of which none was taken.
    pub fn new(checks: usize, permit: OwnedSemaphorePermit) -> Self {
        Self { taken: 0, came: Outcomes::with_capacity(checks), _permit: permit }
    }
}

impl<C> Asking<C> {
    /// The first check that was not taken yet.
    pub fn next(&self) -> usize {
        match &self.place {
            Place::Counted { .. } => 0,
            Place::Turn(turn) => turn.taken,
        }
    }

    /// Take checks of a long list, of as many limits as are left, at least one; gives which it takes.
    pub fn take_piece(&mut self, left: usize) -> usize {
        let first = self.next();
        let mut limits = 0;
        let fits = |check: &&Asked<C>| {
            limits += check.costs.len();
            limits <= left
        };
        let count = self.checks[first..].iter().take_while(fits).count().max(1);
        if let Place::Turn(turn) = &mut self.place {
            turn.taken += count;
        }
        count
    }

    /// Take note of what came of the checks that a batch took: those that wait can be told, or more is to be asked.
    pub fn settle(mut self, outcomes: impl Iterator<Item = Option<Outcome>>) -> Settled<C> {
        let Place::Turn(turn) = &mut self.place else {
            return Settled::Told(self.home, Told { outcomes: outcomes.collect(), answers: self.answers });
        };
        turn.came.extend(outcomes);
        if turn.taken < self.checks.len() {
            return Settled::Rest(self);
        }
        let outcomes = take(&mut turn.came);
        Settled::Told(self.home, Told { outcomes, answers: self.answers })
    }
}

/// What a batch made of one asking.
pub enum Settled<C> {
    /// All that is to be told, and where.
    Told(Option<Home>, Told),
    /// More is to be decided.
    Rest(Asking<C>),
}
