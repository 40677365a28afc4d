//! The storage of a table in the memory of one process.

pub mod backing;
pub mod capacity;
pub mod registry;
pub mod shards;
pub mod storage;
