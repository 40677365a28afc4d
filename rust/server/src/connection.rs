//! What is known of one connection by all that look at it: what it waits for, what it holds, and what is wanted of it.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::problems::Refusal;
use crate::room::Room;
use crate::waiting::Waiting;

/// What is wanted of a connection; several things may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// Its client has taken too long to send something.
    Expire = 1,
    /// Another connection needs its place, or what it holds.
    GiveWay = 2,
    /// The door closes: no further request.
    Close = 4,
    /// It is cut off.
    Abort = 8,
}

const NEVER: u64 = u64::MAX;

/// One connection, as its own task, its exchanges and the registry see it.
pub struct Connection {
    pub id: u64,
    pub peer: IpAddr,
    /// The same, as text: each of its requests is decided by it.
    pub peer_text: Box<str>,
    pub waiting: Waiting,
    room: Arc<Room>,
    held: AtomicUsize,
    wishes: AtomicU8,
    /// Tells its task that there is a wish.
    pub woken: Notify,
    /// Tells exchanges that another connection needs what is held.
    yielding: Notify,
    /// Tells exchanges that the client sends no more.
    left: Notify,
    has_left: AtomicBool,
    /// What has come next is handed over when all before it is answered.
    holds_back: AtomicBool,
    /// The request that is refused, counted from 0, and why; NEVER for none.
    refused: AtomicU64,
    refusal: Mutex<Option<Refusal>>,
    /// The request after which the connection ends.
    last: AtomicU64,
    told: AtomicBool,
}

impl Connection {
    /// Of a client that may take so long to read what was sent.
    pub fn new(id: u64, peer: IpAddr, room: Arc<Room>, take: Duration) -> Self {
        Self {
            id,
            peer,
            peer_text: peer.to_string().into(),
            waiting: Waiting::new(Arc::clone(&room), take),
            room,
            held: AtomicUsize::new(0),
            wishes: AtomicU8::new(0),
            woken: Notify::new(),
            yielding: Notify::new(),
            left: Notify::new(),
            has_left: AtomicBool::new(false),
            holds_back: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
            refusal: Mutex::new(None),
            last: AtomicU64::new(NEVER),
            told: AtomicBool::new(false),
        }
    }

    /// Since when it waits for its client and for nothing else; None where it does not, or ends already.
    pub fn waiting_since_ms(&self) -> Option<u64> {
        if self.ends() { None } else { self.waiting.since_ms() }
    }

    /// Since when it waits for its client to send the rest of what it holds, or to read that; None where it holds
    /// nothing of that kind, or ends already.
    pub fn holding_since_ms(&self) -> Option<u64> {
        if self.ends() || self.held() == 0 { None } else { self.waiting.owed_since_ms() }
    }

    fn ends(&self) -> bool {
        self.has(Wish::GiveWay) || self.has(Wish::Abort)
    }

    /// Whether this is wanted of it.
    pub fn has(&self, wish: Wish) -> bool {
        self.wishes.load(Relaxed) & wish as u8 != 0
    }

    /// Want something of it.
    pub fn want(&self, wish: Wish) {
        if self.wishes.fetch_or(wish as u8, Relaxed) & wish as u8 == 0 {
            self.woken.notify_one();
            if wish == Wish::GiveWay {
                self.yielding.notify_waiters();
            }
        }
    }

    /// The wish was seen to, and the connection goes on.
    pub fn is_done_with(&self, wish: Wish) {
        if self.has(wish) {
            self.wishes.fetch_and(!(wish as u8), Relaxed);
        }
    }

    /// End in favour of another connection: at once where nothing can be told to the client.
    pub fn give_way(&self) {
        self.want(if self.waiting.can_be_cut_off() { Wish::Abort } else { Wish::GiveWay });
    }

    /// Wait until it has to give way.
    pub async fn gives_way(&self) {
        let notified = self.yielding.notified();
        if !self.has(Wish::GiveWay) {
            notified.await;
        }
    }

    /// How many bytes of unfinished requests and of unread responses it holds.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// How many bytes all connections hold.
    pub fn all_hold(&self) -> usize {
        self.room.held()
    }

    /// The client sends no more.
    pub fn leave(&self) {
        self.has_left.store(true, Relaxed);
        self.left.notify_waiters();
    }

    /// Wait until the client has said that it sends no more.
    pub async fn leaves(&self) {
        let left = self.left.notified();
        if !self.has_left() {
            left.await;
        }
    }

    /// Whether the connection is to be woken when all is answered that was handed over.
    pub fn hold_back(&self, holds_back: bool) {
        self.holds_back.store(holds_back, Relaxed);
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Refuse a request, counted from 0. It is the last one.
    pub fn refuse(&self, number: u64, refusal: Refusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        self.refused.store(number, Relaxed);
    }

    /// The body that is being read cannot be read further.
    pub fn refuse_body(&self, refusal: Refusal) {
        self.end_after(0);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Why the body that was being read ended before its end.
    pub fn refusal_of_body(&self) -> Refusal {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        refusal.unwrap_or_else(Refusal::malformed)
    }

    /// Why this request is refused, if it is.
    pub fn refusal_of(&self, number: u64) -> Option<Refusal> {
        if self.refused.load(Relaxed) != number {
            return None;
        }
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This request is the last one that is read.
    pub fn end_after(&self, number: u64) {
        self.last.fetch_min(number, Relaxed);
    }

    /// The client was told that the connection ends; what it may have sent before it knew is still read.
    pub fn tell(&self) {
        self.told.store(true, Relaxed);
    }

    pub fn was_told(&self) -> bool {
        self.told.load(Relaxed)
    }

    pub fn ends_after(&self, number: u64) -> bool {
        self.last.load(Relaxed) <= number
    }
}

/// A request of a connection that is being answered, until what is sent of it has been handed to the protocol.
pub struct Answering(pub Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.waiting.end();
        if self.0.has_left() || self.0.holds_back.load(Relaxed) {
            self.0.woken.notify_one(); // now that all is answered, the protocol may learn of it
        }
    }
}

/// A body that is waited for, until this is dropped.
pub struct AwaitedBody {
    connection: Arc<Connection>,
    number: u64,
}

impl AwaitedBody {
    pub fn of(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::clone(connection), number: connection.waiting.await_body() }
    }
}

impl Drop for AwaitedBody {
    fn drop(&mut self) {
        self.connection.waiting.await_body_no_longer(self.number);
    }
}

/// What one unfinished request or unread response holds, in bytes; given back when it is dropped.
pub struct Held<C: Deref<Target = Connection> = Arc<Connection>> {
    connection: C,
    bytes: usize,
}

impl<C: Deref<Target = Connection>> Held<C> {
    /// Nothing so far.
    pub fn of(connection: C) -> Self {
        Self { connection, bytes: 0 }
    }

    /// It holds so many bytes, in place of those before.
    pub fn set(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return; // as nearly always: a request comes whole
        }
        if bytes > self.bytes {
            self.connection.held.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            self.connection.held.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.connection.room.hold(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl<C: Deref<Target = Connection>> Held<C> {
    /// It holds so many bytes, or more if it did before.
    pub fn set_at_least(&mut self, bytes: usize) {
        self.set(bytes.max(self.bytes));
    }
}

impl<C: Deref<Target = Connection>> Drop for Held<C> {
    fn drop(&mut self) {
        self.set(0);
    }
}
