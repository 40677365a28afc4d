//! The leases of a key in a zone: a list in the order of their ends, with express lanes over it (a skip list).
//!
//! Each lane has a quarter of the leases of the lane below. Adding or removing one writes one link a lane, so the
//! records of a decision have room for it however many leases there are. See Pugh, "Skip lists: a probabilistic
//! alternative to balanced trees", 1990.

use std::sync::atomic::Ordering::Relaxed;

use crate::algorithms::leases::{Lease, Leases};
use crate::limit::LARGEST;
use crate::zone::backing::MappedBacking;
use crate::zone::pool::{Kind, halves, word_of};

/// The word of a key that counts the places of all its leases.
pub const PLACES: usize = 8;
/// The word of a key that names its last lease, behind the former word.
pub const LAST: usize = 9;
/// The words that link keys and leases to the next one on each lane, two links in each; they share a cache line with
/// the words that order the leases.
const LINKS: [usize; LANES / 2] = [5, 6, 7, 3];
/// The number of lanes.
pub const LANES: usize = 8;
const UNTIL: usize = 0;
const NUMBER: usize = 1;
const TAKEN: usize = 2;

/// The leases of a key, to be read.
#[derive(Clone, Copy)]
pub struct ZoneLeases<'held, 'zone> {
    backing: &'held MappedBacking<'zone>,
    key: u32,
}

impl<'held, 'zone> ZoneLeases<'held, 'zone> {
    /// The leases of a key.
    pub fn new(backing: &'held MappedBacking<'zone>, key: u32) -> Self {
        Self { backing, key }
    }

    /// (end, places) of each lease, in the order of their ends.
    fn each(self) -> impl Iterator<Item = (i64, i64)> {
        let mut at = self.key;
        let mut left = self.backing.journal.held.pool().len();
        std::iter::from_fn(move || {
            at = self.backing.next_lease(at, 0, &mut left)?;
            let [until, places] = [UNTIL, TAKEN].map(|word| self.backing.number(at, word));
            Some((until, places))
        })
    }
}

impl Leases for ZoneLeases<'_, '_> {
    #[inline]
    fn used(&self, now: i64) -> i64 {
        let over = self
            .each()
            .take_while(|(until, _)| *until <= now)
            .fold(0, |over: i64, (_, more)| over.saturating_add(more));
        (self.backing.number(self.key, PLACES) - over).max(0)
    }

    fn last(&self, now: i64) -> Option<i64> {
        let last = self.backing.cell(self.key, LAST) as u32;
        (last != 0 && self.backing.is(last, Kind::Lease))
            .then(|| self.backing.number(last, UNTIL))
            .filter(|until| *until > now)
    }

    fn freed_at(&self, now: i64, needed: i64) -> Option<i64> {
        let mut needed = needed;
        for (until, places) in self.each().skip_while(|(until, _)| *until <= now) {
            needed -= places;
            if needed <= 0 {
                return Some(until);
            }
        }
        None
    }
}

impl MappedBacking<'_> {
    /// Add a lease to a key.
    #[inline]
    pub(super) fn add_lease(&mut self, key: u32, lease: Lease) {
        let cell = self.take_cell(Kind::Lease);
        for (word, value) in [(UNTIL, lease.until as u64), (NUMBER, lease.number), (TAKEN, lease.places as u64)] {
            self.fill(cell, word, value);
        }
        let before = self.leases_before(key, lease);
        let lanes = lanes_of(lease);
        let links = self.links_behind(&before, lanes);
        LINKS.into_iter().zip(links).for_each(|(word, links)| self.fill(cell, word, links));
        (0..lanes).for_each(|lane| self.write_link_of(before[lane], lane, cell));
        self.count_places(key, lease.places, if links[0] as u32 == 0 { Some(cell) } else { None });
    }

    /// Remove a lease of a key; nothing happens where it is not there.
    pub(super) fn remove_lease(&mut self, key: u32, lease: Lease) {
        if let Some(cell) = self.unlink_lease(key, lease) {
            self.drop_cell(cell);
        }
    }

    /// Change the end and the places of a lease; it is added where it is not there.
    pub(super) fn move_lease(&mut self, key: u32, former: Lease, lease: Lease) {
        if former == lease {
            return;
        }
        let Some(cell) = self.unlink_lease(key, former) else {
            return self.add_lease(key, lease);
        };
        let before = self.leases_before(key, lease);
        let lanes = lanes_of(lease);
        self.write_cell(cell, UNTIL, [lease.until as u64, lease.number, lease.places as u64]);
        let links = self.links_behind(&before, lanes);
        LINKS.into_iter().zip(links).for_each(|(word, links)| self.write_cell(cell, word, [links]));
        (0..lanes).for_each(|lane| self.write_link_of(before[lane], lane, cell));
        self.count_places(key, lease.places, if links[0] as u32 == 0 { Some(cell) } else { None });
    }

    /// The first lease of a key, if it is over.
    #[inline]
    pub(super) fn first_over(&self, key: u32, now: i64) -> Option<Lease> {
        let cell = self.next_lease(key, 0, &mut 1)?;
        Some(self.lease(cell)).filter(|lease| lease.until <= now)
    }

    /// A lease.
    pub(super) fn lease(&self, cell: u32) -> Lease {
        Lease { until: self.number(cell, UNTIL), number: self.cell(cell, NUMBER), places: self.number(cell, TAKEN) }
    }

    /// The next lease on a lane; None after the last. `left` bounds each walk to the number of cells.
    pub(super) fn next_lease(&self, at: u32, lane: usize, left: &mut usize) -> Option<u32> {
        let next = self.link(at, lane);
        if next == 0 || !self.is(next, Kind::Lease) {
            return None;
        }
        if *left == 0 {
            self.damage_holds();
            return None;
        }
        *left -= 1;
        Some(next)
    }

    /// Whether a lease is on a lane.
    pub(super) fn is_on_lane(lease: Lease, lane: usize) -> bool {
        lane < lanes_of(lease)
    }

    fn unlink_lease(&mut self, key: u32, lease: Lease) -> Option<u32> {
        let before = self.leases_before(key, lease);
        let cell = self.next_lease(before[0], 0, &mut 1)?;
        let own = self.lease(cell);
        if (own.until, own.number) != (lease.until, lease.number) {
            return None;
        }
        let links = self.links(cell);
        for (lane, before) in before.into_iter().enumerate().take(lanes_of(own)) {
            if self.link(before, lane) == cell {
                self.write_link_of(before, lane, link_of(&links, lane));
            }
        }
        let former = if before[0] == key { 0 } else { before[0] };
        self.count_places(key, -own.places, (self.cell(key, LAST) as u32 == cell).then_some(former));
        Some(cell)
    }

    /// Add to the places in use, and set the last lease of the key, if that has changed.
    fn count_places(&mut self, key: u32, more: i64, last: Option<u32>) {
        let places = (self.number(key, PLACES) + more).max(0);
        let last = last.map_or_else(|| self.cell(key, LAST), u64::from);
        self.write_cell(key, PLACES, [places as u64, last]);
    }

    /// On each lane the last lease before the place of a lease; the key itself before the first.
    fn leases_before(&self, key: u32, lease: Lease) -> [u32; LANES] {
        let (mut before, mut at, mut left) = ([key; LANES], key, self.journal.held.pool().len());
        let mut links = self.links(at);
        let first = link_of(&links, 0);
        if first == 0 || self.is(first, Kind::Lease) && !self.is_before(first, lease) {
            return before; // a key without leases, or the lease that is the first to end, as most are
        }
        for lane in (0..LANES).rev() {
            loop {
                let next = link_of(&links, lane);
                if next == 0 || !self.is(next, Kind::Lease) {
                    break;
                }
                if !self.is_before(next, lease) {
                    break;
                }
                if left == 0 {
                    self.damage_holds();
                    break;
                }
                left -= 1;
                at = next;
                links = self.links(at);
            }
            before[lane] = at;
        }
        before
    }

    /// Whether the lease of a cell comes before another one.
    #[inline(always)]
    fn is_before(&self, cell: u32, lease: Lease) -> bool {
        (self.number(cell, UNTIL), self.cell(cell, NUMBER)) < (lease.until, lease.number)
    }

    /// The links of a lease that follows these on its lanes.
    fn links_behind(&self, before: &[u32; LANES], lanes: usize) -> [u64; LANES / 2] {
        let mut links = [0; LANES / 2];
        for (lane, before) in before.iter().enumerate().take(lanes) {
            links[lane / 2] |= u64::from(self.link(*before, lane)) << (lane % 2 * 32);
        }
        links
    }

    /// The links of a key or lease to the next one on each lane.
    #[inline(always)]
    fn links(&self, cell: u32) -> [u64; LANES / 2] {
        match self.words_of(cell) {
            Some(words) => LINKS.map(|word| words[word].load(Relaxed)),
            None => {
                self.damage_holds();
                [0; LANES / 2]
            }
        }
    }

    #[inline(always)]
    fn link(&self, cell: u32, lane: usize) -> u32 {
        (self.cell(cell, LINKS[lane / 2]) >> (lane % 2 * 32)) as u32
    }

    fn write_link_of(&mut self, cell: u32, lane: usize, next: u32) {
        let word = LINKS[lane / 2];
        let (low, high) = halves(self.cell(cell, word));
        let links = if lane.is_multiple_of(2) { word_of(next, high) } else { word_of(low, next) };
        self.write_cell(cell, word, [links]);
    }

    /// A number that must be at least 0 and within exact arithmetic; 0 where it is not.
    pub(super) fn number(&self, cell: u32, word: usize) -> i64 {
        let number = self.cell(cell, word) as i64;
        if (0..=2 * LARGEST).contains(&number) {
            return number;
        }
        self.damage_holds();
        0
    }
}

#[inline(always)]
fn link_of(links: &[u64; LANES / 2], lane: usize) -> u32 {
    (links[lane / 2] >> (lane % 2 * 32)) as u32
}

/// The number of lanes a lease is on, a function of its end and number.
fn lanes_of(lease: Lease) -> usize {
    let mixed = (lease.until as u64 ^ lease.number.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 16).trailing_zeros() as usize / 2 + 1).min(LANES)
}
