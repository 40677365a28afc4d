//! Checking the consistency of a shard's holds: each cell is in one place, and each hold, key and lease is found from
//! the others.
//!
//! Read from a file that any process may have written, so nothing here relies on anything.

use std::collections::HashMap;

use crate::algorithms::leases::Lease;
use crate::zone::backing::MappedBacking;
use crate::zone::journal::{FREE_CELLS, FRESH_CELLS, HELD, LATER_CELLS};
use crate::zone::lease_list::{LANES, LAST, PLACES};
use crate::zone::pool::{CELLS_PER_CHUNK, CHUNK_WORDS, KIND, Kind, halves};
use crate::zone::tries::{FANOUT, LEVELS, Trie, digit};

type Checked = Result<(), &'static str>;

/// Check the holds of a shard; the error is the first inconsistency. `is_limit` returns whether a number is a limit's.
pub fn check(backing: &MappedBacking<'_>, is_limit: impl Fn(u32) -> bool) -> Checked {
    let cells = backing.journal.held.pool().len() / CHUNK_WORDS * CELLS_PER_CHUNK;
    let mut found = Found { backing, seen: vec![false; cells], keys: HashMap::new(), leases: HashMap::new() };
    if cells == 0 {
        return Ok(());
    }
    found.visit_free(FREE_CELLS)?;
    found.visit_free(LATER_CELLS)?;
    let (next, end) = halves(backing.journal.word(FRESH_CELLS));
    (next..end.min(next.saturating_add(cells as u32 + 1))).try_for_each(|cell| found.visit(cell))?;
    let mut holds = Vec::new();
    found.visit_trie(Trie::Holds, backing.root(Trie::Holds), None, &mut holds)?;
    let in_trie = holds.len();
    for cell in backing.each_hold().filter(|cell| backing.is_found_by_cell(*cell)) {
        found.visit(cell)?;
        if backing.hold_by_cell([0, 1].map(|word| backing.cell(cell, word))) != Some(cell) {
            return Err("a hold whose id names another cell");
        }
        holds.push(cell);
    }
    if backing.each_hold().count() != holds.len() || holds[..in_trie].iter().any(|cell| backing.is_found_by_cell(*cell))
    {
        return Err("a hold that is not found by its id");
    }
    let (mut weight, mut settled) = (0, 0);
    for cell in holds {
        let (own, is_settled) = found.visit_hold(cell, &is_limit)?;
        weight += own;
        settled += u32::from(is_settled);
    }
    let mut keys = Vec::new();
    found.visit_trie(Trie::Keys, backing.root(Trie::Keys), None, &mut keys)?;
    for key in keys {
        found.visit_key(key)?;
    }
    if !found.keys.is_empty() {
        return Err("a hold of a key that is not there");
    }
    if (weight, settled) != halves(backing.journal.word(HELD)) {
        return Err("counts of holds that do not add up");
    }
    if backing.damaged.take() { Err("an impossible hold") } else { Ok(()) }
}

/// What the check has found so far.
struct Found<'held, 'zone> {
    backing: &'held MappedBacking<'zone>,
    seen: Vec<bool>,
    /// The number of limits of holds that name each key.
    keys: HashMap<u32, u32>,
    /// The places of the leases that the holds have, by key, end and number.
    leases: HashMap<(u32, i64, u64), i64>,
}

impl Found<'_, '_> {
    fn visit(&mut self, cell: u32) -> Checked {
        let number = (cell as usize).wrapping_sub(1);
        match self.seen.get_mut(number) {
            Some(seen) if !*seen && self.backing.journal.owns(number / CELLS_PER_CHUNK) => {
                *seen = true;
                Ok(())
            }
            Some(true) => Err("a cell of holds in two places"),
            _ => Err("a cell of holds that is not this shard's"),
        }
    }

    fn visit_kind(&mut self, cell: u32, kind: Kind) -> Checked {
        self.visit(cell)?;
        if self.backing.is(cell, kind) { Ok(()) } else { Err("a cell of holds of another kind") }
    }

    fn visit_free(&mut self, word: usize) -> Checked {
        let (mut cell, count) = halves(self.backing.journal.word(word));
        for _ in 0..count {
            self.visit(cell)?;
            cell = self.backing.next_free(cell);
        }
        Ok(())
    }

    /// Visit the subtree at a cell, below a node of this level.
    fn visit_trie(&mut self, trie: Trie, cell: u32, above: Option<u32>, leaves: &mut Vec<u32>) -> Checked {
        if cell == 0 {
            return Ok(());
        }
        if !self.backing.is_node(cell) {
            leaves.push(cell);
            return self.visit_kind(cell, if trie == Trie::Holds { Kind::Hold } else { Kind::Key });
        }
        self.visit(cell)?;
        let level = self.backing.level_of(cell);
        if level >= LEVELS || above.is_some_and(|above| above >= level) {
            return Err("a trie whose levels are out of order");
        }
        let (first, mut children) = (leaves.len(), 0);
        for number in 0..FANOUT {
            let before = leaves.len();
            self.visit_trie(trie, self.backing.child(cell, number), Some(level), leaves)?;
            children += u32::from(leaves.len() > before);
            let mut below = leaves[before..].iter();
            if below.any(|leaf| digit(self.backing.hash_of(trie, *leaf), level) != number) {
                return Err("a hold or key out of its place");
            }
        }
        let begins = |leaf: &u32| self.backing.hash_of(trie, *leaf).checked_shr(64 - 4 * level);
        match leaves[first..].split_first() {
            Some((one, others)) if children > 1 && others.iter().all(|other| begins(other) == begins(one)) => Ok(()),
            _ => Err("a hold or key out of its place"),
        }
    }

    /// Visit a hold; returns its number of parts, and whether it is settled.
    fn visit_hold(&mut self, cell: u32, is_limit: &impl Fn(u32) -> bool) -> Result<(u32, bool), &'static str> {
        for more in self.backing.chain_cells(cell) {
            self.visit(more)?;
        }
        let mut record = self.backing.read_hold(cell).ok_or("an impossible hold")?;
        record.keys().for_each(|key| *self.keys.entry(key).or_default() += 1);
        let weight = record.weight() as u32;
        record.expand();
        for held in record.share().map_or(&[][..], |share| &share.limits) {
            if held.parts.iter().any(|part| part.cost < 0 || !is_limit(part.number)) {
                return Err("a hold of a limit that is not known");
            }
            if held.in_flight {
                self.leases.insert((held.key, record.until_us, u64::from(cell)), held.cost());
            }
        }
        if record.forget_us < record.until_us {
            return Err("a hold that is forgotten before its end");
        }
        Ok((weight, record.settled))
    }

    /// Visit a key with its leases, each of which must belong to a hold; an expired lease of a hold may be missing.
    fn visit_key(&mut self, key: u32) -> Checked {
        let (_, remembered) = halves(self.backing.cell(key, KIND));
        if self.keys.remove(&key) != Some(remembered) {
            return Err("a key with another number of holds");
        }
        let (mut leases, mut at, mut left) = (Vec::new(), key, self.seen.len());
        while let Some(next) = self.backing.next_lease(at, 0, &mut left) {
            self.visit(next)?;
            leases.push((next, self.backing.lease(next)));
            at = next;
        }
        let order = |(_, lease): &(u32, Lease)| (lease.until, lease.number);
        if !leases.is_sorted_by(|one, other| order(one) < order(other)) {
            return Err("leases out of order");
        }
        let mut places = 0_i64;
        for (_, lease) in &leases {
            places = places.saturating_add(lease.places);
            if self.leases.remove(&(key, lease.until, lease.number)) != Some(lease.places) {
                return Err("a lease of no hold");
            }
        }
        for lane in 1..LANES {
            let mut at = key;
            for (cell, _) in leases.iter().filter(|(_, lease)| MappedBacking::is_on_lane(*lease, lane)) {
                at = self
                    .backing
                    .next_lease(at, lane, &mut 1)
                    .filter(|next| next == cell)
                    .ok_or("a lease off its lane")?;
            }
            if self.backing.next_lease(at, lane, &mut 1).is_some() {
                return Err("a lease off its lane");
            }
        }
        if self.backing.cell(key, LAST) != leases.last().map_or(0, |(cell, _)| u64::from(*cell)) {
            return Err("a last lease that is not the last");
        }
        if self.backing.number(key, PLACES) == places { Ok(()) } else { Err("places in flight that do not add up") }
    }
}
