//! Whether what lies in a shard fits together: slots in their order, logs that are whole, blocks each in one place.
//!
//! Read from a file that anybody may have written, so nothing here relies on anything.

use crate::encoding::slot::Slot;
use crate::encoding::state_check::is_sound;
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::shard::backing::{Backing, Head};
use crate::shard::home;
use crate::shard::log_pool::{Block, Chain, NIL, PER_BLOCK, look_into_slot};
use crate::zone::backing::MappedBacking;

/// What does not fit together in a shard. `limit_of` tells of a limit's number, None for no limit.
pub fn check(backing: &MappedBacking<'_>, limit_of: impl Fn(u32) -> Option<Limit>) -> Result<(), &'static str> {
    let (slots, blocks, made) = (backing.slots(), backing.blocks(), backing.made_blocks());
    let Head { used, free, held, .. } = backing.head();
    if made > blocks.len() {
        return Err("more log blocks than there are");
    }
    if !backing.has_sound_turns() {
        return Err("a turn that counts before it was taken");
    }
    let mut seen = Seen(vec![false; made]);
    let (mut last, mut found, mut in_chains) = (0, 0, 0);
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.tag != 0) {
        let home = home(slot.tag, backing.homes());
        if slot.tag <= last || home > index || slots[home..index].iter().any(|slot| slot.tag == 0) {
            return Err("a slot out of its place");
        }
        last = slot.tag;
        found += 1;
        let limit = limit_of(slot.limit()).ok_or("a state of a limit that is not known")?;
        if limit.algorithm == Algorithm::SlidingLog {
            in_chains += check_log(slot, blocks, &mut seen)?;
        } else if !is_sound(&limit, slot.fields()) {
            return Err("a state that cannot be");
        }
    }
    let mut next = free;
    while next != NIL {
        seen.see(next)?;
        next = blocks[next as usize].next; // which was seen to be one
    }
    if found != used || in_chains != held as usize || !seen.all() {
        return Err("counts that do not add up");
    }
    Ok(())
}

/// What does not fit together in a log; else how many blocks it has.
fn check_log(slot: &Slot, blocks: &[Block], seen: &mut Seen) -> Result<usize, &'static str> {
    let chain = slot.fields();
    if let Some(in_slot) = look_into_slot(chain) {
        return in_slot.map(|_| 0).map_err(|()| "entries of a log out of order");
    }
    let (mut held, mut units, mut time, mut block) = (0, 0_i64, -1, NIL);
    let mut walk = Walk::new(blocks, chain);
    for (at, index) in &mut walk {
        if at != block {
            seen.see(at)?;
            held += 1;
            block = at;
        }
        let [entry_time, cost] = blocks[at as usize].entries[index];
        if entry_time <= time || entry_time > LARGEST || cost <= 0 {
            return Err("entries of a log out of order");
        }
        time = entry_time;
        units = units.checked_add(cost).ok_or("entries of a log beyond all bounds")?;
    }
    if walk.ended && units == chain[1] { Ok(held) } else { Err("a log that is not whole") }
}

/// Whether a chain leads to its end.
pub fn is_whole_chain(blocks: &[Block], chain: Chain) -> bool {
    let mut walk = Walk::new(blocks, chain);
    walk.by_ref().for_each(drop);
    walk.ended
}

/// The blocks that were met so far.
struct Seen(Vec<bool>);

impl Seen {
    fn see(&mut self, block: u32) -> Result<(), &'static str> {
        match self.0.get_mut(block as usize) {
            Some(seen) if !*seen => {
                *seen = true;
                Ok(())
            }
            Some(_) => Err("a log block in two places"),
            None => Err("a log block that was never taken"),
        }
    }

    fn all(&self) -> bool {
        self.0.iter().all(|seen| *seen)
    }
}

/// The places of a chain that may be damaged: it ends after as many as there can be.
struct Walk<'zone> {
    blocks: &'zone [Block],
    next: Option<(u32, usize)>,
    last: i64,
    left: usize,
    ended: bool,
}

impl<'zone> Walk<'zone> {
    fn new(blocks: &'zone [Block], [first, _, last]: Chain) -> Self {
        let left = blocks.len() * PER_BLOCK;
        Self { blocks, next: Some(((first >> 3) as u32, (first & 7) as usize)), last, left, ended: false }
    }
}

impl Iterator for Walk<'_> {
    type Item = (u32, usize);

    fn next(&mut self) -> Option<(u32, usize)> {
        let at @ (block, index) = self.next.take()?;
        let next_block = self.blocks.get(block as usize)?.next;
        if index >= PER_BLOCK || self.left == 0 {
            return None;
        }
        self.left -= 1;
        if i64::from(block) << 3 | index as i64 == self.last {
            self.ended = true;
        } else if index + 1 < PER_BLOCK {
            self.next = Some((block, index + 1));
        } else {
            self.next = Some((next_block, 0));
        }
        Some(at)
    }
}
