//! The stripes of a table in the memory of one process, each under its own lock.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::answer::Check;
use crate::hash::KeyHash;
use crate::heap::Heap;
use crate::memory::prefetch;
use crate::slot::Slot;
use crate::stripe::{self, home};

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
}

/// A stripe, locked.
pub type Guard<'table> = MutexGuard<'table, Stripe>;

impl Lanes {
    /// As many empty stripes as suit a table of so many keys.
    pub fn new(max_keys: usize) -> Self {
        let stripes = (max_keys / KEYS_PER_STRIPE).next_power_of_two().clamp(1, MOST_STRIPES);
        let lanes = std::iter::repeat_with(Lane::default).take(stripes).collect();
        Self { lanes }
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
        // A power of two of stripes: the product keeps the highest bits.
        home(key.stripe, self.lanes.len())
    }

    /// Lock a stripe.
    #[inline(always)]
    pub fn lock(&self, lane: usize) -> Guard<'_> {
        // A stripe whose lock was poisoned is whole: nothing in it panics between two writes.
        self.lanes[lane].stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lock a stripe unless somebody holds it.
    pub fn try_lock(&self, lane: usize) -> Option<Guard<'_>> {
        match self.lanes[lane].stripe.try_lock() {
            Ok(stripe) => Some(stripe),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
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
