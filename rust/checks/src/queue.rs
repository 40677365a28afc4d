//! Checks that wait for a store which answers later: the door's threads submit them, one thread takes them in batches.
//!
//! Nothing waits for a batch to fill. The checks that wait, those of one batch, and those in progress are bounded.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use crate::batch::Batch;
use crate::batch::Taken;
use crate::event_loop::EventLoop;
pub use crate::outcome::{Outcome, Outcomes};
pub use crate::store_check::StoreCheck;
use crate::store_check::{Admission, PendingRequest, Turn, UnansweredChecks};
use crate::waiting_checks::{Waiting, WaitingChecks};

/// Checks of all threads that are submitted and not answered yet; further ones are left to Python.
pub const MOST_UNANSWERED: usize = 16_384;

/// Long lists that are prepared and wait for their answers; further ones wait unread.
pub const MOST_LISTS: usize = 4;

/// Limits of long lists in a batch, beside all else that waits: later checks have to wait for them.
const LIMITS_OF_LISTS: usize = 500;

/// So many waiting checks are a batch by themselves: for fewer, waiting for a turn of a thread costs less than a batch.
const MANY: usize = 64;

/// Checks that wait to be taken.
pub struct Queue<C>(Arc<WaitingChecks<C>>);

impl<C: Send + Sync + 'static> Queue<C> {
    /// A queue; `wake` is called when checks wait while no batch is under way and no wake is pending.
    ///
    /// A thread with an event loop calls it once its other ready tasks have submitted theirs, too; after a batch, one
    /// that received outcomes first sends its responses, so that clients that send again are in the next batch.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let waiting = Waiting {
            requests: VecDeque::new(),
            count: 0,
            lists: VecDeque::new(),
            is_wake_pending: false,
            is_under_way: false,
        };
        Self(Arc::new(WaitingChecks {
            waiting: Mutex::new(waiting),
            unanswered: Arc::default(),
            turns: Arc::new(Semaphore::new(MOST_LISTS)),
            wake: Box::new(wake),
        }))
    }

    /// The turn of a long list, which is to be prepared then; None where no turn comes any more.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.turns).acquire_owned().await.ok()
    }

    /// Submit the checks of a request; gives where their outcomes arrive, None where too many wait already.
    pub fn submit(&self, checks: SmallVec<[StoreCheck<C>; 1]>) -> Option<oneshot::Receiver<Outcomes>> {
        let slots = UnansweredChecks { unanswered: Arc::clone(&self.0.unanswered), count: checks.len() };
        if self.0.unanswered.fetch_add(slots.count, Relaxed) + slots.count > MOST_UNANSWERED {
            return None;
        }
        Some(self.enqueue(checks, Admission::Counted { _slots: slots }))
    }

    /// Submit the checks of a long list whose turn it is: a piece at a time, after all else that waits.
    pub fn submit_list(
        &self,
        checks: SmallVec<[StoreCheck<C>; 1]>,
        permit: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<Outcomes> {
        let turn = Turn::new(checks.len(), permit);
        self.enqueue(checks, Admission::Turn(Box::new(turn)))
    }

    fn enqueue(&self, checks: SmallVec<[StoreCheck<C>; 1]>, admission: Admission) -> oneshot::Receiver<Outcomes> {
        let (sender, outcomes) = oneshot::channel();
        let event_loop = EventLoop::current();
        let mut waiting = self.0.lock();
        let (count, is_list) = (checks.len(), matches!(admission, Admission::Turn(_)));
        let request = PendingRequest { checks, sender, event_loop: event_loop.clone(), admission };
        if is_list {
            waiting.lists.push_back(request);
        } else {
            waiting.count += count;
            waiting.requests.push_back(request);
        }
        let wake = if waiting.is_under_way { None } else { self.0.schedule_wake(&mut waiting) };
        drop(waiting);
        if let Some(wake) = wake {
            match event_loop {
                Some(event_loop) => event_loop.wake_later(wake),
                None => drop(wake),
            }
        }
        outcomes
    }

    /// Take waiting checks after `wake`: about `most` of them, those of one request together, and a piece of the long
    /// list that waits longest; None where there are none, and while a batch is under way.
    ///
    /// Checks that nothing waits for any more are dropped.
    pub fn take(&self, most: usize) -> Option<Batch<C>> {
        let mut waiting = self.0.lock();
        waiting.is_wake_pending = false;
        self.batch(waiting, most)
    }

    /// The same after a batch: None, too, where few checks wait and a thread is about to wake for them and later ones.
    pub fn take_more(&self, most: usize) -> Option<Batch<C>> {
        let waiting = self.0.lock();
        if waiting.is_wake_pending && waiting.count < MANY { None } else { self.batch(waiting, most) }
    }

    fn batch(&self, mut waiting: MutexGuard<'_, Waiting<C>>, most: usize) -> Option<Batch<C>> {
        if waiting.is_under_way {
            return None;
        }
        let (mut requests, mut count) = (Vec::new(), 0);
        while count < most
            && let Some(request) = waiting.requests.pop_front()
        {
            let count_of_request = request.checks.len();
            waiting.count -= count_of_request;
            if !request.sender.is_closed() {
                count += count_of_request;
                requests.push(Taken { request, first: 0, count: count_of_request });
            }
        }
        while let Some(mut request) = waiting.lists.pop_front() {
            if !request.sender.is_closed() {
                let first = request.next();
                requests.push(Taken { count: request.take_piece(LIMITS_OF_LISTS), first, request });
                break;
            }
        }
        if requests.is_empty() {
            return None;
        }
        waiting.is_under_way = true;
        drop(waiting);
        Some(Batch::new(requests, Arc::clone(&self.0)))
    }
}
