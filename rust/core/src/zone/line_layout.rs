//! The layout of the room for callers that wait: processes, buckets of lines, and tickets.
//!
//! Lock 0 guards all words; each other one, with its bell, is held by a process for as long as its callers wait.

use crate::memory::shared::LineLayout;

/// Words that are no part of a process, a bucket or a ticket.
pub const HEAD_WORDS: usize = 8;
/// Groups of lines, by the shards that ids of holds contain for their keys.
pub const GROUPS: usize = 64;
/// Words of a process.
pub const PROCESS_WORDS: usize = 8;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = 2;
/// Words of a ticket.
pub const TICKET_WORDS: usize = 12;
/// Costs that a ticket has room for.
pub const MOST_COSTS: usize = 5;

const BYTES_PER_PROCESS: usize = 4 << 10;
const LEAST_PROCESSES: usize = 8;
const MOST_PROCESSES: usize = 256;
const BYTES_PER_SHARE_OF_GROUP: usize = 64 << 10;
const MOST_BUCKETS_OF_GROUP: usize = 16;

/// The layout of this many bytes.
pub fn line_layout(at: usize, bytes: usize) -> LineLayout {
    let locks = 1 + (bytes / BYTES_PER_PROCESS).clamp(LEAST_PROCESSES, MOST_PROCESSES);
    LineLayout { at, locks, words: (bytes - locks * LineLayout::LOCK) / size_of::<u64>() }
}

/// Where everything is among the words of the lines, and how much there is of it.
#[derive(Clone, Copy, Debug)]
pub struct LinePlaces {
    /// Processes whose callers may wait at one time.
    pub processes: usize,
    /// Buckets of each group.
    pub buckets: usize,
    /// Callers that may wait at one time.
    pub tickets: usize,
}

impl LinePlaces {
    /// The places of a layout.
    pub fn new(layout: &LineLayout) -> Self {
        if layout.locks == 0 {
            return Self { processes: 0, buckets: 0, tickets: 0 };
        }
        let processes = layout.locks - 1;
        let buckets = (layout.words * size_of::<u64>() / BYTES_PER_SHARE_OF_GROUP).clamp(1, MOST_BUCKETS_OF_GROUP);
        let before = Self { processes, buckets, tickets: 0 }.ticket(1);
        Self { processes, buckets, tickets: layout.words.saturating_sub(before) / TICKET_WORDS }
    }

    /// The word that counts the callers that wait for places of a group.
    #[inline(always)]
    pub fn waited(group: usize) -> usize {
        HEAD_WORDS + group % GROUPS
    }

    /// The word that says whether places of a group were freed and no ticket was called yet.
    #[inline(always)]
    pub fn pending(group: usize) -> usize {
        HEAD_WORDS + GROUPS + group % GROUPS
    }

    /// Where a process begins.
    pub fn process(&self, process: usize) -> usize {
        HEAD_WORDS + 2 * GROUPS + process * PROCESS_WORDS
    }

    /// Where a bucket begins.
    pub fn bucket(&self, bucket: usize) -> usize {
        self.process(self.processes) + bucket * BUCKET_WORDS
    }

    /// Where a ticket begins; tickets are numbered from 1 on.
    pub fn ticket(&self, ticket: u32) -> usize {
        self.bucket(GROUPS * self.buckets) + (ticket as usize).wrapping_sub(1).wrapping_mul(TICKET_WORDS)
    }
}
