//! The backing of a shard in a mapped file: the journal of the shard records each write first.

use std::cell::Cell;

use crate::algorithms::log_view::Entry;
use crate::encoding::block::{Block, Position};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::Chain;
use crate::memory::shared::{HeldShard, put};
use crate::shard::backing::{Backing, Head};
use crate::zone::journal::{BLOCKS, CURSOR, ENTRY, FREE, Journal, LINK, MADE, SLOT, USED};

/// The slots and blocks of a shard, held.
pub struct MappedBacking<'zone> {
    /// The journal of the shard.
    pub journal: Journal<'zone>,
    homes: usize,
    /// Whether an impossible value was read among the holds.
    pub(super) damaged: Cell<bool>,
    /// The settled hold that the next one replaces; 0 for none.
    pub(super) replaceable: u32,
}

impl<'zone> MappedBacking<'zone> {
    /// The backing of a locked shard.
    #[inline(always)]
    pub fn new(held: HeldShard<'zone>, homes: usize) -> Self {
        Self { journal: Journal::new(held), homes, damaged: Cell::new(false), replaceable: 0 }
    }
}

impl Backing for MappedBacking<'_> {
    type Holds = Self;

    #[inline(always)]
    fn slots(&self) -> &[Slot] {
        self.journal.held.slots
    }

    #[inline(always)]
    fn homes(&self) -> usize {
        self.homes
    }

    #[inline(always)]
    fn head(&self) -> Head {
        // Impossible values are read as the largest possible ones: the words may be damaged.
        let (free, slots, blocks) =
            (self.journal.word(FREE), self.journal.held.slots.len(), self.journal.held.blocks.len());
        Head {
            used: self.journal.word(USED).min(slots as u64) as usize,
            cursor: self.journal.word(CURSOR) as usize,
            free: (free >> 32) as u32,
            held: (free as u32).min(blocks as u32),
        }
    }

    #[inline(always)]
    fn blocks(&self) -> &[Block] {
        self.journal.held.blocks
    }

    #[inline(always)]
    fn spare_blocks(&self) -> usize {
        self.journal.held.blocks.len() - self.head().held as usize
    }

    #[inline(always)]
    fn write_slot(&mut self, index: usize, slot: Slot) {
        let former = self.journal.held.slots[index].words().map(|word| word as u64);
        self.journal.save(SLOT | index as u64, former);
        put(&mut self.journal.held.slots[index], slot);
    }

    #[inline(always)]
    fn write_entry(&mut self, block: u32, index: usize, (time, cost): Entry) {
        let [former_time, former_cost] = self.journal.held.blocks[block as usize].entries[index];
        self.journal.save(ENTRY | u64::from(block), [former_time as u64, former_cost as u64, index as u64]);
        put(&mut self.journal.held.blocks[block as usize].entries[index], [time, cost]);
    }

    fn write_link(&mut self, block: u32, next: u32) {
        let former = self.journal.held.blocks[block as usize].next;
        self.journal.save(LINK | u64::from(block), [u64::from(former), 0, 0]);
        put(&mut self.journal.held.blocks[block as usize].next, next);
    }

    fn write_free(&mut self, free: u32, held: u32) {
        self.journal.save(BLOCKS, [self.journal.word(FREE), self.journal.word(MADE), 0]);
        self.journal.put_blocks(free, held, self.journal.word(MADE) as usize);
    }

    fn take_new_block(&mut self) -> Option<u32> {
        let Head { free, held, .. } = self.head();
        let made = self.journal.made_blocks();
        if made >= self.journal.held.blocks.len() {
            return None;
        }
        self.journal.save(BLOCKS, [self.journal.word(FREE), made as u64, 0]);
        self.journal.put_blocks(free, held + 1, made + 1);
        Some(made as u32)
    }

    fn can_note(&self, more: usize) -> bool {
        self.journal.can_note(more)
    }

    #[inline(always)]
    fn commit(&mut self) {
        self.journal.commit();
    }

    #[cold]
    fn roll_back(&mut self) {
        self.journal.roll_back();
    }

    #[inline(always)]
    fn mark_refused(&mut self, index: usize) {
        let mut slot = self.journal.held.slots[index];
        slot.mark_refused();
        // Only one word differs, so it is written as a whole or not at all.
        put(&mut self.journal.held.slots[index], slot);
    }

    fn set_cursor(&mut self, cursor: usize) {
        self.journal.set(CURSOR, cursor as u64);
    }

    fn open_gap(&mut self, index: usize, gap: usize, slot: Slot) {
        self.journal.open_gap(index, gap, slot, self.head().used);
    }

    fn close_gap(&mut self, index: usize, end: usize) {
        self.journal.close_gap(index, end, self.head().used);
    }

    #[cold]
    fn shift(&mut self, chain: Chain, shift: i64) {
        self.journal.shift(chain, shift);
    }

    /// Does nothing: free blocks stay linked.
    fn drop_blocks(&mut self) {}

    fn clear(&mut self) {
        self.journal.clear();
    }

    fn take_entry_out(&mut self, at: Position, behind: usize) {
        self.journal.take_entry_out(at.block, at.index as usize, behind);
    }

    fn put_entry_in(&mut self, at: Position, behind: usize, (time, cost): Entry) {
        self.journal.put_entry_in(at.block, at.index as usize, behind, [time, cost]);
    }

    #[inline(always)]
    fn holds(&self) -> Option<&Self> {
        (!self.journal.held.pool().is_empty()).then_some(self)
    }

    #[inline(always)]
    fn holds_mut(&mut self) -> Option<&mut Self> {
        if self.journal.held.pool().is_empty() { None } else { Some(self) }
    }

    #[inline(always)]
    fn has_damaged_holds(&self) -> bool {
        self.damaged.take()
    }
}
