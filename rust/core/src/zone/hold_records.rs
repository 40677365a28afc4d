//! The format of a hold in cells: of one limit in one cell; of many in that and in a chain of further cells.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::holding::record::{Content, HoldId, One, Record};
use crate::holding::share::Part;
use crate::zone::backing::MappedBacking;
use crate::zone::pool::{KIND, Kind, halves, word_of};
use crate::zone::share_words::{share_of_words, words_of_share};

/// The words of a hold: its id takes the first two.
const UNTIL: usize = 2;
/// When it is forgotten.
pub const FORGET: usize = 3;
/// The actual units of one limit; of many the first cell of the chain, and the number of its words.
const ACTUAL: usize = 5;
/// The key of one limit; of many the number of parts.
const KEY: usize = 6;
const COST: usize = 7;
const MARKED: usize = 8;
const REFUNDS: usize = 10;
const ANSWERED: usize = 11;

/// The flags in the kind word of a hold, above its lowest byte; the upper half is the number of the limit.
const SETTLED: u64 = 1 << 8;
const AT_ONCE: u64 = 1 << 9;
const PASSED: u64 = 1 << 10;
pub(super) const SHADOW: u64 = 1 << 11;
pub(super) const IN_FLIGHT: u64 = 1 << 12;
const MANY: u64 = 1 << 13;
/// The id contains the cell.
pub(super) const BY_CELL: u64 = 1 << 14;

/// Whether a kind word is that of a settled hold that a new one can replace, once its key is released.
#[inline(always)]
pub fn is_replaceable(kind: u64) -> bool {
    kind & (0xff | SETTLED | MANY | BY_CELL) == Kind::Hold as u64 | SETTLED | BY_CELL
}

/// The words of a chain's cell that hold data, and the one that links the cells.
const DATA_WORDS: [usize; 13] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13];
const NEXT: usize = 14;

impl MappedBacking<'_> {
    /// Write a hold into a cell that was just taken.
    pub(super) fn fill_hold(&mut self, cell: u32, record: &Record) {
        (0..).zip(record.id.0).for_each(|(word, half)| self.fill(cell, word, half));
        let words = match &record.content {
            Content::One(one) => words_of_one(one),
            Content::Many(share) => {
                let words = words_of_share(share);
                let first = self.fill_chain(&words);
                [word_of(first, words.len() as u32), u64::from(share.weight), 0, 0, 0, 0, 0, 0, 0, 0]
            }
            Content::Settled(_) => [0; 10], // never in a zone, whose cells do not shrink
        };
        (ACTUAL..).zip(words).for_each(|(word, value)| self.fill(cell, word, value));
        self.fill(cell, UNTIL, record.until_us as u64);
        self.fill(cell, FORGET, record.forget_us as u64);
        self.fill(cell, KIND, kind_of(record));
    }

    /// Overwrite a hold: its id stays. A chain of the same length is overwritten in place.
    pub(super) fn write_hold(&mut self, cell: u32, record: &Record) {
        let was_many = self.cell(cell, KIND) & MANY != 0;
        let former = halves(self.cell(cell, ACTUAL));
        let kind = kind_of(record) | self.cell(cell, KIND) & BY_CELL;
        self.mark_soonest_stale(cell);
        self.write_cell(cell, UNTIL, [record.until_us as u64, record.forget_us as u64, kind]);
        match &record.content {
            Content::One(one) => {
                let words = words_of_one(one);
                self.write_cell(cell, ACTUAL, [words[0], words[1], words[2]]);
                if was_many {
                    (ACTUAL + 3..).zip(&words[3..]).for_each(|(word, value)| self.write_cell(cell, word, [*value]));
                    self.drop_chain(former);
                }
            }
            Content::Many(share) => {
                let words = words_of_share(share);
                if was_many && former.1 as usize == words.len() {
                    self.overwrite_chain(former.0, &words);
                    return;
                }
                let first = self.fill_chain(&words);
                self.write_cell(cell, ACTUAL, [word_of(first, words.len() as u32), u64::from(share.weight)]);
                if was_many {
                    self.drop_chain(former);
                }
            }
            Content::Settled(_) => {} // never in a zone
        }
    }

    /// Settle a hold of one limit; if it had places in flight, they no longer are.
    pub(super) fn write_settled(&mut self, cell: u32, forget_us: i64, actual: i64) {
        let kind = self.cell(cell, KIND) & !IN_FLIGHT | SETTLED;
        self.mark_soonest_stale(cell);
        self.write_cell(cell, FORGET, [forget_us as u64, kind, actual as u64]);
    }

    /// Drop the cells of a hold.
    pub(super) fn drop_hold(&mut self, cell: u32) {
        if self.cell(cell, KIND) & MANY != 0 {
            self.drop_chain(halves(self.cell(cell, ACTUAL)));
        }
        self.drop_cell(cell);
    }

    /// The part and the key of a hold of one limit that is not settled.
    #[inline]
    pub(super) fn open_part(&self, cell: u32) -> Option<(Part, u32)> {
        let kind = self.cell(cell, KIND);
        if !self.is(cell, Kind::Hold) || kind & (SETTLED | MANY) != 0 {
            return None;
        }
        Some((self.part_of_one(cell), self.cell(cell, KEY) as u32))
    }

    /// When a hold is forgotten.
    #[inline]
    pub(super) fn forget_us(&self, cell: u32) -> i64 {
        self.number(cell, FORGET)
    }

    /// The end of a hold's lease.
    pub(super) fn until_us(&self, cell: u32) -> i64 {
        self.number(cell, UNTIL)
    }

    /// Whether a hold of one limit has places in flight.
    pub(super) fn is_in_flight(&self, cell: u32) -> bool {
        self.cell(cell, KIND) & IN_FLIGHT != 0
    }

    /// Whether a cell is a hold.
    #[inline]
    pub(super) fn is_hold(&self, cell: u32) -> bool {
        self.cell(cell, KIND) as u8 == Kind::Hold as u8
    }

    /// The key of a hold of one limit.
    #[inline]
    pub(super) fn key_cell(&self, cell: u32) -> u32 {
        self.cell(cell, KEY) as u32
    }

    /// Whether a hold is found by the cell in its id, not by the trie.
    #[inline]
    pub(super) fn is_found_by_cell(&self, cell: u32) -> bool {
        self.cell(cell, KIND) & BY_CELL != 0
    }

    /// Whether a hold is settled.
    pub(super) fn is_settled(&self, cell: u32) -> bool {
        self.cell(cell, KIND) & SETTLED != 0
    }

    /// Read a hold; None where there is no possible one.
    pub(super) fn read_hold(&self, cell: u32) -> Option<Record> {
        if !self.is(cell, Kind::Hold) {
            return None;
        }
        let kind = self.cell(cell, KIND);
        let content = if kind & MANY == 0 {
            Content::One(One {
                part: self.part_of_one(cell),
                key: self.cell(cell, KEY) as u32,
                actual: self.cell(cell, ACTUAL) as i64,
                // A request without a name cannot be repeated, so its answer is not stored.
                answered: if kind & BY_CELL != 0 {
                    [0; 4]
                } else {
                    std::array::from_fn(|number| self.cell(cell, ANSWERED + number) as i64)
                },
                in_flight: kind & IN_FLIGHT != 0,
                shadow: kind & SHADOW != 0,
            })
        } else {
            let words = self.chain_words(halves(self.cell(cell, ACTUAL)));
            let share = words.and_then(|words| share_of_words(&words, self.cell(cell, KEY) as u32));
            if share.is_none() {
                self.damage_holds();
            }
            Content::Many(Arc::new(share?))
        };
        Some(Record {
            id: HoldId([0, 1].map(|word| self.cell(cell, word))),
            until_us: self.until_us(cell),
            forget_us: self.forget_us(cell),
            content,
            settled: kind & SETTLED != 0,
            at_once: kind & AT_ONCE != 0,
            passed: kind & PASSED != 0,
            named: kind & BY_CELL == 0,
        })
    }

    /// The cells of a hold's chain, for checks of all cells.
    pub(super) fn chain_cells(&self, cell: u32) -> SmallVec<[u32; 4]> {
        let mut cells = SmallVec::new();
        if self.cell(cell, KIND) & MANY != 0 {
            let (mut at, words) = halves(self.cell(cell, ACTUAL));
            for _ in 0..(words as usize).div_ceil(DATA_WORDS.len()) {
                if !self.is(at, Kind::More) {
                    break;
                }
                cells.push(at);
                at = self.cell(at, NEXT) as u32;
            }
        }
        cells
    }

    fn part_of_one(&self, cell: u32) -> Part {
        Part {
            marked: [0, 1].map(|number| self.cell(cell, MARKED + number) as i64),
            refunds: self.cell(cell, REFUNDS) as i64,
            cost: self.number(cell, COST),
            number: halves(self.cell(cell, KIND)).1,
        }
    }

    fn fill_chain(&mut self, words: &[u64]) -> u32 {
        let mut next = 0;
        for part in words.chunks(DATA_WORDS.len()).rev() {
            let cell = self.take_cell(Kind::More);
            DATA_WORDS.iter().zip(part).for_each(|(word, value)| self.fill(cell, *word, *value));
            self.fill(cell, NEXT, u64::from(next));
            next = cell;
        }
        next
    }

    fn overwrite_chain(&mut self, first: u32, words: &[u64]) {
        let mut cell = first;
        for part in words.chunks(DATA_WORDS.len()) {
            if !self.is(cell, Kind::More) {
                return;
            }
            for (word, value) in DATA_WORDS.iter().zip(part) {
                if self.cell(cell, *word) != *value {
                    self.write_cell(cell, *word, [*value]);
                }
            }
            cell = self.cell(cell, NEXT) as u32;
        }
    }

    fn drop_chain(&mut self, (first, words): (u32, u32)) {
        let mut cell = first;
        for _ in 0..(words as usize).div_ceil(DATA_WORDS.len()) {
            if !self.is(cell, Kind::More) {
                return;
            }
            let next = self.cell(cell, NEXT) as u32;
            self.drop_cell(cell);
            cell = next;
        }
    }

    fn chain_words(&self, (first, count): (u32, u32)) -> Option<Vec<u64>> {
        if count as usize > self.journal.held.pool().len() {
            return None;
        }
        let (mut words, mut cell) = (Vec::with_capacity(count as usize), first);
        while words.len() < count as usize {
            if !self.is(cell, Kind::More) {
                return None;
            }
            words.extend(DATA_WORDS.map(|word| self.cell(cell, word)));
            cell = self.cell(cell, NEXT) as u32;
        }
        words.truncate(count as usize);
        Some(words)
    }
}

fn kind_of(record: &Record) -> u64 {
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let own = match &record.content {
        Content::One(one) => {
            flag(one.shadow, SHADOW) | flag(one.in_flight, IN_FLIGHT) | u64::from(one.part.number) << 32
        }
        Content::Many(_) | Content::Settled(_) => MANY,
    };
    own | flag(record.settled, SETTLED)
        | flag(record.at_once, AT_ONCE)
        | flag(record.passed, PASSED)
        | Kind::Hold as u64
}

pub(super) fn words_of_one(one: &One) -> [u64; 10] {
    let [a, b] = one.part.marked.map(|word| word as u64);
    let [remaining, reset, next, delay] = one.answered.map(|word| word as u64);
    let part = &one.part;
    [one.actual as u64, u64::from(one.key), part.cost as u64, a, b, part.refunds as u64, remaining, reset, next, delay]
}
