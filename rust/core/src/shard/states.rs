//! Reading and writing the states in the slots of a shard, in the terms of the limit that wrote them.

use crate::algorithms::log_view::{Log, LogCharge};
use crate::algorithms::sliding_log::{self, MOST_SINCE, Remainder};
use crate::algorithms::transition::{self, Numbers, StateUpdate, Stored};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::{Chain, NO_CHAIN, SlotEntries};
use crate::encoding::state_check::{is_sound, is_usual};
use crate::limit::{Algorithm, Limit};
use crate::shard::backing::Backing;
use crate::shard::log_reader::{self, BlockEntries, Entries};
use crate::shard::registered::{Limits, Registered};
use crate::shard::{Place, Shard, log_pool};

/// What decides whether a charge needs another log block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// What the charge does to its log.
    pub charge: LogCharge,
    /// How many blocks the charges before it take in the same shard.
    pub before: usize,
}

impl<B: Backing> Shard<B> {
    /// The state in a slot that `limit` wrote; `Nothing` where it is impossible, see `check`.
    #[inline(always)]
    pub(super) fn of_slot(&self, slot: &Slot, limit: &Limit) -> Stored<Entries<'_>> {
        if limit.algorithm == Algorithm::SlidingLog {
            let log = log_reader::read(self.backing.blocks(), slot.fields(), &self.damage);
            return log.map_or(Stored::Nothing, Stored::Entries);
        }
        if !is_usual(limit, slot.fields()) && !self.is_rare(slot, limit) {
            self.damage.set(true);
            return Stored::Nothing;
        }
        Stored::Numbers(slot.fields())
    }

    /// Whether a slot has a state of a limit whose algorithm is rare.
    #[cold]
    #[inline(never)]
    fn is_rare(&self, slot: &Slot, limit: &Limit) -> bool {
        is_sound(limit, slot.fields())
    }

    /// The entries of a log in its slot; None where they are impossible, see `check`.
    #[inline(always)]
    pub fn log_in_slot(&self, chain: Chain) -> Option<Log<SlotEntries>> {
        log_reader::read_slot(chain, &self.damage)
    }

    /// The entries of a log in blocks; None where they are impossible, see `check`.
    #[inline(always)]
    pub fn log_in_blocks(&self, chain: Chain) -> Option<Log<BlockEntries<'_>>> {
        log_reader::read_chain(self.backing.blocks(), chain, &self.damage)
    }

    /// The limit that wrote a slot; None where there is no such limit, see `check`.
    pub(super) fn limit_of(&self, slot: &Slot, limits: &impl Limits) -> Option<Limit> {
        let limit = limits.of(slot.limit());
        self.damage.set(self.damage.get() || limit.is_none());
        limit
    }

    /// Whether `limit` itself wrote a slot.
    #[inline(always)]
    pub fn is_written_by(&self, index: usize, limit: &Registered) -> bool {
        self.backing.slots()[index].is_of(limit.number())
    }

    /// The numbers in a slot, where `limit` itself wrote them and its algorithm is not rare.
    #[inline(always)]
    pub fn numbers(&self, index: usize, limit: &Registered) -> Option<Numbers> {
        let slot = &self.backing.slots()[index];
        (slot.is_of(limit.number()) && is_usual(&limit.limit, slot.fields())).then(|| slot.fields())
    }

    /// The numbers in a slot, where `limit` itself wrote them and its algorithm is rare.
    pub fn rare_numbers(&self, index: usize, limit: &Registered) -> Option<Numbers> {
        let slot = &self.backing.slots()[index];
        let sound = limit.limit.algorithm.is_rare() && is_sound(&limit.limit, slot.fields());
        (slot.is_of(limit.number()) && sound).then(|| slot.fields())
    }

    /// The units of a bucket as they are stored; 0 where there is no state.
    pub fn units(&self, place: Place) -> i64 {
        match place {
            Place::Found(index) => self.backing.slots()[index].fields()[0],
            Place::Absent => 0,
        }
    }

    /// The chain of a log; one without entries where there is no log yet.
    #[inline]
    pub fn chain(&self, place: Place) -> Chain {
        match place {
            Place::Found(index) => self.backing.slots()[index].fields(),
            Place::Absent => NO_CHAIN,
        }
    }

    /// Whether a charge onto this place takes a log block.
    #[inline(always)]
    pub fn takes_block(&self, place: Place, limit: &Limit, charge: &LogCharge) -> bool {
        limit.algorithm == Algorithm::SlidingLog
            && log_pool::takes_block(self.backing.blocks(), self.chain(place), charge)
    }

    /// Whether a charge needs a log block that does not exist yet.
    #[inline(always)]
    pub fn needs_block(&self, place: Place, limit: &Limit, need: &Need) -> bool {
        self.takes_block(place, limit, &need.charge) && self.backing.spare_blocks() <= need.before
    }

    /// Whether a charge can be given back here before what was written is committed.
    pub fn can_give_back(&self, limit: &Limit) -> bool {
        // The entries, the link and the free list of the freed blocks, and the slot; of a bucket the slot and its
        // refunds.
        self.backing.can_note(if limit.algorithm == Algorithm::SlidingLog { MOST_SINCE + 3 } else { 2 })
    }

    /// Replace the numbers in a slot.
    #[inline(always)]
    pub fn overwrite(&mut self, index: usize, tag: u64, limit: &Registered, numbers: Numbers) {
        self.backing.write_slot(index, Slot::new(tag, numbers, limit.number()));
    }

    /// Write a charged state: over the one at `place`, or in a new slot, for which there must be room.
    ///
    /// The times of its log must have been moved before, see `shift`.
    #[inline]
    pub fn write_state(&mut self, place: Place, tag: u64, limit: &Registered, update: StateUpdate) {
        match update {
            StateUpdate::Numbers(numbers) => self.put(place, Slot::new(tag, numbers, limit.number())),
            StateUpdate::Entries(charge) => self.write_log(place, tag, limit, &charge),
        }
    }

    /// `write_state` for a log.
    #[inline(always)]
    pub fn write_log(&mut self, place: Place, tag: u64, limit: &Registered, charge: &LogCharge) {
        let chain = self.chain(place);
        match log_pool::record(&mut self.backing, chain, charge) {
            Some(chain) => self.put(place, Slot::new(tag, chain, limit.number())),
            None => self.damage.set(true),
        }
    }

    /// Put a slot with a state that is the same as none; `can_take` said that there is room.
    pub fn put_nothing(&mut self, tag: u64, limit: &Registered) {
        self.insert(Slot::new(tag, nothing(&limit.limit), limit.number()));
    }

    #[inline(always)]
    fn put(&mut self, place: Place, slot: Slot) {
        match place {
            Place::Found(index) => self.backing.write_slot(index, slot),
            Place::Absent => self.insert(slot),
        }
    }

    /// Remember that the last decision on this place was a refusal.
    #[inline]
    pub fn mark_refused(&mut self, place: Place) {
        if let Place::Found(index) = place
            && !self.backing.slots()[index].refused()
        {
            self.backing.mark_refused(index);
        }
    }

    /// Move the times of a log that is about to be charged, where a clock was once far ahead.
    pub fn shift(&mut self, place: Place, shift: i64) {
        if shift == 0 {
            return;
        }
        let Place::Found(index) = place else {
            return;
        };
        match log_pool::shifted(self.chain(place), shift) {
            Some(chain) => {
                self.write_fields(index, chain);
                self.backing.commit();
            }
            None => self.backing.shift(self.chain(place), shift),
        }
    }

    /// Replace the numbers in a slot, in those of the limit that wrote it; its mark of a refusal stays.
    pub fn write_fields(&mut self, index: usize, fields: Numbers) {
        let former = self.backing.slots()[index];
        let mut slot = Slot::new(former.tag, fields, former.limit());
        if former.refused() {
            slot.mark_refused();
        }
        self.backing.write_slot(index, slot);
    }

    /// Give back what is left of a charge under `charged_limit`, made at `earliest_us` or later, in the numbers that
    /// the state is in; returns whether the state is then the same as none.
    pub fn give_back(
        &mut self,
        place: Place,
        charged_limit: &Limit,
        cost: i64,
        limits: &impl Limits,
        now_us: i64,
        earliest_us: i64,
    ) -> bool {
        let Place::Found(index) = place else {
            return false;
        };
        let slot = self.backing.slots()[index];
        let Some(limit) = self.limit_of(&slot, limits) else {
            return false;
        };
        if cost == 0 || cost > limit.quota || !transition::counts_alike(charged_limit, &limit) {
            return false;
        }
        let left = match self.of_slot(&slot, &limit) {
            Stored::Nothing => return false,
            Stored::Numbers(numbers) => transition::give_back(&limit, numbers, now_us, cost, earliest_us),
            Stored::Entries(log) => {
                let [now, earliest] = [now_us, earliest_us].map(|moment| transition::unit_time(&limit, moment));
                let left = sliding_log::give_back(&limit, log, now, cost, earliest);
                let Remainder { retained, moved } = left.unwrap_or_default();
                if self.damage.get() {
                    return false;
                }
                let chain = log_pool::rewrite(&mut self.backing, slot.fields(), retained, &moved);
                (chain != NO_CHAIN).then_some(chain)
            }
        };
        self.write_fields(index, left.unwrap_or_else(|| nothing(&limit)));
        left.is_none()
    }
}

/// What a slot holds for a state that is the same as none.
pub(super) fn nothing(limit: &Limit) -> Numbers {
    if limit.algorithm == Algorithm::SlidingLog { NO_CHAIN } else { transition::nothing(limit) }
}
