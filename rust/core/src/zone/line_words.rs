//! The words of the lines: of a process, of a bucket and of a ticket. The lock of the lines is held.
//!
//! Any process may have written these words, so nothing relies on them: a place that does not exist reads as 0.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::memory::shared::set;
use crate::zone::line_layout::{GROUPS, LinePlaces};

/// Not 0 while something is changed.
pub const CHANGING: usize = 0;
/// The last order number that was given.
pub const ORDERS: usize = 1;
/// The first ticket that is free, and how many were ever taken.
pub(super) const TICKETS: usize = 2;

/// Words of a process: the first of its called tickets, how many tickets it has, its last sign of life, whether its
/// tickets were removed since, and a serial that distinguishes it from earlier owners of its place.
pub(super) const CALLED: usize = 0;
pub const COUNT: usize = 1;
pub const BEAT: usize = 2;
pub const EXPELLED: usize = 3;
pub const SERIAL: usize = 4;

/// Words of a ticket.
pub const ORDER: usize = 0;
/// The process (16 bits), and the number that the ticket has there.
pub const OWNER: usize = 1;
/// What identifies the line: two words.
pub const LINE: usize = 2;
/// The group, whether it waits for places, whether it is called, how many costs there are, the next one that is called.
pub const META: usize = 4;
/// The next ticket of the line, and the one before.
pub(super) const LINKS: usize = 5;
/// In the first ticket of a line: the first ticket of the next line in its bucket, and the last ticket of the line.
pub(super) const HEAD: usize = 6;
/// The costs.
pub const COSTS: usize = 7;

pub(super) const IS_CALLED: u64 = 1 << 17;
const FOR_PLACES: u64 = 1 << 16;
const COUNT_OF_COSTS: u32 = 24;

/// The identity of a line, and where it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineName {
    /// 128 bits of a hash.
    pub words: [u64; 2],
    /// The group of the key; lines that wait for places are called by group.
    pub group: usize,
    /// Whether its callers wait for places.
    pub for_places: bool,
}

/// The words of the lines.
pub struct LineWords<'zone> {
    words: &'zone [AtomicU64],
    /// Where everything is.
    pub places: LinePlaces,
}

impl<'zone> LineWords<'zone> {
    /// The lines in these words of a zone.
    pub fn new(words: &'zone [AtomicU64], places: LinePlaces) -> Self {
        Self { words, places }
    }

    /// A word.
    pub fn get(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    /// Write a word, after all that was written before.
    pub fn put(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            set(word, value);
        }
    }

    /// A word of a process.
    pub fn of_process(&self, process: usize, word: usize) -> u64 {
        if process < self.places.processes { self.get(self.places.process(process) + word) } else { 0 }
    }

    /// Write a word of a process.
    pub fn put_of_process(&self, process: usize, word: usize, value: u64) {
        if process < self.places.processes {
            self.put(self.places.process(process) + word, value);
        }
    }

    /// A word of a ticket.
    pub fn of(&self, ticket: u32, word: usize) -> u64 {
        if self.is_ticket(ticket) { self.get(self.places.ticket(ticket) + word) } else { 0 }
    }

    /// Write a word of a ticket.
    pub fn put_of(&self, ticket: u32, word: usize, value: u64) {
        if self.is_ticket(ticket) {
            self.put(self.places.ticket(ticket) + word, value);
        }
    }

    pub(super) fn is_ticket(&self, ticket: u32) -> bool {
        (1..=self.places.tickets).contains(&(ticket as usize))
    }

    /// The process of a ticket, and the ticket's number in it.
    pub fn owner(&self, ticket: u32) -> (usize, u64) {
        let owner = self.of(ticket, OWNER);
        ((owner & 0xffff) as usize, owner >> 16)
    }

    /// The line of a ticket.
    pub fn line_of(&self, ticket: u32) -> LineName {
        let meta = self.of(ticket, META);
        LineName {
            words: [0, 1].map(|word| self.of(ticket, LINE + word)),
            group: (meta & 0xffff) as usize % GROUPS,
            for_places: meta & FOR_PLACES != 0,
        }
    }

    /// The costs of a ticket.
    pub fn costs(&self, ticket: u32) -> impl Iterator<Item = i64> {
        let count = (self.of(ticket, META) >> COUNT_OF_COSTS & 0x7) as usize;
        (0..count).map(move |number| self.of(ticket, COSTS + number) as i64)
    }

    /// The words `META` of a ticket that is not called.
    pub fn meta(name: &LineName, costs: usize) -> u64 {
        let for_places = if name.for_places { FOR_PLACES } else { 0 };
        name.group as u64 | for_places | (costs as u64) << COUNT_OF_COSTS
    }

    /// The bucket of a line.
    pub fn bucket_of(&self, name: &LineName) -> usize {
        let each = self.places.buckets.max(1);
        self.places.bucket(name.group % GROUPS * each + (name.words[0] % each as u64) as usize)
    }

    /// The buckets of a group.
    pub fn buckets_of(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        let (each, places) = (self.places.buckets, self.places);
        (0..each).map(move |number| places.bucket(group % GROUPS * each + number))
    }

    /// A number that changes whenever a ticket of a bucket leaves otherwise than planned.
    pub fn generation(&self, bucket: usize) -> u64 {
        self.get(bucket + 1)
    }

    /// Invalidate the plans of the lines in a bucket.
    pub fn renew(&self, bucket: usize) {
        self.put(bucket + 1, self.generation(bucket).wrapping_add(1));
    }
}
