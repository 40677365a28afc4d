//! The storage of a table in a file that all processes of a host map: a shared zone.

pub mod backing;
pub mod backoff;
pub mod catalog;
mod chain;
pub mod file;
pub mod header;
pub mod inspection;
mod integrity;
pub mod journal;
pub mod layout;
pub mod limits;
mod several_shards;
pub mod shards;
pub mod storage;
