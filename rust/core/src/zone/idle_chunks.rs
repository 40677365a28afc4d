//! Idle chunks, in which no cell is in use: a shard returns them to the pool where another one needs room.

use std::sync::atomic::Ordering::Relaxed;

use crate::memory::shared::set;
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{FREE_CELLS, FRESH_CELLS, HAND, LATER_CELLS};
use crate::zone::pool::{
    CELL_WORDS, CELLS_PER_CHUNK, CHUNK_WORDS, KIND, Kind, NEXT_CHUNK, first_cell, halves, word_of,
};

impl MappedBacking<'_> {
    /// Return idle chunks to the pool; returns whether there was one. Nothing uncommitted may be pending.
    ///
    /// Each single store leaves the shard consistent. A process that is killed on the way leaves free cells that are in
    /// no list: they are found when this runs again, or when the shard has no hold left.
    #[cold]
    pub(super) fn give_idle_chunks_back(&mut self) -> bool {
        let free: usize =
            [FREE_CELLS, LATER_CELLS].iter().map(|word| halves(self.journal.word(*word)).1 as usize).sum();
        let (next, end) = halves(self.journal.word(FRESH_CELLS));
        if free + (end.saturating_sub(next) as usize) < CELLS_PER_CHUNK {
            return false;
        }
        let (idle, used): (Vec<usize>, Vec<usize>) = self.chunks().into_iter().partition(|chunk| self.is_idle(*chunk));
        if idle.is_empty() || self.damaged.get() {
            return false;
        }
        self.write_words(FREE_CELLS, [0; 3]);
        self.journal.commit();
        // The hand begins anew, and the chain links only the chunks in use, before the idle ones are returned.
        let first = used.first().map_or(0, |chunk| *chunk as u32 + 1);
        let links = used.iter().skip(1).map(|chunk| *chunk as u64 + 1).chain([0]);
        for (chunk, link) in used.iter().zip(links) {
            set(&self.journal.held.pool()[chunk * CHUNK_WORDS + NEXT_CHUNK], link);
        }
        self.journal.set(HAND, word_of(0, first));
        for chunk in idle {
            self.journal.give_chunk_back(chunk);
        }
        for first in used.iter().rev().map(|chunk| first_cell(*chunk)) {
            for cell in (first..first + CELLS_PER_CHUNK as u32).rev() {
                if self.cell(cell, KIND) as u8 == Kind::Free as u8 {
                    self.list_free_cell(cell);
                }
            }
        }
        true
    }

    /// The chunks of this shard, in their order.
    fn chunks(&self) -> Vec<usize> {
        let pool = self.journal.held.pool();
        let mut chunks = Vec::new();
        let mut link = u64::from(halves(self.journal.word(HAND)).1);
        while let Some(chunk) = (link as usize).checked_sub(1) {
            if !self.journal.owns(chunk) || chunks.len() == pool.len() / CHUNK_WORDS {
                self.damage_holds();
                break;
            }
            chunks.push(chunk);
            link = pool[chunk * CHUNK_WORDS + NEXT_CHUNK].load(Relaxed);
        }
        chunks
    }

    fn is_idle(&self, chunk: usize) -> bool {
        let words = &self.journal.held.pool()[chunk * CHUNK_WORDS..][..CHUNK_WORDS];
        let mut kinds = words.iter().skip(CELL_WORDS + KIND).step_by(CELL_WORDS);
        kinds.all(|kind| kind.load(Relaxed) as u8 == Kind::Free as u8)
    }
}
