//! The storage of a table in the memory of one process.

pub mod backing;
pub mod capacity;
mod ranges;
pub mod registry;
mod reservation;
pub mod shards;
pub mod storage;
