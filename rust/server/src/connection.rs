//! What is known of one connection by all that look at it: what it waits for, until when, and what is wanted of it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::problems::Refusal;
use crate::room::Room;

/// What a connection waits for its client to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Waits {
    /// It does not wait for its client.
    Not,
    /// To send a request.
    Request,
    /// To send the rest of a head.
    Head,
    /// To send the rest of a body; the exchange has an eye on how long that takes.
    Body,
    /// To take what was sent.
    Reading,
    /// To see that the connection has ended.
    Leaving,
}

/// What is wanted of a connection; several things may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// Its client has taken too long.
    Expire = 1,
    /// Another connection needs its place.
    GiveWay = 2,
    /// The door closes: no further request.
    Close = 4,
    /// It is cut off.
    Abort = 8,
}

const NEVER: u64 = u64::MAX;

/// One connection, as its own task and the registry see it.
pub struct Connection {
    pub id: u64,
    pub peer: IpAddr,
    room: Arc<Room>,
    waits: AtomicU8,
    since_ms: AtomicU64,
    due_ms: AtomicU64,
    /// What it waits for once all is answered, and for how long.
    next_waits: AtomicU8,
    next_ms: AtomicU64,
    held: AtomicUsize,
    answering: AtomicUsize,
    answered: AtomicU64,
    wishes: AtomicU8,
    /// Tells its task that there is a wish.
    pub woken: Notify,
    /// Tells exchanges that the client sends no more.
    pub left: Notify,
    has_left: AtomicBool,
    /// The request that is refused, counted from 0, and why; NEVER for none.
    refused: AtomicU64,
    refusal: Mutex<Option<Refusal>>,
    /// The request after which the connection ends.
    last: AtomicU64,
    told: AtomicBool,
}

impl Connection {
    pub fn new(id: u64, peer: IpAddr, room: Arc<Room>) -> Self {
        Self {
            id,
            peer,
            room,
            waits: AtomicU8::new(Waits::Not as u8),
            since_ms: AtomicU64::new(0),
            due_ms: AtomicU64::new(NEVER),
            next_waits: AtomicU8::new(Waits::Not as u8),
            next_ms: AtomicU64::new(NEVER),
            held: AtomicUsize::new(0),
            answering: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            wishes: AtomicU8::new(0),
            woken: Notify::new(),
            left: Notify::new(),
            has_left: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
            refusal: Mutex::new(None),
            last: AtomicU64::new(NEVER),
            told: AtomicBool::new(false),
        }
    }

    /// Note what the client is waited for, and for how long; `None` for no bound.
    pub fn wait(&self, waits: Waits, at_most: Option<Duration>) {
        self.wait_ms(waits as u8, millis(at_most));
    }

    fn wait_ms(&self, waits: u8, at_most_ms: u64) {
        let now_ms = self.room.now_ms();
        self.is_done_with(Wish::Expire);
        self.since_ms.store(now_ms, Relaxed);
        self.due_ms.store(now_ms.saturating_add(at_most_ms), Relaxed);
        self.waits.store(waits, Relaxed);
    }

    /// Note what the client is waited for as soon as all that it has asked is answered.
    pub fn wait_next(&self, waits: Waits, at_most: Option<Duration>) {
        self.next_ms.store(millis(at_most), Relaxed);
        self.next_waits.store(waits as u8, Relaxed);
    }

    /// What was sent has been taken.
    pub fn is_read(&self) {
        self.wait_no_longer();
        if self.answering() == 0 {
            self.wait_ms(self.next_waits.load(Relaxed), self.next_ms.load(Relaxed));
        }
    }

    /// Note that the client is not waited for.
    pub fn wait_no_longer(&self) {
        self.waits.store(Waits::Not as u8, Relaxed);
    }

    pub fn waits_for(&self, waits: Waits) -> bool {
        self.waits.load(Relaxed) == waits as u8
    }

    /// Since when it waits for its client; None while it does not, or ends already.
    pub fn waiting_since_ms(&self) -> Option<u64> {
        let waits = !(self.waits_for(Waits::Not) || self.has(Wish::GiveWay) || self.has(Wish::Abort));
        waits.then(|| self.since_ms.load(Relaxed))
    }

    /// Whether its client has taken too long.
    pub fn is_due(&self, now_ms: u64) -> bool {
        !self.waits_for(Waits::Not) && self.due_ms.load(Relaxed) <= now_ms
    }

    /// Whether this is wanted of it.
    pub fn has(&self, wish: Wish) -> bool {
        self.wishes.load(Relaxed) & wish as u8 != 0
    }

    /// Want something of it.
    pub fn want(&self, wish: Wish) {
        if self.wishes.fetch_or(wish as u8, Relaxed) & wish as u8 == 0 {
            self.woken.notify_one();
        }
    }

    /// The wish was seen to, and the connection goes on.
    pub fn is_done_with(&self, wish: Wish) {
        self.wishes.fetch_and(!(wish as u8), Relaxed);
    }

    /// How many bytes of unfinished requests it holds.
    pub fn hold(&self, bytes: usize) {
        let before = self.held.swap(bytes, Relaxed);
        if before != bytes {
            self.room.hold(before, bytes);
        }
    }

    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// How many of its requests are being answered.
    pub fn answering(&self) -> usize {
        self.answering.load(Relaxed)
    }

    /// How many were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// The client sends no more.
    pub fn leave(&self) {
        self.has_left.store(true, Relaxed);
        self.left.notify_waiters();
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// A request is handed over to be answered.
    pub fn begin(&self) {
        self.answering.fetch_add(1, Relaxed);
    }

    /// Refuse a request, counted from 0. It is the last one.
    pub fn refuse(&self, number: u64, refusal: Refusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        self.refused.store(number, Relaxed);
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

fn millis(time: Option<Duration>) -> u64 {
    time.map_or(NEVER, |time| u64::try_from(time.as_millis()).unwrap_or(NEVER))
}

/// A request of a connection that is being answered, until what is sent of it has been handed to the protocol.
pub struct Answering(pub Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Relaxed);
        if self.0.answering.fetch_sub(1, Relaxed) == 1 && !self.0.waits_for(Waits::Reading) {
            self.0.is_read();
        }
        if self.0.has_left() {
            self.0.woken.notify_one(); // now that all is answered, the protocol may learn of it
        }
    }
}
