//! A thread whose tasks wait for checks, and which delivers the outcomes to them.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use crate::outcome::Outcomes;

/// Wakes the taker of batches, if need be, when a thread drops it: after its earlier work, or as it ends.
pub struct WakeOnDrop(pub Arc<dyn Wake>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Wakes the taker of batches.
pub trait Wake: Send + Sync {
    /// Wake it, if need be.
    fn wake(&self);
}

/// The outcomes of one request, and the channel that they are sent through.
pub struct Delivery {
    pub outcomes: Outcomes,
    pub sender: oneshot::Sender<Outcomes>,
}

impl Delivery {
    pub fn send(self) {
        let _ = self.sender.send(self.outcomes); // a thread that has ended does not wait for it
    }
}

/// A thread with an event loop, which wakes its own tasks: waking each of them from another thread is a system call.
#[derive(Clone)]
pub struct EventLoop(mpsc::UnboundedSender<Message>);

/// The deliveries that such a thread makes; `wake` is dropped afterwards, so that the next batch is taken.
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

    /// Deliver outcomes to the tasks of this thread.
    ///
    /// `wake` is dropped after these tasks have sent their responses; tasks that have received another request by then
    /// have submitted it.
    pub fn send(&self, deliveries: Vec<Delivery>, wake: Option<WakeOnDrop>) {
        let _ = self.0.send(Message { deliveries, wake }); // a thread that has ended waits for nothing
    }

    /// Drop `wake` once the tasks of this thread that are ready now have submitted their checks.
    pub fn wake_later(&self, wake: WakeOnDrop) {
        let _ = self.0.send(Message { deliveries: vec![], wake: Some(wake) });
    }
}

async fn deliver_messages(mut messages: mpsc::UnboundedReceiver<Message>) {
    while let Some(Message { deliveries, wake }) = messages.recv().await {
        let replies_first = !deliveries.is_empty();
        deliveries.into_iter().for_each(Delivery::send);
        if replies_first && wake.is_some() {
            yield_now().await; // returns after one poll of the sockets, and after the tasks that this has woken
        }
        drop(wake);
    }
}
