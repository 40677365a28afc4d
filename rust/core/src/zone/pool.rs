//! How the pool of a zone is cut: chunks that belong to one shard each, of a line for the owner and cells of 16 words.

/// Words of a cell.
pub const CELL_WORDS: usize = 16;
/// Cells of a chunk.
pub const CELLS_PER_CHUNK: usize = 16;
/// Words of a chunk: a line for its owner, and its cells.
pub const CHUNK_WORDS: usize = (CELLS_PER_CHUNK + 1) * CELL_WORDS;
/// The word of a cell that tells its kind, in the lowest byte.
pub const KIND: usize = 4;
/// The word that links cells that are free.
pub const NEXT_FREE: usize = 15;

/// What a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A hold.
    Hold = 1,
    /// More of a hold.
    More = 2,
    /// What is kept of one limit on one key.
    Key = 3,
    /// Places that are in flight.
    Lease = 4,
    /// A node of a trie.
    Node = 5,
}

/// Two halves of a word, the lower one first.
#[inline(always)]
pub fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The word of two halves, the lower one first.
#[inline(always)]
pub fn word_of(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Where the words of a cell begin in the pool; cells are numbered from 1 on.
#[inline(always)]
pub fn place_of(cell: u32) -> usize {
    let number = (cell as usize).wrapping_sub(1);
    (number / CELLS_PER_CHUNK).wrapping_mul(CHUNK_WORDS) + CELL_WORDS + number % CELLS_PER_CHUNK * CELL_WORDS
}
