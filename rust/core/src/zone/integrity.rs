//! Checking the consistency of a shard: slots are in order, logs are complete, and each block is in one place.
//!
//! Read from a file that any process may have written, so nothing here relies on anything.

use crate::encoding::block::{Block, NIL};
use crate::encoding::slot::Slot;
use crate::encoding::slot_entries::SlotEntries;
use crate::encoding::state_check::is_sound;
use crate::limit::{Algorithm, LARGEST, Limit};
use crate::shard::backing::{Backing, Head};
use crate::shard::home;
use crate::zone::backing::MappedBacking;
use crate::zone::chain::ChainWalk;

/// Check a shard; the error is the first inconsistency. `limit_of` returns the limit of a number.
pub fn check(backing: &MappedBacking<'_>, limit_of: impl Fn(u32) -> Option<Limit>) -> Result<(), &'static str> {
    let (slots, blocks, made) = (backing.slots(), backing.blocks(), backing.journal.made_blocks());
    let Head { used, free, held, .. } = backing.head();
    if made > blocks.len() {
        return Err("more log blocks than there are");
    }
    if !backing.journal.has_sound_turns() {
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
            return Err("an impossible state");
        }
    }
    let mut next = free;
    while next != NIL {
        seen.visit(next)?;
        next = blocks[next as usize].next; // `visit` has checked that it exists
    }
    if found != used || in_chains != held as usize || !seen.all() {
        return Err("counts that do not add up");
    }
    Ok(())
}

/// Check a log; returns how many blocks it has.
fn check_log(slot: &Slot, blocks: &[Block], seen: &mut Seen) -> Result<usize, &'static str> {
    let chain = slot.fields();
    if let Some(entries) = SlotEntries::read(chain) {
        return if entries.is_sound() { Ok(0) } else { Err("entries of a log out of order") };
    }
    let (mut held, mut units, mut time, mut block) = (0, 0_i64, -1, NIL);
    let mut walk = ChainWalk::new(blocks, chain);
    for (at, index) in &mut walk {
        if at != block {
            seen.visit(at)?;
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

/// The blocks that were visited so far.
struct Seen(Vec<bool>);

impl Seen {
    fn visit(&mut self, block: u32) -> Result<(), &'static str> {
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
