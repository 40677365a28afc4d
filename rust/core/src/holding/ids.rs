//! A hash table from ids to holds: one word for each, in open addressing, so that growing reads nothing else.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::holding::record::HoldId;

/// The word of no hold.
const EMPTY: u64 = u64::MAX;
const SMALLEST: usize = 16;

/// The numbers of holds by the hashes of their ids. A word has the hash in its upper half, the number in its lower; it
/// lies at the home of its hash or behind, without a gap between.
#[derive(Debug)]
pub struct Ids {
    words: Vec<u64>,
    used: usize,
    secret: u64,
}

impl Default for Ids {
    fn default() -> Self {
        Self { words: Vec::new(), used: 0, secret: RandomState::new().build_hasher().finish() }
    }
}

impl Ids {
    /// The bytes that the table takes.
    pub fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// The number of an id, among those that `is_it`.
    #[inline]
    pub fn find(&self, id: HoldId, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.words.is_empty() {
            return None;
        }
        let hash = self.hash(id);
        let mut place = self.home(hash);
        loop {
            let word = self.words[place];
            if word == EMPTY {
                return None;
            }
            if word >> 32 == hash && is_it(word as u32) {
                return Some(word as u32);
            }
            place = (place + 1) & (self.words.len() - 1);
        }
    }

    /// Add an id that is not there.
    #[inline]
    pub fn insert(&mut self, id: HoldId, number: u32) {
        if (self.used + 1) * 8 > self.words.len() * 5 {
            self.grow();
        }
        self.put(self.hash(id) << 32 | u64::from(number));
        self.used += 1;
    }

    /// Remove an id.
    pub fn remove(&mut self, id: HoldId, number: u32) {
        if self.words.is_empty() {
            return;
        }
        let word = self.hash(id) << 32 | u64::from(number);
        let mask = self.words.len() - 1;
        let mut place = self.home(word >> 32);
        while self.words[place] != word {
            if self.words[place] == EMPTY {
                return;
            }
            place = (place + 1) & mask;
        }
        self.used -= 1;
        // Words behind move up, unless that would move them before their home.
        let mut next = (place + 1) & mask;
        while self.words[next] != EMPTY {
            let home = self.home(self.words[next] >> 32);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(place) & mask) {
                self.words[place] = self.words[next];
                place = next;
            }
            next = (next + 1) & mask;
        }
        self.words[place] = EMPTY;
    }

    #[cold]
    fn grow(&mut self) {
        let wider = vec![EMPTY; (self.words.len() * 2).max(SMALLEST)];
        for word in std::mem::replace(&mut self.words, wider) {
            if word != EMPTY {
                self.put(word);
            }
        }
    }

    #[inline]
    fn put(&mut self, word: u64) {
        let mut place = self.home(word >> 32);
        while self.words[place] != EMPTY {
            place = (place + 1) & (self.words.len() - 1);
        }
        self.words[place] = word;
    }

    /// 32 bits of a hash of an id, which is random or a digest already; the secret hides which ids collide. Never the
    /// upper half of `EMPTY`.
    #[inline]
    fn hash(&self, HoldId([low, high]): HoldId) -> u64 {
        let mixed = (low ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) ^ high;
        (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32).min(0xffff_fffe)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.words.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_ids_are_found_until_they_are_removed() {
        let mut ids = Ids::default();
        let id = |number: u32| HoldId([0, u64::from(number) << 32]);
        for number in 0..1000 {
            ids.insert(id(number), number);
        }
        for number in (0..1000).step_by(3) {
            ids.remove(id(number), number);
            ids.remove(id(number), number);
        }
        for number in 0..1000 {
            assert_eq!(ids.find(id(number), |found| found == number), (number % 3 != 0).then_some(number));
        }
    }
}
