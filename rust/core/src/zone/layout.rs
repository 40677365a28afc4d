//! The layout of a zone's file: a header, the known limits, and shards of slots and log blocks.
//!
//! Behind the shards are the cells of holds, for all shards, and then the callers that wait.
//!
//! Everything follows from the size, the share of logs and the number of holds, so that a process that opens a zone can
//! check whether it is complete. Nothing in it is an address.

use crate::encoding::block::{Block, PER_BLOCK};
use crate::encoding::slot::Slot;
use crate::memory::shared::{LineLayout, SLOTS_AT, ShardLayout};
use crate::zone::line_layout::line_layout;
use crate::zone::pool::{CELLS_PER_CHUNK, CHUNK_WORDS};

/// Where the words of the header begin.
pub const HEADER: usize = 0;
/// Where the PID namespace of the processes that use the zone is.
pub const NAMESPACE: usize = 128;
/// Where the counters begin.
pub const FIGURES: usize = 256;
/// Where the lock of the limits is.
const LIMITS_LOCK: usize = 512;
/// Where the count of writes and bindings of limits is.
pub const LIMIT_TURNS: usize = 576;
/// Where the known limits begin.
pub const LIMITS: usize = 4096;
/// Bytes that one known limit takes, without its texts.
pub const LIMIT_BYTES: usize = 64;

/// Slots behind the last home, for runs that start near the end.
const TAIL: usize = 64;
const PAGE: usize = 4096;
/// The shards are staggered in their pages, so that the first cache lines of all of them fit in a cache at once.
const STAGGER: usize = 320;
const MOST_SHARDS: usize = 64;
const BYTES_PER_SHARD: usize = 256 << 10;
/// The most cells that a hold of one limit takes, with its key and its places.
const CELLS_PER_HOLD: usize = 4;
const HOLDS_PER_CHUNK: usize = CELLS_PER_CHUNK / CELLS_PER_HOLD;
/// The share of a zone for the callers that wait.
const LINE_SHARE: usize = 64;
const LEAST_LINE_BYTES: usize = 8 << 10;
const MOST_LINE_BYTES: usize = 4 << 20;
const LEAST_SIZE: usize = 128 << 10;
const MOST_SIZE: usize = 1 << 40;

/// The places of everything in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file.
    pub size: usize,
    /// How many percent of a shard are for the entries of sliding logs.
    pub log_percent: usize,
    /// The most parts of holds that are remembered.
    pub max_holds: usize,
    /// How many limits can be known.
    pub limits: usize,
    /// Where their texts begin.
    pub texts: usize,
    /// Bytes of their texts.
    pub texts_bytes: usize,
    /// The shards.
    pub shards: ShardLayout,
    /// Homes of each shard.
    pub homes: usize,
}

impl Layout {
    /// The layout of a zone of this size, or what is wrong with the numbers.
    pub fn new(size: usize, log_percent: usize, max_holds: usize) -> Result<Self, String> {
        let bytes = (size / LINE_SHARE).clamp(LEAST_LINE_BYTES, MOST_LINE_BYTES) / PAGE * PAGE;
        Self::with(size, log_percent, max_holds, bytes)
    }

    /// The layout that zones had before callers waited in them.
    pub fn without_lines(size: usize, log_percent: usize, max_holds: usize) -> Result<Self, String> {
        Self::with(size, log_percent, max_holds, 0)
    }

    fn with(size: usize, log_percent: usize, max_holds: usize, line_bytes: usize) -> Result<Self, String> {
        if !(LEAST_SIZE..=MOST_SIZE).contains(&size) || !size.is_multiple_of(PAGE) {
            return Err(format!("a zone has {LEAST_SIZE} to {MOST_SIZE} bytes, a multiple of {PAGE}, not {size}"));
        }
        if log_percent > 90 {
            return Err(format!("a zone keeps 0 to 90 percent for logs, not {log_percent}"));
        }
        let limits_bytes = (size / 64).clamp(32 << 10, 1 << 20) / PAGE * PAGE;
        let limits = limits_bytes / 2 / LIMIT_BYTES;
        let texts = LIMITS + limits * LIMIT_BYTES;
        let first = LIMITS + limits_bytes;
        let lines_at = size - line_bytes;
        let count = 1 << (size / BYTES_PER_SHARD).clamp(1, MOST_SHARDS).ilog2();
        if max_holds > Self::most_holds(size) {
            return Err(format!(
                "a zone of {size} bytes holds 0 to {} at a time, not {max_holds}",
                Self::most_holds(size)
            ));
        }
        let pool_words = if max_holds == 0 { 0 } else { (max_holds.div_ceil(HOLDS_PER_CHUNK) + count) * CHUNK_WORDS };
        let pool = (lines_at - pool_words * 8) / PAGE * PAGE;
        let most = (pool - first) / count;
        let stride = most - (most - STAGGER) % PAGE;
        let room = stride - SLOTS_AT;
        let blocks = room * log_percent / 100 / size_of::<Block>();
        let slots = (room - blocks * size_of::<Block>()) / size_of::<Slot>();
        let homes = slots.saturating_sub(TAIL);
        if keys_in(homes) == 0 {
            return Err(format!(
                "a zone of {size} bytes with {log_percent} percent for logs and {max_holds} holds has no room for states"
            ));
        }
        Ok(Self {
            size,
            log_percent,
            limits,
            texts,
            texts_bytes: first - texts,
            max_holds,
            shards: ShardLayout {
                count,
                first,
                stride,
                slots,
                blocks,
                lock: LIMITS_LOCK,
                pool,
                pool_words,
                lines: if line_bytes == 0 {
                    LineLayout { at: lines_at, ..LineLayout::default() }
                } else {
                    line_layout(lines_at, line_bytes)
                },
            },
            homes,
        })
    }

    /// The most parts of holds that a zone of this size can be made for: they take up to half of it.
    pub fn most_holds(size: usize) -> usize {
        let count = 1 << (size / BYTES_PER_SHARD).clamp(1, MOST_SHARDS).ilog2();
        ((size / 2) / (CHUNK_WORDS * 8)).saturating_sub(count) * HOLDS_PER_CHUNK
    }

    /// The most states that it holds.
    pub fn max_keys(&self) -> usize {
        keys_in(self.homes) * self.shards.count
    }

    /// The most entries that the log of one key has room for, wherever in its first block it begins.
    pub fn max_log_entries(&self) -> usize {
        (self.shards.blocks * PER_BLOCK).saturating_sub(PER_BLOCK - 1)
    }
}

/// The most states of a shard with this many homes.
fn keys_in(homes: usize) -> usize {
    homes * 4 / 5
}
