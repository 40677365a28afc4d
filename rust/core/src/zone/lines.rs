//! The waiting lines of a zone: the callers of all processes that wait for a key, in the order of their arrival.
//!
//! All lines share one lock. A process sets a flag before it changes something: a process that gets the lock and finds
//! the flag set rebuilds all links from the tickets. See docs/decisions/0047-a-line-in-a-zone.md.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use smallvec::SmallVec;

use crate::memory::shared::{SharedMap, Taken};
use crate::zone::backoff::Backoff;
use crate::zone::line_layout::{LinePlaces, MOST_COSTS};
use crate::zone::line_tickets::Tickets;
pub use crate::zone::line_tickets::{Joined, LineCosts, Seat, Standing};
pub use crate::zone::line_words::LineName;
use crate::zone::line_words::{CHANGING, LineWords};
use crate::zone::shards::Unusable;

/// Costs that a ticket has room for.
pub const MOST_GROUPS: usize = MOST_COSTS;

/// The lock of all lines.
const LOCK: usize = 0;

/// The waiting lines of a zone, as this process has them.
pub struct Lines {
    places: LinePlaces,
    /// 1 where this process could not get the lock when it last waited for it.
    out_of_reach: AtomicU64,
}

impl Lines {
    /// The lines of a mapped zone.
    pub fn new(places: LinePlaces) -> Self {
        Self { places, out_of_reach: AtomicU64::new(0) }
    }

    /// (callers, processes) that may wait at one time; none in a zone of an earlier version.
    pub fn room(&self) -> (usize, usize) {
        (self.places.tickets, self.places.processes)
    }

    /// How many callers wait for places of a group.
    #[inline(always)]
    pub fn waited(&self, map: &SharedMap, group: usize) -> bool {
        map.line_words().get(LinePlaces::waited(group)).is_some_and(|waited| waited.load(Relaxed) != 0)
    }

    /// Call the first callers that wait for places of a group, after some were freed. Where the lock of the lines
    /// cannot be had, the next process that listens calls them.
    #[cold]
    pub fn freed(&self, map: &SharedMap, group: usize, now_us: i64) {
        if let Some(pending) = map.line_words().get(LinePlaces::pending(group)) {
            pending.store(1, Relaxed);
        }
        let _ = self.with(map, now_us, |tickets| tickets.call_group(group));
    }

    /// Whether callers wait in this line.
    pub fn is_waited_for(&self, map: &SharedMap, name: &LineName, now_us: i64) -> Result<bool, Unusable> {
        let words = LineWords::new(map.line_words(), self.places);
        if words.get(words.bucket_of(name)) == 0 && words.get(CHANGING) == 0 {
            return Ok(false);
        }
        self.with(map, now_us, |tickets| tickets.first_present(name).is_some())
    }

    /// Run `work` on the locked lines, at a moment of the monotonic clock.
    pub fn with<'zone, T>(
        &self,
        map: &'zone SharedMap,
        now_us: i64,
        work: impl FnOnce(&mut Tickets<'zone>) -> T,
    ) -> Result<T, Unusable> {
        let taken = self.lock(map)?;
        let words = LineWords::new(map.line_words(), self.places);
        let mut tickets = Tickets { words, map, now_us, woken: SmallVec::new() };
        if tickets.words.get(CHANGING) != 0 {
            tickets.mend();
        }
        tickets.words.put(CHANGING, 1);
        let result = work(&mut tickets);
        tickets.words.put(CHANGING, 0);
        drop(taken);
        tickets.woken.iter().for_each(|process| map.bell(1 + process).wake());
        Ok(result)
    }

    /// Forget all callers: no other process uses the zone, so all of them are of processes that have ended.
    pub fn forget_all(&self, map: &SharedMap) {
        LineWords::new(map.line_words(), self.places).put(CHANGING, 1);
    }

    /// Listen for calls of this process's tickets, as long as `on_called` returns true: it gets the numbers of the
    /// called tickets, or None where all callers must check whether they are still in line. `started` gets the seat of
    /// this process, or None where there is no room for another process. `now_us` is the monotonic clock.
    pub fn listen<E>(
        &self,
        map: &SharedMap,
        now_us: impl Fn() -> i64,
        interval: Duration,
        started: impl FnOnce(Option<Seat>) -> Result<(), E>,
        mut on_called: impl FnMut(Option<Vec<u64>>) -> Result<bool, E>,
    ) -> Result<Result<(), E>, Unusable> {
        let Some((seat, _taken)) = self.with(map, now_us(), Tickets::claim)? else {
            return Ok(started(None));
        };
        let bell = map.bell(1 + seat.process);
        if let Err(error) = started(Some(seat)) {
            return Ok(Err(error));
        }
        loop {
            let rung = bell.rung();
            let called = match self.with(map, now_us(), |tickets| tickets.listen(seat.process)) {
                Ok(called) => called,
                Err(_) => Some(Vec::new()), // held by a stopped process: it is tried again
            };
            match on_called(called) {
                Ok(true) => bell.wait(rung, interval),
                Ok(false) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Wake the process in a seat, so that it listens again.
    pub fn wake(&self, map: &SharedMap, process: usize) {
        if process < self.places.processes {
            map.bell(1 + process).ring();
            map.bell(1 + process).wake();
        }
    }

    fn lock<'zone>(&self, map: &'zone SharedMap) -> Result<Taken<'zone>, Unusable> {
        let mut backoff = Backoff::default();
        let mut taken = map.take_line_lock(LOCK);
        while taken.is_none() && backoff.pause(self.out_of_reach.load(Relaxed) != 0) {
            taken = map.take_line_lock(LOCK);
        }
        self.out_of_reach.store(u64::from(taken.is_none()), Relaxed);
        taken.ok_or_else(|| Unusable::Stuck(map.holder_of_line_lock(LOCK)))
    }
}
