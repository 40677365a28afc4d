//! The shared state of one connection: what it waits for, what it holds, and the signals to it.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::problems::Refusal;
use crate::room::Room;
use crate::waiting::Waiting;

/// A signal to a connection; it may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Signal {
    /// Its client has taken too long to send something.
    Expire = 1,
    /// Another connection needs its place, or the memory that it holds.
    GiveWay = 2,
    /// The door closes: no further request is read.
    Close = 4,
    /// It is cut off at once.
    Abort = 8,
}

const NEVER: u64 = u64::MAX;

/// The state of one connection that its task, its exchanges and the registry share.
pub struct Connection {
    pub id: u64,
    pub peer: IpAddr,
    /// The same as text, by which each of its requests is decided.
    pub peer_text: Box<str>,
    pub waiting: Waiting,
    room: Arc<Room>,
    held: AtomicUsize,
    signals: AtomicU8,
    /// Wakes its task for a signal.
    pub woken: Notify,
    /// Wakes exchanges when another connection needs what is held.
    yielding: Notify,
    /// Wakes exchanges when the client sends no more.
    left: Notify,
    has_left: AtomicBool,
    /// The next received request is handed over only when all before it are answered.
    holds_back: AtomicBool,
    /// The request that is refused, counted from 0; NEVER for none. `refusal` has the reason.
    refused: AtomicU64,
    refusal: Mutex<Option<Refusal>>,
    /// The request after which the connection ends, counted from 0.
    last: AtomicU64,
    end_announced: AtomicBool,
}

impl Connection {
    /// The state of a new connection; `take` is how long its client may take to read what was sent.
    pub fn new(id: u64, peer: IpAddr, room: Arc<Room>, take: Duration) -> Self {
        Self {
            id,
            peer,
            peer_text: peer.to_string().into(),
            waiting: Waiting::new(Arc::clone(&room), take),
            room,
            held: AtomicUsize::new(0),
            signals: AtomicU8::new(0),
            woken: Notify::new(),
            yielding: Notify::new(),
            left: Notify::new(),
            has_left: AtomicBool::new(false),
            holds_back: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
            refusal: Mutex::new(None),
            last: AtomicU64::new(NEVER),
            end_announced: AtomicBool::new(false),
        }
    }

    /// Since when it waits for its client and for nothing else; None where it does not, or is ending.
    pub fn waiting_since_ms(&self) -> Option<u64> {
        if self.ends() { None } else { self.waiting.since_ms() }
    }

    /// Since when it waits for its client to send the rest of what it holds, or to read it; None where it holds
    /// nothing, or is ending.
    pub fn holding_since_ms(&self) -> Option<u64> {
        if self.ends() || self.held() == 0 { None } else { self.waiting.unfinished_since_ms() }
    }

    fn ends(&self) -> bool {
        self.has(Signal::GiveWay) || self.has(Signal::Abort)
    }

    /// Whether it has this signal.
    pub fn has(&self, signal: Signal) -> bool {
        self.signals.load(Relaxed) & signal as u8 != 0
    }

    /// Signal the connection.
    pub fn signal(&self, signal: Signal) {
        if self.signals.fetch_or(signal as u8, Relaxed) & signal as u8 == 0 {
            self.woken.notify_one();
            if signal == Signal::GiveWay {
                self.yielding.notify_waiters();
            }
        }
    }

    /// Clear a signal that was handled: the connection goes on.
    pub fn clear_signal(&self, signal: Signal) {
        if self.has(signal) {
            self.signals.fetch_and(!(signal as u8), Relaxed);
        }
    }

    /// End in favour of another connection: at once where no response can reach the client.
    pub fn give_way(&self) {
        self.signal(if self.waiting.can_be_cut_off() { Signal::Abort } else { Signal::GiveWay });
    }

    /// Wait until it has to give way to another connection.
    pub async fn gives_way(&self) {
        let notified = self.yielding.notified();
        if !self.has(Signal::GiveWay) {
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

    /// Record that the client sends no more.
    pub fn leave(&self) {
        self.has_left.store(true, Relaxed);
        self.left.notify_waiters();
    }

    /// Wait until the client sends no more.
    pub async fn leaves(&self) {
        let left = self.left.notified();
        if !self.has_left() {
            left.await;
        }
    }

    /// Set whether the connection is woken when all requests that were handed over are answered.
    pub fn hold_back(&self, holds_back: bool) {
        self.holds_back.store(holds_back, Relaxed);
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Refuse a request, counted from 0, which is the last one.
    pub fn refuse(&self, number: u64, refusal: Refusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        self.refused.store(number, Relaxed);
    }

    /// Refuse the body that is being read: it cannot be read further.
    pub fn refuse_body(&self, refusal: Refusal) {
        self.end_after(0);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Why reading the body stopped before its end.
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

    /// Make this request the last one that is read.
    pub fn end_after(&self, number: u64) {
        self.last.fetch_min(number, Relaxed);
    }

    /// Record that a response announced the end of the connection; what the client sends before it has read that is
    /// still read, and discarded.
    pub fn note_announced_end(&self) {
        self.end_announced.store(true, Relaxed);
    }

    pub fn has_announced_end(&self) -> bool {
        self.end_announced.load(Relaxed)
    }

    pub fn ends_after(&self, number: u64) -> bool {
        self.last.load(Relaxed) <= number
    }
}

/// A request that is being answered, until all of its response has been handed to the protocol.
pub struct Answering(pub Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.waiting.end();
        if self.0.has_left() || self.0.holds_back.load(Relaxed) {
            self.0.woken.notify_one(); // now that all is answered, the protocol may learn that no more is sent
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

/// The bytes that one unfinished request or unread response holds; released when this is dropped.
pub struct Held<C: Deref<Target = Connection> = Arc<Connection>> {
    connection: C,
    bytes: usize,
}

impl<C: Deref<Target = Connection>> Held<C> {
    /// A record that holds nothing so far.
    pub fn of(connection: C) -> Self {
        Self { connection, bytes: 0 }
    }

    /// Set the number of bytes that it holds.
    pub fn set(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return; // as nearly always: a request arrives at once
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
    /// Raise the number of bytes that it holds to `bytes`, if it is less.
    pub fn set_at_least(&mut self, bytes: usize) {
        self.set(bytes.max(self.bytes));
    }
}

impl<C: Deref<Target = Connection>> Drop for Held<C> {
    fn drop(&mut self) {
        self.set(0);
    }
}
