//! The cells that holds are kept in: of 16 words each, in chunks that the shards of a zone take from one pool.
//!
//! A chunk belongs to the shard whose number is in its first word, until that shard has no hold any more. What is written
//! to a cell in use is noted first; a cell that was just taken holds nothing yet, and is filled as it is. A cell that
//! is let go is not taken again before the decision counts in which it was.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::memory::shared::set;
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{CELL, CHUNK, FREE_CELLS, FRESH_CELLS, LATER_CELLS, WORDS};
use crate::zone::pool::{CELLS_PER_CHUNK, CHUNK_WORDS, KIND, Kind, NEXT_FREE, halves, place_of, word_of};

/// The word of the pool that tells where a chunk was last taken: in the line of the first one.
const HINT: usize = 1;

impl MappedBacking<'_> {
    /// What cannot be was met among the holds.
    #[cold]
    pub(super) fn damage_holds(&self) {
        self.damaged.set(true);
    }

    /// A word of a cell; 0 where there is no such cell.
    #[inline(always)]
    pub(super) fn cell(&self, cell: u32, word: usize) -> u64 {
        match self.journal.held.pool().get(place_of(cell).wrapping_add(word)) {
            Some(word) => word.load(Relaxed),
            None => {
                self.damage_holds();
                0
            }
        }
    }

    /// Whether a cell is of this kind; one that is not of the kind that it must be is damage.
    #[inline(always)]
    pub(super) fn is(&self, cell: u32, kind: Kind) -> bool {
        let is_it = cell != 0 && self.cell(cell, KIND) as u8 == kind as u8;
        if !is_it {
            self.damage_holds();
        }
        is_it
    }

    /// Fill a word of a cell that was just taken, or one that need not be right.
    #[inline(always)]
    pub(super) fn fill(&self, cell: u32, word: usize, value: u64) {
        match self.journal.held.pool().get(place_of(cell).wrapping_add(word)) {
            Some(word) => set(word, value),
            None => self.damage_holds(),
        }
    }

    /// Overwrite words of a cell in use, up to three; counts when it is committed.
    #[inline(always)]
    pub(super) fn write_cell<const N: usize>(&mut self, cell: u32, word: usize, values: [u64; N]) {
        let place = place_of(cell).wrapping_add(word);
        let Some(words) = self.journal.held.pool().get(place..place.wrapping_add(N)) else {
            self.damage_holds();
            return;
        };
        let mut former = [0; 3];
        former.iter_mut().zip(words).for_each(|(former, word)| *former = word.load(Relaxed));
        self.journal.save(CELL | (N as u64) << 48 | place as u64, former);
        words.iter().zip(values).for_each(|(word, value)| set(word, value));
    }

    /// Overwrite words of the shard, up to three; counts when it is committed.
    #[inline(always)]
    pub(super) fn write_words<const N: usize>(&mut self, first: usize, values: [u64; N]) {
        let mut former = [0; 3];
        (first..).zip(&mut former).take(N).for_each(|(word, former)| *former = self.journal.word(word));
        self.journal.save(WORDS | (N as u64) << 48 | first as u64, former);
        (first..).zip(values).for_each(|(word, value)| self.journal.set(word, value));
    }

    /// Take a cell; 0 where there is none, which is damage: room was reserved for it.
    pub(super) fn take_cell(&mut self, kind: Kind) -> u32 {
        let (free, count) = halves(self.journal.word(FREE_CELLS));
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        let cell = if free != 0 && count != 0 {
            let (behind, _) = halves(self.cell(free, NEXT_FREE));
            self.write_words(FREE_CELLS, [word_of(behind, count - 1)]);
            free
        } else if next < end {
            self.write_words(FRESH_CELLS, [word_of(next + 1, end)]);
            next
        } else {
            self.damage_holds();
            return 0;
        };
        self.fill(cell, KIND, kind as u64);
        cell
    }

    /// Let a cell go. It is taken again at the earliest when this counts.
    pub(super) fn drop_cell(&mut self, cell: u32) {
        let (later, count) = halves(self.journal.word(LATER_CELLS));
        self.write_cell(cell, NEXT_FREE, [u64::from(later)]);
        self.write_words(LATER_CELLS, [word_of(cell, count.saturating_add(1))]);
    }

    /// Whether so many cells can be taken; chunks of the pool are taken for them. Nothing is half written.
    pub(super) fn reserve_cells(&mut self, count: u32) -> bool {
        let (later, free) = (self.journal.word(LATER_CELLS), self.journal.word(FREE_CELLS));
        if halves(free).1 == 0 && halves(later).1 != 0 {
            self.write_words(FREE_CELLS, [later, 0]);
            self.journal.commit();
        }
        while self.spare_cells() < count && halves(self.journal.word(LATER_CELLS)).1 != 0 && !self.damaged.get() {
            self.free_later_cell();
        }
        while self.spare_cells() < count {
            if self.damaged.get() || !self.take_chunk() {
                return false;
            }
        }
        true
    }

    /// Move a cell that was let go to those that are free.
    #[cold]
    fn free_later_cell(&mut self) {
        let (later, behind) = halves(self.journal.word(LATER_CELLS));
        let (free, count) = halves(self.journal.word(FREE_CELLS));
        let next = self.cell(later, NEXT_FREE) as u32;
        self.write_cell(later, NEXT_FREE, [u64::from(free)]);
        self.write_words(FREE_CELLS, [word_of(later, count.saturating_add(1)), word_of(next, behind - 1)]);
        self.journal.commit();
    }

    fn spare_cells(&self) -> u32 {
        let (_, free) = halves(self.journal.word(FREE_CELLS));
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        free.saturating_add(end.saturating_sub(next))
    }

    /// Take a chunk of the pool, once what is left of the last one is in the list of those that are free.
    #[cold]
    fn take_chunk(&mut self) -> bool {
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        if next < end {
            let (free, count) = halves(self.journal.word(FREE_CELLS));
            self.fill(next, NEXT_FREE, u64::from(free));
            self.write_words(
                FREE_CELLS,
                [word_of(next, count.saturating_add(1)), self.journal.word(LATER_CELLS), word_of(next + 1, end)],
            );
            self.journal.commit();
            return true;
        }
        let (pool, own) = (self.journal.held.pool(), self.journal.held.number as u64 + 1);
        let count = pool.len() / CHUNK_WORDS;
        // Where the last one was taken; wherever that says, all are looked at.
        let hint = pool.get(HINT).map_or(0, |hint| hint.load(Relaxed) as usize);
        for chunk in (0..count).map(|number| (number + hint % count) % count) {
            let words = &pool[chunk * CHUNK_WORDS..];
            if words[0].load(Relaxed) != 0 {
                continue;
            }
            set(&pool[HINT], chunk as u64);
            self.journal.save(CHUNK | chunk as u64, [0; 3]);
            if words[0].compare_exchange(0, own, AcqRel, Relaxed).is_ok() {
                let first = (chunk * CELLS_PER_CHUNK) as u32 + 1;
                self.write_words(FRESH_CELLS, [word_of(first, first + CELLS_PER_CHUNK as u32)]);
                self.journal.commit();
                return true;
            }
            self.journal.commit();
        }
        false
    }

    /// Give all chunks back to the pool: no cell of this shard is in use.
    #[cold]
    pub(super) fn give_chunks_back(&mut self) {
        self.write_words(FREE_CELLS, [0; 3]);
        self.journal.commit();
        self.journal.give_chunks_back();
    }
}
