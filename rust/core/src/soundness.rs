//! Whether what lies in a lane fits together: slots in their order, logs that are whole, blocks each in one place.
//!
//! Read from a file that anybody may have written, so nothing here relies on anything.

use crate::ground::{Ground, Head};
use crate::log_pool::{Block, Chain, NIL, NO_CHAIN, PER_BLOCK};
use crate::region::Region;
use crate::slot::Slot;
use crate::stripe::home;

/// What does not fit together in a lane. `is_log` tells of a limit's number, None for no limit.
pub fn check(region: &Region<'_>, is_log: impl Fn(u32) -> Option<bool>) -> Result<(), &'static str> {
    let (slots, blocks, made) = (region.slots(), region.blocks(), region.made_blocks());
    let Head { used, free, held, .. } = region.head();
    if made > blocks.len() {
        return Err("more log blocks than there are");
    }
    if !region.has_sound_turns() {
        return Err("a turn that counts before it was taken");
    }
    let mut seen = Seen(vec![false; made]);
    let (mut last, mut found, mut in_chains) = (0, 0, 0);
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.tag != 0) {
        let home = home(slot.tag, region.homes());
        if slot.tag <= last || home > index || slots[home..index].iter().any(|slot| slot.tag == 0) {
            return Err("a slot out of its place");
        }
        last = slot.tag;
        found += 1;
        if is_log(slot.limit()).ok_or("a state of a limit that is not known")? {
            in_chains += check_log(slot, blocks, &mut seen)?;
        }
    }
    let mut next = free;
    while next != NIL {
        seen.see(next)?;
        next = blocks[next as usize].next;
    }
    if found != used || in_chains != held as usize || !seen.all() {
        return Err("counts that do not add up");
    }
    Ok(())
}

/// What does not fit together in a log; else how many blocks it has.
fn check_log(slot: &Slot, blocks: &[Block], seen: &mut Seen) -> Result<usize, &'static str> {
    let chain = slot.fields();
    if chain == NO_CHAIN {
        return Ok(0);
    }
    let (mut held, mut units, mut time, mut block) = (0, 0_i64, i64::MIN, NIL);
    let mut walk = Walk::new(blocks, chain);
    for (at, index) in &mut walk {
        if at != block {
            seen.see(at)?;
            held += 1;
            block = at;
        }
        let [entry_time, cost] = blocks[at as usize].entries[index];
        if entry_time < time || cost <= 0 {
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
