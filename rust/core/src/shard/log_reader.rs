//! The entries of a log that a slot names, read from where they are.
//!
//! The memory may be damaged: a walk along a chain ends at an impossible value, and sets a flag that the shard
//! checks.

use std::cell::Cell;

use crate::algorithms::log_view::{Entry, Log, LogEntries};
use crate::encoding::block::{Block, Position, entry};
use crate::encoding::slot_entries::{Chain, SlotEntries, has_blocks};
use crate::limit::LARGEST;

/// The entries of a log, wherever they are.
#[derive(Clone)]
pub enum Entries<'pool> {
    /// The entries in a slot.
    InSlot(SlotEntries),
    /// The entries of a chain.
    InBlocks(BlockEntries<'pool>),
}

impl Default for Entries<'_> {
    #[inline(always)]
    fn default() -> Self {
        Self::InSlot(SlotEntries::default())
    }
}

impl From<Entry> for Entries<'_> {
    fn from(entry: Entry) -> Self {
        Self::InSlot(SlotEntries::from(entry))
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        match self {
            Self::InSlot(few) => few.next(),
            Self::InBlocks(walk) => walk.next(),
        }
    }
}

impl LogEntries for Entries<'_> {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        match self {
            Self::InSlot(few) => few.oldest(),
            Self::InBlocks(walk) => walk.oldest(),
        }
    }
}

/// A walk along a chain, which ends at the first impossible entry.
#[derive(Clone, Default)]
pub struct BlockEntries<'pool> {
    blocks: &'pool [Block],
    at: Position,
    end: Position,
    /// The entry at `at`; one without units after the last.
    first: Entry,
    /// Units of the entries that are left.
    units: i64,
    /// The flag that is set at an impossible entry.
    damage: Option<&'pool Cell<bool>>,
}

impl BlockEntries<'_> {
    /// The entry at this place, which is later than `after`.
    #[inline(always)]
    fn entry_after(&self, after: i64) -> Entry {
        let (time, cost) = entry(self.blocks, self.at).unwrap_or_default();
        // The units show where a chain ends, and growing times that it does end.
        let is_last = self.at == self.end;
        let fits = if is_last { cost == self.units } else { 0 < cost && cost < self.units };
        if fits && after < time && time <= LARGEST {
            return (time, cost);
        }
        self.report_damage()
    }

    #[cold]
    fn report_damage(&self) -> Entry {
        if let Some(damage) = self.damage {
            damage.set(true);
        }
        (0, 0)
    }
}

impl Iterator for BlockEntries<'_> {
    type Item = Entry;

    #[inline(always)]
    fn next(&mut self) -> Option<Entry> {
        let (time, cost) = self.first;
        if cost == 0 {
            return None;
        }
        self.first = (0, 0);
        if self.at != self.end {
            self.at = self.at.after(self.blocks);
            self.units -= cost;
            self.first = self.entry_after(time);
        }
        Some((time, cost))
    }
}

impl LogEntries for BlockEntries<'_> {
    #[inline(always)]
    fn oldest(&self) -> Option<Entry> {
        (self.first.1 != 0).then_some(self.first)
    }
}

/// A key's entries; None where it has none, or where those are `damage`.
#[inline(always)]
pub fn read<'pool>(blocks: &'pool [Block], chain: Chain, damage: &'pool Cell<bool>) -> Option<Log<Entries<'pool>>> {
    if has_blocks(chain) {
        let Log { entries, used, last, shift } = read_chain(blocks, chain, damage)?;
        return Some(Log { entries: Entries::InBlocks(entries), used, last, shift });
    }
    let Log { entries, used, last, shift } = read_slot(chain, damage)?;
    Some(Log { entries: Entries::InSlot(entries), used, last, shift })
}

/// `read` for a log in its slot.
#[inline(always)]
pub fn read_slot(chain: Chain, damage: &Cell<bool>) -> Option<Log<SlotEntries>> {
    match SlotEntries::read(chain) {
        Some(few) if few.is_sound() => few.log(),
        _ => {
            damage.set(true);
            None
        }
    }
}

/// `read` for a log in blocks.
#[inline(always)]
pub fn read_chain<'pool>(
    blocks: &'pool [Block],
    chain: Chain,
    damage: &'pool Cell<bool>,
) -> Option<Log<BlockEntries<'pool>>> {
    let [first, used, last] = chain;
    let (at, end) = (Position::unpack(first), Position::unpack(last));
    match entry(blocks, end) {
        Some((last, _)) if (1..=LARGEST).contains(&used) && (0..=LARGEST).contains(&last) => {
            let mut walk = BlockEntries { blocks, at, end, first: (0, 0), units: used, damage: Some(damage) };
            walk.first = walk.entry_after(-1);
            Some(Log { entries: walk, used, last, shift: 0 })
        }
        _ => {
            damage.set(true);
            None
        }
    }
}
