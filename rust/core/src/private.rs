//! Stripes in the memory of one process: they grow, and die with it.

use crate::answer::{Check, OnFull};
use crate::hash::{KeyHash, Seed};
use crate::heap::Heap;
use crate::lanes::{self, Lanes};
use crate::locked::Locked;
use crate::registry::{Definition, Known, Limits, Registered, Registration, Registry};
pub use crate::room::Bounds;
use crate::room::Room;
use crate::storage::{DamagedState, Full, Stats, Storage};
use crate::stripe::Need;

/// The storage of a table that one process has for itself.
pub struct Private {
    registry: Registry,
    lanes: Lanes,
    room: Room,
}

impl Private {
    /// Nothing stored yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { registry: Registry::default(), lanes: Lanes::new(bounds.max_keys), room: Room::new(bounds) }
    }
}

impl Private {
    /// Forget the limits that nobody binds, once no slot names them.
    #[cold]
    fn forget_limits(&self, known: &mut Known, now_us: i64) {
        let newest = known.newest();
        let mut named = vec![false; self.registry.hold().len()];
        for lane in 0..self.lanes.len() {
            let mut stripe = self.lanes.lock(lane);
            let expired = stripe.tidy(&newest, &self.registry.hold(), now_us, &mut named);
            self.room.count_expired(expired);
            self.room.settle(&mut stripe);
            self.lanes.note_slots(lane, &stripe);
        }
        drop(newest);
        self.registry.forget(known, &named);
    }
}

impl Storage for Private {
    type Ground<'table> = Heap;
    type Guard<'table> = lanes::Guard<'table>;
    type Error = DamagedState;

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    #[inline(always)]
    fn lane_of(&self, key: KeyHash) -> usize {
        self.lanes.of(key)
    }

    #[inline(always)]
    fn lock(&self, lane: usize) -> Result<Self::Guard<'_>, DamagedState> {
        Ok(self.lanes.lock(lane))
    }

    #[inline(always)]
    fn fetch(&self, check: &Check) {
        self.lanes.fetch(check);
    }

    fn register(&self, seed: &Seed, definition: Definition<'_>, now_us: i64) -> Registration<DamagedState> {
        let mut known = self.registry.lock();
        if known.is_crowded() {
            self.forget_limits(&mut known, now_us);
        }
        Ok(self.registry.register(&mut known, seed, definition))
    }

    /// Whoever binds a limit holds it, and none that is held is taken back.
    #[inline(always)]
    fn is_current(&self, _limit: &Registered) -> bool {
        true
    }

    fn renew(&self, _seed: &Seed, _limit: &Registered, _now_us: i64) -> Result<(), DamagedState> {
        Ok(())
    }

    #[inline(always)]
    fn limits(&self) -> &impl Limits {
        &self.registry
    }

    fn on_full(&self) -> OnFull {
        self.room.on_full()
    }

    fn reserve(
        &self,
        check: &Check,
        locked: &mut Locked<'_, Self>,
        index: usize,
        need: Need,
        now_us: i64,
    ) -> Result<(), Full> {
        self.room.reserve(check, locked, index, need, &self.lanes, &self.registry, now_us)
    }

    /// Reservations lapse when the stripe is settled.
    fn drop_reserved(&self, _locked: &mut Locked<'_, Self>, _now_us: i64) {}

    #[inline(always)]
    fn begin(&self, _locked: &mut Locked<'_, Self>) {}

    #[inline(always)]
    fn commit(&self, _locked: &mut Locked<'_, Self>) {}

    fn take_back(&self, _locked: &mut Locked<'_, Self>) {}

    fn settle(&self, lane: usize, stripe: &mut Self::Guard<'_>) {
        self.room.settle(stripe);
        self.lanes.note_slots(lane, stripe);
    }

    fn count_refused(&self) {
        self.room.count_refused();
    }

    fn count_passed(&self) {
        self.room.count_passed();
    }

    fn stats(&self) -> Result<Stats, DamagedState> {
        let held: usize = (0..self.lanes.len()).map(|lane| self.lanes.lock(lane).ground.bytes()).sum();
        Ok(self.room.stats(self.lanes.bytes() + held))
    }
}
