//! The storage of a table in a file that all processes of a host map: a shared zone.

pub mod backing;
pub mod backoff;
pub mod catalog;
pub mod header;
pub mod inspection;
mod integrity;
pub mod layout;
pub mod storage;
