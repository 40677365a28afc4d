//! One decision on the shards that it has locked: what it reads there, and what it writes, atomically.

use smallvec::SmallVec;

use crate::algorithms::transition::{Reading, StateUpdate, Stored};
use crate::holding::store::HoldStore;
use crate::limit::Algorithm;
use crate::shard::backing::Backing;
use crate::shard::log_reader::Entries;
use crate::shard::states::Need;
use crate::shard::{DamagedState, Place};
use crate::table::answer::Check;
use crate::table::storage::{Location, LockedShards, Storage};

/// The shards of a decision, locked until this is dropped.
pub struct Transaction<'table, S: Storage + 'table> {
    pub(super) storage: &'table S,
    /// The shards, and where each check's state is in them.
    pub locked: LockedShards<S::Guard<'table>>,
}

impl<'table, S: Storage> Transaction<'table, S> {
    /// A transaction that has locked no shards yet.
    #[inline(always)]
    pub fn new(storage: &'table S) -> Self {
        Self { storage, locked: LockedShards { guards: SmallVec::new(), locations: SmallVec::new() } }
    }

    /// Release all locks.
    pub fn unlock(&mut self) {
        self.locked.guards.clear();
        self.locked.locations.clear();
    }

    /// The stored state of a check, in the numbers of its limit.
    #[inline(always)]
    pub fn stored(&self, check: &Check, location: &Location, now_us: i64) -> Stored<Entries<'_>> {
        let shard = &self.locked.guards[location.guard];
        shard.stored(location.place, check.limit, self.storage.limits(), now_us)
    }

    /// Convert all states into the numbers that their limits have now.
    #[inline(always)]
    pub fn adopt(&mut self, checks: &[Check], now_us: i64) {
        for (check, location) in checks.iter().zip(&self.locked.locations) {
            let Location { shard_number, guard, place, .. } = *location;
            if self.locked.guards[guard].adopt(place, check.limit, self.storage.limits(), now_us) {
                self.storage.settle(shard_number, &mut self.locked.guards[guard]);
            }
        }
    }

    /// Bring the states that are not charged to the present where a clock once far ahead wrote them.
    pub fn to_present(&mut self, checks: &[Check], updates: &[Option<StateUpdate>], now_us: i64) {
        for ((check, location), update) in checks.iter().zip(&self.locked.locations).zip(updates) {
            if update.is_none() {
                self.locked.guards[location.guard].to_present(location.place, check.limit, now_us);
            }
        }
    }

    /// Whether these updates take a slot or a log block that is not there.
    #[inline(always)]
    pub fn needs_room(&self, checks: &[Check], updates: &[Option<StateUpdate>]) -> bool {
        for (index, check) in checks.iter().enumerate() {
            let Location { guard, place, .. } = self.locked.locations[index];
            let (shard, limit) = (&self.locked.guards[guard], &check.limit.limit);
            if updates[index].is_some()
                && (place == Place::Absent
                    || limit.algorithm == Algorithm::SlidingLog
                        && shard.needs_block(place, limit, &self.need(checks, updates, index)))
            {
                return true;
            }
        }
        false
    }

    /// What decides whether the charge of a check needs another log block.
    pub fn need(&self, checks: &[Check], updates: &[Option<StateUpdate>], index: usize) -> Need {
        let guard = self.locked.locations[index].guard;
        let shard = &self.locked.guards[guard];
        let charge = |index: usize| match updates[index] {
            Some(StateUpdate::Entries(charge)) => Some(charge),
            _ => None,
        };
        let before = (0..index).filter(|other| self.locked.locations[*other].guard == guard).filter(|other| {
            let place = || shard.find(self.locked.locations[*other].tag);
            charge(*other).is_some_and(|charge| shard.takes_block(place(), &checks[*other].limit.limit, &charge))
        });
        Need { charge: charge(index).unwrap_or_default(), before: before.count() }
    }

    /// Write what a decision charged, in the places that are known, and what `more` writes with it.
    #[inline(always)]
    pub fn write(
        &mut self,
        checks: &[Check],
        updates: &[Option<StateUpdate>],
        more: impl FnOnce(&mut LockedShards<S::Guard<'table>>) -> Result<(), DamagedState>,
    ) -> Result<(), DamagedState> {
        for (location, update) in self.locked.locations.iter().zip(updates) {
            if let Some(StateUpdate::Entries(charge)) = update {
                self.locked.guards[location.guard].shift(location.place, charge.shift);
            }
        }
        self.storage.begin(&mut self.locked);
        for ((check, location), update) in checks.iter().zip(&self.locked.locations).zip(updates) {
            if let Some(update) = update {
                self.locked.guards[location.guard].write_state(location.place, location.tag, check.limit, *update);
            }
        }
        let more = more(&mut self.locked);
        self.commit(more)
    }

    /// `write`, in new slots too: each of those moves its neighbours.
    pub fn write_growing(
        &mut self,
        checks: &[Check],
        updates: &[Option<StateUpdate>],
        more: impl FnOnce(&mut LockedShards<S::Guard<'table>>) -> Result<(), DamagedState>,
    ) -> Result<(), DamagedState> {
        for (location, update) in self.locked.locations.iter().zip(updates) {
            if let Some(StateUpdate::Entries(charge)) = update {
                let shard = &mut self.locked.guards[location.guard];
                let place = shard.find(location.tag);
                shard.shift(place, charge.shift);
            }
        }
        self.storage.begin(&mut self.locked);
        for ((check, location), update) in checks.iter().zip(&self.locked.locations).zip(updates) {
            if let Some(update) = update {
                let shard = &mut self.locked.guards[location.guard];
                let place = shard.find(location.tag);
                shard.write_state(place, location.tag, check.limit, *update);
            }
        }
        let more = more(&mut self.locked);
        self.commit(more)
    }

    /// Commit what was written, or roll it back where an impossible value was read, here or in the step `before`.
    #[inline(always)]
    pub fn commit(&mut self, before: Result<(), DamagedState>) -> Result<(), DamagedState> {
        let checked = self.check().and(before);
        if checked.is_ok() {
            self.storage.commit(&mut self.locked)
        } else {
            self.storage.roll_back(&mut self.locked)
        }
        checked
    }

    /// Whether all values read since the last call were possible.
    #[inline(always)]
    pub fn check(&self) -> Result<(), DamagedState> {
        let mut checked = Ok(());
        for guard in &self.locked.guards {
            checked = guard.check().and(checked); // each guard is checked, which clears its flag
        }
        checked
    }

    /// `check`, of the holds too.
    pub fn check_with_holds(&self) -> Result<(), DamagedState> {
        let mut checked = Ok(());
        for guard in &self.locked.guards {
            checked = guard.check_with_holds().and(checked);
        }
        checked
    }

    /// Begin the charges that take effect together.
    pub fn begin(&mut self) {
        self.storage.begin(&mut self.locked);
    }

    /// Give back what a decision charged, in one commit; in several where that takes more notes than a shard has.
    ///
    /// An impossible state stays as it is, and is reported as an error.
    pub fn give_back(&mut self, checks: &[Check], now_us: i64, earliest_us: i64) -> Result<(), DamagedState> {
        let mut checked = Ok(());
        let mut empty: SmallVec<[Location; 4]> = SmallVec::new();
        self.storage.begin(&mut self.locked);
        for (number, check) in checks.iter().enumerate() {
            let location = self.locked.locations[number];
            if !self.locked.guards[location.guard].can_give_back(&check.limit.limit) {
                self.storage.commit(&mut self.locked);
                self.storage.begin(&mut self.locked);
            }
            let shard = &mut self.locked.guards[location.guard];
            let before = shard.units(location.place);
            if shard.give_back(
                location.place,
                &check.limit.limit,
                check.cost,
                self.storage.limits(),
                now_us,
                earliest_us,
            ) {
                empty.push(location);
            }
            let given = shard.units(location.place) - before;
            if check.limit.limit.refill != 0
                && let Some(holds) = shard.backing.holds_mut()
            {
                holds.note_refund(location.tag, given);
            }
            checked = shard.check_with_holds().and(checked);
        }
        self.storage.commit(&mut self.locked);
        for Location { shard_number, guard, tag, .. } in empty {
            self.locked.guards[guard].drop_nothing(tag, self.storage.limits(), now_us);
            self.storage.settle(shard_number, &mut self.locked.guards[guard]);
        }
        checked
    }

    /// Mark the states that refused although waiting would help.
    pub fn mark_refused(&mut self, readings: &[Reading]) {
        for (location, reading) in self.locked.locations.iter().zip(readings) {
            if reading.retry_after_us > 0 {
                self.locked.guards[location.guard].mark_refused(location.place);
            }
        }
    }

    /// Update the table's counts to the shards that were changed.
    pub fn settle(&mut self) {
        for Location { shard_number, guard, .. } in &self.locked.locations {
            self.storage.settle(*shard_number, &mut self.locked.guards[*guard]);
        }
    }

    /// Find all states again, after slots were moved.
    pub fn find_again(&mut self) {
        for location in &mut self.locked.locations {
            location.place = self.locked.guards[location.guard].find(location.tag);
        }
    }
}
