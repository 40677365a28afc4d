//! A part of the table under one lock: slots sorted by tag, with gaps.
//!
//! The home of a tag is `tag * capacity / 2**64`, so the order of tags is the order of homes. Linear
//! probing that keeps this order finds a key, or the place where it belongs, in one short scan, and
//! growing is one pass from left to right. There are no tombstones: removal closes the gap.

pub mod backing;
pub mod log_pool;

use std::cell::Cell;

use crate::algorithms::sliding_log::{self, Left, MOST_SINCE, State};
use crate::algorithms::transition::{self, Kept, Numbers, Stored};
use crate::encoding::slot::Slot;
use crate::encoding::state_check::{is_sound, may_follow};
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::process::registry::{Limits, Newest, Registered};
use crate::shard::backing::Backing;
use crate::shard::log_pool::{Chain, Charge, Few, LARGEST_IN_SLOT, Log, NO_CHAIN, Oldest, Walk};
use crate::table::answer::Check;
use crate::table::storage::DamagedState;

/// Where a tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this slot.
    Found(usize),
    /// Nowhere yet.
    Absent,
}

/// A live key that may be forgotten for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its tag.
    pub tag: u64,
    /// Until its state would be the same as none.
    pub reset_after_us: i64,
}

/// What bears on whether a charge needs another log block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// What it does to its log.
    pub charge: Charge,
    /// How many blocks the charges before it take in the same shard.
    pub before: usize,
}

/// What a sweep saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// Slots whose state had become the same as none, now free.
    pub expired: usize,
    /// The key that resets soonest among those not blocked.
    pub victim: Option<Victim>,
    /// The least time until any slot seen is the same as none.
    pub soonest_us: Option<i64>,
}

/// Slots and the entries of their logs, wherever they lie.
#[derive(Default)]
pub struct Shard<G> {
    /// Where they lie.
    pub backing: G,
    /// Whether something was read that cannot be.
    damage: Cell<bool>,
}

impl<G: Backing> Shard<G> {
    /// The slots and logs that lie there.
    #[inline(always)]
    pub fn on(backing: G) -> Self {
        Self { backing, damage: Cell::new(false) }
    }

    /// Whether all that was read since this was last asked can be; what cannot be was taken for nothing.
    #[inline(always)]
    pub fn check(&self) -> Result<(), DamagedState> {
        if self.damage.get() { self.tell_damage() } else { Ok(()) }
    }

    #[cold]
    fn tell_damage(&self) -> Result<(), DamagedState> {
        self.damage.set(false);
        Err(DamagedState)
    }

    /// Slots in use.
    pub fn len(&self) -> usize {
        self.backing.head().used
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Find a tag.
    #[inline]
    pub fn find(&self, tag: u64) -> Place {
        let slots = self.backing.slots();
        let mut index = self.home(tag);
        while let Some(slot) = slots.get(index) {
            if slot.tag == tag {
                return Place::Found(index);
            }
            if slot.tag == 0 || slot.tag > tag {
                break;
            }
            index += 1;
        }
        Place::Absent
    }

    /// What is stored at a place, in the terms of `limit`.
    #[inline(always)]
    pub fn stored(&self, place: Place, limit: &Registered, limits: &impl Limits, now_us: i64) -> Stored<'_> {
        let Place::Found(index) = place else {
            return Stored::Nothing;
        };
        let slot = &self.backing.slots()[index];
        if !slot.is_of(limit.number()) {
            return self.converted(slot, limit, limits, now_us);
        }
        self.of_slot(slot, &limit.limit)
    }

    /// What is in a slot that `limit` wrote; nothing where that cannot be, see `check`.
    #[inline(always)]
    fn of_slot(&self, slot: &Slot, limit: &Limit) -> Stored<'_> {
        if limit.algorithm == Algorithm::SlidingLog {
            let log = log_pool::read(self.backing.blocks(), slot.fields(), &self.damage);
            return log.map_or(Stored::Nothing, Stored::Entries);
        }
        if is_sound(limit, slot.fields()) {
            return Stored::Numbers(slot.fields());
        }
        self.damage.set(true);
        Stored::Nothing
    }

    /// The entries of a log in its slot; none where they cannot be, see `check`.
    #[inline(always)]
    pub fn log_in_slot(&self, chain: Chain) -> Option<Log<Few>> {
        log_pool::read_slot(chain, &self.damage)
    }

    /// The entries of a log in blocks; none where they cannot be, see `check`.
    #[inline(always)]
    pub fn log_in_blocks(&self, chain: Chain) -> Option<Log<Walk<'_>>> {
        log_pool::read_chain(self.backing.blocks(), chain, &self.damage)
    }

    /// The limit that wrote a slot; none where that cannot be, see `check`.
    fn limit_of(&self, slot: &Slot, limits: &impl Limits) -> Option<Limit> {
        let limit = limits.of(slot.limit());
        self.damage.set(self.damage.get() || limit.is_none());
        limit
    }

    /// The version of `limit` that wrote a slot; none where that cannot be, see `check`.
    fn former_of(&self, slot: &Slot, limit: &Registered, limits: &impl Limits) -> Option<Limit> {
        let former = self.limit_of(slot, limits).filter(|former| may_follow(&limit.limit, former));
        self.damage.set(self.damage.get() || former.is_none());
        former
    }

    /// What is stored in a slot that another version of `limit` wrote.
    #[cold]
    fn converted(&self, slot: &Slot, limit: &Registered, limits: &impl Limits, now_us: i64) -> Stored<'_> {
        let Some(former) = self.former_of(slot, limit, limits) else {
            return Stored::Nothing;
        };
        transition::convert(&limit.limit, self.of_slot(slot, &former), now_us, &former)
    }

    /// Whether `limit` itself wrote a slot.
    #[inline(always)]
    pub fn is_written_by(&self, index: usize, limit: &Registered) -> bool {
        self.backing.slots()[index].is_of(limit.number())
    }

    /// The numbers in a slot, where `limit` itself wrote them.
    #[inline(always)]
    pub fn numbers(&self, index: usize, limit: &Registered) -> Option<Numbers> {
        let slot = &self.backing.slots()[index];
        (slot.is_of(limit.number()) && is_sound(&limit.limit, slot.fields())).then(|| slot.fields())
    }

    /// Replace the numbers in a slot.
    #[inline(always)]
    pub fn overwrite(&mut self, index: usize, tag: u64, limit: &Registered, numbers: Numbers) {
        self.backing.write_slot(index, Slot::new(tag, numbers, limit.number()));
    }

    /// Bring what another version of this limit wrote into the numbers of this one, for good: a wait
    /// that is told from here on is counted in them. Whether there was such a state.
    pub fn adopt(&mut self, place: Place, limit: &Registered, limits: &impl Limits, now_us: i64) -> bool {
        let Place::Found(index) = place else {
            return false;
        };
        let former = self.backing.slots()[index];
        if former.is_of(limit.number()) {
            return false;
        }
        let Some(former_limit) = self.former_of(&former, limit, limits) else {
            return false;
        };
        let fields = if former_limit.algorithm != limit.limit.algorithm {
            self.change_kind(&former, limit, &former_limit, now_us)
        } else {
            match self.of_slot(&former, &former_limit) {
                Stored::Entries(log) => {
                    let State { gone, shift, .. } =
                        sliding_log::roll(&former_limit, Some(log), now_us / former_limit.unit_us);
                    if self.damage.get() {
                        return false;
                    }
                    self.shift(place, shift);
                    let chain = self.chain(place);
                    Some(log_pool::drop_oldest(&mut self.backing, chain, gone))
                }
                stored => match transition::convert(&limit.limit, stored, now_us, &former_limit) {
                    Stored::Numbers(numbers) => Some(numbers),
                    _ => None,
                },
            }
        };
        if let Some(fields) = fields {
            let mut slot = Slot::new(former.tag, fields, limit.number());
            if former.refused() {
                slot.mark_refused();
            }
            self.backing.write_slot(index, slot);
        }
        self.backing.commit();
        true
    }

    /// Bring a state to the present that a clock once far ahead has written, for good: else its wait would never end.
    pub fn to_present(&mut self, place: Place, limit: &Registered, now_us: i64) {
        let Place::Found(index) = place else {
            return;
        };
        let slot = self.backing.slots()[index];
        if !slot.is_of(limit.number()) {
            return;
        }
        match transition::roll(&limit.limit, self.of_slot(&slot, &limit.limit), now_us) {
            transition::State::Numbers(numbers) => {
                if transition::was_moved(&limit.limit, slot.fields(), numbers) {
                    self.write_fields(index, numbers);
                    self.backing.commit();
                }
            }
            transition::State::Entries(State { gone, shift, .. }) => {
                if shift != 0 && !self.damage.get() {
                    self.shift(place, shift);
                    let chain = self.chain(place);
                    let chain = log_pool::drop_oldest(&mut self.backing, chain, gone);
                    self.write_fields(index, chain);
                    self.backing.commit();
                }
            }
        }
    }

    /// What a slot is to hold whose limit was one kind of sliding window and is now the other; the log that it held
    /// is given back.
    fn change_kind(&mut self, slot: &Slot, limit: &Registered, former: &Limit, now_us: i64) -> Option<Numbers> {
        let fields = match transition::convert(&limit.limit, self.of_slot(slot, former), now_us, former) {
            Stored::Nothing => Some(transition::nothing(&limit.limit)),
            Stored::Numbers(numbers) => Some(numbers),
            Stored::Entries(log) => log.entries.oldest().and_then(|(time, cost)| {
                let charge = Charge { time, cost, ..Charge::default() };
                // An entry too large for a slot, with no block left for it: so much refuses all that it could.
                let least = Charge { cost: cost.min(LARGEST_IN_SLOT), ..charge };
                log_pool::record(&mut self.backing, NO_CHAIN, &charge)
                    .or_else(|| log_pool::record(&mut self.backing, NO_CHAIN, &least))
            }),
        };
        if self.damage.get() {
            return None;
        }
        if former.algorithm == Algorithm::SlidingLog {
            log_pool::release(&mut self.backing, slot.fields());
        }
        fields
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

    /// Whether a charge onto this place takes a log block.
    #[inline(always)]
    pub fn takes_block(&self, place: Place, limit: &Limit, charge: &Charge) -> bool {
        limit.algorithm == Algorithm::SlidingLog
            && log_pool::takes_block(self.backing.blocks(), self.chain(place), charge)
    }

    /// Whether a charge needs a log block that does not exist yet.
    #[inline(always)]
    pub fn needs_block(&self, place: Place, limit: &Limit, need: &Need) -> bool {
        self.takes_block(place, limit, &need.charge) && self.backing.spare_blocks() <= need.before
    }

    /// Keep a charged state: over the one at `place`, or in a new slot, for which there must be room.
    ///
    /// The times of its log are moved already, see `shift`.
    #[inline]
    pub fn keep(&mut self, place: Place, tag: u64, limit: &Registered, kept: Kept) {
        match kept {
            Kept::Numbers(numbers) => self.put(place, Slot::new(tag, numbers, limit.number())),
            Kept::Entries { gone, shift, time, cost } => {
                self.keep_log(place, tag, limit, &Charge { gone, shift, time, cost });
            }
        }
    }

    /// `keep` for a log.
    #[inline(always)]
    pub fn keep_log(&mut self, place: Place, tag: u64, limit: &Registered, charge: &Charge) {
        let chain = self.chain(place);
        match log_pool::record(&mut self.backing, chain, charge) {
            Some(chain) => self.put(place, Slot::new(tag, chain, limit.number())),
            None => self.damage.set(true),
        }
    }

    #[inline(always)]
    fn put(&mut self, place: Place, slot: Slot) {
        match place {
            Place::Found(index) => self.backing.write_slot(index, slot),
            Place::Absent => self.insert(slot),
        }
    }

    /// Give back what is left of a charge, made at `earliest_us` or later, in the numbers that the state is in;
    /// whether the state is then the same as none.
    pub fn give_back(
        &mut self,
        place: Place,
        check: &Check,
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
        if check.cost == 0 || check.cost > limit.quota || !transition::counts_alike(&check.limit.limit, &limit) {
            return false;
        }
        let left = match self.of_slot(&slot, &limit) {
            Stored::Nothing => return false,
            Stored::Numbers(numbers) => transition::give_back(&limit, numbers, now_us, check.cost, earliest_us),
            Stored::Entries(log) => {
                let [now, earliest] = [now_us, earliest_us].map(|moment| transition::unit_time(&limit, moment));
                let left = sliding_log::give_back(&limit, log, now, check.cost, earliest);
                let Left { kept, moved } = left.unwrap_or_default();
                if self.damage.get() {
                    return false;
                }
                let chain = log_pool::rewrite(&mut self.backing, slot.fields(), kept, &moved);
                (chain != NO_CHAIN).then_some(chain)
            }
        };
        self.write_fields(index, left.unwrap_or_else(|| transition::nothing(&limit)));
        left.is_none()
    }

    /// Whether a charge can be given back here before what was written is committed.
    pub fn can_give_back(&self, limit: &Limit) -> bool {
        // Entries, the link and the list of the blocks that are free then, and the slot.
        self.backing.can_note(if limit.algorithm == Algorithm::SlidingLog { MOST_SINCE + 3 } else { 1 })
    }

    /// Replace the numbers in a slot, of the limit that wrote it; what is marked stays marked.
    fn write_fields(&mut self, index: usize, fields: Numbers) {
        let former = self.backing.slots()[index];
        let mut slot = Slot::new(former.tag, fields, former.limit());
        if former.refused() {
            slot.mark_refused();
        }
        self.backing.write_slot(index, slot);
    }

    /// Put a slot with a state that is the same as none; `can_take` said that there is room.
    pub fn put_nothing(&mut self, tag: u64, limit: &Registered) {
        self.insert(Slot::new(tag, transition::nothing(&limit.limit), limit.number()));
    }

    /// Take out the slot of a tag if its state is the same as none.
    pub fn drop_nothing(&mut self, tag: u64, limits: &impl Limits, now_us: i64) {
        if let Place::Found(index) = self.find(tag)
            && self.reset_after_us(index, limits, now_us).0 == 0
        {
            self.remove(index, limits);
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

    /// Forget the state of a tag; whether it was anything but the same as none.
    pub fn forget(&mut self, tag: u64, limits: &impl Limits, now_us: i64) -> bool {
        let Place::Found(index) = self.find(tag) else {
            return false;
        };
        let (reset_after_us, _) = self.reset_after_us(index, limits, now_us);
        self.remove(index, limits);
        reset_after_us > 0
    }

    /// Whether `more` further slots keep scans short and find gaps in reach of this tag.
    pub fn can_take(&self, tag: u64, more: usize) -> bool {
        // A run at the very end may have used up the tail, however many gaps there are elsewhere.
        let in_reach = self.backing.slots()[self.home(tag)..].iter().filter(|slot| slot.tag == 0).take(more).count();
        (self.len() + more) * 5 <= self.homes() * 4 && in_reach == more
    }

    /// Drop the states that are the same as none; how many there were.
    pub fn drop_expired(&mut self, limits: &impl Limits, now_us: i64) -> usize {
        let before = self.len();
        for index in (0..self.backing.slots().len()).rev() {
            if self.backing.slots()[index].tag != 0 && self.reset_after_us(index, limits, now_us).0 == 0 {
                self.remove(index, limits);
            }
        }
        before - self.len()
    }

    /// Bring all states that a former version of a limit wrote into the numbers of the latest one, drop those that are
    /// the same as none, and note the numbers of the limits that are named then; how many were dropped.
    pub fn tidy(&mut self, newest: &Newest, limits: &impl Limits, now_us: i64, named: &mut [bool]) -> usize {
        let expired = self.drop_expired(limits, now_us);
        for index in 0..self.backing.slots().len() {
            let slot = self.backing.slots()[index];
            if slot.tag != 0
                && let Some(limit) = newest.instead_of(slot.limit())
            {
                self.adopt(Place::Found(index), limit, limits, now_us);
            }
        }
        let _ = self.check(); // a state that cannot be stays what it is
        self.note_named(named);
        expired
    }

    /// Note the numbers of the limits that slots name.
    pub fn note_named(&self, named: &mut [bool]) {
        for slot in self.backing.slots().iter().filter(|slot| slot.tag != 0) {
            if let Some(named) = named.get_mut(slot.limit() as usize) {
                *named = true;
            }
        }
    }

    /// Whether a move to a range of more homes is due: dropping what had expired has not freed much.
    pub fn is_crowded(&self) -> bool {
        self.len() * 3 >= self.homes() * 2
    }

    /// How many homes there are.
    pub fn homes(&self) -> usize {
        self.backing.homes()
    }

    /// Look at up to `most` used slots among so many `places`, going on where the last sweep ended; frees those
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
        let mut to_see = most.min(self.len());
        let mut steps = places.min(self.backing.slots().len());
        let mut cursor = self.backing.head().cursor;
        while to_see > 0 && steps > 0 {
            if cursor >= self.backing.slots().len() {
                cursor = 0;
            }
            steps -= 1;
            let slot = self.backing.slots()[cursor];
            if slot.tag == 0 {
                cursor += 1;
                continue;
            }
            to_see -= 1;
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
            let blocked = slot.refused() || remaining == 0 || ours(slot.tag);
            if !blocked && swept.victim.is_none_or(|victim| reset_after_us < victim.reset_after_us) {
                swept.victim = Some(Victim { tag: slot.tag, reset_after_us });
            }
        }
        self.backing.set_cursor(cursor);
        swept
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        self.backing.clear();
    }

    /// The chain of a log, of no entries where there is none yet.
    #[inline]
    pub fn chain(&self, place: Place) -> Chain {
        match place {
            Place::Found(index) => self.backing.slots()[index].fields(),
            Place::Absent => NO_CHAIN,
        }
    }

    /// Put a slot whose tag is not here yet; `can_take` said that there is a gap for it.
    fn insert(&mut self, slot: Slot) {
        let index = self.position(slot.tag);
        match self.backing.slots()[index..].iter().position(|other| other.tag == 0) {
            Some(gap) => self.backing.open_gap(index, gap, slot),
            None => self.damage.set(true),
        }
    }

    /// Where a tag that is not here belongs.
    fn position(&self, tag: u64) -> usize {
        let home = self.home(tag);
        let slots = self.backing.slots();
        let run = slots[home..].iter().position(|other| other.tag == 0 || other.tag > tag);
        run.map_or(slots.len(), |run| home + run)
    }

    /// Take a slot out, give back its log, and close the gap.
    fn remove(&mut self, index: usize, limits: &impl Limits) {
        let slot = self.backing.slots()[index];
        let is_log = |limit: Limit| limit.algorithm == Algorithm::SlidingLog;
        if limits.of(slot.limit()).is_some_and(is_log) && log_pool::has_blocks(slot.fields()) {
            log_pool::release(&mut self.backing, slot.fields());
            self.backing.write_slot(index, Slot::new(slot.tag, NO_CHAIN, slot.limit()));
            self.backing.commit();
        }
        let slots = self.backing.slots();
        let mut end = index + 1;
        while end < slots.len() && slots[end].tag != 0 && self.home(slots[end].tag) < end {
            end += 1;
        }
        self.backing.close_gap(index, end);
    }

    /// (until the slot's state is the same as none, what remains of its limit)
    ///
    /// Of one that cannot be that is never, and nothing.
    fn reset_after_us(&self, index: usize, limits: &impl Limits, now_us: i64) -> (i64, i64) {
        let slot = &self.backing.slots()[index];
        let limit = self.limit_of(slot, limits);
        let measured = limit.map(|limit| {
            let state = transition::roll(&limit, self.of_slot(slot, &limit), now_us);
            let (remaining, reset_after_us, _) = transition::measure(&limit, &state, now_us);
            (reset_after_us, remaining)
        });
        self.check().ok().and(measured).unwrap_or((LARGEST, 0))
    }

    #[inline]
    fn home(&self, tag: u64) -> usize {
        home(tag, self.homes())
    }
}

/// Where the search for a tag begins among so many homes; never decreases as tags grow.
#[inline]
pub fn home(tag: u64, capacity: usize) -> usize {
    ((u128::from(tag) * capacity as u128) >> 64) as usize
}
