//! What the slots of a shard hold, in the terms of the limit that wrote it.

use crate::algorithms::log_view::{Log, LogCharge};
use crate::algorithms::sliding_log::{self, Left, MOST_SINCE};
use crate::algorithms::transition::{self, Kept, Numbers, Stored};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::{Chain, NO_CHAIN, SlotEntries};
use crate::encoding::state_check::{is_sound, is_usual};
use crate::limit::{Algorithm, Limit};
use crate::shard::backing::Backing;
use crate::shard::log_reader::{self, BlockEntries, Entries};
use crate::shard::registered::{Limits, Registered};
use crate::shard::{Place, Shard, log_pool};

/// What bears on whether a charge needs another log block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// What it does to its log.
    pub charge: LogCharge,
    /// How many blocks the charges before it take in the same shard.
    pub before: usize,
}

impl<B: Backing> Shard<B> {
    /// What is in a slot that `limit` wrote; nothing where that cannot be, see `check`.
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

    /// The entries of a log in its slot; none where they cannot be, see `check`.
    #[inline(always)]
    pub fn log_in_slot(&self, chain: Chain) -> Option<Log<SlotEntries>> {
        log_reader::read_slot(chain, &self.damage)
    }

    /// The entries of a log in blocks; none where they cannot be, see `check`.
    #[inline(always)]
    pub fn log_in_blocks(&self, chain: Chain) -> Option<Log<BlockEntries<'_>>> {
        log_reader::read_chain(self.backing.blocks(), chain, &self.damage)
    }

    /// The limit that wrote a slot; none where that cannot be, see `check`.
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

    /// The units of a bucket, as they are stored; 0 where nothing is.
    pub fn units(&self, place: Place) -> i64 {
        match place {
            Place::Found(index) => self.backing.slots()[index].fields()[0],
            Place::Absent => 0,
        }
    }

    /// The chain of a log, of no entries where there is none yet.
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
        // Entries, the link and the list of the blocks that are free then, and the slot; a bucket's, and its refunds.
        self.backing.can_note(if limit.algorithm == Algorithm::SlidingLog { MOST_SINCE + 3 } else { 2 })
    }

    /// Replace the numbers in a slot.
    #[inline(always)]
    pub fn overwrite(&mut self, index: usize, tag: u64, limit: &Registered, numbers: Numbers) {
        self.backing.write_slot(index, Slot::new(tag, numbers, limit.number()));
    }

    /// Keep a charged state: over the one at `place`, or in a new slot, for which there must be room.
    ///
    /// The times of its log are moved already, see `shift`.
    #[inline]
    pub fn keep(&mut self, place: Place, tag: u64, limit: &Registered, kept: Kept) {
        match kept {
            Kept::Numbers(numbers) => self.put(place, Slot::new(tag, numbers, limit.number())),
            Kept::Entries(charge) => self.keep_log(place, tag, limit, &charge),
        }
    }

    /// `keep` for a log.
    #[inline(always)]
    pub fn keep_log(&mut self, place: Place, tag: u64, limit: &Registered, charge: &LogCharge) {
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

    /// Move the times of a log that is about to be charged: a clock was once far ahead.
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

    /// Replace the numbers in a slot, of the limit that wrote it; what is marked stays marked.
    pub fn write_fields(&mut self, index: usize, fields: Numbers) {
        let former = self.backing.slots()[index];
        let mut slot = Slot::new(former.tag, fields, former.limit());
        if former.refused() {
            slot.mark_refused();
        }
        self.backing.write_slot(index, slot);
    }

    /// Give back what is left of a charge, made at `earliest_us` or later, in the numbers that the state is in;
    /// whether the state is then the same as none.
    pub fn give_back(
        &mut self,
        place: Place,
        asked: &Limit,
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
        if cost == 0 || cost > limit.quota || !transition::counts_alike(asked, &limit) {
            return false;
        }
        let left = match self.of_slot(&slot, &limit) {
            Stored::Nothing => return false,
            Stored::Numbers(numbers) => transition::give_back(&limit, numbers, now_us, cost, earliest_us),
            Stored::Entries(log) => {
                let [now, earliest] = [now_us, earliest_us].map(|moment| transition::unit_time(&limit, moment));
                let left = sliding_log::give_back(&limit, log, now, cost, earliest);
                let Left { kept, moved } = left.unwrap_or_default();
                if self.damage.get() {
                    return false;
                }
                let chain = log_pool::rewrite(&mut self.backing, slot.fields(), kept, &moved);
                (chain != NO_CHAIN).then_some(chain)
            }
        };
        self.write_fields(index, left.unwrap_or_else(|| nothing(&limit)));
        left.is_none()
    }
}

/// What a slot holds of a state that is the same as none.
pub(super) fn nothing(limit: &Limit) -> Numbers {
    if limit.algorithm == Algorithm::SlidingLog { NO_CHAIN } else { transition::nothing(limit) }
}
