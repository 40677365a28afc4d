//! Where the slots and log blocks of a stripe lie. Today that is the memory of one process, `heap`.
//!
//! A stripe changes its ground in two ways. What a decision charges is written in place, and said
//! before: a ground that outlives its process can then take a half-written charge back. What moves
//! slots opens or closes a gap, one step of the ground's own.

use crate::log_pool::{Block, NIL};
use crate::slot::Slot;

/// What a stripe knows about its slots and blocks.
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

/// Where the slots and log blocks of a stripe lie.
pub trait Ground {
    /// All slots, used or not.
    fn slots(&self) -> &[Slot];

    /// All slots, to be changed.
    fn slots_mut(&mut self) -> &mut [Slot];

    /// How many homes tags have among the slots.
    fn homes(&self) -> usize;

    /// What is known of slots and blocks.
    fn head(&self) -> &Head;

    /// What is known of slots and blocks, to be changed.
    fn head_mut(&mut self) -> &mut Head;

    /// All blocks that were ever taken.
    fn blocks(&self) -> &[Block];

    /// All blocks that were ever taken, to be changed.
    fn blocks_mut(&mut self) -> &mut [Block];

    /// Whether there is a block that was never taken.
    fn has_new_block(&self) -> bool;

    /// A block that was never taken; there must be one.
    fn take_new_block(&mut self) -> u32;

    /// No chain holds a block any more.
    fn drop_blocks(&mut self);

    /// A slot is about to be overwritten by a charge.
    fn save_slot(&mut self, index: usize);

    /// The link of a block, one of its entries (None: no entry) and the head's blocks are about to be changed.
    fn save_block(&mut self, block: u32, entry: Option<usize>);

    /// Move the slots of `index..index + gap` one place to the right, into an empty one, and put `slot` at `index`.
    fn open_gap(&mut self, index: usize, gap: usize, slot: Slot);

    /// Move the slots behind `index`, up to `end`, one place to the left, over that at `index`.
    fn close_gap(&mut self, index: usize, end: usize);

    /// Empty all slots and forget all blocks.
    fn clear(&mut self);
}
