//! The log of a key in its slot: the entries themselves while they are few, else both ends of a chain of blocks.

use crate::algorithms::log_view::{Entry, Log, LogEntries};
use crate::limit::LARGEST;

/// The number of entries that a slot itself holds.
pub const IN_SLOT: usize = 2;
/// The bits of the cost of such an entry; one of more units goes into a block.
const COST_BITS: usize = 26;
/// The greatest cost of an entry that a slot holds.
pub const LARGEST_IN_SLOT: i64 = (1 << COST_BITS) - 1;

/// A key's log as a slot stores it.
///
/// For a chain: the place of the oldest entry, the units of all entries, the place of the newest one. For
/// entries in the slot: the times of both, and the complement of their costs, which is negative; a cost of 0 is
/// that of no entry.
pub type Chain = [i64; 3];

/// The log of a key without entries.
pub const NO_CHAIN: Chain = [0, 0, -1];

/// Whether this log is one of blocks.
#[inline(always)]
pub fn has_blocks(chain: Chain) -> bool {
    chain[2] >= 0
}

/// The entries that a slot itself holds, oldest first; unused ones have cost 0 and come last.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotEntries([Entry; IN_SLOT]);

impl SlotEntries {
    /// The entries in a slot; None where it names a chain.
    #[inline(always)]
    pub fn read([first, second, costs]: Chain) -> Option<Self> {
        let costs = !costs;
        if costs < 0 {
            return None;
        }
        Some(Self([(first, costs & LARGEST_IN_SLOT), (second, costs >> COST_BITS)]))
    }

    /// These entries as a slot holds them.
    #[inline(always)]
    pub fn write(self) -> Chain {
        let Self([(first, one), (second, other)]) = self;
        [first, second, !(one | other << COST_BITS)]
    }

    /// The number of entries.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.0.iter().filter(|(_, cost)| *cost != 0).count()
    }

    /// The entries in use.
    #[inline(always)]
    pub fn all(&self) -> &[Entry] {
        &self.0[..self.count()]
    }

    /// Whether some algorithm can have written these.
    #[inline(always)]
    pub fn is_sound(self) -> bool {
        let Self([(first, one), (second, other)]) = self;
        if other == 0 {
            return second == 0 && (0..=LARGEST).contains(&first) && (one != 0 || first == 0);
        }
        one != 0 && 0 <= first && first < second && second <= LARGEST && other <= LARGEST_IN_SLOT
    }

    /// The log of these entries; None where there are none.
    #[inline(always)]
    pub fn log(self) -> Option<Log<Self>> {
        let Self([(first, one), (second, other)]) = self;
        let last = if other == 0 { first } else { second };
        (one != 0).then_some(Log { entries: self, used: one + other, last, shift: 0 })
    }

    /// The entries with all times moved by `shift`.
    pub fn shifted(mut self, shift: i64) -> Self {
        let count = self.count();
        for (time, _) in &mut self.0[..count] {
            *time += shift;
        }
        self
    }

    /// The entries without the `expired` oldest ones.
    #[inline(always)]
    pub fn without(self, expired: usize) -> Self {
        match expired {
            0 => self,
            1 => Self([self.0[1], (0, 0)]),
            _ => Self::default(),
        }
    }

    /// The entries with one more; None where that does not fit into the slot.
    #[inline(always)]
    pub fn with(self, time: i64, cost: i64) -> Option<Self> {
        let Self([first, second]) = self;
        if first.1 == 0 {
            return (cost <= LARGEST_IN_SLOT).then_some(Self([(time, cost), (0, 0)]));
        }
        let (newest, before) = if second.1 == 0 { (first, None) } else { (second, Some(first)) };
        let merged = newest.0 == time;
        let cost = if merged { newest.1.checked_add(cost)? } else { cost };
        if cost > LARGEST_IN_SLOT {
            return None;
        }
        match (before, merged) {
            (None, true) => Some(Self([(time, cost), (0, 0)])),
            (None, false) => Some(Self([first, (time, cost)])),
            (Some(before), true) => Some(Self([before, (time, cost)])),
            (Some(_), false) => None,
        }
    }
}

impl From<Entry> for SlotEntries {
    fn from(entry: Entry) -> Self {
        Self([entry, (0, 0)])
    }
}

impl Iterator for SlotEntries {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let [oldest, next] = self.0;
        self.0 = [next, (0, 0)];
        (oldest.1 != 0).then_some(oldest)
    }
}

impl LogEntries for SlotEntries {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        (self.0[0].1 != 0).then_some(self.0[0])
    }
}
