//! The layout of the pool of a zone: chunks that belong to one shard each, of a line for the owner and cells of 16
//! words.

/// Words of a cell.
pub const CELL_WORDS: usize = 16;
/// Cells of a chunk.
pub const CELLS_PER_CHUNK: usize = 16;
/// Words of a chunk: a line for its owner, and its cells.
pub const CHUNK_WORDS: usize = (CELLS_PER_CHUNK + 1) * CELL_WORDS;
/// The word of a cell that has its kind, in the lowest byte.
pub const KIND: usize = 4;
/// The word of a cell that counts the ids that were made with it; it survives changes of the cell's kind.
pub const MADE: usize = 15;
/// The word of a chunk that links it to the next one of its shard: 1 plus the number of that.
pub const NEXT_CHUNK: usize = 2;

/// The kinds of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing: the upper half of the word is the next one that is free.
    Free = 0,
    /// A hold.
    Hold = 1,
    /// A further cell of a hold.
    More = 2,
    /// One limit on one key.
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

/// The first cell of a chunk.
#[inline(always)]
pub fn first_cell(chunk: usize) -> u32 {
    (chunk * CELLS_PER_CHUNK) as u32 + 1
}

/// The chunk of a cell.
#[inline(always)]
pub fn chunk_of(cell: u32) -> usize {
    (cell as usize).wrapping_sub(1) / CELLS_PER_CHUNK
}

/// Where the words of a cell begin in the pool; cells are numbered from 1 on.
#[inline(always)]
pub fn place_of(cell: u32) -> usize {
    let number = (cell as usize).wrapping_sub(1);
    // The line of a chunk's owner is as long as a cell, so each chunk before takes the room of one more cell.
    number.wrapping_add(number / CELLS_PER_CHUNK).wrapping_add(1).wrapping_mul(CELL_WORDS)
}
