//! The tries that find holds and keys. A node branches on the four bits of a hash at its level, and has at least two
//! children. Levels at which all leaves below are equal have no node, so that a leaf takes at most one more node,
//! however similar two hashes are: room for that was reserved.

use crate::zone::backing::MappedBacking;
use crate::zone::journal::TRIES;
use crate::zone::pool::{KIND, Kind, halves, word_of};

/// The words of the children of a node, two in each.
const CHILDREN: usize = 5;
pub(super) const FANOUT: u64 = 16;
/// Levels of a hash.
pub(super) const LEVELS: u32 = 16;
/// Where the kind word has the level of a node.
const AT_LEVEL: u32 = 32;

/// Which of the two tries of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trie {
    /// Holds by the hashes of their ids.
    Holds,
    /// Keys by their tags.
    Keys,
}

/// Where a cell is attached.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Child(u32, u64),
}

pub(super) fn digit(hash: u64, level: u32) -> u64 {
    hash >> (64 - 4 * (level % LEVELS + 1)) & (FANOUT - 1)
}

impl MappedBacking<'_> {
    /// The leaf that matches a hash at all levels that have a node, if there is one; the caller compares the rest.
    #[inline]
    pub(super) fn leaf(&self, trie: Trie, hash: u64) -> Option<u32> {
        let mut cell = self.root(trie);
        for _ in 0..LEVELS {
            if !self.is_node(cell) {
                break;
            }
            cell = self.child(cell, digit(hash, self.level_of(cell)));
        }
        (cell != 0).then_some(cell)
    }

    /// Insert a leaf into a trie that has none of this hash. It takes at most one cell.
    pub(super) fn insert_leaf(&mut self, trie: Trie, hash: u64, leaf: u32) {
        let other = self.similar_leaf(trie, hash);
        if other == 0 {
            return self.attach(trie, Slot::Root, leaf);
        }
        let other = self.hash_of(trie, other);
        let Some(differs) = (0..LEVELS).find(|level| digit(hash, *level) != digit(other, *level)) else {
            self.damage_holds(); // two hashes of 64 secret bits are alike
            return;
        };
        let (mut slot, mut cell) = (Slot::Root, self.root(trie));
        for _ in 0..LEVELS {
            if !self.is_node(cell) || self.level_of(cell) >= differs {
                break;
            }
            let own_digit = digit(hash, self.level_of(cell));
            (slot, cell) = (Slot::Child(cell, own_digit), self.child(cell, own_digit));
        }
        if self.is_node(cell) && self.level_of(cell) == differs {
            return self.attach(trie, Slot::Child(cell, digit(hash, differs)), leaf);
        }
        let node = self.new_node(differs, [(digit(hash, differs), leaf), (digit(other, differs), cell)]);
        self.attach(trie, slot, node);
    }

    /// A leaf that shares the longest prefix with a hash; 0 where the trie is empty.
    fn similar_leaf(&self, trie: Trie, hash: u64) -> u32 {
        let mut cell = self.root(trie);
        for _ in 0..LEVELS {
            if !self.is_node(cell) {
                break;
            }
            let exact = self.child(cell, digit(hash, self.level_of(cell)));
            // Below a node without this digit, all leaves share the same prefix with the hash.
            let any = || (0..FANOUT).map(|digit| self.child(cell, digit)).find(|child| *child != 0);
            cell = if exact != 0 { exact } else { any().unwrap_or(0) };
        }
        cell
    }

    /// Remove a leaf from a trie, and the node that is not needed without it.
    pub(super) fn remove_leaf(&mut self, trie: Trie, hash: u64, leaf: u32) {
        let (mut above, mut slot, mut cell) = (Slot::Root, Slot::Root, self.root(trie));
        for _ in 0..LEVELS {
            if !self.is_node(cell) {
                break;
            }
            let own_digit = digit(hash, self.level_of(cell));
            (above, slot, cell) = (slot, Slot::Child(cell, own_digit), self.child(cell, own_digit));
        }
        if cell != leaf {
            self.damage_holds();
            return;
        }
        let Slot::Child(node, own_digit) = slot else {
            return self.attach(trie, Slot::Root, 0);
        };
        let others = (0..FANOUT).filter(|digit| *digit != own_digit).map(|digit| self.child(node, digit));
        let mut left = others.filter(|child| *child != 0);
        let (one, another) = (left.next(), left.next());
        if another.is_some() {
            return self.attach(trie, slot, 0);
        }
        self.attach(trie, above, one.unwrap_or(0));
        self.drop_cell(node);
    }

    /// The hash of a leaf.
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

    /// The level of a node: at which four bits of a hash its children differ.
    pub(super) fn level_of(&self, node: u32) -> u32 {
        (self.cell(node, KIND) >> AT_LEVEL) as u32
    }

    /// A child of a node; 0 for none.
    pub(super) fn child(&self, node: u32, digit: u64) -> u32 {
        (self.cell(node, CHILDREN + digit as usize / 2) >> (digit % 2 * 32)) as u32
    }

    fn new_node(&mut self, level: u32, children: [(u64, u32); 2]) -> u32 {
        let node = self.take_cell(Kind::Node);
        let mut words = [0; FANOUT as usize / 2];
        children.iter().for_each(|(digit, child)| words[*digit as usize / 2] |= u64::from(*child) << (digit % 2 * 32));
        (CHILDREN..).zip(words).for_each(|(word, value)| self.fill(node, word, value));
        self.fill(node, KIND, Kind::Node as u64 | u64::from(level) << AT_LEVEL);
        node
    }

    fn attach(&mut self, trie: Trie, slot: Slot, cell: u32) {
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

/// The hash of an id, which is random or a digest already, so that callers cannot aim for collisions. Never 0.
pub fn hash_of_id([low, high]: [u64; 2]) -> u64 {
    (low ^ high.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1)
}
