//! The cells that holds are stored in: of 16 words each, in chunks that the shards of a zone take from one pool.
//!
//! A chunk belongs to the shard whose number is in its first word, until that shard has no hold any more. Writes to a
//! cell in use are journaled; a cell that was just taken holds nothing yet and is filled without the journal, except
//! for its kind. A dropped cell is not taken again before the decision that dropped it is committed. The chunks of a
//! shard are linked, so that the clock hand can walk its cells.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::memory::shared::set;
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{CELL, CHUNK, FREE_CELLS, FRESH_CELLS, HAND, HELD, LATER_CELLS, WORDS};
use crate::zone::pool::{
    CELL_WORDS, CELLS_PER_CHUNK, CHUNK_WORDS, KIND, Kind, NEXT_CHUNK, chunk_of, first_cell, halves, place_of, word_of,
};

/// The word of the pool that records where a chunk was last taken: in the line of the first chunk.
const HINT: usize = 1;

impl MappedBacking<'_> {
    /// Record that an impossible value was read among the holds.
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

    /// All words of a cell; None where there is no such cell.
    #[inline(always)]
    pub(super) fn words_of(&self, cell: u32) -> Option<&[AtomicU64; CELL_WORDS]> {
        let place = place_of(cell);
        self.journal.held.pool().get(place..place.wrapping_add(CELL_WORDS))?.first_chunk()
    }

    /// Whether a cell is of this kind; any other kind is damage.
    #[inline(always)]
    pub(super) fn is(&self, cell: u32, kind: Kind) -> bool {
        let is_it = cell != 0 && self.cell(cell, KIND) as u8 == kind as u8;
        if !is_it {
            self.damage_holds();
        }
        is_it
    }

    /// Write a word of a cell that was just taken, or of one whose content does not matter, without the journal.
    #[inline(always)]
    pub(super) fn fill(&self, cell: u32, word: usize, value: u64) {
        match self.journal.held.pool().get(place_of(cell).wrapping_add(word)) {
            Some(word) => set(word, value),
            None => self.damage_holds(),
        }
    }

    /// Overwrite up to three words of a cell in use; takes effect when committed.
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

    /// Overwrite up to three words of the shard; takes effect when committed.
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
            let next_free = self.next_free(free);
            self.write_words(FREE_CELLS, [word_of(next_free, count - 1)]);
            free
        } else if next < end {
            self.write_words(FRESH_CELLS, [word_of(next + 1, end)]);
            next
        } else {
            self.damage_holds();
            return 0;
        };
        self.write_cell(cell, KIND, [kind as u64]);
        cell
    }

    /// Drop a cell. It can be taken again once this is committed.
    pub(super) fn drop_cell(&mut self, cell: u32) {
        let (later, count) = halves(self.journal.word(LATER_CELLS));
        self.write_cell(cell, KIND, [free_before(later)]);
        self.write_words(LATER_CELLS, [word_of(cell, count.saturating_add(1))]);
    }

    /// Take a cell for a hold that replaces a settled one, which is forgotten when this is committed. The caller has
    /// done all else that forgetting takes, except for its cell and the count of settled holds.
    ///
    /// `is_last`: this decision takes no further cell, so that the former cell may be the next one to be taken.
    #[inline]
    pub(super) fn take_cell_for(&mut self, former: u32, is_last: bool) -> u32 {
        let (free, count) = halves(self.journal.word(FREE_CELLS));
        let (later, later_count) = halves(self.journal.word(LATER_CELLS));
        let (weight, settled) = halves(self.journal.word(HELD));
        let held = word_of(weight, settled.wrapping_sub(1));
        if free == 0 || count == 0 {
            let cell = self.take_cell(Kind::Hold);
            self.drop_cell(former);
            self.write_words(HELD, [held]);
            return cell;
        }
        let next_free = self.next_free(free);
        if is_last {
            self.write_cell(former, KIND, [free_before(next_free)]);
            self.write_words(HELD, [held, word_of(former, count)]);
        } else {
            self.write_cell(former, KIND, [free_before(later)]);
            let later = word_of(former, later_count.saturating_add(1));
            self.write_words(HELD, [held, word_of(next_free, count - 1), later]);
        }
        self.write_cell(free, KIND, [Kind::Hold as u64]);
        free
    }

    /// The free cell after another one in the list.
    #[inline(always)]
    pub(super) fn next_free(&self, cell: u32) -> u32 {
        let (kind, next) = halves(self.cell(cell, KIND));
        if kind != Kind::Free as u32 {
            self.damage_holds();
        }
        next
    }

    /// The cell after another one in the order of this shard's chunks; None after the last.
    #[inline]
    pub(super) fn next_cell(&self, cell: u32) -> Option<u32> {
        if !(cell as usize).is_multiple_of(CELLS_PER_CHUNK) {
            return cell.checked_add(1);
        }
        let link = self.journal.held.pool().get(chunk_of(cell) * CHUNK_WORDS + NEXT_CHUNK);
        self.first_cell_of_link(link.map_or(0, |link| link.load(Relaxed)))
    }

    /// The first cell of all, in the order of this shard's chunks.
    pub(super) fn first_cell(&self) -> Option<u32> {
        self.first_cell_of_link(u64::from(halves(self.journal.word(HAND)).1))
    }

    /// The first cell of the chunk that a link names.
    fn first_cell_of_link(&self, link: u64) -> Option<u32> {
        let chunk = (link as usize).checked_sub(1)?;
        if !self.journal.owns(chunk) {
            self.damage_holds();
            return None;
        }
        Some(first_cell(chunk))
    }

    /// Make sure that `count` cells can be taken, with further chunks of the pool; returns whether they can. Nothing
    /// uncommitted may be pending.
    pub(super) fn reserve_cells(&mut self, count: u32) -> bool {
        if self.spare_cells() >= count {
            return true;
        }
        // Nothing is pending, so all dropped cells can be taken.
        let (later, free) = (self.journal.word(LATER_CELLS), self.journal.word(FREE_CELLS));
        if halves(free).1 < halves(later).1 {
            self.write_words(FREE_CELLS, [later, free]);
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

    /// Move a dropped cell to the free list.
    #[cold]
    fn free_later_cell(&mut self) {
        let (later, later_count) = halves(self.journal.word(LATER_CELLS));
        let (free, count) = halves(self.journal.word(FREE_CELLS));
        let next = self.next_free(later);
        self.write_cell(later, KIND, [free_before(free)]);
        self.write_words(FREE_CELLS, [word_of(later, count.saturating_add(1)), word_of(next, later_count - 1)]);
        self.journal.commit();
    }

    /// Add a free cell that is in no list to the free list.
    pub(super) fn list_free_cell(&mut self, cell: u32) {
        let (free, count) = halves(self.journal.word(FREE_CELLS));
        self.fill(cell, KIND, free_before(free));
        self.journal.set(FREE_CELLS, word_of(cell, count.saturating_add(1)));
    }

    fn spare_cells(&self) -> u32 {
        let (_, free) = halves(self.journal.word(FREE_CELLS));
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        free.saturating_add(end.saturating_sub(next))
    }

    /// Take a chunk of the pool, once the rest of the last one is in the free list.
    #[cold]
    fn take_chunk(&mut self) -> bool {
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        if next < end {
            let (free, count) = halves(self.journal.word(FREE_CELLS));
            self.fill(next, KIND, free_before(free));
            self.write_words(
                FREE_CELLS,
                [word_of(next, count.saturating_add(1)), self.journal.word(LATER_CELLS), word_of(next + 1, end)],
            );
            self.journal.commit();
            return true;
        }
        let (pool, own) = (self.journal.held.pool(), self.journal.held.number as u64 + 1);
        let count = pool.len() / CHUNK_WORDS;
        // Where the last one was taken; whatever it is, all chunks are visited.
        let hint = pool.get(HINT).map_or(0, |hint| hint.load(Relaxed) as usize);
        for chunk in (0..count).map(|number| (number + hint % count) % count) {
            let words = &pool[chunk * CHUNK_WORDS..];
            if words[0].load(Relaxed) != 0 {
                continue;
            }
            set(&pool[HINT], chunk as u64);
            self.journal.save(CHUNK | chunk as u64, [0; 3]);
            if words[0].compare_exchange(0, own, AcqRel, Relaxed).is_ok() {
                let (first, (hand, chunks)) = (first_cell(chunk), halves(self.journal.word(HAND)));
                set(&words[NEXT_CHUNK], u64::from(chunks));
                self.write_words(HAND, [word_of(hand, chunk as u32 + 1)]);
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
        self.write_words(HAND, [0]);
        self.journal.commit();
        self.journal.give_chunks_back();
    }
}

/// The kind word of a free cell that is listed before another one.
#[inline(always)]
fn free_before(next: u32) -> u64 {
    word_of(Kind::Free as u32, next)
}
