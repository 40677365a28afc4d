//! The waiting lines of a zone: the callers of all processes that wait for a key, in the order in which they came.
//!
//! All of them have one lock. A process that changes something says so first: one that finds that said, and no process at
//! it, makes anew what follows from the tickets. See docs/decisions/0047-a-line-in-a-zone.md.

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
    /// 1 where this process could not have them when it last waited for them.
    out_of_reach: AtomicU64,
}

impl Lines {
    /// Those of a mapped zone.
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

    /// Places of a group were freed: the first callers that wait for them are called. Where the lines are not to be
    /// had, the next process that listens calls them.
    #[cold]
    pub fn freed(&self, map: &SharedMap, group: usize, now_us: i64) {
        if let Some(pending) = map.line_words().get(LinePlaces::pending(group)) {
            pending.store(1, Relaxed);
        }
        let _ = self.with(map, now_us, |tickets| tickets.call_group(group));
    }

    /// Whether callers are in this line.
    pub fn is_waited_for(&self, map: &SharedMap, name: &LineName, now_us: i64) -> Result<bool, Unusable> {
        let words = LineWords::new(map.line_words(), self.places);
        if words.get(words.bucket_of(name)) == 0 && words.get(CHANGING) == 0 {
            return Ok(false);
        }
        self.with(map, now_us, |tickets| tickets.pass_over(name).is_some())
    }

    /// Do something in the lines, at a moment of the monotonic clock.
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
        let came = work(&mut tickets);
        tickets.words.put(CHANGING, 0);
        drop(taken);
        tickets.woken.iter().for_each(|process| map.bell(1 + process).wake());
        Ok(came)
    }

    /// Whatever is in the lines is of processes that are gone: no other process uses the zone.
    pub fn forget_all(&self, map: &SharedMap) {
        LineWords::new(map.line_words(), self.places).put(CHANGING, 1);
    }

    /// Hear which tickets of a process are called, for as long as `hear` says: it is given their numbers, or None where
    /// all should ask whether they are in line still. `began` is told where the process sits, None where there is no
    /// room for another process. `now_us` is the monotonic clock.
    pub fn listen<E>(
        &self,
        map: &SharedMap,
        now_us: impl Fn() -> i64,
        look: Duration,
        began: impl FnOnce(Option<Seat>) -> Result<(), E>,
        mut hear: impl FnMut(Option<Vec<u64>>) -> Result<bool, E>,
    ) -> Result<Result<(), E>, Unusable> {
        let Some((seat, _taken)) = self.with(map, now_us(), Tickets::claim)? else {
            return Ok(began(None));
        };
        let bell = map.bell(1 + seat.process);
        if let Err(error) = began(Some(seat)) {
            return Ok(Err(error));
        }
        loop {
            let rung = bell.rung();
            let called = match self.with(map, now_us(), |tickets| tickets.listen(seat.process)) {
                Ok(called) => called,
                Err(_) => Some(Vec::new()), // held by a process that was stopped: it is looked at again
            };
            match hear(called) {
                Ok(true) => bell.wait(rung, look),
                Ok(false) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Let the process look that sits there and listens.
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
