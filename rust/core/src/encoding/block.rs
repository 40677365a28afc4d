//! Log entries in chains of small blocks, which are linked by index: nothing here is an address.

use crate::algorithms::log_view::Entry;
use crate::encoding::slot_entries::{Chain, has_blocks};

/// Entries of one block.
pub const PER_BLOCK: usize = 7;
/// The index of the last entry of a block.
pub const LAST_INDEX: u32 = PER_BLOCK as u32 - 1;
/// The number of no block.
pub const NIL: u32 = u32::MAX;

/// A few entries of one key, and where its next ones are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Block {
    /// The next block of the chain, or of those that are free.
    pub next: u32,
    /// Oldest first.
    pub entries: [[i64; 2]; PER_BLOCK],
}

impl Block {
    /// A block of no chain.
    pub const EMPTY: Self = Self { next: NIL, entries: [[0, 0]; PER_BLOCK] };
}

/// The place of one entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Position {
    /// The number of the block.
    pub block: u32,
    /// The index of the entry in the block.
    pub index: u32,
}

impl Position {
    /// The position in one word of a slot.
    pub fn pack(self) -> i64 {
        i64::from(self.block) << 3 | i64::from(self.index)
    }

    /// The position that a word of a slot names.
    pub fn unpack(word: i64) -> Self {
        Self { block: (word >> 3) as u32, index: (word & 7) as u32 }
    }

    /// The next position of a chain; an invalid one if this is.
    pub fn after(self, blocks: &[Block]) -> Self {
        if self.index < LAST_INDEX {
            Self { index: self.index + 1, ..self }
        } else {
            Self { block: blocks.get(self.block as usize).map_or(NIL, |block| block.next), index: 0 }
        }
    }
}

/// The entry at a position; None for an invalid one.
#[inline(always)]
pub fn entry(blocks: &[Block], at: Position) -> Option<Entry> {
    let [time, cost] = *blocks.get(at.block as usize)?.entries.get(at.index as usize)?;
    Some((time, cost))
}

/// The places of all entries of a chain, oldest first, as (block, index); the walk ends where it leaves the blocks.
pub fn places(blocks: &[Block], chain: Chain) -> impl Iterator<Item = (u32, usize)> {
    let mut next = has_blocks(chain).then(|| Position::unpack(chain[0]));
    let mut left = blocks.len() * PER_BLOCK;
    std::iter::from_fn(move || {
        let at = next.filter(|at| left > 0 && entry(blocks, *at).is_some())?;
        left -= 1;
        next = (at.pack() != chain[2]).then(|| at.after(blocks));
        Some((at.block, at.index as usize))
    })
}
