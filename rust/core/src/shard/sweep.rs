//! Removing states from a shard: those that are the same as none, and those that make room for others.

use crate::algorithms::transition::{self, ANY, USUAL};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::{NO_CHAIN, has_blocks};
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::shard::backing::Backing;
use crate::shard::registered::{Limits, Newest};
use crate::shard::{Place, Shard, log_pool};

/// A live key that may be forgotten for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its tag.
    pub tag: u64,
    /// Until its state would be the same as none.
    pub reset_after_us: i64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// Slots whose state had become the same as none, now free.
    pub expired: usize,
    /// The key that resets soonest among those not blocked.
    pub victim: Option<Victim>,
    /// The least time until any slot seen is the same as none.
    pub soonest_us: Option<i64>,
}

impl<B: Backing> Shard<B> {
    /// Forget the state of a tag; returns whether it differed from none.
    pub fn forget(&mut self, tag: u64, limits: &impl Limits, now_us: i64) -> bool {
        let Place::Found(index) = self.find(tag) else {
            return false;
        };
        let (reset_after_us, _) = self.reset_after_us(index, limits, now_us);
        self.remove(index, limits);
        reset_after_us > 0
    }

    /// Take out the slot of a tag if its state is the same as none.
    pub fn drop_nothing(&mut self, tag: u64, limits: &impl Limits, now_us: i64) {
        if let Place::Found(index) = self.find(tag)
            && self.reset_after_us(index, limits, now_us).0 == 0
        {
            self.remove(index, limits);
        }
    }

    /// Drop the states that are the same as none, except of tags for which `ours` holds; returns how many there were.
    pub fn drop_expired(&mut self, limits: &impl Limits, now_us: i64, ours: impl Fn(u64) -> bool) -> usize {
        let before = self.len();
        for index in (0..self.backing.slots().len()).rev() {
            let tag = self.backing.slots()[index].tag;
            if tag != 0 && self.reset_after_us(index, limits, now_us).0 == 0 && !ours(tag) {
                self.remove(index, limits);
            }
        }
        before - self.len()
    }

    /// Convert all states that a former version of a limit wrote into the numbers of the latest one, drop those that
    /// are the same as none, and mark the limits that slots name afterwards in `named`; returns how many were dropped.
    pub fn tidy(&mut self, newest: &Newest, limits: &impl Limits, now_us: i64, named: &mut [bool]) -> usize {
        let expired = self.drop_expired(limits, now_us, |_| false);
        for index in 0..self.backing.slots().len() {
            let slot = self.backing.slots()[index];
            if slot.tag != 0
                && let Some(limit) = newest.instead_of(slot.limit())
            {
                self.adopt(Place::Found(index), limit, limits, now_us);
            }
        }
        let _ = self.check(); // an impossible state stays as it is
        self.note_named(named);
        expired
    }

    /// Mark the numbers of the limits that slots name.
    pub fn note_named(&self, named: &mut [bool]) {
        for slot in self.backing.slots().iter().filter(|slot| slot.tag != 0) {
            if let Some(named) = named.get_mut(slot.limit() as usize) {
                *named = true;
            }
        }
    }

    /// Visit up to `most` used slots among `places`, starting where the last sweep ended; frees those
    /// that are the same as none.
    ///
    /// A tag for which `ours` holds is no victim, and its slot stays where it is known to be.
    pub fn sweep(
        &mut self,
        most: usize,
        places: usize,
        limits: &impl Limits,
        now_us: i64,
        ours: impl Fn(u64) -> bool,
    ) -> Swept {
        let mut swept = Swept::default();
        let mut to_visit = most.min(self.len());
        let mut steps = places.min(self.backing.slots().len());
        let mut cursor = self.backing.head().cursor;
        while to_visit > 0 && steps > 0 {
            if cursor >= self.backing.slots().len() {
                cursor = 0;
            }
            steps -= 1;
            let slot = self.backing.slots()[cursor];
            if slot.tag == 0 {
                cursor += 1;
                continue;
            }
            to_visit -= 1;
            let (reset_after_us, remaining) = self.reset_after_us(cursor, limits, now_us);
            if reset_after_us == 0 && !ours(slot.tag) {
                self.remove(cursor, limits);
                swept.expired += 1;
                continue;
            }
            cursor += 1;
            if reset_after_us == 0 {
                continue;
            }
            swept.soonest_us = Some(swept.soonest_us.map_or(reset_after_us, |soonest| soonest.min(reset_after_us)));
            let blocked = slot.refused() || remaining <= 0 || ours(slot.tag);
            if !blocked && swept.victim.is_none_or(|victim| reset_after_us < victim.reset_after_us) {
                swept.victim = Some(Victim { tag: slot.tag, reset_after_us });
            }
        }
        self.backing.set_cursor(cursor);
        swept
    }

    /// Take a slot out, give back its log, and close the gap.
    fn remove(&mut self, index: usize, limits: &impl Limits) {
        let slot = self.backing.slots()[index];
        let is_log = |limit: Limit| limit.algorithm == Algorithm::SlidingLog;
        if limits.of(slot.limit()).is_some_and(is_log) && has_blocks(slot.fields()) {
            log_pool::release(&mut self.backing, slot.fields());
            self.backing.write_slot(index, Slot::new(slot.tag, NO_CHAIN, slot.limit()));
            self.backing.commit();
        }
        self.take_out(index);
    }

    /// (until the slot's state is the same as none, what remains of its limit)
    ///
    /// For an impossible state these are `LARGEST` and 0.
    fn reset_after_us(&self, index: usize, limits: &impl Limits, now_us: i64) -> (i64, i64) {
        let slot = &self.backing.slots()[index];
        let limit = self.limit_of(slot, limits);
        if let Some(limit) = &limit
            && limit.algorithm.is_rare()
        {
            return self.rare_reset_after_us(slot, limit, now_us);
        }
        let measured = limit.map(|limit| {
            let state = transition::roll::<_, USUAL>(&limit, self.of_slot(slot, &limit), now_us);
            let (remaining, reset_after_us, _) = transition::measure::<_, USUAL>(&limit, &state, now_us);
            (reset_after_us, remaining)
        });
        self.check().ok().and(measured).unwrap_or((LARGEST, 0))
    }

    /// `reset_after_us` for a rare algorithm.
    #[cold]
    #[inline(never)]
    fn rare_reset_after_us(&self, slot: &Slot, limit: &Limit, now_us: i64) -> (i64, i64) {
        let state = transition::roll::<_, ANY>(limit, self.of_slot(slot, limit), now_us);
        let (remaining, reset_after_us, _) = transition::measure::<_, ANY>(limit, &state, now_us);
        self.check().ok().map_or((LARGEST, 0), |()| (reset_after_us, remaining))
    }
}
