//! The journal of a shard of a mapped file, with which the shard survives the death of processes that write it.
//!
//! A process may be killed between any two stores. What it wrote of a charge is then undone from
//! the shard's records: every word is saved there before it is overwritten, and one store, `commit`,
//! makes the charge take effect and the records void. A move of slots or times is recorded as a step, and
//! finished by the process that finds it unfinished. Nothing else is done in an inconsistent shard.
//!
//! The charges of one decision in several shards take effect together: the first shard, their leader,
//! has the word that decides.

use std::sync::atomic::Ordering::Relaxed;

use crate::encoding::block::{NIL, PER_BLOCK, places};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::Chain;
use crate::memory::shared::{HeldShard, RECORDS, SHARD_WORDS, Words, put, set};
use crate::zone::chain::reaches_end;
use crate::zone::pool::{CELL_WORDS, CHUNK_WORDS, KIND as KIND_WORD};

/// The activity in a shard: records (32 bits), step (16 bits), leader (16 bits). 0: nothing, it is consistent.
const STATE: usize = 0;
/// Decisions that this shard has led.
const TURN: usize = 1;
pub(super) const USED: usize = 2;
pub(super) const CURSOR: usize = 3;
/// The first free block and the count of those held.
pub(super) const FREE: usize = 4;
/// Blocks that were ever taken.
pub(super) const MADE: usize = 5;
/// The leader's turn that the records of this shard belong to.
const FOLLOWS: usize = 6;
/// The last turn of this shard whose charges took effect.
const DECIDED: usize = 7;
/// The shards that follow in this shard's turn, as bits.
const FOLLOWERS: usize = 8;
/// The progress of a step.
const DONE: usize = 9;
/// The arguments of a step: three words, or the words of a slot.
const ARGUMENT: usize = 10;
/// Slots in use once a step is done.
const USED_AFTER: usize = 14;
/// The former times of the last two entries that were moved.
const TIMES: usize = 15;
/// Parts of holds, and holds that are settled.
pub(super) const HELD: usize = 17;
/// The first free cell, and how many there are.
pub(super) const FREE_CELLS: usize = 18;
/// The same of cells that are free once a decision is committed.
pub(super) const LATER_CELLS: usize = 19;
/// The next cell that was never taken, and the end of those.
pub(super) const FRESH_CELLS: usize = 20;
/// The tries of holds and of keys: their first cells.
pub(super) const TRIES: usize = 21;
/// The moment when the first hold is forgotten; with `STALE` a lower bound of it.
pub(super) const SOONEST: usize = 22;
/// The bit of `SOONEST` that no moment has.
pub(super) const STALE: u64 = 1 << 63;
/// No hold that the clock's hand has passed is forgotten before this moment.
pub(super) const PASSED: usize = 23;
/// The cell that the clock's hand is at, 0 before the first; and 1 plus the number of this shard's first chunk.
pub(super) const HAND: usize = 24;
/// The parts of this shard's holds that the zone's count includes.
pub(super) const COUNTED: usize = 25;

const STEP: u32 = 32;
const LEADER: u32 = 48;
const OPEN: u64 = 1;
const CLOSE: u64 = 2;
const SHIFT: u64 = 3;
const CLEAR: u64 = 4;
const LEAD: u64 = 5;

/// What a record has the former words of.
pub(super) const SLOT: u64 = 1 << 56;
pub(super) const ENTRY: u64 = 2 << 56;
pub(super) const LINK: u64 = 3 << 56;
pub(super) const BLOCKS: u64 = 4 << 56;
/// The byte below has the number of words, the lower half the place of the first one.
pub(super) const WORDS: u64 = 5 << 56;
pub(super) const CELL: u64 = 6 << 56;
pub(super) const CHUNK: u64 = 7 << 56;
/// An entry of a log that was taken out, and how many of the later ones have moved.
const TAKEN_OUT: u64 = 8 << 56;
/// An entry that was put into a log, the number of later ones, and how many of those are still to be moved.
const PUT_IN: u64 = 9 << 56;
const KIND: u64 = 0xff << 56;

/// The most records that charging one check takes.
pub const RECORDS_OF_LOG: usize = 7;
/// Records that charging one check takes, if it is not a log.
pub const RECORDS_OF_NUMBERS: usize = 1;
/// The most records that holding takes for each limit, its charge included.
pub const RECORDS_OF_HELD_LIMIT: usize = 20;
/// Records that holding takes beside those of its limits.
pub const RECORDS_OF_HOLD: usize = 16;
/// The most records of all checks of a decision in one shard.
pub const MOST_RECORDS: usize = RECORDS;

/// A locked shard, with its records.
pub struct Journal<'zone> {
    pub(super) held: HeldShard<'zone>,
}

impl<'zone> Journal<'zone> {
    /// The journal of a locked shard.
    #[inline(always)]
    pub fn new(held: HeldShard<'zone>) -> Self {
        Self { held }
    }

    /// Whether nothing is unfinished here.
    #[inline(always)]
    pub fn is_consistent(&self) -> bool {
        self.word(STATE) == 0
    }

    /// Make a shard of zeroes an empty one.
    pub fn format(&mut self) {
        self.put_blocks(NIL, 0, 0);
    }

    /// Lead the charges of a decision in this shard and others, given as bits.
    pub fn lead(&mut self, shard_number: usize, followers: u64) -> u64 {
        let turn = self.word(TURN).wrapping_add(1);
        self.set(TURN, turn);
        self.set(FOLLOWS, turn);
        self.set(FOLLOWERS, followers);
        self.set(STATE, LEAD << STEP | (shard_number as u64 + 1) << LEADER);
        turn
    }

    /// Make the writes from here on take effect together with the turn of a leader.
    pub fn follow(&mut self, leader: usize, turn: u64) {
        self.set(FOLLOWS, turn);
        self.set(STATE, (leader as u64 + 1) << LEADER);
    }

    /// Make the charges of this shard's turn take effect in all shards. The followers commit next, then this one.
    pub fn decide(&mut self) {
        self.set(DECIDED, self.word(TURN));
    }

    /// Finish what is unfinished, or undo it. `decided` returns the last turn of a shard that took effect.
    ///
    /// Returns the shards, as bits, that must be mended before `forget_followers`. Where the records make
    /// no sense nothing is done, and an error is returned.
    pub fn mend(&mut self, decided: impl Fn(usize) -> u64) -> Result<u64, &'static str> {
        self.check_notes()?;
        let state = self.word(STATE);
        match state >> STEP & 0xffff {
            OPEN => self.finish_open(),
            CLOSE => self.finish_close(),
            SHIFT => self.finish_shift(),
            CLEAR => self.finish_clear(),
            step => {
                let leader = (state >> LEADER) as usize;
                if leader == 0 || decided(leader - 1) != self.word(FOLLOWS) {
                    self.undo();
                }
                if step == LEAD {
                    self.set(STATE, LEAD << STEP | state >> LEADER << LEADER);
                    return Ok(self.word(FOLLOWERS));
                }
                self.set(STATE, 0);
            }
        }
        Ok(0)
    }

    /// Whether all records can be applied without leaving the shard.
    fn check_notes(&self) -> Result<(), &'static str> {
        let (slots, state) = (self.held.slots.len() as u64, self.word(STATE));
        let argument = |number: usize| self.word(ARGUMENT + number);
        let (records, done) = (state as u32 as usize, self.word(DONE));
        let sound = match state >> STEP & 0xffff {
            0 | LEAD => {
                let records = self.held.records.get(..records).ok_or("more notes than there is room for")?;
                records.iter().all(|record| self.makes_sense(record.each_ref().map(|word| word.load(Relaxed))))
            }
            OPEN => argument(3).checked_add(done).is_some_and(|end| end < slots),
            CLOSE => (1..=slots).contains(&argument(1)) && done < argument(1),
            SHIFT => reaches_end(self.held.blocks, [argument(0) as i64, 0, argument(1) as i64]),
            CLEAR => true,
            _ => false,
        };
        if sound { Ok(()) } else { Err("notes that make no sense") }
    }

    /// Whether a record names a place in this shard.
    fn makes_sense(&self, [what, former, made, entry]: [u64; 4]) -> bool {
        let (index, blocks) = (what & !KIND, self.held.blocks.len() as u64);
        match what & KIND {
            SLOT => index < self.held.slots.len() as u64,
            ENTRY => index < blocks && entry < PER_BLOCK as u64,
            LINK => index < blocks,
            BLOCKS => made <= blocks && former as u32 as u64 <= blocks,
            WORDS => {
                let (count, word) = (index >> 48, index as u32 as usize);
                (1..=3).contains(&count) && word >= HELD && word + count as usize <= SHARD_WORDS
            }
            CELL => {
                let (count, place) = (index >> 48, (index & 0xffff_ffff_ffff) as usize);
                (1..=3).contains(&count)
                    && self.owns(place / CHUNK_WORDS)
                    && place % CHUNK_WORDS >= 16
                    && place % 16 + count as usize <= 16
            }
            CHUNK => (index as usize) < self.held.pool().len() / CHUNK_WORDS,
            TAKEN_OUT => self.path(index as u32, entry as u8 as usize, (entry >> 8) as usize).is_some(),
            PUT_IN => made <= former && self.path(index as u32, entry as usize, former as usize).is_some(),
            _ => false,
        }
    }

    /// Whether a chunk of the pool is this shard's.
    pub(super) fn owns(&self, chunk: usize) -> bool {
        let owner = chunk.checked_mul(CHUNK_WORDS).and_then(|place| self.held.pool().get(place));
        owner.is_some_and(|owner| owner.load(Relaxed) == self.held.number as u64 + 1)
    }

    /// Give this shard's chunks back to the pool.
    pub(super) fn give_chunks_back(&mut self) {
        for chunk in 0..self.held.pool().len() / CHUNK_WORDS {
            if self.owns(chunk) {
                self.give_chunk_back(chunk);
            }
        }
    }

    /// Give a chunk of this shard back to the pool.
    pub(super) fn give_chunk_back(&mut self, chunk: usize) {
        let words = &self.held.pool()[chunk * CHUNK_WORDS..][..CHUNK_WORDS];
        // In an unowned chunk all cells are free, so that none is found by an id.
        words.iter().skip(CELL_WORDS + KIND_WORD).step_by(CELL_WORDS).for_each(|kind| set(kind, 0));
        set(&words[0], 0);
    }

    /// The places of an entry and of `behind` entries after it; None where there are fewer.
    fn path(&self, block: u32, index: usize, behind: usize) -> Option<Vec<(usize, usize)>> {
        let blocks = &*self.held.blocks;
        if index >= PER_BLOCK || behind > blocks.len() * PER_BLOCK {
            return None;
        }
        let mut path = Vec::with_capacity(behind + 1);
        let mut at = (block as usize, index);
        for _ in 0..=behind {
            blocks.get(at.0)?;
            path.push(at);
            at = if at.1 + 1 < PER_BLOCK { (at.0, at.1 + 1) } else { (blocks[at.0].next as usize, 0) };
        }
        Some(path)
    }

    fn copy_entry(&mut self, from: (usize, usize), to: (usize, usize)) {
        let entry = self.held.blocks[from.0].entries[from.1];
        put(&mut self.held.blocks[to.0].entries[to.1], entry);
    }

    /// See `Backing::take_entry_out`.
    pub(super) fn take_entry_out(&mut self, block: u32, index: usize, behind: usize) {
        let Some(path) = self.path(block, index, behind) else {
            return;
        };
        let [time, cost] = self.held.blocks[path[0].0].entries[path[0].1];
        let records = self.held.records;
        let record = &records[self.word(STATE) as u32 as usize];
        self.save(TAKEN_OUT | u64::from(block), [time as u64, cost as u64, index as u64]);
        for number in 0..behind {
            self.copy_entry(path[number + 1], path[number]);
            set(&record[3], index as u64 | (number as u64 + 1) << 8);
        }
    }

    /// See `Backing::put_entry_in`.
    pub(super) fn put_entry_in(&mut self, block: u32, index: usize, behind: usize, entry: [i64; 2]) {
        let Some(path) = self.path(block, index, behind) else {
            return;
        };
        let records = self.held.records;
        let record = &records[self.word(STATE) as u32 as usize];
        self.save(PUT_IN | u64::from(block), [behind as u64, behind as u64, index as u64]);
        for number in (0..behind).rev() {
            self.copy_entry(path[number], path[number + 1]);
            set(&record[2], number as u64);
        }
        put(&mut self.held.blocks[path[0].0].entries[path[0].1], entry);
    }

    fn undo_taken_out(&mut self, record: usize, [what, time, cost, moved]: [u64; 4]) {
        let (index, moved) = (moved as u8 as usize, (moved >> 8) as usize);
        let Some(path) = self.path(what as u32, index, moved) else {
            return;
        };
        let records = self.held.records;
        for number in (1..=moved).rev() {
            self.copy_entry(path[number - 1], path[number]);
            set(&records[record][3], index as u64 | (number as u64 - 1) << 8);
        }
        put(&mut self.held.blocks[path[0].0].entries[path[0].1], [time as i64, cost as i64]);
    }

    fn undo_put_in(&mut self, record: usize, [what, behind, left, index]: [u64; 4]) {
        let Some(path) = self.path(what as u32, index as usize, behind as usize) else {
            return;
        };
        let records = self.held.records;
        for number in left as usize..behind as usize {
            self.copy_entry(path[number + 1], path[number]);
            set(&records[record][2], number as u64 + 1);
        }
    }

    /// Note that all followers of a turn are mended.
    pub fn forget_followers(&mut self) {
        self.set(STATE, 0);
    }

    /// Whether the turns of this shard are possible: no turn takes effect before it was taken.
    pub fn has_sound_turns(&self) -> bool {
        self.word(DECIDED) <= self.word(TURN)
    }

    /// Log blocks that were ever taken.
    pub fn made_blocks(&self) -> usize {
        self.word(MADE) as usize // which may be damaged
    }

    /// A word of the shard.
    #[inline(always)]
    pub(super) fn word(&self, word: usize) -> u64 {
        self.held.words[word].load(Relaxed)
    }

    /// Write a word of the shard.
    #[inline(always)]
    pub(super) fn set(&mut self, word: usize, value: u64) {
        set(&self.held.words[word], value);
    }

    /// Save what is about to be overwritten.
    #[inline(always)]
    pub(super) fn save(&mut self, what: u64, former: [u64; 3]) {
        let state = self.word(STATE);
        let record = &self.held.records[(state as u32) as usize];
        record[0].store(what, Relaxed);
        record[1].store(former[0], Relaxed);
        record[2].store(former[1], Relaxed);
        record[3].store(former[2], Relaxed);
        self.set(STATE, state + 1);
    }

    /// Whether `more` further records fit before a commit.
    pub(super) fn can_note(&self, more: usize) -> bool {
        self.word(STATE) as u32 as usize + more <= MOST_RECORDS
    }

    /// Make all writes take effect: the records become void.
    #[inline(always)]
    pub(super) fn commit(&mut self) {
        self.set(STATE, 0);
    }

    /// Undo all writes since the last commit.
    #[cold]
    pub(super) fn roll_back(&mut self) {
        self.undo();
        self.set(STATE, 0);
    }

    /// See `Backing::open_gap`.
    pub(super) fn open_gap(&mut self, index: usize, gap: usize, slot: Slot, used: usize) {
        self.set(USED_AFTER, used as u64 + 1);
        self.set(TIMES, slot.tag);
        let [a, b, c] = slot.words().map(|word| word as u64);
        self.start(OPEN, [a, b, c, index as u64], gap as u64);
        self.finish_open();
    }

    /// See `Backing::close_gap`.
    pub(super) fn close_gap(&mut self, index: usize, end: usize, used: usize) {
        self.set(USED_AFTER, used.saturating_sub(1) as u64);
        self.start(CLOSE, [index as u64, end as u64, 0, 0], index as u64);
        self.finish_close();
    }

    /// See `Backing::shift`.
    #[cold]
    pub(super) fn shift(&mut self, chain: Chain, shift: i64) {
        let [first, _, last] = chain;
        self.start(SHIFT, [first as u64, last as u64, shift as u64, 0], 0);
        self.finish_shift();
    }

    /// See `Backing::clear`.
    pub(super) fn clear(&mut self) {
        self.start(CLEAR, [0; 4], 0);
        self.finish_clear();
    }

    /// Undo the writes since the last commit, the last first.
    fn undo(&mut self) {
        while self.word(STATE) as u32 != 0 {
            let state = self.word(STATE);
            let record = state as u32 as usize - 1;
            let [what, a, b, c] = self.held.records[record].each_ref().map(|word| word.load(Relaxed));
            let index = (what & !KIND) as usize;
            match what & KIND {
                SLOT => {
                    let slot = &mut self.held.slots[index];
                    put(slot, Slot::of_words(slot.tag, [a as i64, b as i64, c as i64]));
                }
                ENTRY => put(&mut self.held.blocks[index].entries[c as usize], [a as i64, b as i64]),
                LINK => put(&mut self.held.blocks[index].next, a as u32),
                WORDS => (index as u32 as usize..).zip([a, b, c]).take(index >> 48).for_each(|(word, former)| {
                    self.set(word, former);
                }),
                CELL => {
                    let words = &self.held.pool()[index & 0xffff_ffff_ffff..];
                    words.iter().zip([a, b, c]).take(index >> 48).for_each(|(word, former)| set(word, former));
                }
                CHUNK if self.owns(index) => set(&self.held.pool()[index * CHUNK_WORDS], 0),
                CHUNK => {}
                TAKEN_OUT => self.undo_taken_out(record, [what, a, b, c]),
                PUT_IN => self.undo_put_in(record, [what, a, b, c]),
                _ => {
                    self.set(FREE, a);
                    self.set(MADE, b);
                }
            }
            self.set(STATE, state - 1);
        }
    }

    /// Write the first free block, how many are held, and how many were ever taken.
    pub(super) fn put_blocks(&mut self, free: u32, held: u32, made: usize) {
        self.set(FREE, u64::from(free) << 32 | u64::from(held));
        self.set(MADE, made as u64);
    }

    fn start(&mut self, step: u64, arguments: [u64; 4], done: u64) {
        for (word, value) in (ARGUMENT..).zip(arguments) {
            self.set(word, value);
        }
        self.set(DONE, done);
        self.set(STATE, step << STEP);
    }

    /// The arguments of `OPEN` are the words of the new slot and its place; its tag is in `TIMES`.
    fn finish_open(&mut self) {
        let [a, b, c, index] = [0, 1, 2, 3].map(|argument| self.word(ARGUMENT + argument));
        let index = index as usize;
        // Each step copies one slot onto the next; the copied one stays complete until the next step.
        while self.word(DONE) > 0 {
            let from = index + self.word(DONE) as usize - 1;
            let slot = self.held.slots[from];
            put(&mut self.held.slots[from + 1], slot);
            self.set(DONE, self.word(DONE) - 1);
        }
        let slot = Slot::of_words(self.word(TIMES), [a as i64, b as i64, c as i64]);
        put(&mut self.held.slots[index], slot);
        self.finish_move();
    }

    /// The arguments of `CLOSE` are the place and the end of what moves.
    fn finish_close(&mut self) {
        let end = self.word(ARGUMENT + 1) as usize;
        while (self.word(DONE) as usize) + 1 < end {
            let to = self.word(DONE) as usize;
            let slot = self.held.slots[to + 1];
            put(&mut self.held.slots[to], slot);
            self.set(DONE, to as u64 + 1);
        }
        put(&mut self.held.slots[end - 1], Slot::default());
        self.finish_move();
    }

    fn finish_move(&mut self) {
        self.set(USED, self.word(USED_AFTER));
        self.set(STATE, 0);
    }

    /// The arguments of `SHIFT` are the chain's first and last place, and by how much its times move.
    fn finish_shift(&mut self) {
        let [first, last, shift] = [0, 1, 2].map(|argument| self.word(ARGUMENT + argument) as i64);
        let done = self.word(DONE) as usize;
        let places: Vec<_> = places(self.held.blocks, [first, 0, last]).collect();
        // The last recorded one may be moved or not: its former time is known.
        for (number, (block, index)) in places.into_iter().enumerate().skip(done.saturating_sub(1)) {
            if number >= done {
                let time = self.held.blocks[block as usize].entries[index][0];
                self.set(TIMES + number % 2, time as u64);
                self.set(DONE, number as u64 + 1);
            }
            let former = self.word(TIMES + number % 2) as i64;
            put(&mut self.held.blocks[block as usize].entries[index][0], former.wrapping_add(shift));
        }
        self.set(STATE, 0);
    }

    fn finish_clear(&mut self) {
        for slot in self.held.slots.iter_mut() {
            put(slot, Slot::default());
        }
        self.set(USED, 0);
        self.set(CURSOR, 0);
        self.put_blocks(NIL, 0, 0);
        for word in [HELD, FREE_CELLS, LATER_CELLS, FRESH_CELLS, TRIES, HAND] {
            self.set(word, 0);
        }
        self.give_chunks_back();
        self.set(STATE, 0);
    }
}

/// The last turn of a shard whose charges took effect, read without its lock.
pub fn decided(words: &Words<SHARD_WORDS>) -> u64 {
    words[DECIDED].load(std::sync::atomic::Ordering::Acquire)
}

/// States in use in a shard, read without its lock; at most as many as it has slots.
pub fn used(words: &Words<SHARD_WORDS>, slots: usize) -> usize {
    words[USED].load(Relaxed).min(slots as u64) as usize
}

/// Parts of holds that are remembered in a shard, read without its lock.
pub fn holds(words: &Words<SHARD_WORDS>) -> usize {
    words[HELD].load(Relaxed) as u32 as usize
}

/// Log blocks held in a shard, read without its lock.
pub fn held_blocks(words: &Words<SHARD_WORDS>) -> usize {
    words[FREE].load(Relaxed) as u32 as usize
}
