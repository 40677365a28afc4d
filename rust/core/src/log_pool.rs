//! Where the entries of sliding logs live: chains of small blocks, linked by index.
//!
//! A chain is named by two positions, so it fits into the words of a slot, and nothing here is an
//! address: the same layout works in memory that several processes map.

use crate::ground::{Ground, Head};

/// Entries of one block.
pub const PER_BLOCK: usize = 7;
/// The number of no block.
pub const NIL: u32 = u32::MAX;

/// (time, cost) in units of the limit.
pub type Entry = (i64, i64);

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

    fn after(self, blocks: &[Block]) -> Self {
        if self.index + 1 < PER_BLOCK {
            Self { index: self.index + 1, ..self }
        } else {
            Self { block: blocks[self.block as usize].next, index: 0 }
        }
    }
}

/// A key's chain as a slot stores it: the oldest entry, the units of all entries, the newest entry.
pub type Chain = [i64; 3];

/// The chain of a key without entries.
pub const NO_CHAIN: Chain = [-1, 0, -1];

/// A key's entries, to be read.
pub struct Log<'pool> {
    /// All stored entries, oldest first.
    pub entries: Entries<'pool>,
    /// Units of all stored entries.
    pub used: i64,
    /// The time of the newest entry.
    pub last: i64,
    /// What is added to all stored times, `last` among them.
    pub shift: i64,
}

/// An iterator over the entries of a chain, oldest first.
#[derive(Clone)]
pub struct Entries<'pool> {
    blocks: &'pool [Block],
    at: Position,
    end: Position,
}

impl Entries<'_> {
    /// No entries.
    pub fn none() -> Self {
        let nowhere = Position { block: NIL, index: 0 };
        Self { blocks: &[], at: nowhere, end: nowhere }
    }

    /// The oldest entry that is left.
    pub fn first(&self) -> Option<Entry> {
        (!self.blocks.is_empty()).then(|| entry(self.blocks, self.at))
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entry = self.first()?;
        if self.at == self.end {
            self.blocks = &[];
        } else {
            self.at = self.at.after(self.blocks);
        }
        Some(entry)
    }
}

/// A key's entries; None where it has none.
pub fn read(blocks: &[Block], chain: Chain) -> Option<Log<'_>> {
    if chain == NO_CHAIN {
        return None;
    }
    let [first, used, last] = chain;
    let end = Position::unpack(last);
    let entries = Entries { blocks, at: Position::unpack(first), end };
    Some(Log { entries, used, last: entry(blocks, end).0, shift: 0 })
}

/// Whether the next entry of this chain takes another block than those that its `gone` oldest entries give back.
pub fn takes_block(chain: Chain, gone: usize) -> bool {
    chain == NO_CHAIN
        || Position::unpack(chain[2]).index == PER_BLOCK - 1 && Position::unpack(chain[0]).index + gone < PER_BLOCK
}

/// The places of all entries of a chain, oldest first, as (block, index).
pub fn places(blocks: &[Block], chain: Chain) -> impl Iterator<Item = (u32, usize)> {
    let mut next = (chain != NO_CHAIN).then(|| Position::unpack(chain[0]));
    std::iter::from_fn(move || {
        let at = next?;
        next = (at.pack() != chain[2]).then(|| at.after(blocks));
        Some((at.block, at.index))
    })
}

/// Drop the `gone` oldest entries and add `cost` at `time`.
///
/// Entries of one instant are merged, so a burst at one microsecond takes one entry.
#[inline]
pub fn record<G: Ground>(ground: &mut G, chain: Chain, gone: usize, time: i64, cost: i64) -> Chain {
    let chain = drop_oldest(ground, chain, gone);
    if chain == NO_CHAIN {
        let only = Position { block: take_block(ground), index: 0 };
        put(ground, only, (time, cost));
        return [only.pack(), cost, only.pack()];
    }
    let [first, used, last] = chain;
    let newest = Position::unpack(last);
    let (newest_time, newest_cost) = entry(ground.blocks(), newest);
    if newest_time == time {
        put(ground, newest, (time, newest_cost + cost));
        return [first, used + cost, last];
    }
    let mut next = Position { block: newest.block, index: newest.index + 1 };
    if next.index == PER_BLOCK {
        next = Position { block: take_block(ground), index: 0 };
        ground.write_link(newest.block, next.block);
    }
    put(ground, next, (time, cost));
    [first, used + cost, next.pack()]
}

/// Leave the `kept` oldest entries as they are, and write `moved` over those behind, which were no fewer.
pub fn rewrite<G: Ground>(ground: &mut G, chain: Chain, kept: usize, moved: &[Entry]) -> Chain {
    let [first, _, last] = chain;
    let (mut at, end) = (Position::unpack(first), Position::unpack(last));
    let (mut newest, mut used) = (None, 0);
    for number in 0..kept + moved.len() {
        let mut own = entry(ground.blocks(), at);
        if number >= kept && own != moved[number - kept] {
            own = moved[number - kept];
            put(ground, at, own);
        }
        used += own.1;
        newest = Some(at);
        if at == end {
            break;
        }
        at = at.after(ground.blocks());
    }
    let Some(newest) = newest else {
        release(ground, chain);
        return NO_CHAIN;
    };
    if newest.block != end.block {
        let next = ground.blocks()[newest.block as usize].next;
        give_back(ground, next, end.block);
    }
    [first, used, newest.pack()]
}

/// Give back all blocks of a chain.
pub fn release<G: Ground>(ground: &mut G, chain: Chain) {
    if chain != NO_CHAIN {
        give_back(ground, Position::unpack(chain[0]).block, Position::unpack(chain[2]).block);
    }
    if ground.head().held == 0 {
        ground.drop_blocks();
    }
}

/// The chain without its oldest entries; blocks that held only those are given back.
#[inline]
pub fn drop_oldest<G: Ground>(ground: &mut G, chain: Chain, gone: usize) -> Chain {
    if gone == 0 || chain == NO_CHAIN { chain } else { drop_some(ground, chain, gone) }
}

fn drop_some<G: Ground>(ground: &mut G, chain: Chain, gone: usize) -> Chain {
    let [first, mut used, last] = chain;
    let start = Position::unpack(first);
    let (mut at, mut left) = (start, None);
    for _ in 0..gone {
        used -= entry(ground.blocks(), at).1;
        if at.pack() == last {
            give_back(ground, start.block, at.block);
            return NO_CHAIN;
        }
        let next = at.after(ground.blocks());
        if next.block != at.block {
            left = Some(at.block);
        }
        at = next;
    }
    if let Some(end) = left {
        give_back(ground, start.block, end);
    }
    [at.pack(), used, last]
}

fn take_block<G: Ground>(ground: &mut G) -> u32 {
    let Head { free, held, .. } = ground.head();
    if free == NIL {
        return ground.take_new_block();
    }
    let next = ground.blocks()[free as usize].next;
    ground.write_free(next, held + 1);
    free
}

/// Give back the blocks from `first` to `last`, which are linked.
fn give_back<G: Ground>(ground: &mut G, first: u32, last: u32) {
    let mut count = 1;
    let mut at = first;
    while at != last {
        at = ground.blocks()[at as usize].next;
        count += 1;
    }
    let Head { free, held, .. } = ground.head();
    ground.write_link(last, free);
    ground.write_free(first, held - count);
}

fn put<G: Ground>(ground: &mut G, at: Position, entry: Entry) {
    ground.write_entry(at.block, at.index, entry);
}

#[inline]
fn entry(blocks: &[Block], at: Position) -> Entry {
    let [time, cost] = blocks[at.block as usize].entries[at.index];
    (time, cost)
}
