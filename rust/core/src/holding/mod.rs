//! What a shard remembers of holds: bounded, found by their ids, forgotten in time. It decides nothing.

pub mod record;
pub mod slab;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::algorithms::leases::KeyLeases;
use crate::holding::record::{HoldId, Record};
use crate::holding::slab::Slab;

/// What is kept of one limit on one key while holds of it are remembered.
#[derive(Debug)]
pub struct KeyHolds {
    /// The tag of its state.
    pub tag: u64,
    /// The salt of its limit's scope.
    pub salt: u64,
    /// The scaled units that were ever given back.
    pub refunds: i64,
    /// How many holds of it are remembered.
    pub remembered: u32,
    /// Its places in flight.
    pub leases: KeyLeases,
}

/// All holds of a shard.
#[derive(Debug, Default)]
pub struct Holds {
    records: Slab<Record>,
    by_id: HashMap<HoldId, u32, Mixing>,
    keys: Slab<KeyHolds>,
    by_tag: HashMap<u64, u32, Mixing>,
    by_end: BinaryHeap<Reverse<(i64, u32, u64)>>,
    settled: VecDeque<(u32, u64)>,
    weight: usize,
    turn: u64,
}

impl Holds {
    /// How many parts there are of all holds.
    #[inline]
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
            + self.keys.bytes()
            + self.by_id.capacity() * size_of::<(HoldId, u32)>()
            + self.by_tag.capacity() * size_of::<(u64, u32)>()
            + self.by_end.capacity() * size_of::<(i64, u32, u64)>()
            + self.settled.capacity() * size_of::<(u32, u64)>()
    }

    /// The number of the hold of this id, if it is remembered.
    #[inline]
    pub fn find(&mut self, id: HoldId, now_us: i64) -> Option<u32> {
        let number = *self.by_id.get(&id)?;
        if self.records.get(number).is_some_and(|record| record.forget_us <= now_us) {
            self.forget(number);
            return None;
        }
        Some(number)
    }

    /// A hold.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&Record> {
        self.records.get(number)
    }

    /// A hold, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Record> {
        self.records.get_mut(number)
    }

    /// What is kept of one limit on one key.
    #[inline]
    pub fn key(&self, number: u32) -> Option<&KeyHolds> {
        self.keys.get(number)
    }

    /// `key`, to be changed.
    #[inline]
    pub fn key_mut(&mut self, number: u32) -> Option<&mut KeyHolds> {
        self.keys.get_mut(number)
    }

    /// The leases of a tag; None where no hold of it is remembered.
    pub fn leases(&self, tag: u64) -> Option<&KeyLeases> {
        Some(&self.keys.get(*self.by_tag.get(&tag)?)?.leases)
    }

    /// Whether no hold is remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.weight == 0
    }

    /// Something was given back on the state of a tag.
    pub fn note_refund(&mut self, tag: u64, given: i64) {
        if let Some(number) = self.by_tag.get(&tag)
            && let Some(key) = self.keys.get_mut(*number)
        {
            key.refunds = key.refunds.saturating_add(given);
        }
    }

    /// What the next hold will be told from others by.
    pub fn next_turn(&self) -> u64 {
        self.turn + 1
    }

    /// What is kept of a tag, for a hold that is about to be added.
    #[inline]
    pub fn key_or_new(&mut self, tag: u64, salt: u64) -> u32 {
        if let Some(number) = self.by_tag.get(&tag) {
            return *number;
        }
        let key = KeyHolds { tag, salt, refunds: 0, remembered: 0, leases: KeyLeases::default() };
        let number = self.keys.insert(key);
        self.by_tag.insert(tag, number);
        number
    }

    /// Add a hold; its number.
    #[inline]
    pub fn add(&mut self, mut record: Record) -> u32 {
        self.turn += 1;
        record.turn = self.turn;
        self.weight += record.weight as usize;
        for limit in &record.limits {
            if let Some(key) = self.keys.get_mut(limit.key) {
                key.remembered += 1;
            }
        }
        let (id, forget_us, is_settled) = (record.id, record.forget_us, record.settled);
        let number = self.records.insert(record);
        self.by_id.insert(id, number);
        self.by_end.push(Reverse((forget_us, number, self.turn)));
        if is_settled {
            self.settled.push_back((number, self.turn));
        }
        self.tidy();
        number
    }

    /// Count one more part of a hold.
    pub fn grow(&mut self, number: u32) {
        if let Some(record) = self.records.get_mut(number) {
            record.weight += 1;
            self.weight += 1;
        }
    }

    /// From here on a full store may forget it.
    #[inline]
    pub fn note_settled(&mut self, number: u32) {
        if let Some(record) = self.records.get(number) {
            self.settled.push_back((number, record.turn));
        }
    }

    /// Forget the one whose time was over first, if there is such a one; whether anything was looked at.
    #[inline]
    pub fn drop_over(&mut self, now_us: i64) -> bool {
        match self.by_end.peek() {
            Some(Reverse((forget_us, ..))) if *forget_us <= now_us => self.drop_first(now_us),
            _ => false,
        }
    }

    fn drop_first(&mut self, now_us: i64) -> bool {
        let Some(Reverse((_, number, turn))) = self.by_end.pop() else {
            return false;
        };
        if let Some(record) = self.records.get(number).filter(|record| record.turn == turn) {
            if record.forget_us <= now_us {
                self.forget(number);
            } else {
                // It was extended or settled since.
                self.by_end.push(Reverse((record.forget_us, number, turn)));
            }
        }
        true
    }

    /// Forget the one that was settled first; whether there was one.
    pub fn drop_settled(&mut self) -> bool {
        while let Some((number, turn)) = self.settled.pop_front() {
            if self.records.get(number).is_some_and(|record| record.turn == turn) {
                self.forget(number);
                return true;
            }
        }
        false
    }

    /// When the first of them is forgotten, as far as is known.
    pub fn first_end_us(&self) -> Option<i64> {
        self.by_end.peek().map(|Reverse((forget_us, ..))| *forget_us)
    }

    /// Forget all holds of a tag; whether any of its places was in use.
    pub fn forget_tag(&mut self, tag: u64, now_us: i64) -> bool {
        let Some(key) = self.by_tag.get(&tag).copied() else {
            return false;
        };
        let in_use = self.keys.get(key).is_some_and(|key| key.leases.used(now_us) > 0);
        let own = |record: &Record| record.limits.iter().any(|limit| limit.key == key);
        let numbers: Vec<u32> =
            self.records.iter().filter(|(_, record)| own(record)).map(|(number, _)| number).collect();
        for number in numbers {
            self.forget(number);
        }
        in_use
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        *self = Self { turn: self.turn, ..Self::default() };
    }

    /// The limits that holds name by their numbers.
    pub fn note_named(&self, named: &mut [bool]) {
        for (_, record) in self.records.iter() {
            for part in record.limits.iter().flat_map(|limit| &limit.parts) {
                if let Some(named) = named.get_mut(part.number as usize) {
                    *named = true;
                }
            }
        }
    }

    /// Forget a hold, and free what places it has.
    pub fn forget(&mut self, number: u32) {
        let Some(record) = self.records.remove(number) else {
            return;
        };
        self.by_id.remove(&record.id);
        self.weight -= record.weight as usize;
        for limit in &record.limits {
            let Some(key) = self.keys.get_mut(limit.key) else {
                continue;
            };
            if let Some(lease) = limit.lease {
                key.leases.take(lease);
            }
            key.remembered -= 1;
            if key.remembered == 0 {
                let tag = key.tag;
                self.by_tag.remove(&tag);
                self.keys.remove(limit.key);
            }
        }
    }

    /// Drop what is said of holds that are forgotten, before it is as much as what is said of others.
    #[inline]
    fn tidy(&mut self) {
        let most = 2 * self.by_id.len() + 64;
        if self.by_end.len() > most || self.settled.len() > most {
            self.rebuild();
        }
    }

    #[cold]
    fn rebuild(&mut self) {
        let records = &self.records;
        self.by_end = records.iter().map(|(number, one)| Reverse((one.forget_us, number, one.turn))).collect();
        self.settled.retain(|(number, turn)| records.get(*number).is_some_and(|record| record.turn == *turn));
    }
}

/// How what is random already is hashed: tags are keyed hashes, ids are random or digests. Which of them meet is secret.
#[derive(Clone, Debug)]
pub struct Mixing(u64);

impl Default for Mixing {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Mixing {
    type Hasher = Mixer;

    #[inline]
    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// See `Mixing`.
pub struct Mixer(u64);

impl Hasher for Mixer {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_le_bytes(whole));
        }
    }

    #[inline]
    fn write_usize(&mut self, _length: usize) {}

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}
