//! A thread that waits for checks, and tells its own tasks what came of them.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use crate::outcome::Outcomes;

/// Dropped, by a thread that has done what goes before or that has ended, it wakes what takes batches, if need be.
pub struct WakeOnDrop(pub Arc<dyn Wake>);

impl Drop for WakeOnDrop {
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
pub struct Delivery {
    pub outcomes: Outcomes,
    pub sender: oneshot::Sender<Outcomes>,
}

impl Delivery {
    pub fn send(self) {
        let _ = self.sender.send(self.outcomes); // a thread that has gone does not wait for it
    }
}

/// A thread with an event loop, which tells its own tasks: to wake each of them from elsewhere is a system call.
#[derive(Clone)]
pub struct EventLoop(mpsc::UnboundedSender<Message>);

/// What such a thread does when it is its turn; it is `wake` afterwards that batches are taken.
struct Message {
    deliveries: Vec<Delivery>,
    wake: Option<WakeOnDrop>,
}

impl EventLoop {
    /// The calling thread, if it has an event loop.
    pub fn current() -> Option<Self> {
        thread_local! {
            static CURRENT: RefCell<Option<EventLoop>> = const { RefCell::new(None) };
        }
        let runtime = Handle::try_current().ok()?;
        CURRENT.with_borrow_mut(|current| {
            if let Some(event_loop) = current
                && !event_loop.0.is_closed()
            {
                return Some(event_loop.clone());
            }
            let (sender, messages) = mpsc::unbounded_channel();
            runtime.spawn(deliver_messages(messages));
            *current = Some(Self(sender));
            current.clone()
        })
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Let tasks know what came of their checks.
    ///
    /// `wake` is dropped after they have sent their responses, and those that have got another request by then have asked.
    pub fn send(&self, deliveries: Vec<Delivery>, wake: Option<WakeOnDrop>) {
        let _ = self.0.send(Message { deliveries, wake }); // a thread that has ended waits for nothing
    }

    /// Drop `wake` once the tasks of this thread that are ready now have asked.
    pub fn wake_later(&self, wake: WakeOnDrop) {
        let _ = self.0.send(Message { deliveries: vec![], wake: Some(wake) });
    }
}

async fn deliver_messages(mut messages: mpsc::UnboundedReceiver<Message>) {
    while let Some(Message { deliveries, wake }) = messages.recv().await {
        let replies_first = !deliveries.is_empty();
        deliveries.into_iter().for_each(Delivery::send);
        if replies_first && wake.is_some() {
            yield_now().await; // comes back after one look at the sockets, and the tasks that this has woken
        }
        drop(wake);
    }
}
