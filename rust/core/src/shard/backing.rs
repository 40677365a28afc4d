//! The storage of the slots and log blocks of a shard: the memory of one process, or a file
//! that many processes map.
//!
//! A shard changes its backing in three ways. What a decision charges and holds is written piece by piece and
//! then committed: a backing that outlives its processes undoes what was written and not committed. Opening or
//! closing a gap between slots, and moving the times of a log, is one step: such a backing finishes it. All other
//! changes write one word.

use crate::algorithms::log_view::Entry;
use crate::encoding::block::{Block, NIL, Position};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::Chain;
use crate::holding::store::HoldStore;

/// What a shard records about its slots and blocks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    /// Slots in use.
    pub used: usize,
    /// Where the next sweep begins.
    pub cursor: usize,
    /// The first of the blocks that were given back; they are linked.
    pub free: u32,
    /// Blocks that chains hold.
    pub held: u32,
}

impl Default for Head {
    fn default() -> Self {
        Self { used: 0, cursor: 0, free: NIL, held: 0 }
    }
}

/// The storage of the slots and log blocks of a shard.
pub trait Backing {
    /// The store of the shard's holds.
    type Holds: HoldStore;

    /// All slots, used or not.
    fn slots(&self) -> &[Slot];

    /// How many homes tags have among the slots.
    fn homes(&self) -> usize;

    /// What is recorded about slots and blocks.
    fn head(&self) -> Head;

    /// All blocks that were ever taken.
    fn blocks(&self) -> &[Block];

    /// How many blocks exist that no chain holds.
    fn spare_blocks(&self) -> usize;

    /// Overwrite a slot in use; takes effect when committed.
    fn write_slot(&mut self, index: usize, slot: Slot);

    /// Overwrite an entry of a block; takes effect when committed.
    fn write_entry(&mut self, block: u32, index: usize, entry: Entry);

    /// Link a block to the next; takes effect when committed.
    fn write_link(&mut self, block: u32, next: u32);

    /// Replace the head of the free list and the count of held blocks; takes effect when committed.
    fn write_free(&mut self, free: u32, held: u32);

    /// Take a block that was never taken; None where there is none. Takes effect when committed.
    fn take_new_block(&mut self) -> Option<u32>;

    /// Whether `more` further writes fit before the next commit.
    fn can_note(&self, more: usize) -> bool;

    /// Make all writes since the last commit take effect.
    fn commit(&mut self);

    /// Undo all writes since the last commit.
    fn roll_back(&mut self);

    /// Mark the state in a slot as refused.
    fn mark_refused(&mut self, index: usize);

    /// Record where the next sweep begins.
    fn set_cursor(&mut self, cursor: usize);

    /// Move the slots of `index..index + gap` one place to the right, into an empty one, and put `slot` at `index`.
    fn open_gap(&mut self, index: usize, gap: usize, slot: Slot);

    /// Move the slots behind `index`, up to `end`, one place to the left, over that at `index`.
    fn close_gap(&mut self, index: usize, end: usize);

    /// Move the times of all entries of a chain by `shift`.
    fn shift(&mut self, chain: Chain, shift: i64);

    /// Drop all blocks: no chain holds one any more.
    fn drop_blocks(&mut self);

    /// Empty all slots and forget all blocks and holds.
    fn clear(&mut self);

    /// Take the entry at a place out of its chain: the `behind` entries after it move one place forward. Takes effect
    /// when committed.
    fn take_entry_out(&mut self, at: Position, behind: usize);

    /// Put an entry into a chain at a place: the entry there and the `behind` entries after it move one place back,
    /// where the last one has room. Takes effect when committed.
    fn put_entry_in(&mut self, at: Position, behind: usize, entry: Entry);

    /// The holds; None where the backing cannot store any.
    fn holds(&self) -> Option<&Self::Holds>;

    /// `holds`, mutably.
    fn holds_mut(&mut self) -> Option<&mut Self::Holds>;

    /// Whether an impossible value was read among the holds since the last call.
    fn has_damaged_holds(&self) -> bool {
        false
    }
}
