//! A part of the table under one lock: slots sorted by tag, with gaps.
//!
//! The home of a tag is `tag * capacity / 2**64`, so the order of tags is the order of homes. Linear
//! probing that keeps this order finds a key, or the place where it belongs, in one short scan, and
//! growing is one pass from left to right. There are no tombstones: removal closes the gap.
//!
//! This module keeps the order of the slots. The states in them are read and written in `states`, converted between
//! versions of a limit in `versions`, and dropped in `sweep`.

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

/// The place of a tag in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this slot.
    Found(usize),
    /// It has no slot yet.
    Absent,
}

/// The stored state of a key is impossible: the memory is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedState;

/// Slots and the entries of their logs, on a backing.
#[derive(Default)]
pub struct Shard<B> {
    /// Where they are stored.
    pub backing: B,
    /// Whether an impossible value was read since the last `check`.
    damage: Cell<bool>,
}

impl<B: Backing> Shard<B> {
    /// A shard of the slots and logs on a backing.
    #[inline(always)]
    pub fn on(backing: B) -> Self {
        Self { backing, damage: Cell::new(false) }
    }

    /// Whether all values read since the last call were possible; impossible ones were read as no state.
    #[inline(always)]
    pub fn check(&self) -> Result<(), DamagedState> {
        if self.damage.get() { self.report_damage() } else { Ok(()) }
    }

    /// `check`, of the holds too.
    #[inline(always)]
    pub fn check_with_holds(&self) -> Result<(), DamagedState> {
        if self.backing.has_damaged_holds() { Err(DamagedState) } else { self.check() }
    }

    #[cold]
    fn report_damage(&self) -> Result<(), DamagedState> {
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

    /// Whether a move to a range of more homes is due, because dropping expired states has not freed much.
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

    /// Whether there is room for `more` further slots: scans stay short, and the `behind` of them that belong at or
    /// after the place of this tag find gaps there.
    pub fn can_take(&self, tag: u64, more: usize, behind: usize) -> bool {
        // A run at the very end may have used up the tail, however many gaps there are elsewhere.
        let gaps = self.backing.slots()[self.home(tag)..].iter().filter(|slot| slot.tag == 0).take(behind).count();
        (self.len() + more) * 5 <= self.homes() * 4 && gaps == behind
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        self.backing.clear();
    }

    /// Put a slot whose tag is not here yet; `can_take` has checked that there is a gap for it.
    pub(super) fn insert(&mut self, slot: Slot) {
        let index = self.position(slot.tag);
        match self.backing.slots()[index..].iter().position(|other| other.tag == 0) {
            Some(gap) => self.backing.open_gap(index, gap, slot),
            None => self.damage.set(true),
        }
    }

    /// The place for a tag that is not here.
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

/// The home of a tag among `capacity` homes, where its search begins; never decreases as tags grow.
#[inline]
pub fn home(tag: u64, capacity: usize) -> usize {
    ((u128::from(tag) * capacity as u128) >> 64) as usize
}
