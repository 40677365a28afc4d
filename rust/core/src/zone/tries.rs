//! The tries that holds and keys are found in: each node has a child for every four bits of a hash, and no node has a
//! leaf alone.

use smallvec::SmallVec;

use crate::zone::backing::MappedBacking;
use crate::zone::journal::TRIES;
use crate::zone::pool::{KIND, Kind, halves, word_of};

/// The words of the children of a node, two in each.
const CHILDREN: usize = 5;
const FANOUT: u64 = 16;
/// Levels of a hash.
const LEVELS: u32 = 16;

/// Which of the two tries of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trie {
    /// Holds by the hashes of their ids.
    Holds,
    /// Keys by their tags.
    Keys,
}

/// Where a cell hangs.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Child(u32, u64),
}

fn digit(hash: u64, level: u32) -> u64 {
    hash >> (64 - 4 * (level + 1)) & (FANOUT - 1)
}

impl MappedBacking<'_> {
    /// The leaf of a hash, if there is one that begins like it; the caller compares the rest.
    #[inline]
    pub(super) fn leaf(&self, trie: Trie, hash: u64) -> Option<u32> {
        let mut cell = self.root(trie);
        for level in 0..LEVELS {
            if !self.is_node(cell) {
                break;
            }
            cell = self.child(cell, digit(hash, level));
        }
        (cell != 0).then_some(cell)
    }

    /// Hang a leaf into a trie that has none of this hash.
    pub(super) fn insert_leaf(&mut self, trie: Trie, hash: u64, leaf: u32) {
        let (mut slot, mut cell, mut level) = (Slot::Root, self.root(trie), 0);
        while level < LEVELS && self.is_node(cell) {
            slot = Slot::Child(cell, digit(hash, level));
            cell = self.child(cell, digit(hash, level));
            level += 1;
        }
        let mut hung = leaf;
        if cell != 0 {
            let other = self.hash_of(trie, cell);
            let Some(differs) = (level..LEVELS).find(|level| digit(hash, *level) != digit(other, *level)) else {
                self.damage_holds(); // two hashes of 64 secret bits are alike
                return;
            };
            hung = self.new_node(&[(digit(hash, differs), leaf), (digit(other, differs), cell)]);
            for level in (level..differs).rev() {
                hung = self.new_node(&[(digit(hash, level), hung)]);
            }
        }
        self.hang(trie, slot, hung);
    }

    /// Take a leaf out of a trie, and the nodes that are not needed without it.
    pub(super) fn remove_leaf(&mut self, trie: Trie, hash: u64, leaf: u32) {
        let mut path: SmallVec<[(u32, u64); 8]> = SmallVec::new();
        let mut cell = self.root(trie);
        while path.len() < LEVELS as usize && self.is_node(cell) {
            path.push((cell, digit(hash, path.len() as u32)));
            cell = self.child(cell, digit(hash, path.len() as u32 - 1));
        }
        if cell != leaf {
            self.damage_holds();
            return;
        }
        let mut hung = 0;
        while let Some((node, own)) = path.pop() {
            let mut others = (0..FANOUT).filter(|digit| *digit != own).map(|digit| self.child(node, digit));
            let mut left = others.by_ref().filter(|cell| *cell != 0);
            match (left.next(), left.next()) {
                (None, _) => {}
                (Some(only), None) if hung == 0 && !self.is_node(only) => hung = only,
                _ => return self.hang(trie, Slot::Child(node, own), hung),
            }
            self.drop_cell(node);
        }
        self.hang(trie, Slot::Root, hung);
    }

    /// The hash that a leaf hangs by.
    pub(super) fn hash_of(&self, trie: Trie, leaf: u32) -> u64 {
        match trie {
            Trie::Holds => hash_of_id([self.cell(leaf, 0), self.cell(leaf, 1)]),
            Trie::Keys => self.cell(leaf, 0),
        }
    }

    /// The first cell of a trie; 0 where it is empty.
    pub(super) fn root(&self, trie: Trie) -> u32 {
        let (holds, keys) = halves(self.journal.word(TRIES));
        if trie == Trie::Holds { holds } else { keys }
    }

    /// Whether a cell is a node.
    pub(super) fn is_node(&self, cell: u32) -> bool {
        cell != 0 && self.cell(cell, KIND) as u8 == Kind::Node as u8
    }

    /// A child of a node; 0 for none.
    pub(super) fn child(&self, node: u32, digit: u64) -> u32 {
        (self.cell(node, CHILDREN + digit as usize / 2) >> (digit % 2 * 32)) as u32
    }

    fn new_node(&mut self, children: &[(u64, u32)]) -> u32 {
        let node = self.take_cell(Kind::Node);
        let mut words = [0; FANOUT as usize / 2];
        children.iter().for_each(|(digit, child)| words[*digit as usize / 2] |= u64::from(*child) << (digit % 2 * 32));
        (CHILDREN..).zip(words).for_each(|(word, value)| self.fill(node, word, value));
        node
    }

    fn hang(&mut self, trie: Trie, slot: Slot, cell: u32) {
        let replaced = |word: u64, is_upper: bool| {
            let (low, high) = halves(word);
            if is_upper { word_of(low, cell) } else { word_of(cell, high) }
        };
        match slot {
            Slot::Root => self.write_words(TRIES, [replaced(self.journal.word(TRIES), trie == Trie::Keys)]),
            Slot::Child(node, digit) => {
                let word = CHILDREN + digit as usize / 2;
                self.write_cell(node, word, [replaced(self.cell(node, word), digit % 2 == 1)]);
            }
        }
    }
}

/// The hash of an id, which is random or a digest already; which ids meet is nothing that a caller can aim at. Not 0.
pub fn hash_of_id([low, high]: [u64; 2]) -> u64 {
    (low ^ high.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1)
}
