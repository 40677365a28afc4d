//! The holds of a shard of a zone: see `holding::store`. They are in cells of the zone's pool, shared by all processes.
//! Forgetting expired holds takes effect at once, all else with the decision that it is part of.

use crate::algorithms::leases::Lease;
use crate::holding::record::{ForgottenShare, HoldId, One, Record};
use crate::holding::share::Part;
use crate::holding::store::{HeldKey, HoldStore, IdSource, NewHold};
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{FREE_CELLS, FRESH_CELLS, HELD, LATER_CELLS, PASSED, SOONEST, STALE};
use crate::zone::lease_list::ZoneLeases;
use crate::zone::pool::{CELL_WORDS, KIND, Kind, halves, word_of};
use crate::zone::tries::{Trie, hash_of_id};

/// The words of a key.
const TAG: usize = 0;
const SALT: usize = 1;
const REFUNDS: usize = 2;

impl<'zone> HoldStore for MappedBacking<'zone> {
    type Leases<'store>
        = ZoneLeases<'store, 'zone>
    where
        Self: 'store;

    #[inline]
    fn find(&mut self, HoldId(own): HoldId, now_us: i64) -> Option<u32> {
        let cell = match self.hold_by_cell(own) {
            Some(cell) => cell,
            None => self.hold_in_trie(own)?,
        };
        if self.forget_us(cell) <= now_us {
            self.forget(cell);
            self.journal.commit();
            return None;
        }
        Some(cell)
    }

    #[inline]
    fn open_one(&self, number: u32) -> Option<(Part, u32)> {
        self.open_part(number)
    }

    fn load(&self, number: u32) -> Option<Record> {
        let mut record = self.read_hold(number)?;
        record.expand();
        Some(record)
    }

    fn change(&mut self, number: u32, mut record: Record) {
        let Some(former) = self.read_hold(number) else {
            return;
        };
        record.compact();
        let (weight, settled) = halves(self.journal.word(HELD));
        let weight = weight.wrapping_sub(former.weight() as u32).wrapping_add(record.weight() as u32);
        let settled = settled.wrapping_sub(u32::from(former.settled)).wrapping_add(u32::from(record.settled));
        self.write_hold(number, &record);
        self.write_words(HELD, [word_of(weight, settled)]);
    }

    /// The parts of the hold stay as they are.
    fn settle(&mut self, number: u32, loaded: Record, actuals: &[i64], now_us: i64) {
        let mut record = loaded;
        let more = u32::from(!record.settled);
        for (key, lease) in record.settle_share(number, actuals, now_us) {
            self.move_places(key, Some(lease), None);
        }
        record.compact();
        self.write_hold(number, &record);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight, settled.wrapping_add(more))]);
    }

    #[inline]
    fn settle_one(&mut self, number: u32, actual: i64, given: i64, now_us: i64) {
        let Some((_, key)) = self.open_part(number) else {
            return;
        };
        let later_us = (now_us - self.until_us(number)).max(0);
        self.write_settled(number, self.forget_us(number) + later_us, actual);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight, settled.wrapping_add(1))]);
        if given != 0 && self.is(key, Kind::Key) {
            let refunds = (self.cell(key, REFUNDS) as i64).saturating_add(given);
            self.write_cell(key, REFUNDS, [refunds as u64]);
        }
    }

    fn free_one(&mut self, number: u32, actual: i64, now_us: i64) {
        let Some((part, key)) = self.open_part(number) else {
            return;
        };
        let until = self.until_us(number);
        if self.is_in_flight(number) && self.is(key, Kind::Key) {
            self.remove_lease(key, Lease { until, number: u64::from(number), places: part.cost });
        }
        self.write_settled(number, self.forget_us(number) + (now_us - until).max(0), actual);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight, settled.wrapping_add(1))]);
    }

    #[inline(always)]
    fn add_one(&mut self, held: NewHold, one: One, ids: &impl IdSource) -> (u32, HoldId) {
        self.note_forget_us(held.forget_us);
        let cell = self.take_cell_of_hold(one.key, !one.in_flight);
        let id = self.fill_one(cell, &held, &one, |number| ids.secret(number));
        (cell, id)
    }

    #[inline]
    fn add(&mut self, record: Record) -> u32 {
        let (own, is_settled) = (record.weight() as u32, u32::from(record.settled));
        self.note_forget_us(record.forget_us);
        let cell = self.take_cell(Kind::Hold);
        self.fill_hold(cell, &record);
        for key in record.keys() {
            self.remember(key);
        }
        let hash = self.hash_of(Trie::Holds, cell);
        self.insert_leaf(Trie::Holds, hash, cell);
        let (weight, settled) = halves(self.journal.word(HELD));
        self.write_words(HELD, [word_of(weight.wrapping_add(own), settled.wrapping_add(is_settled))]);
        cell
    }

    #[inline]
    fn key(&self, number: u32) -> Option<HeldKey> {
        if !self.is(number, Kind::Key) {
            return None;
        }
        let [tag, salt, refunds] = [TAG, SALT, REFUNDS].map(|word| self.cell(number, word));
        Some(HeldKey { tag, salt, refunds: refunds as i64 })
    }

    #[inline]
    fn key_number(&self, tag: u64) -> Option<u32> {
        self.key_of(tag)
    }

    #[inline]
    fn key_or_new(&mut self, tag: u64, salt: u64) -> u32 {
        if let Some(key) = self.key_of(tag) {
            return key;
        }
        let key = self.take_cell(Kind::Key);
        (0..).zip([tag, salt, 0, 0]).for_each(|(word, value)| self.fill(key, word, value));
        (5..14).for_each(|word| self.fill(key, word, 0));
        self.insert_leaf(Trie::Keys, tag, key);
        key
    }

    #[inline]
    fn set_refunds(&mut self, key: u32, refunds: i64) {
        if self.is(key, Kind::Key) && self.cell(key, REFUNDS) != refunds as u64 {
            self.write_cell(key, REFUNDS, [refunds as u64]);
        }
    }

    fn note_refund(&mut self, tag: u64, given: i64) {
        if let Some(key) = self.key_of(tag).filter(|_| given != 0) {
            let refunds = (self.cell(key, REFUNDS) as i64).saturating_add(given);
            self.write_cell(key, REFUNDS, [refunds as u64]);
        }
    }

    #[inline]
    fn leases_of(&self, key: u32) -> Option<ZoneLeases<'_, 'zone>> {
        self.is(key, Kind::Key).then(|| ZoneLeases::new(self, key))
    }

    fn move_places(&mut self, key: u32, former: Option<Lease>, lease: Option<Lease>) {
        if !self.is(key, Kind::Key) {
            return;
        }
        match (former, lease) {
            (Some(former), Some(lease)) => self.move_lease(key, former, lease),
            (Some(former), None) => self.remove_lease(key, former),
            (None, Some(lease)) => self.add_lease(key, lease),
            (None, None) => {}
        }
    }

    #[inline]
    fn drop_over(&mut self, key: u32, now_us: i64) {
        while let Some(lease) = self.first_over(key, now_us) {
            self.remove_lease(key, lease);
            self.journal.commit();
            if self.damaged.get() {
                return;
            }
        }
    }

    fn forget_hold(&mut self, number: u32) -> Option<ForgottenShare> {
        let forgotten = self.read_hold(number)?.forgotten_share();
        self.forget(number);
        self.journal.commit();
        forgotten
    }

    fn forget_tag(&mut self, tag: u64) -> Vec<ForgottenShare> {
        let Some(key) = self.key_of(tag) else {
            return Vec::new();
        };
        let of_key = |cell: &u32| self.read_hold(*cell).is_some_and(|record| record.keys().any(|own| own == key));
        let cells: Vec<u32> = self.each_hold().filter(of_key).collect();
        cells.into_iter().filter_map(|cell| self.forget_hold(cell)).collect()
    }
}

impl MappedBacking<'_> {
    /// The number of parts of all holds.
    pub(super) fn weight(&self) -> u32 {
        halves(self.journal.word(HELD)).0
    }

    /// All holds, in the order of their cells.
    pub(super) fn each_hold(&self) -> impl Iterator<Item = u32> + '_ {
        let cells = self.journal.held.pool().len() / CELL_WORDS;
        let each = std::iter::successors(self.first_cell(), |cell| self.next_cell(*cell)).take(cells);
        each.filter(|cell| self.is_hold(*cell))
    }

    /// The hold of an id that does not contain its cell.
    fn hold_in_trie(&self, own: [u64; 2]) -> Option<u32> {
        let cell = self.leaf(Trie::Holds, hash_of_id(own))?;
        (own == [0, 1].map(|word| self.cell(cell, word)) && self.is(cell, Kind::Hold)).then_some(cell)
    }

    /// Update the moments for a new hold that is forgotten at `forget_us`.
    #[inline(always)]
    fn note_forget_us(&mut self, forget_us: i64) {
        for word in [SOONEST, PASSED] {
            let moment = self.journal.word(word) & !STALE;
            if moment == 0 || forget_us < moment as i64 {
                self.journal.set(word, forget_us as u64);
            }
        }
    }

    /// Take a cell for an open hold of one limit: that of a replaceable hold, if one was found.
    #[inline(always)]
    fn take_cell_of_hold(&mut self, key: u32, is_last: bool) -> u32 {
        let former = std::mem::take(&mut self.replaceable);
        if former == 0 {
            let (weight, settled) = halves(self.journal.word(HELD));
            self.write_words(HELD, [word_of(weight.wrapping_add(1), settled)]);
            self.remember(key);
            return self.take_cell(Kind::Hold);
        }
        self.mark_soonest_stale(former);
        let former_key = self.key_cell(former);
        if former_key != key {
            self.release_key(former_key);
            self.remember(key);
        }
        self.take_cell_for(former, is_last)
    }

    /// Mark the numbers of the limits that holds name.
    pub(super) fn note_named_by_holds(&self, named: &mut [bool]) {
        let mut note = |number: u32| {
            if let Some(named) = named.get_mut(number as usize) {
                *named = true;
            }
        };
        for record in self.each_hold().filter_map(|cell| self.load(cell)) {
            let limits = record.share().map_or(&[][..], |share| &share.limits);
            limits.iter().flat_map(|limit| &limit.parts).for_each(|part| note(part.number));
        }
    }

    /// Count one more hold of a key.
    fn remember(&mut self, key: u32) {
        if self.is(key, Kind::Key) {
            let (kind, remembered) = halves(self.cell(key, KIND));
            self.write_cell(key, KIND, [word_of(kind, remembered.wrapping_add(1))]);
        }
    }

    /// The key cell of a tag.
    #[inline]
    pub(super) fn key_of(&self, tag: u64) -> Option<u32> {
        let key = self.leaf(Trie::Keys, tag)?;
        (self.cell(key, TAG) == tag && self.is(key, Kind::Key)).then_some(key)
    }

    /// Whether no cell is in use, so that all can go back to the pool.
    pub(super) fn holds_nothing(&self) -> bool {
        self.root(Trie::Holds) == 0 && self.root(Trie::Keys) == 0 && self.weight() == 0
    }

    /// Whether this shard has chunks of the pool and needs none.
    pub(super) fn has_idle_chunks(&self) -> bool {
        self.holds_nothing() && [FREE_CELLS, LATER_CELLS, FRESH_CELLS].iter().any(|word| self.journal.word(*word) != 0)
    }
}
