//! What a connection waits for its client to do, and since when; readable from any thread.
//!
//! A connection waits for its client in three ways: to send the next thing, to send the rest of bodies, and to read
//! what was sent to it. Bytes that trickle change none of these times: a client that trickles has been waited for as
//! long as one that is silent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::room::Room;

/// What the client must send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Waits {
    /// A request.
    Request,
    /// A further request, which need not come.
    Further,
    /// The rest of a head.
    Head,
    /// The rest of a body; the exchange watches how long that takes.
    Body,
    /// Nothing: it must close its side of the ended connection.
    Leaving,
}

/// What a client has taken too long to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// To send.
    Sending,
    /// To read what was sent to it.
    Reading,
    /// To leave.
    Leaving,
}

const NEVER: u64 = u64::MAX;

/// How long the door discards what a client still sends, so that it reads the response before the connection is reset.
pub const LINGER: Duration = Duration::from_secs(2);

/// Start times of several waits of one kind; the oldest comes first.
#[derive(Default)]
pub struct Ages {
    next: AtomicU64,
    since_ms: Mutex<BTreeMap<u64, u64>>,
}

impl Ages {
    /// Wait for one more; returns its number.
    pub fn add(&self, now_ms: u64) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        self.lock().insert(number, now_ms);
        number
    }

    pub fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }

    pub fn oldest(&self) -> Option<u64> {
        self.lock().values().next().copied()
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.since_ms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one connection waits for. Times are those of the last tick, in milliseconds.
pub struct Waiting {
    room: Arc<Room>,
    take_ms: u64,
    waits: AtomicU8,
    since_ms: AtomicU64,
    within_ms: AtomicU64,
    answering: AtomicUsize,
    /// Requests whose bodies are waited for.
    bodies: Ages,
    /// Streams of HTTP/2 of which a piece was not taken yet.
    unread: Ages,
    /// Since when the socket does not take all that is to be sent; NEVER where it does.
    stuck_since_ms: AtomicU64,
    /// When a client whose socket takes nothing has taken too long.
    stuck_due_ms: AtomicU64,
}

impl Waiting {
    /// The waits of a client that may take this long to read what was sent.
    pub fn new(room: Arc<Room>, take: Duration) -> Self {
        Self {
            take_ms: millis(take),
            waits: AtomicU8::new(Waits::Request as u8),
            since_ms: AtomicU64::new(room.now_ms()),
            within_ms: AtomicU64::new(NEVER),
            answering: AtomicUsize::new(0),
            bodies: Ages::default(),
            unread: Ages::default(),
            stuck_since_ms: AtomicU64::new(NEVER),
            stuck_due_ms: AtomicU64::new(NEVER),
            room,
        }
    }

    /// Expect the client to send this next, within a time; `None` for no bound. It counts while nothing is being
    /// answered.
    pub fn expect(&self, waits: Waits, within: Option<Duration>) {
        if self.waits_for(Waits::Leaving) {
            return;
        }
        self.since_ms.store(self.room.now_ms(), Relaxed);
        self.within_ms.store(within.map_or(NEVER, millis), Relaxed);
        self.waits.store(waits as u8, Relaxed);
    }

    pub fn waits_for(&self, waits: Waits) -> bool {
        self.waits.load(Relaxed) == waits as u8
    }

    /// Count a request that is handed over to be answered.
    pub fn begin(&self) {
        self.answering.fetch_add(1, Relaxed);
    }

    /// Count a request as answered. After the last one the wait for the client starts anew.
    pub fn end(&self) {
        if self.answering.fetch_sub(1, Relaxed) == 1 && !self.waits_for(Waits::Leaving) {
            self.since_ms.store(self.room.now_ms(), Relaxed);
        }
    }

    /// How many requests are being answered.
    pub fn answering(&self) -> usize {
        self.answering.load(Relaxed)
    }

    /// Wait for the body of a request, until the wait is removed by the returned number.
    pub fn await_body(&self) -> u64 {
        self.bodies.add(self.room.now_ms())
    }

    pub fn await_body_no_longer(&self, number: u64) {
        self.bodies.remove(number);
    }

    /// Wait until a client of HTTP/2 has read a piece of a response; the wait is removed by the returned number.
    pub fn await_reading(&self) -> u64 {
        self.unread.add(self.room.now_ms())
    }

    pub fn await_reading_no_longer(&self, number: u64) {
        self.unread.remove(number);
    }

    /// Record that the socket has taken all that was to be sent, or a part.
    pub fn took(&self, all: bool) {
        if all {
            self.stuck_since_ms.store(NEVER, Relaxed);
        } else if self.is_stuck() {
            self.stuck_due_ms.store(self.room.now_ms().saturating_add(self.take_ms), Relaxed);
        } else {
            self.took_nothing();
        }
    }

    /// Record that the socket takes nothing.
    pub fn took_nothing(&self) {
        if !self.is_stuck() {
            let now_ms = self.room.now_ms();
            self.stuck_due_ms.store(now_ms.saturating_add(self.take_ms), Relaxed);
            self.stuck_since_ms.store(now_ms, Relaxed);
        }
    }

    fn is_stuck(&self) -> bool {
        self.stuck_since_ms.load(Relaxed) != NEVER
    }

    /// Since when the client leaves something unread; what was sent since the last tick is still on its way.
    fn unread_since_ms(&self) -> Option<u64> {
        let stuck_since_ms = Some(self.stuck_since_ms.load(Relaxed)).filter(|since_ms| *since_ms != NEVER);
        let unread_since_ms = self.unread.oldest();
        let since_ms = match (stuck_since_ms, unread_since_ms) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        since_ms.filter(|since_ms| *since_ms < self.room.now_ms())
    }

    /// Whether the connection only waits for the client to leave, or to read.
    pub fn can_be_cut_off(&self) -> bool {
        self.waits_for(Waits::Leaving) || self.unread_since_ms().is_some()
    }

    /// Since when the connection does nothing but wait for the client; None where something else goes on.
    pub fn since_ms(&self) -> Option<u64> {
        let since_ms = self.since_ms.load(Relaxed);
        if self.waits_for(Waits::Leaving) {
            return Some(since_ms);
        }
        let unread_since_ms = self.unread_since_ms();
        let answering = self.answering();
        if answering == 0 {
            return Some(unread_since_ms.map_or(since_ms, |unread| unread.min(since_ms)));
        }
        if self.is_stuck() {
            return unread_since_ms; // nothing can be answered before that is read
        }
        if answering > self.bodies.len() + unread_since_ms.map_or(0, |_| self.unread.len()) {
            return None;
        }
        [self.bodies.oldest(), unread_since_ms].into_iter().flatten().min()
    }

    /// Since when the connection waits for the client to send the rest of something, or to read something; None where
    /// all is complete and read.
    pub fn unfinished_since_ms(&self) -> Option<u64> {
        let head = || (self.answering() == 0).then(|| self.since_ms.load(Relaxed));
        let unsent_since_ms = self.bodies.oldest().or_else(head);
        [unsent_since_ms, self.unread_since_ms()].into_iter().flatten().min()
    }

    /// What its client has taken too long to do.
    pub fn overdue(&self, now_ms: u64) -> Option<Overdue> {
        if self.is_stuck() && self.stuck_due_ms.load(Relaxed) <= now_ms {
            return Some(Overdue::Reading);
        }
        if self.unread.oldest().is_some_and(|since_ms| since_ms.saturating_add(self.take_ms) <= now_ms) {
            return Some(Overdue::Reading);
        }
        if self.since_ms.load(Relaxed).saturating_add(self.within_ms.load(Relaxed)) > now_ms {
            return None;
        }
        if self.waits_for(Waits::Leaving) {
            return Some(Overdue::Leaving);
        }
        (self.answering() == 0 && !self.waits_for(Waits::Body)).then_some(Overdue::Sending)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}
