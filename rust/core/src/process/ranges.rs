//! Ranges of slots that the shards of a process grow into.

use std::io;

use crate::memory::Slots;
use crate::process::backing::range_for;

/// Homes of a shard's first range.
const SMALLEST: usize = 16;

/// Wider ranges of slots, waiting for the shards to move into them.
///
/// All shards fill at about the same pace, so one mapping is made for all of them; each moves when
/// it is crowded itself, so no request waits for more than the move of one shard.
pub struct Ranges {
    homes: usize,
    ready: Vec<Option<Slots>>,
}

impl Default for Ranges {
    /// No ranges yet.
    fn default() -> Self {
        Self { homes: SMALLEST, ready: Vec::new() }
    }
}

impl Ranges {
    /// A range with more homes than a shard has.
    pub fn wider(&mut self, shard_number: usize, shard_count: usize, homes: usize) -> io::Result<Slots> {
        if self.homes > homes
            && let Some(slots) = self.ready.get_mut(shard_number).and_then(Option::take)
        {
            return Ok(slots);
        }
        if homes > 0 {
            self.homes += self.homes / 3;
        }
        self.ready = Slots::map(shard_count, range_for(self.homes))?.into_iter().map(Some).collect();
        self.ready[shard_number].take().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}
