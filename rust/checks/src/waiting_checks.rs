//! The checks that wait for a store, and the wake that has them taken.

use std::collections::VecDeque;
use std::mem::replace;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::event_loop::{Wake, WakeOnDrop};
use crate::store_check::PendingRequest;

/// The checks that wait, shared by the threads of the door and the taker of batches.
pub struct WaitingChecks<C> {
    pub waiting: Mutex<Waiting<C>>,
    pub unanswered: Arc<AtomicUsize>,
    pub turns: Arc<Semaphore>,
    pub wake: Box<dyn Fn() + Send + Sync>,
}

/// The checks that wait, and whether they are about to be taken.
pub struct Waiting<C> {
    pub requests: VecDeque<PendingRequest<C>>,
    /// How many checks they are.
    pub count: usize,
    /// Long lists, which are taken a piece at a time after all else.
    pub lists: VecDeque<PendingRequest<C>>,
    /// The taker of batches was woken and has not taken one yet, or a thread will wake it if checks wait then.
    pub is_wake_pending: bool,
    /// A batch was taken and is not finished.
    pub is_under_way: bool,
}

impl<C: Send + Sync + 'static> WaitingChecks<C> {
    pub fn lock(&self) -> MutexGuard<'_, Waiting<C>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is finished: the rest of long lists waits again. Gives the next wake if outcomes are delivered first.
    pub fn finish(
        self: &Arc<Self>,
        unfinished: Vec<PendingRequest<C>>,
        some_are_delivered: bool,
    ) -> Option<WakeOnDrop> {
        let mut waiting = self.lock();
        waiting.is_under_way = false;
        for list in unfinished {
            waiting.lists.push_front(list);
        }
        if some_are_delivered { self.schedule_wake(&mut waiting) } else { None }
    }

    /// A wake that has a batch taken when it is dropped; None where one is pending already.
    pub fn schedule_wake(self: &Arc<Self>, waiting: &mut Waiting<C>) -> Option<WakeOnDrop> {
        (!replace(&mut waiting.is_wake_pending, true)).then(|| WakeOnDrop(Arc::clone(self) as Arc<dyn Wake>))
    }
}

impl<C> Waiting<C> {
    fn has_some(&self) -> bool {
        !self.requests.is_empty() || !self.lists.is_empty()
    }
}

impl<C: Send + Sync + 'static> Wake for WaitingChecks<C> {
    fn wake(&self) {
        let mut waiting = self.lock();
        waiting.is_wake_pending = waiting.has_some() && !waiting.is_under_way;
        let is_wake_pending = waiting.is_wake_pending;
        drop(waiting);
        if is_wake_pending {
            (self.wake)();
        }
    }
}
