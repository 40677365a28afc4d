//! Room for a new state in a table of one process: in a wider range, or in place of a state that is dropped.

use crate::process::backing::ProcessShard;
use crate::process::capacity::Capacity;
use crate::process::registry::Registry;
use crate::process::shards::{Guard, Shards};
use crate::shard::Place;
use crate::shard::states::Need;
use crate::shard::sweep::Swept;
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{Full, Location, LockedShards};

/// How many slots a full table visits for one new key.
const SWEEP: usize = 32;

/// A search for room, at one moment.
pub struct Reservation<'table> {
    /// The bounds, and the counts towards them.
    pub capacity: &'table Capacity,
    /// All shards.
    pub shards: &'table Shards,
    /// The limits that states are stored under.
    pub registry: &'table Registry,
    /// The moment.
    pub now_us: i64,
}

impl Reservation<'_> {
    /// Reserve what the new state of the check at `index` takes: a key, a log block, or both.
    ///
    /// Slots may move: find their places again before you use them.
    pub fn reserve(
        &self,
        check: &Check,
        locked: &mut LockedShards<Guard<'_>>,
        index: usize,
        need: Need,
    ) -> Result<(), Full> {
        let LockedShards { guards, locations } = locked;
        let Location { shard_number, guard, tag, place } = locations[index];
        let shard = &mut *guards[guard];
        let ours = |tag| locations.iter().any(|location| location.tag == tag);
        if place == Place::Absent {
            // All new states of this shard count, as each of them needs a gap of its own.
            let (mut more, mut behind) = (0, 0);
            for other in locations.iter().filter(|other| other.guard == guard && other.place == Place::Absent) {
                more += 1;
                behind += usize::from(other.tag >= tag);
            }
            if !shard.can_take(tag, more, behind) {
                self.widen(shard_number, shard, |shard| shard.can_take(tag, more, behind), ours)?;
            }
            if !self.capacity.reserve_key(shard) {
                self.free_one(shard_number, shard, ours)?;
                if !self.capacity.reserve_key(shard) {
                    return Err(Full { soonest_us: 1 });
                }
            }
        }
        let limit = &check.limit.limit;
        if shard.needs_block(shard.find(tag), limit, &need) && !self.capacity.reserve_block(shard) {
            let swept = self.sweep(shard, ours);
            if shard.needs_block(shard.find(tag), limit, &need) && !self.capacity.reserve_block(shard) {
                return Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) });
            }
        }
        Ok(())
    }

    /// Reserve room for one more part of a hold.
    #[inline]
    pub fn reserve_hold(&self, shard: &mut ProcessShard) -> Result<(), Full> {
        shard.backing.holds.tidy(self.now_us);
        self.capacity.settle_holds(shard);
        if self.capacity.reserve_hold(shard) { Ok(()) } else { self.forget_one_hold(shard) }
    }

    /// Reserve room for one more part of a hold in a full table, in place of an expired one, or of a settled one
    /// (`OnFull::Forget`).
    #[cold]
    fn forget_one_hold(&self, shard: &mut ProcessShard) -> Result<(), Full> {
        let mut soonest_us = self.forget_holds(shard);
        if shard.backing.holds.weight() + 1 == shard.backing.holds.counted {
            return Ok(()); // the forgotten hold is still counted, and that is the room
        }
        self.capacity.settle_holds(shard);
        let mut shard_number = 0;
        while !self.capacity.reserve_hold(shard) {
            if shard_number == self.shards.count() {
                return Err(Full { soonest_us: soonest_us.unwrap_or(1).max(1) });
            }
            if let Some(mut other) = self.shards.try_lock(shard_number) {
                let other_us = self.forget_holds(&mut other);
                self.capacity.settle_holds(&mut other);
                soonest_us = soonest_us.min(other_us).or(soonest_us).or(other_us);
            }
            shard_number += 1;
        }
        Ok(())
    }

    /// Forget the holds of a shard whose time is over; if there is none, one that is settled. Where none was forgotten,
    /// returns the time until the first one is. Forgotten holds stay counted until `settle_holds`.
    fn forget_holds(&self, shard: &mut ProcessShard) -> Option<i64> {
        let before = shard.backing.holds.weight();
        shard.backing.holds.make_room(self.now_us, self.capacity.on_full() == OnFull::Forget);
        if shard.backing.holds.weight() < before {
            return None; // there is room, and no need to find the first of the others
        }
        shard.backing.holds.soonest_us().map(|end_us| end_us - self.now_us)
    }

    /// Make a shard wide enough: drop expired states, or move it to a wider range.
    ///
    /// A state for which `ours` holds stays: it may be new, and be charged next.
    fn widen(
        &self,
        shard_number: usize,
        shard: &mut ProcessShard,
        is_wide: impl Fn(&ProcessShard) -> bool,
        ours: impl Fn(u64) -> bool,
    ) -> Result<(), Full> {
        let drop_expired =
            |shard: &mut ProcessShard| shard.drop_expired(&self.registry.lock_limits(), self.now_us, ours);
        self.capacity.count_expired(self.capacity.removing(shard, drop_expired));
        while shard.is_crowded() || !is_wide(shard) {
            let wider = self.capacity.ranges().wider(shard_number, self.shards.count(), shard.homes());
            shard.move_to(wider.map_err(|_| Full { soonest_us: 1 })?);
        }
        Ok(())
    }

    /// Free one place in a full table: of an expired key, or of one that may be forgotten (`OnFull::Forget`).
    fn free_one(&self, shard_number: usize, shard: &mut ProcessShard, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        if !shard.is_empty() {
            return self.free_one_of(shard, ours);
        }
        // Nothing to drop here: take from the next shard that is not locked, so that the bound holds.
        for offset in 1..self.shards.count() {
            if let Some(mut shard) = self.shards.try_lock((shard_number + offset) % self.shards.count())
                && !shard.is_empty()
            {
                return self.free_one_of(&mut shard, ours);
            }
        }
        Err(Full { soonest_us: 1 })
    }

    fn free_one_of(&self, shard: &mut ProcessShard, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        let swept = self.sweep(shard, ours);
        if swept.expired > 0 {
            return Ok(());
        }
        match swept.victim {
            Some(victim) if self.capacity.on_full() == OnFull::Forget => {
                self.capacity.removing(shard, |shard| shard.forget(victim.tag, self.registry, self.now_us));
                self.capacity.count_evicted();
                Ok(())
            }
            _ => Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }),
        }
    }

    fn sweep(&self, shard: &mut ProcessShard, ours: impl Fn(u64) -> bool) -> Swept {
        let sweep =
            |shard: &mut ProcessShard| shard.sweep(SWEEP, usize::MAX, &self.registry.lock_limits(), self.now_us, ours);
        let swept = self.capacity.removing(shard, sweep);
        self.capacity.count_expired(swept.expired);
        swept
    }
}
