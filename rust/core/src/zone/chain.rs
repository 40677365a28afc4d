//! A walk along a chain of log blocks that may be damaged.

use crate::encoding::block::{Block, PER_BLOCK};
use crate::encoding::slot_entries::Chain;

/// Whether a walk along a chain reaches its end.
pub fn reaches_end(blocks: &[Block], chain: Chain) -> bool {
    let mut walk = ChainWalk::new(blocks, chain);
    walk.by_ref().for_each(drop);
    walk.ended
}

/// The places of a chain that may be damaged: the walk ends after as many as there can be.
pub struct ChainWalk<'zone> {
    blocks: &'zone [Block],
    next: Option<(u32, usize)>,
    last: i64,
    left: usize,
    /// Whether the walk reached the last entry.
    pub ended: bool,
}

impl<'zone> ChainWalk<'zone> {
    /// A walk from the chain's first entry on.
    pub fn new(blocks: &'zone [Block], [first, _, last]: Chain) -> Self {
        let left = blocks.len() * PER_BLOCK;
        Self { blocks, next: Some(((first >> 3) as u32, (first & 7) as usize)), last, left, ended: false }
    }
}

impl Iterator for ChainWalk<'_> {
    type Item = (u32, usize);

    fn next(&mut self) -> Option<(u32, usize)> {
        let at @ (block, index) = self.next.take()?;
        let next_block = self.blocks.get(block as usize)?.next;
        if index >= PER_BLOCK || self.left == 0 {
            return None;
        }
        self.left -= 1;
        if i64::from(block) << 3 | index as i64 == self.last {
            self.ended = true;
        } else if index + 1 < PER_BLOCK {
            self.next = Some((block, index + 1));
        } else {
            self.next = Some((next_block, 0));
        }
        Some(at)
    }
}
