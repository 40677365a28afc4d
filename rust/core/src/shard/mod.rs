//! A part of the table under one lock: slots sorted by tag, with gaps.
//!
//! The home of a tag is `tag * capacity / 2**64`, so the order of tags is the order of homes. Linear
//! probing that keeps this order finds a key, or the place where it belongs, in one short scan, and
//! growing is one pass from left to right. There are no tombstones: removal closes the gap.
//!
//! Here is the order of the slots. What a slot holds is read and written in `states`, by other versions of its
//! limit in `versions`, and let go in `sweep`.

pub mod backing;
pub mod log_pool;
pub mod log_reader;
pub mod registered;
pub mod settling;
pub mod states;
pub mod sweep;
pub mod versions;

use std::cell::Cell;

use crate::encoding::slot::Slot;
use crate::shard::backing::Backing;

/// Where a tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this slot.
    Found(usize),
    /// Nowhere yet.
    Absent,
}

/// What is stored of a key is no state that can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedState;

/// Slots and the entries of their logs, wherever they lie.
#[derive(Default)]
pub struct Shard<B> {
    /// Where they lie.
    pub backing: B,
    /// Whether something was read that cannot be.
    damage: Cell<bool>,
}

impl<B: Backing> Shard<B> {
    /// The slots and logs that lie there.
    #[inline(always)]
    pub fn on(backing: B) -> Self {
        Self { backing, damage: Cell::new(false) }
    }

    /// Whether all that was read since this was last asked can be; what cannot be was taken for nothing.
    #[inline(always)]
    pub fn check(&self) -> Result<(), DamagedState> {
        if self.damage.get() { self.tell_damage() } else { Ok(()) }
    }

    /// `check`, and of all that was read of holds, too.
    #[inline(always)]
    pub fn check_with_holds(&self) -> Result<(), DamagedState> {
        if self.backing.has_damaged_holds() { Err(DamagedState) } else { self.check() }
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

    /// How many homes there are.
    pub fn homes(&self) -> usize {
        self.backing.homes()
    }

    /// Whether a move to a range of more homes is due: dropping what had expired has not freed much.
    pub fn is_crowded(&self) -> bool {
        self.len() * 3 >= self.homes() * 2
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

    /// Whether there is room for `more` further slots: scans stay short, and the `behind` of them that belong where
    /// this tag does, or behind it, find gaps there.
    pub fn can_take(&self, tag: u64, more: usize, behind: usize) -> bool {
        // A run at the very end may have used up the tail, however many gaps there are elsewhere.
        let gaps = self.backing.slots()[self.home(tag)..].iter().filter(|slot| slot.tag == 0).take(behind).count();
        (self.len() + more) * 5 <= self.homes() * 4 && gaps == behind
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        self.backing.clear();
    }

    /// Put a slot whose tag is not here yet; `can_take` said that there is a gap for it.
    pub(super) fn insert(&mut self, slot: Slot) {
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

    /// Take a slot out, and close the gap.
    pub(super) fn take_out(&mut self, index: usize) {
        let slots = self.backing.slots();
        let mut end = index + 1;
        while end < slots.len() && slots[end].tag != 0 && self.home(slots[end].tag) < end {
            end += 1;
        }
        self.backing.close_gap(index, end);
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
