//! The state that all connections of a door share: the time of the last tick, and how many bytes they hold.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The most that a tick adds to the time, so that it does not run on for clients while the process stands still.
const MOST_STEP_MS: u64 = 1000;

/// The room that connections take.
pub struct Room {
    began: Instant,
    /// What the clock had at the last tick.
    ticked_ms: AtomicU64,
    now_ms: AtomicU64,
    held: AtomicUsize,
}

impl Room {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            ticked_ms: AtomicU64::new(0),
            now_ms: AtomicU64::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// Update the time from the clock; returns `now_ms`.
    pub fn tick(&self) -> u64 {
        let clock_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let step_ms = clock_ms.saturating_sub(self.ticked_ms.fetch_max(clock_ms, Relaxed)).min(MOST_STEP_MS);
        self.now_ms.fetch_add(step_ms, Relaxed) + step_ms
    }

    /// The time of the last tick, in milliseconds that the door has run.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    /// Bytes of incomplete requests and of unread responses.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Change the number of bytes that a connection holds.
    pub fn hold(&self, before: usize, bytes: usize) {
        if bytes >= before {
            self.held.fetch_add(bytes - before, Relaxed);
        } else {
            self.held.fetch_sub(before - bytes, Relaxed);
        }
    }
}
