//! Checks that wait for a store which answers later: gathered on the door's threads, taken in batches by one that asks.
//!
//! Nothing waits for a batch to fill. What is taken is bounded, and so is what waits and what was taken together.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

pub use crate::asked::Asked;
use crate::asked::{Asking, Counted, Place, Turn};
pub use crate::batch::Batch;
use crate::batch::Taken;
use crate::home::Home;
pub use crate::outcome::{Outcome, Outcomes};
use crate::waiting_checks::{Waiting, WaitingChecks};

/// Checks that are asked for and not answered yet, of all threads; what comes beyond them is left to Python.
pub const MOST_UNANSWERED: usize = 16_384;

/// So many long lists are prepared and wait for their answers; what comes beyond them waits as it came.
pub const MOST_LISTS: usize = 4;

/// A batch has about so many limits of long lists, beside all else that waits: what comes next waits for them.
const LIMITS_OF_LISTS: usize = 500;

/// So many checks that wait are a batch by themselves: for fewer, what a batch costs is worth a turn of a thread.
const MANY: usize = 64;

/// Checks that wait to be taken.
pub struct Queue<C>(Arc<WaitingChecks<C>>);

impl<C: Send + Sync + 'static> Queue<C> {
    /// A queue; `wake` is called when something waits, and no batch is under way and none was asked for.
    ///
    /// A thread with an event loop calls it once the tasks that are ready have asked, too; after a batch, a thread that
    /// was told first sends what came of it, so that clients that ask again are in the next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let waiting =
            Waiting { askings: VecDeque::new(), count: 0, lists: VecDeque::new(), is_due: false, is_under_way: false };
        Self(Arc::new(WaitingChecks {
            waiting: Mutex::new(waiting),
            unanswered: Arc::default(),
            turns: Arc::new(Semaphore::new(MOST_LISTS)),
            wake: Box::new(wake),
        }))
    }

    /// The turn of a long list, which is to be prepared then; None where none comes any more.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.turns).acquire_owned().await.ok()
    }

    /// Ask about the checks of a request, and get what came of them; None where too many wait already.
    pub fn ask(&self, checks: SmallVec<[Asked<C>; 1]>) -> Option<oneshot::Receiver<Outcomes>> {
        let counted = Counted { unanswered: Arc::clone(&self.0.unanswered), count: checks.len() };
        if self.0.unanswered.fetch_add(counted.count, Relaxed) + counted.count > MOST_UNANSWERED {
            return None;
        }
        Some(self.put(checks, Place::Counted { _places: counted }))
    }

    /// Ask about the checks of a long list whose turn it is: a piece at a time, after all else that waits.
    pub fn ask_list(
        &self,
        checks: SmallVec<[Asked<C>; 1]>,
        permit: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<Outcomes> {
        let turn = Turn::new(checks.len(), permit);
        self.put(checks, Place::Turn(Box::new(turn)))
    }

    fn put(&self, checks: SmallVec<[Asked<C>; 1]>, place: Place) -> oneshot::Receiver<Outcomes> {
        let (answers, outcomes) = oneshot::channel();
        let home = Home::here();
        let mut waiting = self.0.lock();
        let (count, is_list) = (checks.len(), matches!(place, Place::Turn(_)));
        let asking = Asking { checks, answers, home: home.clone(), place };
        if is_list {
            waiting.lists.push_back(asking);
        } else {
            waiting.count += count;
            waiting.askings.push_back(asking);
        }
        let due = if waiting.is_under_way { None } else { self.0.due(&mut waiting) };
        drop(waiting);
        if let Some(due) = due {
            match home {
                Some(home) => home.ask(due),
                None => drop(due),
            }
        }
        outcomes
    }

    /// Take what waits, having been woken: about `most` checks, those of one request together, and a piece of the long
    /// list that waits longest; None where there are none, and while a batch is under way.
    ///
    /// What is no longer waited for is dropped.
    pub fn take(&self, most: usize) -> Option<Batch<C>> {
        let mut waiting = self.0.lock();
        waiting.is_due = false;
        self.batch(waiting, most)
    }

    /// The same after a batch: None, too, where few wait and a thread is to wake for them, with what comes until then.
    pub fn take_more(&self, most: usize) -> Option<Batch<C>> {
        let waiting = self.0.lock();
        if waiting.is_due && waiting.count < MANY { None } else { self.batch(waiting, most) }
    }

    fn batch(&self, mut waiting: MutexGuard<'_, Waiting<C>>, most: usize) -> Option<Batch<C>> {
        if waiting.is_under_way {
            return None;
        }
        let (mut askings, mut count) = (Vec::new(), 0);
        while count < most
            && let Some(asking) = waiting.askings.pop_front()
        {
            let own = asking.checks.len();
            waiting.count -= own;
            if !asking.answers.is_closed() {
                count += own;
                askings.push(Taken { asking, first: 0, count: own });
            }
        }
        while let Some(mut asking) = waiting.lists.pop_front() {
            if !asking.answers.is_closed() {
                let first = asking.next();
                askings.push(Taken { count: asking.take_piece(LIMITS_OF_LISTS), first, asking });
                break;
            }
        }
        if askings.is_empty() {
            return None;
        }
        waiting.is_under_way = true;
        drop(waiting);
        Some(Batch::new(askings, Arc::clone(&self.0)))
    }
}
