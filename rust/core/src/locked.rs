//! The stripes that one decision holds, and where each check's state is in them.

use smallvec::SmallVec;

use crate::algorithms::transition::{Kept, Reading};
use crate::answer::Check;
use crate::limit::Algorithm;
use crate::log_pool::Charge;
use crate::storage::{DamagedState, Storage};
use crate::stripe::{Need, Place};

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

/// What keeping a state does to a log.
pub fn charge_of(kept: &Kept) -> Option<Charge> {
    match *kept {
        Kept::Entries { gone, shift, time, cost } => Some(Charge { gone, shift, time, cost }),
        Kept::Numbers(_) => None,
    }
}

/// The stripes of a decision, locked, and where each check's state is in them.
pub struct Locked<'table, S: Storage + 'table> {
    /// The stripes, in ascending order.
    pub guards: SmallVec<[S::Guard<'table>; 4]>,
    /// Where each check's state is, in the order of the checks.
    pub spots: SmallVec<[Spot; 4]>,
}

impl<'table, S: Storage> Locked<'table, S> {
    /// No stripes yet.
    #[inline(always)]
    pub fn none() -> Self {
        Self { guards: SmallVec::new(), spots: SmallVec::new() }
    }

    /// Lock the stripes of all checks, in ascending order, and find their states.
    #[inline(always)]
    pub fn lock(&mut self, storage: &'table S, checks: &[Check]) -> Result<(), S::Error> {
        let mut lanes: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let lane = storage.lane_of(check.key);
            if lanes.last() != Some(&lane) {
                lanes.push(lane);
            }
        }
        if lanes.len() > 1 {
            lanes.sort_unstable();
            lanes.dedup();
        }
        storage.lock_all(&lanes, &mut self.guards)?;
        for check in checks {
            let (lane, tag) = (storage.lane_of(check.key), check.tag());
            let guard = if lanes.len() == 1 { 0 } else { lanes.partition_point(|other| *other < lane) };
            let place = self.guards[guard].find(tag);
            self.spots.push(Spot { lane, guard, tag, place });
        }
        Ok(())
    }

    /// Bring all states into the numbers that their limits have now.
    #[inline]
    pub fn adopt(&mut self, storage: &S, checks: &[Check], now_us: i64) {
        for (check, spot) in checks.iter().zip(&self.spots) {
            let Spot { lane, guard, place, .. } = *spot;
            if self.guards[guard].adopt(place, check.limit, storage.limits(), now_us) {
                storage.settle(lane, &mut self.guards[guard]);
            }
        }
    }

    /// Bring the states that are not charged to the present where a clock once far ahead wrote them.
    pub fn to_present(&mut self, checks: &[Check], kept: &[Option<Kept>], now_us: i64) {
        for ((check, spot), kept) in checks.iter().zip(&self.spots).zip(kept) {
            if kept.is_none() {
                self.guards[spot.guard].to_present(spot.place, check.limit, now_us);
            }
        }
    }

    /// Whether keeping these states takes a slot or a log block more than there is.
    #[inline]
    pub fn needs_room(&self, checks: &[Check], kept: &[Option<Kept>]) -> bool {
        (0..checks.len()).any(|index| {
            let Spot { guard, place, .. } = self.spots[index];
            let (stripe, limit) = (&self.guards[guard], &checks[index].limit.limit);
            kept[index].is_some()
                && (place == Place::Absent
                    || limit.algorithm == Algorithm::SlidingLog
                        && stripe.needs_block(place, limit, &self.need(checks, kept, index)))
        })
    }

    /// What bears on whether the charge of a check needs another log block.
    pub fn need(&self, checks: &[Check], kept: &[Option<Kept>], index: usize) -> Need {
        let guard = self.spots[index].guard;
        let stripe = &self.guards[guard];
        let charge = |index: usize| kept[index].as_ref().and_then(charge_of);
        let before = (0..index).filter(|other| self.spots[*other].guard == guard).filter(|other| {
            let place = || stripe.find(self.spots[*other].tag);
            charge(*other).is_some_and(|charge| stripe.takes_block(place(), &checks[*other].limit.limit, &charge))
        });
        Need { charge: charge(index).unwrap_or_default(), before: before.count() }
    }

    /// Keep what a decision charged, in the places that are known.
    #[inline]
    pub fn keep(&mut self, storage: &S, checks: &[Check], kept: &[Option<Kept>]) -> Result<(), DamagedState> {
        for (spot, kept) in self.spots.iter().zip(kept) {
            if let Some(Kept::Entries { shift, .. }) = kept {
                self.guards[spot.guard].shift(spot.place, *shift);
            }
        }
        storage.begin(self);
        for ((check, spot), kept) in checks.iter().zip(&self.spots).zip(kept) {
            if let Some(kept) = kept {
                self.guards[spot.guard].keep(spot.place, spot.tag, check.limit, *kept);
            }
        }
        self.commit(storage)
    }

    /// Keep what a decision charged, in new slots too: each of those moves its neighbours.
    pub fn keep_growing(&mut self, storage: &S, checks: &[Check], kept: &[Option<Kept>]) -> Result<(), DamagedState> {
        for (spot, kept) in self.spots.iter().zip(kept) {
            if let Some(Kept::Entries { shift, .. }) = kept {
                let stripe = &mut self.guards[spot.guard];
                let place = stripe.find(spot.tag);
                stripe.shift(place, *shift);
            }
        }
        storage.begin(self);
        for ((check, spot), kept) in checks.iter().zip(&self.spots).zip(kept) {
            if let Some(kept) = kept {
                let stripe = &mut self.guards[spot.guard];
                let place = stripe.find(spot.tag);
                stripe.keep(place, spot.tag, check.limit, *kept);
            }
        }
        self.commit(storage)
    }

    /// What was written counts, unless something that cannot be was met.
    #[inline(always)]
    fn commit(&mut self, storage: &S) -> Result<(), DamagedState> {
        let checked = self.check();
        if checked.is_ok() {
            storage.commit(self)
        } else {
            storage.take_back(self)
        }
        checked
    }

    /// Whether all that was read since this was last asked can be.
    #[inline(always)]
    pub fn check(&self) -> Result<(), DamagedState> {
        let mut checked = Ok(());
        for guard in &self.guards {
            checked = guard.check().and(checked); // each is asked, so that none remembers it
        }
        checked
    }

    /// Give back what a decision charged, in one piece; in several where that takes more notes than a stripe has.
    ///
    /// Where a state is met that cannot be, it stays as it is, and that is told.
    pub fn give_back(
        &mut self,
        storage: &S,
        checks: &[Check],
        now_us: i64,
        earliest_us: i64,
    ) -> Result<(), DamagedState> {
        let mut checked = Ok(());
        let mut empty: SmallVec<[Spot; 4]> = SmallVec::new();
        storage.begin(self);
        for (number, check) in checks.iter().enumerate() {
            let spot = self.spots[number];
            if !self.guards[spot.guard].can_give_back(&check.limit.limit) {
                storage.commit(self);
                storage.begin(self);
            }
            let stripe = &mut self.guards[spot.guard];
            if stripe.give_back(spot.place, check, storage.limits(), now_us, earliest_us) {
                empty.push(spot);
            }
            checked = stripe.check().and(checked);
        }
        storage.commit(self);
        for Spot { lane, guard, tag, .. } in empty {
            self.guards[guard].drop_nothing(tag, storage.limits(), now_us);
            storage.settle(lane, &mut self.guards[guard]);
        }
        checked
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
