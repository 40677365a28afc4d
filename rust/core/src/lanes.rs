//! The stripes of a table, each under its own lock, and those that one decision holds.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::algorithms::transition::{Kept, Reading};
use crate::answer::Check;
use crate::hash::KeyHash;
use crate::heap::Heap;
use crate::memory::prefetch;
use crate::registry::Registry;
use crate::slot::Slot;
use crate::stripe::{self, Place, home};

/// A stripe in the memory of this process.
type Stripe = stripe::Stripe<Heap>;

/// Keys that one stripe is meant for.
const KEYS_PER_STRIPE: usize = 4096;
const MOST_STRIPES: usize = 1024;

/// A stripe, on cache lines of its own, so that threads on two stripes do not slow each other.
#[repr(C, align(64))]
#[derive(Default)]
struct Lane {
    stripe: Mutex<Stripe>,
    /// Where the slots of the stripe are, for fetching ahead of the lock; a stale value does no harm.
    slots: AtomicPtr<Slot>,
    homes: AtomicUsize,
}

/// All stripes; a key's hash chooses one.
pub struct Lanes {
    lanes: Box<[Lane]>,
    shift: u32,
}

/// A stripe, locked.
pub type Guard<'table> = MutexGuard<'table, Stripe>;

impl Lanes {
    /// As many empty stripes as suit a table of so many keys.
    pub fn new(max_keys: usize) -> Self {
        let stripes = (max_keys / KEYS_PER_STRIPE).next_power_of_two().clamp(1, MOST_STRIPES);
        let lanes = std::iter::repeat_with(Lane::default).take(stripes).collect();
        Self { lanes, shift: 64 - stripes.trailing_zeros() }
    }

    /// How many stripes there are.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Bytes of the stripes themselves, without what they hold.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lanes)
    }

    /// The stripe of a key. All limits of one key are in one stripe.
    #[inline(always)]
    pub fn of(&self, key: KeyHash) -> usize {
        // A shift by 64 is not a shift: one stripe needs no bits.
        key.stripe.checked_shr(self.shift).unwrap_or(0) as usize
    }

    /// Lock a stripe.
    #[inline(always)]
    pub fn lock(&self, lane: usize) -> Guard<'_> {
        // A stripe whose lock was poisoned is whole: nothing in it panics between two writes.
        self.lanes[lane].stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock a stripe unless somebody holds it.
    pub fn try_lock(&self, lane: usize) -> Option<Guard<'_>> {
        self.lanes[lane].stripe.try_lock().ok()
    }

    /// Lock the stripes of all checks, in ascending order, and find their states.
    #[inline(always)]
    pub fn lock_all<'table>(&'table self, checks: &[Check], locked: &mut Locked<'table>) {
        let mut lanes: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let lane = self.of(check.key);
            if lanes.last() != Some(&lane) {
                lanes.push(lane);
            }
        }
        if lanes.len() > 1 {
            lanes.sort_unstable();
            lanes.dedup();
        }
        for lane in &lanes {
            locked.guards.push(self.lock(*lane));
        }
        for check in checks {
            let (lane, tag) = (self.of(check.key), check.tag());
            let guard = if lanes.len() == 1 { 0 } else { lanes.partition_point(|other| *other < lane) };
            let place = locked.guards[guard].find(tag);
            locked.spots.push(Spot { lane, guard, tag, place });
        }
    }

    /// Ask for the cache line where a check's state will be looked for. A hint, without any lock.
    #[inline(always)]
    pub fn fetch(&self, check: &Check) {
        let lane = &self.lanes[self.of(check.key)];
        let home = home(check.tag(), lane.homes.load(Ordering::Relaxed));
        prefetch(lane.slots.load(Ordering::Relaxed).wrapping_add(home));
    }

    /// Note where a stripe's slots are now.
    pub fn note_slots(&self, lane: usize, stripe: &Stripe) {
        self.lanes[lane].slots.store(stripe.ground.start().cast_mut(), Ordering::Relaxed);
        self.lanes[lane].homes.store(stripe.homes(), Ordering::Relaxed);
    }
}

/// Where a check's state is: which of the locked stripes, under which tag, in which place.
#[derive(Clone, Copy)]
pub struct Spot {
    /// The stripe's number.
    pub lane: usize,
    /// The index of its guard.
    pub guard: usize,
    /// The tag.
    pub tag: u64,
    /// Where the tag is.
    pub place: Place,
}

/// The stripes of a decision, locked, and where each check's state is in them.
#[derive(Default)]
pub struct Locked<'table> {
    /// The stripes, in ascending order.
    pub guards: SmallVec<[Guard<'table>; 4]>,
    /// Where each check's state is, in the order of the checks.
    pub spots: SmallVec<[Spot; 4]>,
}

impl Locked<'_> {
    /// Bring all states into the numbers that their limits have now.
    #[inline]
    pub fn adopt(&mut self, checks: &[Check], registry: &Registry, now_us: i64) {
        for (check, spot) in checks.iter().zip(&self.spots) {
            self.guards[spot.guard].adopt(spot.place, check.limit, registry, now_us);
        }
    }

    /// Whether keeping these states takes a slot or a log block more than there is.
    #[inline]
    pub fn needs_room(&self, checks: &[Check], kept: &[Option<Kept>]) -> bool {
        checks.iter().zip(&self.spots).zip(kept).any(|((check, spot), kept)| {
            kept.is_some()
                && (spot.place == Place::Absent || self.guards[spot.guard].needs_block(spot.place, &check.limit.limit))
        })
    }

    /// Keep what a decision charged, where every state has its slot already.
    #[inline]
    pub fn keep(&mut self, checks: &[Check], kept: &[Option<Kept>]) {
        for ((check, spot), kept) in checks.iter().zip(&self.spots).zip(kept) {
            if let Some(kept) = kept {
                self.guards[spot.guard].keep(spot.place, spot.tag, check.limit, *kept);
            }
        }
    }

    /// Keep what a decision charged, in new slots too: each of those moves its neighbours.
    pub fn keep_growing(&mut self, checks: &[Check], kept: &[Option<Kept>]) {
        for ((check, spot), kept) in checks.iter().zip(&self.spots).zip(kept) {
            if let Some(kept) = kept {
                let stripe = &mut self.guards[spot.guard];
                let place = stripe.find(spot.tag);
                stripe.keep(place, spot.tag, check.limit, *kept);
            }
        }
    }

    /// Remember which states refused although waiting would help.
    pub fn mark_refused(&mut self, readings: &[Reading]) {
        for (spot, reading) in self.spots.iter().zip(readings) {
            if reading.retry_after_us > 0 {
                self.guards[spot.guard].mark_refused(spot.place);
            }
        }
    }

    /// Find all states again, after slots were moved.
    pub fn find_again(&mut self) {
        for spot in &mut self.spots {
            spot.place = self.guards[spot.guard].find(spot.tag);
        }
    }
}
