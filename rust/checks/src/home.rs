//! A thread that waits for checks, and tells its own tasks what came of them.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use crate::outcome::Outcomes;

/// Dropped, by a thread that has done what goes before or that has ended, it wakes what takes batches, if need be.
pub struct Due(pub Arc<dyn Wake>);

impl Drop for Due {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// What takes batches, or knows how to wake it.
pub trait Wake: Send + Sync {
    /// Wake it, if need be.
    fn wake(&self);
}

/// What is told to one request.
pub struct Told {
    pub outcomes: Outcomes,
    pub answers: oneshot::Sender<Outcomes>,
}

impl Told {
    pub fn tell(self) {
        let _ = self.answers.send(self.outcomes); // a thread that has gone does not wait for it
    }
}

/// A thread with an event loop, which tells its own tasks: to wake each of them from elsewhere is a system call.
#[derive(Clone)]
pub struct Home(mpsc::UnboundedSender<Errand>);

/// What such a thread does when it is its turn; it is `due` afterwards that batches are taken.
struct Errand {
    told: Vec<Told>,
    due: Option<Due>,
}

impl Home {
    /// The calling thread, if it has an event loop.
    pub fn here() -> Option<Self> {
        thread_local! {
            static HERE: RefCell<Option<Home>> = const { RefCell::new(None) };
        }
        let runtime = Handle::try_current().ok()?;
        HERE.with_borrow_mut(|here| {
            if let Some(home) = here
                && !home.0.is_closed()
            {
                return Some(home.clone());
            }
            let (sender, errands) = mpsc::unbounded_channel();
            runtime.spawn(run(errands));
            *here = Some(Self(sender));
            here.clone()
        })
    }

    pub fn is(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Let tasks know what came of their checks.
    ///
    /// `due` is dropped after they have sent their responses, and those that have got another request by then have asked.
    pub fn tell(&self, told: Vec<Told>, due: Option<Due>) {
        let _ = self.0.send(Errand { told, due }); // a thread that has ended waits for nothing
    }

    /// Drop `due` once the tasks of this thread that are ready now have asked.
    pub fn ask(&self, due: Due) {
        let _ = self.0.send(Errand { told: vec![], due: Some(due) });
    }
}

async fn run(mut errands: mpsc::UnboundedReceiver<Errand>) {
    while let Some(Errand { told, due }) = errands.recv().await {
        let answers_first = !told.is_empty();
        told.into_iter().for_each(Told::tell);
        if answers_first && due.is_some() {
            yield_now().await; // comes back after one look at the sockets, and the tasks that this has woken
        }
        drop(due);
    }
}
