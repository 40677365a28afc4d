//! Where the slots and log blocks of a shard lie: the memory of one process, or a file
//! that many processes map.
//!
//! A shard changes its backing in three ways. What a decision charges and holds is written piece by piece and
//! then committed: a backing that outlives its processes takes back what was written and not committed.
//! What moves slots opens or closes a gap, and what moves the times of a log is one step as well: such
//! a backing carries those on. All the rest changes one word.

use crate::algorithms::log_view::Entry;
use crate::encoding::block::{Block, NIL, Position};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::Chain;
use crate::holding::store::HoldStore;

/// What a shard knows about its slots and blocks.
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

/// Where the slots and log blocks of a shard lie.
pub trait Backing {
    /// What is remembered of holds.
    type Holds: HoldStore;

    /// All slots, used or not.
    fn slots(&self) -> &[Slot];

    /// How many homes tags have among the slots.
    fn homes(&self) -> usize;

    /// What is known of slots and blocks.
    fn head(&self) -> Head;

    /// All blocks that were ever taken.
    fn blocks(&self) -> &[Block];

    /// Blocks that exist and that no chain holds.
    fn spare_blocks(&self) -> usize;

    /// Overwrite a slot in use; counts when it is committed.
    fn write_slot(&mut self, index: usize, slot: Slot);

    /// Overwrite an entry of a block; counts when it is committed.
    fn write_entry(&mut self, block: u32, index: usize, entry: Entry);

    /// Link a block to the next; counts when it is committed.
    fn write_link(&mut self, block: u32, next: u32);

    /// Take up another free list and count of held blocks; counts when it is committed.
    fn write_free(&mut self, free: u32, held: u32);

    /// A block that was never taken, now held; None where there is none. Counts when it is committed.
    fn take_new_block(&mut self) -> Option<u32>;

    /// Whether so many more things can be written before a commit.
    fn can_note(&self, more: usize) -> bool;

    /// What was written counts from here on.
    fn commit(&mut self);

    /// What was written since the last commit was never written.
    fn roll_back(&mut self);

    /// Mark the state in a slot as refused.
    fn mark_refused(&mut self, index: usize);

    /// Note where the next sweep begins.
    fn set_cursor(&mut self, cursor: usize);

    /// Move the slots of `index..index + gap` one place to the right, into an empty one, and put `slot` at `index`.
    fn open_gap(&mut self, index: usize, gap: usize, slot: Slot);

    /// Move the slots behind `index`, up to `end`, one place to the left, over that at `index`.
    fn close_gap(&mut self, index: usize, end: usize);

    /// Move the times of all entries of a chain by `shift`.
    fn shift(&mut self, chain: Chain, shift: i64);

    /// No chain holds a block any more.
    fn drop_blocks(&mut self);

    /// Empty all slots and forget all blocks and holds.
    fn clear(&mut self);

    /// Take the entry at a place out of its chain: those behind, so many, move one place forward. Counts when it is
    /// committed.
    fn take_entry_out(&mut self, at: Position, behind: usize);

    /// Put an entry into a chain at a place: that there and those behind, so many, move one place back, where the last
    /// one has room. Counts when it is committed.
    fn put_entry_in(&mut self, at: Position, behind: usize, entry: Entry);

    /// What is remembered of holds; None where none can be.
    fn holds(&self) -> Option<&Self::Holds>;

    /// `holds`, to be changed.
    fn holds_mut(&mut self) -> Option<&mut Self::Holds>;

    /// Whether something was met among the holds that cannot be, since this was last asked.
    fn has_damaged_holds(&self) -> bool {
        false
    }
}
