//! The checks that wait for a store, and what has them taken.

use std::collections::VecDeque;
use std::mem::replace;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::asked::Asking;
use crate::home::{Due, Wake};

/// The checks that wait, as the threads of the door and what takes batches share them.
pub struct WaitingChecks<C> {
    pub waiting: Mutex<Waiting<C>>,
    pub unanswered: Arc<AtomicUsize>,
    pub turns: Arc<Semaphore>,
    pub wake: Box<dyn Fn() + Send + Sync>,
}

/// What waits.
pub struct Waiting<C> {
    pub askings: VecDeque<Asking<C>>,
    /// How many checks they are.
    pub count: usize,
    /// Long lists, which are taken a piece at a time after all else.
    pub lists: VecDeque<Asking<C>>,
    /// What takes batches has been woken and has not come yet, or a thread will wake it if something waits then.
    pub is_due: bool,
    /// A batch was taken and is not finished.
    pub is_under_way: bool,
}

impl<C: Send + Sync + 'static> WaitingChecks<C> {
    pub fn lock(&self) -> MutexGuard<'_, Waiting<C>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is finished: what is left of long lists waits again. What has another one taken, if some are told first.
    pub fn finish(self: &Arc<Self>, rest: Vec<Asking<C>>, some_are_told: bool) -> Option<Due> {
        let mut waiting = self.lock();
        waiting.is_under_way = false;
        for list in rest {
            waiting.lists.push_front(list);
        }
        if some_are_told { self.due(&mut waiting) } else { None }
    }

    /// What has a batch taken when it is dropped; None where that is to happen already.
    pub fn due(self: &Arc<Self>, waiting: &mut Waiting<C>) -> Option<Due> {
        (!replace(&mut waiting.is_due, true)).then(|| Due(Arc::clone(self) as Arc<dyn Wake>))
    }
}

impl<C> Waiting<C> {
    fn has_some(&self) -> bool {
        !self.askings.is_empty() || !self.lists.is_empty()
    }
}

impl<C: Send + Sync + 'static> Wake for WaitingChecks<C> {
    fn wake(&self) {
        let mut waiting = self.lock();
        waiting.is_due = waiting.has_some() && !waiting.is_under_way;
        let is_due = waiting.is_due;
        drop(waiting);
        if is_due {
            (self.wake)();
        }
    }
}
