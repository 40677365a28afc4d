//! The storage of a table in a file that all processes of a host map: a shared zone.

pub mod backing;
pub mod backoff;
pub mod catalog;
mod cells;
mod chain;
pub mod file;
mod fit;
mod forgetting;
pub mod header;
mod hold_check;
mod hold_records;
mod hold_room;
mod holding;
pub mod inspection;
mod integrity;
pub mod journal;
pub mod layout;
mod lease_list;
pub mod limits;
mod pool;
mod several_shards;
pub mod shards;
mod share_words;
pub mod storage;
mod tries;
