//! The backing of a shard in the memory of one process: it grows, and dies with the process.

use crate::algorithms::log_view::Entry;
use crate::encoding::block::{Block, Position, places};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::Chain;
use crate::holding::Holds;
use crate::memory::Slots;
use crate::shard::backing::{Backing, Head};
use crate::shard::{Shard, home};

/// Slots behind the last home, for runs that start near the end.
const TAIL: usize = 64;

/// Slots and blocks in the memory of one process.
#[derive(Default)]
pub struct ProcessBacking {
    slots: Slots,
    homes: usize,
    head: Head,
    blocks: Vec<Block>,
    /// How many of the slots the table's count includes; see `Capacity::settle`.
    pub counted_keys: u32,
    /// How many of the log blocks the table's count includes.
    pub counted_blocks: u32,
    /// The holds, in a box so that a shard stays small without them.
    pub holds: Box<Holds>,
}

impl ProcessBacking {
    /// Bytes of slots and log blocks, used or not.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.blocks.capacity() * size_of::<Block>() + self.holds.bytes()
    }

    /// Where the slots begin, for prefetching them.
    pub fn start(&self) -> *const Slot {
        self.slots.start()
    }

    /// Log blocks that exist, held or free.
    pub fn made_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Replace the range of slots; returns the former one.
    fn replace_slots(&mut self, slots: Slots) -> Slots {
        self.homes = homes(slots.len());
        self.head.cursor = 0;
        std::mem::replace(&mut self.slots, slots)
    }
}

impl Backing for ProcessBacking {
    type Holds = Holds;

    #[inline(always)]
    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    #[inline(always)]
    fn homes(&self) -> usize {
        self.homes
    }

    #[inline(always)]
    fn head(&self) -> Head {
        self.head
    }

    #[inline(always)]
    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Without blocks that can still be made: the table counts those first.
    #[inline(always)]
    fn spare_blocks(&self) -> usize {
        self.blocks.len() - self.head.held as usize
    }

    #[inline(always)]
    fn write_slot(&mut self, index: usize, slot: Slot) {
        self.slots[index] = slot;
    }

    #[inline(always)]
    fn write_entry(&mut self, block: u32, index: usize, (time, cost): Entry) {
        self.blocks[block as usize].entries[index] = [time, cost];
    }

    #[inline(always)]
    fn write_link(&mut self, block: u32, next: u32) {
        self.blocks[block as usize].next = next;
    }

    #[inline(always)]
    fn write_free(&mut self, free: u32, held: u32) {
        self.head.free = free;
        self.head.held = held;
    }

    fn take_new_block(&mut self) -> Option<u32> {
        self.blocks.push(Block::EMPTY);
        self.head.held += 1;
        Some((self.blocks.len() - 1) as u32)
    }

    fn can_note(&self, _more: usize) -> bool {
        true
    }

    /// Does nothing: no other process can see a charge half written.
    #[inline(always)]
    fn commit(&mut self) {}

    /// Does nothing: no other process writes here, so that no damage can interrupt a charge.
    fn roll_back(&mut self) {}

    #[inline(always)]
    fn mark_refused(&mut self, index: usize) {
        self.slots[index].mark_refused();
    }

    #[inline(always)]
    fn set_cursor(&mut self, cursor: usize) {
        self.head.cursor = cursor;
    }

    fn open_gap(&mut self, index: usize, gap: usize, slot: Slot) {
        self.slots.copy_within(index..index + gap, index + 1);
        self.slots[index] = slot;
        self.head.used += 1;
    }

    fn close_gap(&mut self, index: usize, end: usize) {
        self.slots.copy_within(index + 1..end, index);
        self.slots[end - 1] = Slot::default();
        self.head.used -= 1;
    }

    #[cold]
    fn shift(&mut self, chain: Chain, shift: i64) {
        for (block, index) in places(&self.blocks, chain).collect::<Vec<_>>() {
            self.blocks[block as usize].entries[index][0] += shift;
        }
    }

    fn drop_blocks(&mut self) {
        self.blocks = Vec::new();
        self.head.free = Head::default().free;
    }

    fn take_entry_out(&mut self, at: Position, behind: usize) {
        let mut to = at;
        for _ in 0..behind {
            let from = to.after(&self.blocks);
            self.blocks[to.block as usize].entries[to.index as usize] =
                self.blocks[from.block as usize].entries[from.index as usize];
            to = from;
        }
    }

    fn put_entry_in(&mut self, at: Position, behind: usize, (time, cost): Entry) {
        let (mut to, mut own) = (at, [time, cost]);
        for _ in 0..=behind {
            own = std::mem::replace(&mut self.blocks[to.block as usize].entries[to.index as usize], own);
            to = to.after(&self.blocks);
        }
    }

    fn clear(&mut self) {
        self.slots.fill(Slot::default());
        self.head = Head::default();
        self.blocks = Vec::new();
        self.holds.clear();
    }

    #[inline(always)]
    fn holds(&self) -> Option<&Holds> {
        Some(&self.holds)
    }

    #[inline(always)]
    fn holds_mut(&mut self) -> Option<&mut Holds> {
        Some(&mut self.holds)
    }
}

/// A shard in the memory of this process.
pub type ProcessShard = Shard<ProcessBacking>;

impl ProcessShard {
    /// Move to a wider range of empty slots.
    pub fn move_to(&mut self, slots: Slots) {
        let former = self.backing.replace_slots(slots);
        let homes = self.homes();
        let mut next = 0;
        for slot in former.iter().filter(|slot| slot.tag != 0) {
            next = next.max(home(slot.tag, homes));
            self.backing.slots[next] = *slot;
            next += 1;
        }
    }
}

/// The slots of a range that gives a shard this many homes.
pub fn range_for(homes: usize) -> usize {
    homes + homes.min(TAIL)
}

/// The homes of a range of this many slots; the inverse of `range_for`.
fn homes(slots: usize) -> usize {
    if slots >= 2 * TAIL { slots - TAIL } else { slots / 2 }
}
