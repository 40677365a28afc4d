//! Ids that contain their cells: those of unnamed holds of one limit. 32 of their 128 bits are the number of the cell
//! and of the shard, combined with others; the rest is secret. No id of one shard names the same cell in another.

use std::sync::atomic::Ordering::Relaxed;

use crate::holding::record::{HoldId, One};
use crate::holding::store::NewHold;
use crate::memory::shared::set;
use crate::zone::backing::MappedBacking;
use crate::zone::hold_records::{BY_CELL, IN_FLIGHT, SHADOW, words_of_one};
use crate::zone::pool::{KIND, Kind, MADE, word_of};

impl MappedBacking<'_> {
    /// The hold of an id that contains its cell.
    #[inline(always)]
    pub(super) fn hold_by_cell(&self, own: [u64; 2]) -> Option<u32> {
        let cell = self.cell_of(own);
        let words = self.words_of(cell)?;
        let [low, high, kind] = [0, 1, KIND].map(|word| words[word].load(Relaxed));
        (low == own[0] && high == own[1] && kind & (0xff | BY_CELL) == Kind::Hold as u64 | BY_CELL).then_some(cell)
    }

    /// The cell that an id contains, if it was made with one: no two shards have cells of the same id.
    #[inline(always)]
    fn cell_of(&self, [low, high]: [u64; 2]) -> u32 {
        low as u32 ^ high as u32 ^ self.journal.held.number as u32
    }

    /// An id that contains its cell, made from 128 secret bits, of which 96 stay.
    #[inline(always)]
    fn id_with_cell(&self, cell: u32, [low, high]: [u64; 2]) -> [u64; 2] {
        [low >> 32 << 32 | u64::from(cell ^ high as u32 ^ self.journal.held.number as u32), high]
    }

    /// Write a hold of one limit into a cell that was just taken, under an id that contains the cell; `secret` derives
    /// 128 bits from a number that it gets only once.
    #[inline(always)]
    pub(super) fn fill_one(
        &mut self,
        cell: u32,
        held: &NewHold,
        one: &One,
        secret: impl FnOnce(u64) -> [u64; 2],
    ) -> HoldId {
        let Some(words) = self.words_of(cell) else {
            self.damage_holds();
            return HoldId([0; 2]);
        };
        let made = words[MADE].load(Relaxed).wrapping_add(1);
        // The numbers that other ids are derived from count from 0 on.
        let id = self.id_with_cell(cell, secret(!word_of(made as u32, cell)));
        let flags = if one.in_flight { IN_FLIGHT } else { 0 } | if one.shadow { SHADOW } else { 0 };
        let kind = u64::from(one.part.number) << 32 | flags | BY_CELL | Kind::Hold as u64;
        set(&words[MADE], made);
        let [actual, key, cost, a, b, refunds, ..] = words_of_one(one);
        // All words but those of the answer, in their order.
        let filled =
            [id[0], id[1], held.until_us as u64, held.forget_us as u64, kind, actual, key, cost, a, b, refunds];
        for (number, value) in filled.into_iter().enumerate() {
            set(&words[number], value);
        }
        HoldId(id)
    }
}
