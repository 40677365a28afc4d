//! Room for a hold in a zone: bounded by the number that the zone was made for, and by the cells of its pool.

use crate::table::answer::OnFull;
use crate::table::storage::Full;
use crate::zone::file::{Figure, ZoneFile};
use crate::zone::journal::{self, COUNTED};
use crate::zone::pool::CELLS_PER_CHUNK;
use crate::zone::shards::{Guard, MappedShards};

/// The cells that a hold takes, besides those of its limits; and the cells of each limit.
const CELLS_OF_HOLD: usize = 3;
const CELLS_OF_LIMIT: usize = 5;

/// The most holds that another shard forgets before the next one is tried: twice those of one chunk.
const MOST_FORGOTTEN: usize = 2 * CELLS_PER_CHUNK;

/// A search for room, at one moment.
pub struct HoldRoom<'zone> {
    /// The shards of the zone.
    pub shards: &'zone MappedShards,
    /// The configured choice for a full zone.
    pub on_full: OnFull,
    /// The moment.
    pub now_us: i64,
}

impl HoldRoom<'_> {
    /// Reserve room for one more part of a hold of this many limits.
    #[inline]
    pub fn reserve(&self, shard: &mut Guard<'_>, limits: usize) -> Result<(), Full> {
        let cells = (CELLS_OF_HOLD + limits * CELLS_OF_LIMIT) as u32;
        shard.backing.tidy_holds(self.now_us);
        settle_holds(&self.shards.file, shard);
        if self.count_one(shard) && shard.backing.reserve_cells(cells) { Ok(()) } else { self.make_room(shard, cells) }
    }

    /// Reserve room for a hold of one limit: where the zone is full, that of a settled one near the clock's hand.
    #[inline(always)]
    pub fn reserve_one(&self, shard: &mut Guard<'_>) -> Result<(), Full> {
        if self.on_full == OnFull::Forget
            && self.shards.file.figure(Figure::Holds) >= self.shards.file.layout.max_holds as u64
            && self.replace_one(shard)
        {
            return Ok(());
        }
        self.reserve(shard, 1)
    }

    #[inline(always)]
    fn replace_one(&self, shard: &mut Guard<'_>) -> bool {
        shard.backing.tidy_holds(self.now_us);
        settle_holds(&self.shards.file, shard);
        shard.backing.reserve_cells((CELLS_OF_HOLD + CELLS_OF_LIMIT) as u32) && shard.backing.find_replaceable()
    }

    /// Forget holds whose time is over, or settled ones (`OnFull::Forget`), here and then in other shards.
    #[cold]
    fn make_room(&self, shard: &mut Guard<'_>, cells: u32) -> Result<(), Full> {
        settle_holds(&self.shards.file, shard);
        let mut soonest_us;
        loop {
            let before = shard.backing.weight();
            soonest_us = self.forget_some(shard);
            if self.try_again(shard, cells) {
                return Ok(());
            }
            if shard.backing.weight() == before {
                break;
            }
        }
        // From the next shard on, so that no shard has to forget more than the others.
        let (count, own) = (self.shards.count(), shard.backing.journal.held.number);
        let others = || (1..count).map(|behind| (own + behind) % count);
        for mut other in others().filter_map(|shard_number| self.shards.try_lock(shard_number)) {
            if other.backing.give_idle_chunks_back() && self.try_again(shard, cells) {
                return Ok(());
            }
        }
        for mut other in others().filter_map(|shard_number| self.shards.try_lock(shard_number)) {
            for _ in 0..MOST_FORGOTTEN {
                let before = other.backing.weight();
                let other_us = self.forget_some(&mut other);
                soonest_us = soonest_us.min(other_us).or(soonest_us).or(other_us);
                if other.backing.weight() == before {
                    break;
                }
                other.backing.give_idle_chunks_back();
                if self.try_again(shard, cells) {
                    return Ok(());
                }
            }
        }
        Err(Full { soonest_us: soonest_us.unwrap_or(1).max(1) })
    }

    fn try_again(&self, shard: &mut Guard<'_>, cells: u32) -> bool {
        let counted = self.count_one(shard);
        let reserved = counted && shard.backing.reserve_cells(cells);
        if counted && !reserved {
            settle_holds(&self.shards.file, shard);
        }
        reserved
    }

    /// Forget the holds of a shard whose time is over; if there is none, one that is settled. Returns the time until
    /// the first of the remaining ones is forgotten.
    fn forget_some(&self, shard: &mut Guard<'_>) -> Option<i64> {
        shard.backing.make_room_for_holds(self.now_us, self.on_full == OnFull::Forget);
        settle_holds(&self.shards.file, shard);
        if shard.backing.has_idle_chunks() {
            shard.backing.give_chunks_back();
        }
        shard.backing.soonest_us().map(|end_us| end_us - self.now_us)
    }

    /// Count one more part for a shard, unless that passes the bound.
    #[inline]
    fn count_one(&self, shard: &mut Guard<'_>) -> bool {
        let file = &self.shards.file;
        let counted = file.next(Figure::Holds) < file.layout.max_holds as u64 || self.has_room();
        if counted {
            let more = shard.backing.journal.word(COUNTED) + 1;
            shard.backing.journal.set(COUNTED, more);
        } else {
            file.take_off(Figure::Holds, 1);
        }
        counted
    }

    /// Whether there is room after all: a process that died may have left the count too high.
    #[cold]
    fn has_room(&self) -> bool {
        let file = &self.shards.file;
        let holds: usize =
            (0..self.shards.count()).map(|shard_number| journal::holds(file.map.shard_words(shard_number))).sum();
        holds < file.layout.max_holds
    }
}

/// Update the count of holds to a shard. Where the process dies in between, the count stays too high.
#[inline]
pub fn settle_holds(file: &ZoneFile, shard: &mut Guard<'_>) {
    let (held, counted) = (u64::from(shard.backing.weight()), shard.backing.journal.word(COUNTED));
    if held > counted {
        file.count(Figure::Holds, held - counted);
        shard.backing.journal.set(COUNTED, held);
    } else if held < counted {
        shard.backing.journal.set(COUNTED, held);
        file.take_off(Figure::Holds, counted - held);
    }
}
