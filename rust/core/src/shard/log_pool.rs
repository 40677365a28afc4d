//! The blocks that sliding logs take and give back: what a charge does to a log, on any backing.

use crate::algorithms::log_view::{Entry, LogCharge};
use crate::encoding::block::{Block, LAST_INDEX, NIL, PER_BLOCK, Position, entry};
use crate::encoding::slot_entries::{Chain, LARGEST_IN_SLOT, NO_CHAIN, SlotEntries, has_blocks};
use crate::shard::backing::{Backing, Head};

/// Whether a charge takes another block than those that the entries which leave give back.
#[inline(always)]
pub fn takes_block(blocks: &[Block], chain: Chain, charge: &LogCharge) -> bool {
    if let Some(few) = SlotEntries::read(chain) {
        let LogCharge { expired, shift, time, cost } = *charge;
        // Times that are to be moved are as far apart as before.
        return few.without(expired).with(time - shift, cost).is_none();
    }
    let (first, last) = (Position::unpack(chain[0]), Position::unpack(chain[2]));
    let behind = first.index as usize + charge.expired;
    if last.index != LAST_INDEX || behind >= PER_BLOCK {
        return false;
    }
    // The only one that is left goes back into the slot, and its block with it, unless it is too large for that.
    let is_only = first.block == last.block && behind == last.index as usize;
    !(is_only && entry(blocks, last).is_some_and(|(_, cost)| cost <= LARGEST_IN_SLOT))
}

/// The log of a slot with all times moved by `shift`; None for one of blocks.
pub fn shifted(chain: Chain, shift: i64) -> Option<Chain> {
    Some(SlotEntries::read(chain)?.shifted(shift).write())
}

/// `record` for a log in its slot that stays there; None for any other.
#[inline(always)]
pub fn record_in_slot(chain: Chain, charge: &LogCharge) -> Option<Chain> {
    let LogCharge { expired, time, cost, .. } = *charge;
    Some(SlotEntries::read(chain)?.without(expired).with(time, cost)?.write())
}

/// Apply a charge to a log, except for moving its times. None where a block is missing that must be there.
///
/// Entries of one instant are merged, so a burst at one microsecond takes one entry.
#[inline(always)]
pub fn record<B: Backing>(backing: &mut B, chain: Chain, charge: &LogCharge) -> Option<Chain> {
    let LogCharge { expired, time, cost, .. } = *charge;
    let chain = drop_oldest(backing, chain, expired);
    match SlotEntries::read(chain) {
        Some(few) => match few.with(time, cost) {
            Some(few) => Some(few.write()),
            None => spill(backing, &few, (time, cost)),
        },
        None => append(backing, chain, (time, cost)),
    }
}

/// Put one more entry at the end of a chain.
#[inline(always)]
fn append<B: Backing>(backing: &mut B, chain: Chain, (time, cost): Entry) -> Option<Chain> {
    let [first, used, last] = chain;
    let newest = Position::unpack(last);
    let (newest_time, newest_cost) = entry(backing.blocks(), newest)?;
    if newest_time == time {
        put(backing, newest, (time, newest_cost + cost));
        return Some([first, used + cost, last]);
    }
    let mut next = Position { block: newest.block, index: newest.index + 1 };
    if next.index > LAST_INDEX {
        next = Position { block: take_block(backing)?, index: 0 };
        backing.write_link(newest.block, next.block);
    }
    put(backing, next, (time, cost));
    Some([first, used + cost, next.pack()])
}

/// Put the entries of a slot and one more into a block of their own.
#[cold]
fn spill<B: Backing>(backing: &mut B, few: &SlotEntries, (time, cost): Entry) -> Option<Chain> {
    let first = Position { block: take_block(backing)?, index: 0 };
    let (mut used, mut next) = (0, first);
    let mut count = few.count();
    for own in few.all() {
        let merged = if own.0 == time { cost } else { 0 };
        put(backing, next, (own.0, own.1 + merged));
        used += own.1 + merged;
        next.index += 1;
    }
    if few.all().last().is_none_or(|newest| newest.0 != time) {
        put(backing, next, (time, cost));
        used += cost;
        count += 1;
    }
    Some([first.pack(), used, Position { index: count as u32 - 1, ..first }.pack()])
}

/// Leave the `retained` oldest entries as they are, and write `moved` over those after them, which were no fewer.
pub fn rewrite<B: Backing>(backing: &mut B, chain: Chain, retained: usize, moved: &[Entry]) -> Chain {
    if let Some(few) = SlotEntries::read(chain) {
        let left = few.all().iter().take(retained).chain(moved);
        let few = left.fold(SlotEntries::default(), |few, (time, cost)| few.with(*time, *cost).unwrap_or(few));
        return few.write();
    }
    let [first, _, last] = chain;
    let (mut at, end) = (Position::unpack(first), Position::unpack(last));
    let (mut newest, mut used) = (None, 0);
    for number in 0..retained + moved.len() {
        let Some(mut own) = entry(backing.blocks(), at) else {
            break;
        };
        if number >= retained && own != moved[number - retained] {
            own = moved[number - retained];
            put(backing, at, own);
        }
        used += own.1;
        newest = Some(at);
        if at == end {
            break;
        }
        at = at.after(backing.blocks());
    }
    let Some(newest) = newest else {
        release(backing, chain);
        return NO_CHAIN;
    };
    if newest.block != end.block {
        let next = Position { index: LAST_INDEX, ..newest }.after(backing.blocks()).block;
        give_back(backing, next, end.block);
    }
    [first, used, newest.pack()]
}

/// The log of blocks without the entry of `units` that follows the `older` oldest ones and precedes `behind` others.
pub fn take_out<B: Backing>(backing: &mut B, chain: Chain, older: usize, behind: usize, units: i64) -> Chain {
    let [first, used, last] = chain;
    if older + behind == 0 {
        release(backing, chain);
        return NO_CHAIN;
    }
    let (mut place, mut newest) = (Position::unpack(first), Position::unpack(first));
    let mut at = place;
    for number in 0..older + behind {
        newest = at;
        at = at.after(backing.blocks());
        if number + 1 == older {
            place = at;
        }
    }
    backing.take_entry_out(place, behind);
    let end = Position::unpack(last);
    if newest.block != end.block {
        give_back(backing, end.block, end.block);
    }
    [first, used - units, newest.pack()]
}

/// The log of blocks with an entry added after the `older` oldest ones, before `behind` others; unchanged where no
/// block is free.
pub fn put_in<B: Backing>(backing: &mut B, chain: Chain, older: usize, behind: usize, entry: Entry) -> Chain {
    let [first, used, last] = chain;
    let end = Position::unpack(last);
    let mut newest = Position { block: end.block, index: end.index + 1 };
    if newest.index > LAST_INDEX {
        let Some(block) = take_block(backing) else {
            return chain;
        };
        newest = Position { block, index: 0 };
        backing.write_link(end.block, block);
    }
    let mut at = Position::unpack(first);
    for _ in 0..older {
        at = if at == end { newest } else { at.after(backing.blocks()) };
    }
    backing.put_entry_in(at, behind, entry);
    [first, used + entry.1, newest.pack()]
}

/// Give back all blocks of a log.
pub fn release<B: Backing>(backing: &mut B, chain: Chain) {
    if has_blocks(chain) {
        give_back(backing, Position::unpack(chain[0]).block, Position::unpack(chain[2]).block);
    }
    if backing.head().held == 0 {
        backing.drop_blocks();
    }
}

/// The log without its oldest entries; blocks that held only those are given back, and one entry goes into the slot.
#[inline(always)]
pub fn drop_oldest<B: Backing>(backing: &mut B, chain: Chain, expired: usize) -> Chain {
    match SlotEntries::read(chain) {
        _ if expired == 0 && chain[0] != chain[2] => chain,
        Some(few) => few.without(expired).write(),
        None => drop_some(backing, chain, expired),
    }
}

fn drop_some<B: Backing>(backing: &mut B, chain: Chain, expired: usize) -> Chain {
    let [first, mut used, last] = chain;
    let start = Position::unpack(first);
    let (mut at, mut left) = (start, None);
    for _ in 0..expired {
        let Some((_, cost)) = entry(backing.blocks(), at) else {
            break;
        };
        used -= cost;
        if at.pack() == last {
            give_back(backing, start.block, at.block);
            return NO_CHAIN;
        }
        let next = at.after(backing.blocks());
        if next.block != at.block {
            left = Some(at.block);
        }
        at = next;
    }
    if at.pack() == last
        && let Some((time, cost)) = entry(backing.blocks(), at)
        && let Some(only) = SlotEntries::default().with(time, cost)
    {
        give_back(backing, start.block, at.block);
        return only.write();
    }
    if let Some(end) = left {
        give_back(backing, start.block, end);
    }
    [at.pack(), used, last]
}

#[inline(never)]
fn take_block<B: Backing>(backing: &mut B) -> Option<u32> {
    let Head { free, held, .. } = backing.head();
    if free == NIL {
        return backing.take_new_block();
    }
    let next = backing.blocks().get(free as usize)?.next;
    backing.write_free(next, held + 1);
    Some(free)
}

/// Give back the blocks from `first` to `last`, which must be linked; where they are not, nothing changes.
fn give_back<B: Backing>(backing: &mut B, first: u32, last: u32) {
    let blocks = backing.blocks();
    let (mut count, mut at) = (1, first);
    while at != last && count as usize <= blocks.len() {
        at = blocks.get(at as usize).map_or(NIL, |block| block.next);
        count += 1;
    }
    if count as usize > blocks.len() || last as usize >= blocks.len() {
        return;
    }
    let Head { free, held, .. } = backing.head();
    backing.write_link(last, free);
    backing.write_free(first, held.saturating_sub(count));
}

fn put<B: Backing>(backing: &mut B, at: Position, entry: Entry) {
    backing.write_entry(at.block, at.index as usize, entry);
}
