//! The registered limits of a zone: slots name each by a number, which is reused once no slot names it.
//!
//! A number is taken back in two steps, so that a process may die between any two stores: its entry is
//! retired, and from then on no decision writes it; when no slot of any shard names it, it is free. A process
//! knows a limit by its name, which is the number together with a count that no other entry ever
//! had, and checks the entry before it writes.
//!
//! Texts lie in linked cells. Which cells are free follows from the entries and is not stored.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::encoding::slot::NUMBER_BITS;
use crate::limit::calendar::Calendar;
use crate::limit::{Algorithm, Limit};
use crate::memory::shared::{SharedMap, Words, set};
use crate::shard::registered::{Definition, Registered, TooMany};
use crate::zone::layout::{LIMIT_BYTES, LIMIT_TURNS, LIMITS, Layout};

const STATUS: usize = 0;
const KIND: usize = 1;
const QUOTA: usize = 2;
const PERIOD: usize = 3;
const REFILL: usize = 4;
const SALT: usize = 5;
/// First cell (24 bits), bytes of the scope (20) and of the text (20).
const TEXTS: usize = 6;
/// The turn at which it was last bound: of the versions of a limit the latest is in force.
const BOUND: usize = 7;

/// The state of an entry, in the two lowest bits of its status; above them is the turn at which it was written.
const FREE: u64 = 0;
const LIVE: u64 = 1;
const RETIRED: u64 = 2;

const UNITS_US: [i64; 3] = [1, 1_000, 1_000_000];
/// Words of a cell of texts; the first one has the next cell in its lowest two bytes.
const CELL_WORDS: usize = 4;
const CELL_BYTES: usize = CELL_WORDS * 8;
const BYTES_PER_CELL: usize = CELL_BYTES - 2;
const NO_CELL: usize = 0xffff;
const LONGEST_TEXT: usize = (1 << 20) - 1;

/// The limits of a zone.
#[derive(Clone, Copy)]
pub struct Catalog<'zone> {
    map: &'zone SharedMap,
    layout: &'zone Layout,
}

impl<'zone> Catalog<'zone> {
    /// The catalog of a zone.
    #[inline(always)]
    pub fn new(map: &'zone SharedMap, layout: &'zone Layout) -> Self {
        Self { map, layout }
    }

    /// All limits, retired ones included, in the order of their numbers.
    pub fn all(&self) -> Vec<Registered> {
        self.numbers().filter_map(|number| self.entry(number)).collect()
    }

    /// The numbers that name limits.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..self.layout.limits as u32).filter(|number| self.status(*number) & 3 != FREE)
    }

    /// Whether all limits can be read; the error names the first that cannot.
    pub fn check(&self) -> Result<(), String> {
        match self.numbers().find(|number| self.entry(*number).is_none()) {
            Some(number) => Err(format!("limit {number} is none")),
            None => Ok(()),
        }
    }

    /// Whether decisions may write the number in this name. The caller holds a shard; otherwise it may be retired at
    /// once.
    #[inline(always)]
    pub fn is_current(&self, name: u64) -> bool {
        let number = name as u32 & ((1 << NUMBER_BITS) - 1);
        (number as usize) < self.layout.limits && self.status(number) == name >> NUMBER_BITS << 2 | LIVE
    }

    /// The integers of the limit with this number.
    pub fn limit(&self, number: u32) -> Option<Limit> {
        if number as usize >= self.layout.limits {
            return None;
        }
        let words = self.words(number);
        if words[STATUS] & 3 == FREE || words[KIND] != kind(&words, words[KIND] as u8, (words[KIND] >> 8) as u8) {
            return None;
        }
        let algorithm = *Algorithm::ALL.get(words[KIND] as u8 as usize)?;
        let unit_us = *UNITS_US.get((words[KIND] >> 8) as u8 as usize)?;
        let [quota, period, refill] = [QUOTA, PERIOD, REFILL].map(|word| words[word] as i64);
        let limit = Limit::new(algorithm, unit_us, quota, period, refill).ok()?;
        Some(if algorithm == Algorithm::CalendarWindow { limit.on(Calendar::known(period)) } else { limit })
    }

    /// The salt of a limit's scope, and when it was last bound.
    pub fn salt_and_turn(&self, number: u32) -> (u64, u64) {
        let words = self.words(number);
        (words[SALT], words[BOUND])
    }

    /// The limit with this number, with its texts.
    pub fn entry(&self, number: u32) -> Option<Registered> {
        let limit = self.limit(number)?;
        let words = self.words(number);
        let [scope_bytes, text_bytes] = [24, 44].map(|shift| (words[TEXTS] >> shift) as usize & LONGEST_TEXT);
        let mut bytes = Vec::new();
        for cell in self.cells(&words) {
            let cell = self.cell(cell).each_ref().map(|word| word.load(Relaxed).to_le_bytes());
            bytes.extend_from_slice(&cell.as_flattened()[2..]);
        }
        let text = String::from_utf8(bytes.get(scope_bytes..scope_bytes + text_bytes)?.to_vec()).ok()?;
        bytes.truncate(scope_bytes);
        let scope = String::from_utf8(bytes).ok()?;
        let name = (words[STATUS] >> 2) << NUMBER_BITS | u64::from(number);
        Some(Registered::new(Definition { scope: &scope, text: &text, limit }, words[SALT], name))
    }

    /// The name of a limit that is in the catalog, which becomes live again. The lock of the limits is held.
    pub fn find(&self, salt: u64, limit: &Limit) -> Option<u64> {
        let is_it =
            |number: &u32| self.limit_words(*number)[SALT].load(Relaxed) == salt && self.limit(*number) == Some(*limit);
        let number = self.numbers().find(is_it)?;
        let turn = self.status(number) >> 2;
        set(&self.limit_words(number)[STATUS], turn << 2 | LIVE);
        self.touch(number);
        Some(turn << NUMBER_BITS | u64::from(number))
    }

    /// Record that a limit is bound now.
    pub fn touch(&self, number: u32) {
        set(&self.limit_words(number)[BOUND], self.next_turn());
    }

    /// Add a limit that is not there yet, and return its name. The lock of the limits is held.
    pub fn add(&self, definition: Definition<'_>, salt: u64) -> Result<u64, TooMany> {
        let Definition { scope, text, limit } = definition;
        let free = (0..self.layout.limits as u32).find(|number| self.status(*number) & 3 == FREE);
        let number = free.ok_or(TooMany::Limits(self.layout.limits))?;
        let bytes: Vec<u8> = scope.bytes().chain(text.bytes()).collect();
        let cells = self.free_cells(bytes.len().div_ceil(BYTES_PER_CELL));
        let cells = cells.filter(|_| scope.len() <= LONGEST_TEXT && text.len() <= LONGEST_TEXT);
        let cells = cells.ok_or(TooMany::Bytes(self.layout.texts_bytes))?;
        for (place, part) in bytes.chunks(BYTES_PER_CELL).enumerate() {
            let mut written = [0; CELL_BYTES];
            let next = cells.get(place + 1).copied().unwrap_or(NO_CELL) as u16;
            written[..2].copy_from_slice(&next.to_le_bytes());
            written[2..][..part.len()].copy_from_slice(part);
            for (word, bytes) in self.cell(cells[place]).iter().zip(written.chunks_exact(8)) {
                set(word, bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
            }
        }
        let first = cells.first().copied().unwrap_or(NO_CELL);
        let turn = self.next_turn();
        let mut words = [0; 8];
        words[STATUS] = turn << 2 | LIVE;
        for (word, value) in [(QUOTA, limit.quota), (PERIOD, limit.period), (REFILL, limit.refill)] {
            words[word] = value as u64;
        }
        words[SALT] = salt;
        words[TEXTS] = first as u64 | (scope.len() as u64) << 24 | (text.len() as u64) << 44;
        words[BOUND] = turn;
        let algorithm = Algorithm::ALL.iter().position(|one| *one == limit.algorithm).unwrap_or_default();
        let unit = UNITS_US.iter().position(|one| *one == limit.unit_us).unwrap_or_default();
        words[KIND] = kind(&words, algorithm as u8, unit as u8);
        for (word, value) in self.limit_words(number).iter().zip(words).skip(1) {
            set(word, value);
        }
        set(&self.limit_words(number)[STATUS], words[STATUS]);
        Ok(turn << NUMBER_BITS | u64::from(number))
    }

    /// Retire a number: no decision writes it from here on. The lock of the limits is held.
    pub fn retire(&self, number: u32) {
        set(&self.limit_words(number)[STATUS], self.status(number) & !3 | RETIRED);
    }

    /// Free this number for another limit, if it was retired. The lock of the limits is held, and no slot names it.
    pub fn free_retired(&self, number: u32) -> bool {
        let is_retired = self.status(number) & 3 == RETIRED;
        if is_retired {
            set(&self.limit_words(number)[STATUS], FREE);
        }
        is_retired
    }

    fn next_turn(&self) -> u64 {
        self.map.words::<1>(LIMIT_TURNS)[0].fetch_add(1, Relaxed).wrapping_add(1) & (u64::MAX >> NUMBER_BITS)
    }

    /// `count` cells that no text lies in; None where there are fewer.
    fn free_cells(&self, count: usize) -> Option<Vec<usize>> {
        let mut taken = vec![false; self.count_cells()];
        for number in self.numbers() {
            self.cells(&self.words(number)).for_each(|cell| taken[cell] = true);
        }
        let free: Vec<usize> = (0..taken.len()).filter(|cell| !taken[*cell]).take(count).collect();
        (free.len() == count).then_some(free)
    }

    /// The cells of a limit's texts.
    fn cells(&self, words: &[u64; 8]) -> impl Iterator<Item = usize> {
        let bytes = [24, 44].map(|shift| (words[TEXTS] >> shift) as usize & LONGEST_TEXT);
        let count = (bytes[0] + bytes[1]).div_ceil(BYTES_PER_CELL).min(self.count_cells());
        let mut next = (words[TEXTS] & 0xff_ffff) as usize;
        (0..count).map_while(move |_| {
            let cell = next;
            next = (cell < self.count_cells()).then(|| self.cell(cell)[0].load(Relaxed) as u16 as usize)?;
            Some(cell)
        })
    }

    fn count_cells(&self) -> usize {
        (self.layout.texts_bytes / CELL_BYTES).min(NO_CELL)
    }

    fn cell(&self, cell: usize) -> &Words<CELL_WORDS> {
        self.map.words(self.layout.texts + cell * CELL_BYTES)
    }

    #[inline(always)]
    fn status(&self, number: u32) -> u64 {
        self.map.words::<1>(LIMITS + number as usize * LIMIT_BYTES)[0].load(Acquire)
    }

    fn words(&self, number: u32) -> [u64; 8] {
        self.limit_words(number).each_ref().map(|word| word.load(Relaxed))
    }

    fn limit_words(&self, number: u32) -> &Words<8> {
        self.map.words(LIMITS + number as usize * LIMIT_BYTES)
    }
}

/// The word of an algorithm and a unit, with a checksum of all that defines a limit, to detect damage.
fn kind(words: &[u64; 8], algorithm: u8, unit: u8) -> u64 {
    let own = u64::from(algorithm) | u64::from(unit) << 8;
    let all = [words[STATUS] >> 2, own, words[QUOTA], words[PERIOD], words[REFILL], words[SALT]];
    let sum = all
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15_u64, |sum, word| (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31));
    own | sum >> 32 << 32
}
