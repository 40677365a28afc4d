//! The shards that one decision holds, and where each check's state is in them.

use smallvec::SmallVec;

use crate::algorithms::transition::{Kept, Reading};
use crate::limit::Algorithm;
use crate::shard::log_pool::Charge;
use crate::shard::{Need, Place};
use crate::table::answer::Check;
use crate::table::storage::{DamagedState, Storage};

/// Where a check's state is: which of the locked shards, under which tag, in which place.
#[derive(Clone, Copy)]
pub struct Location {
    /// The shard's number.
    pub shard_number: usize,
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

/// The shards of a decision, locked, and where each check's state is in them.
pub struct Transaction<'table, S: Storage + 'table> {
    /// The shards, in ascending order.
    pub guards: SmallVec<[S::Guard<'table>; 4]>,
    /// Where each check's state is, in the order of the checks.
    pub locations: SmallVec<[Location; 4]>,
}

impl<'table, S: Storage> Transaction<'table, S> {
    /// No shards yet.
    #[inline(always)]
    pub fn none() -> Self {
        Self { guards: SmallVec::new(), locations: SmallVec::new() }
    }

    /// Lock the shards of all checks, in ascending order, and find their states.
    #[inline(always)]
    pub fn lock(&mut self, storage: &'table S, checks: &[Check]) -> Result<(), S::Error> {
        let mut shards: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let shard_number = storage.shard_of(check.key);
            if shards.last() != Some(&shard_number) {
                shards.push(shard_number);
            }
        }
        if shards.len() > 1 {
            shards.sort_unstable();
            shards.dedup();
        }
        storage.lock_all(&shards, &mut self.guards)?;
        for check in checks {
            let (shard_number, tag) = (storage.shard_of(check.key), check.tag());
            let guard = if shards.len() == 1 { 0 } else { shards.partition_point(|other| *other < shard_number) };
            let place = self.guards[guard].find(tag);
            self.locations.push(Location { shard_number, guard, tag, place });
        }
        Ok(())
    }

    /// Bring all states into the numbers that their limits have now.
    #[inline]
    pub fn adopt(&mut self, storage: &S, checks: &[Check], now_us: i64) {
        for (check, location) in checks.iter().zip(&self.locations) {
            let Location { shard_number, guard, place, .. } = *location;
            if self.guards[guard].adopt(place, check.limit, storage.limits(), now_us) {
                storage.settle(shard_number, &mut self.guards[guard]);
            }
        }
    }

    /// Bring the states that are not charged to the present where a clock once far ahead wrote them.
    pub fn to_present(&mut self, checks: &[Check], kept: &[Option<Kept>], now_us: i64) {
        for ((check, location), kept) in checks.iter().zip(&self.locations).zip(kept) {
            if kept.is_none() {
                self.guards[location.guard].to_present(location.place, check.limit, now_us);
            }
        }
    }

    /// Whether keeping these states takes a slot or a log block more than there is.
    #[inline]
    pub fn needs_room(&self, checks: &[Check], kept: &[Option<Kept>]) -> bool {
        (0..checks.len()).any(|index| {
            let Location { guard, place, .. } = self.locations[index];
            let (shard, limit) = (&self.guards[guard], &checks[index].limit.limit);
            kept[index].is_some()
                && (place == Place::Absent
                    || limit.algorithm == Algorithm::SlidingLog
                        && shard.needs_block(place, limit, &self.need(checks, kept, index)))
        })
    }

    /// What bears on whether the charge of a check needs another log block.
    pub fn need(&self, checks: &[Check], kept: &[Option<Kept>], index: usize) -> Need {
        let guard = self.locations[index].guard;
        let shard = &self.guards[guard];
        let charge = |index: usize| kept[index].as_ref().and_then(charge_of);
        let before = (0..index).filter(|other| self.locations[*other].guard == guard).filter(|other| {
            let place = || shard.find(self.locations[*other].tag);
            charge(*other).is_some_and(|charge| shard.takes_block(place(), &checks[*other].limit.limit, &charge))
        });
        Need { charge: charge(index).unwrap_or_default(), before: before.count() }
    }

    /// Keep what a decision charged, in the places that are known.
    #[inline]
    pub fn keep(&mut self, storage: &S, checks: &[Check], kept: &[Option<Kept>]) -> Result<(), DamagedState> {
        for (location, kept) in self.locations.iter().zip(kept) {
            if let Some(Kept::Entries { shift, .. }) = kept {
                self.guards[location.guard].shift(location.place, *shift);
            }
        }
        storage.begin(self);
        for ((check, location), kept) in checks.iter().zip(&self.locations).zip(kept) {
            if let Some(kept) = kept {
                self.guards[location.guard].keep(location.place, location.tag, check.limit, *kept);
            }
        }
        self.commit(storage)
    }

    /// Keep what a decision charged, in new slots too: each of those moves its neighbours.
    pub fn keep_growing(&mut self, storage: &S, checks: &[Check], kept: &[Option<Kept>]) -> Result<(), DamagedState> {
        for (location, kept) in self.locations.iter().zip(kept) {
            if let Some(Kept::Entries { shift, .. }) = kept {
                let shard = &mut self.guards[location.guard];
                let place = shard.find(location.tag);
                shard.shift(place, *shift);
            }
        }
        storage.begin(self);
        for ((check, location), kept) in checks.iter().zip(&self.locations).zip(kept) {
            if let Some(kept) = kept {
                let shard = &mut self.guards[location.guard];
                let place = shard.find(location.tag);
                shard.keep(place, location.tag, check.limit, *kept);
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

    /// Give back what a decision charged, in one piece; in several where that takes more notes than a shard has.
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
        let mut empty: SmallVec<[Location; 4]> = SmallVec::new();
        storage.begin(self);
        for (number, check) in checks.iter().enumerate() {
            let location = self.locations[number];
            if !self.guards[location.guard].can_give_back(&check.limit.limit) {
                storage.commit(self);
                storage.begin(self);
            }
            let shard = &mut self.guards[location.guard];
            if shard.give_back(location.place, check, storage.limits(), now_us, earliest_us) {
                empty.push(location);
            }
            checked = shard.check().and(checked);
        }
        storage.commit(self);
        for Location { shard_number, guard, tag, .. } in empty {
            self.guards[guard].drop_nothing(tag, storage.limits(), now_us);
            storage.settle(shard_number, &mut self.guards[guard]);
        }
        checked
    }

    /// Remember which states refused although waiting would help.
    pub fn mark_refused(&mut self, readings: &[Reading]) {
        for (location, reading) in self.locations.iter().zip(readings) {
            if reading.retry_after_us > 0 {
                self.guards[location.guard].mark_refused(location.place);
            }
        }
    }

    /// Find all states again, after slots were moved.
    pub fn find_again(&mut self) {
        for location in &mut self.locations {
            location.place = self.guards[location.guard].find(location.tag);
        }
    }
}
