//! Where the entries of sliding logs live: chains of small blocks in one vector, linked by index.
//!
//! A chain is named by two positions, so it fits into the words of a slot, and nothing here is an
//! address: the same layout works in memory that several processes map.

/// Entries of one block.
const PER_BLOCK: usize = 7;
const NIL: u32 = u32::MAX;

/// (time, cost) in units of the limit.
pub type Entry = (i64, i64);

#[derive(Clone, Copy)]
struct Block {
    next: u32,
    entries: [Entry; PER_BLOCK],
}

/// The place of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Position {
    block: u32,
    index: usize,
}

impl Position {
    fn pack(self) -> i64 {
        i64::from(self.block) << 3 | self.index as i64
    }

    fn unpack(word: i64) -> Self {
        Self { block: (word >> 3) as u32, index: (word & 7) as usize }
    }
}

/// A key's chain as a slot stores it: the oldest entry, the units of all entries, the newest entry.
pub type Chain = [i64; 3];

/// A key's entries, to be read.
pub struct Log<'pool> {
    /// All stored entries, oldest first.
    pub entries: Entries<'pool>,
    /// Units of all stored entries.
    pub used: i64,
    /// The time of the newest entry.
    pub last: i64,
}

/// An iterator over the entries of a chain, oldest first.
#[derive(Clone)]
pub struct Entries<'pool> {
    pool: Option<&'pool LogPool>,
    at: Position,
    end: Position,
}

impl Entries<'_> {
    /// No entries.
    pub fn none() -> Self {
        let nowhere = Position { block: NIL, index: 0 };
        Self { pool: None, at: nowhere, end: nowhere }
    }

    /// The oldest entry that is left.
    pub fn first(&self) -> Option<Entry> {
        self.pool.map(|pool| pool.entry(self.at))
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let pool = self.pool?;
        let entry = pool.entry(self.at);
        if self.at == self.end {
            self.pool = None;
        } else {
            self.at = pool.after(self.at);
        }
        Some(entry)
    }
}

/// The blocks of one stripe.
#[derive(Default)]
pub struct LogPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl LogPool {
    /// A key's entries.
    pub fn read(&self, chain: Chain) -> Log<'_> {
        let [first, used, last] = chain;
        let end = Position::unpack(last);
        let entries = Entries { pool: Some(self), at: Position::unpack(first), end };
        Log { entries, used, last: self.entry(end).0 }
    }

    /// How many blocks exist, used or free.
    pub fn allocated(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.free.capacity() * size_of::<u32>()
    }

    /// Whether the next entry of this chain (None: of a new one) needs a block that does not exist yet.
    pub fn must_grow(&self, chain: Option<Chain>) -> bool {
        let last_block_full = chain.is_none_or(|[_, _, last]| Position::unpack(last).index == PER_BLOCK - 1);
        last_block_full && self.free.is_empty()
    }

    /// Drop the `gone` oldest entries, move all times by `shift`, and add `cost` at `time`.
    ///
    /// Entries of one instant are merged, so a burst at one microsecond takes one entry.
    pub fn record(&mut self, chain: Option<Chain>, gone: usize, shift: i64, time: i64, cost: i64) -> Chain {
        let Some(chain) = chain.and_then(|chain| self.drop_oldest(chain, gone)) else {
            let block = self.take_block();
            let only = Position { block, index: 0 };
            *self.entry_mut(only) = (time, cost);
            return [only.pack(), cost, only.pack()];
        };
        if shift != 0 {
            self.shift(chain, shift);
        }
        let [first, used, last] = chain;
        let newest = Position::unpack(last);
        if self.entry(newest).0 == time {
            self.entry_mut(newest).1 += cost;
            return [first, used + cost, last];
        }
        let mut next = Position { block: newest.block, index: newest.index + 1 };
        if next.index == PER_BLOCK {
            next = Position { block: self.take_block(), index: 0 };
            self.block_mut(newest.block).next = next.block;
        }
        *self.entry_mut(next) = (time, cost);
        [first, used + cost, next.pack()]
    }

    /// Give back all blocks of a chain.
    pub fn release(&mut self, chain: Chain) {
        let end = Position::unpack(chain[2]).block;
        let mut block = Position::unpack(chain[0]).block;
        while block != end {
            let next = self.block(block).next;
            self.free.push(block);
            block = next;
        }
        self.free.push(end);
        if self.free.len() == self.blocks.len() {
            *self = Self::default();
        }
    }

    fn drop_oldest(&mut self, chain: Chain, gone: usize) -> Option<Chain> {
        let [first, mut used, last] = chain;
        let mut at = Position::unpack(first);
        for _ in 0..gone {
            used -= self.entry(at).1;
            if at.pack() == last {
                self.free.push(at.block);
                return None;
            }
            let next = self.after(at);
            if next.block != at.block {
                self.free.push(at.block);
            }
            at = next;
        }
        Some([at.pack(), used, last])
    }

    fn shift(&mut self, chain: Chain, shift: i64) {
        let mut at = Position::unpack(chain[0]);
        loop {
            self.entry_mut(at).0 += shift;
            if at.pack() == chain[2] {
                return;
            }
            at = self.after(at);
        }
    }

    fn take_block(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        self.blocks.push(Block { next: NIL, entries: [(0, 0); PER_BLOCK] });
        (self.blocks.len() - 1) as u32
    }

    fn after(&self, at: Position) -> Position {
        if at.index + 1 < PER_BLOCK {
            Position { index: at.index + 1, ..at }
        } else {
            Position { block: self.block(at.block).next, index: 0 }
        }
    }

    fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    fn block_mut(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    fn entry(&self, at: Position) -> Entry {
        self.block(at.block).entries[at.index]
    }

    fn entry_mut(&mut self, at: Position) -> &mut Entry {
        &mut self.block_mut(at.block).entries[at.index]
    }
}
