//! Room for a new state in a table of one process: in a wider range, or in place of a state that is let go.

use crate::process::backing::ProcessShard;
use crate::process::capacity::Capacity;
use crate::process::registry::Registry;
use crate::process::shards::{Guard, Shards};
use crate::shard::Place;
use crate::shard::states::Need;
use crate::shard::sweep::Swept;
use crate::table::answer::{Check, OnFull};
use crate::table::storage::{Full, Location, LockedShards};

/// Slots that a full table looks at for one new key.
const SWEEP: usize = 32;

/// What room is looked for in, at one moment.
pub struct Reservation<'table> {
    /// The bounds, and what is held.
    pub capacity: &'table Capacity,
    /// All shards.
    pub shards: &'table Shards,
    /// The limits that states are kept under.
    pub registry: &'table Registry,
    /// The moment.
    pub now_us: i64,
}

impl Reservation<'_> {
    /// Reserve what the new state of the check at `index` takes: a key, a log block, or both.
    ///
    /// Slots may move: their places are to be found again before they are used.
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
            // All that may still be put here, for a gap that this one finds is looked for by the others too.
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

    /// Reserve room for one more part of a hold in a full table: for one whose time is over, or that the written
    /// choice lets go.
    #[cold]
    fn forget_one_hold(&self, shard: &mut ProcessShard) -> Result<(), Full> {
        let mut soonest_us = self.let_holds_go(shard);
        if shard.backing.holds.weight() + 1 == shard.backing.holds.counted {
            return Ok(()); // what was forgotten is counted still, and that is the room
        }
        self.capacity.settle_holds(shard);
        let mut shard_number = 0;
        while !self.capacity.reserve_hold(shard) {
            if shard_number == self.shards.count() {
                return Err(Full { soonest_us: soonest_us.unwrap_or(1).max(1) });
            }
            if let Some(mut other) = self.shards.try_lock(shard_number) {
                let other_us = self.let_holds_go(&mut other);
                self.capacity.settle_holds(&mut other);
                soonest_us = soonest_us.min(other_us).or(soonest_us).or(other_us);
            }
            shard_number += 1;
        }
        Ok(())
    }

    /// Forget the holds of a shard whose time is over; if there is none, one that is settled. Where none was forgotten,
    /// how long until the first one is. They are counted until that is brought in line.
    fn let_holds_go(&self, shard: &mut ProcessShard) -> Option<i64> {
        let before = shard.backing.holds.weight();
        shard.backing.holds.make_room(self.now_us, self.capacity.on_full() == OnFull::Forget);
        if shard.backing.holds.weight() < before {
            return None; // there is room, and no need to look which of the others is the first
        }
        shard.backing.holds.soonest_us().map(|end_us| end_us - self.now_us)
    }

    /// Make a shard wide enough: without what has expired, or in a wider range.
    ///
    /// A state for which `ours` holds stays: it may just have been made, and be charged next.
    fn widen(
        &self,
        shard_number: usize,
        shard: &mut ProcessShard,
        is_wide: impl Fn(&ProcessShard) -> bool,
        ours: impl Fn(u64) -> bool,
    ) -> Result<(), Full> {
        let drop_expired =
            |shard: &mut ProcessShard| shard.drop_expired(&self.registry.lock_limits(), self.now_us, ours);
        self.capacity.count_expired(self.capacity.losing(shard, drop_expired));
        while shard.is_crowded() || !is_wide(shard) {
            let wider = self.capacity.ranges().wider(shard_number, self.shards.count(), shard.homes());
            shard.move_to(wider.map_err(|_| Full { soonest_us: 1 })?);
        }
        Ok(())
    }

    /// Free one place in a full table: of an expired key, or of one that the written choice lets go.
    fn free_one(&self, shard_number: usize, shard: &mut ProcessShard, ours: impl Fn(u64) -> bool) -> Result<(), Full> {
        if !shard.is_empty() {
            return self.free_one_of(shard, ours);
        }
        // Nothing here to let go: take from the next shard that is not locked, so that the bound stays.
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
                self.capacity.losing(shard, |shard| shard.forget(victim.tag, self.registry, self.now_us));
                self.capacity.count_evicted();
                Ok(())
            }
            _ => Err(Full { soonest_us: swept.soonest_us.unwrap_or(1) }),
        }
    }

    fn sweep(&self, shard: &mut ProcessShard, ours: impl Fn(u64) -> bool) -> Swept {
        let sweep =
            |shard: &mut ProcessShard| shard.sweep(SWEEP, usize::MAX, &self.registry.lock_limits(), self.now_us, ours);
        let swept = self.capacity.losing(shard, sweep);
        self.capacity.count_expired(swept.expired);
        swept
    }
}
