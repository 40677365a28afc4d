//! Headgate's native core: the transitions of `src/headgate/algorithms`, and the table that holds states.
//!
//! No Python, no I/O, no clock. Unsafe code is in `memory` alone.

#![deny(unsafe_code)]

pub mod algorithms;
pub mod answer;
#[cfg(target_os = "linux")]
pub mod catalog;
pub mod ground;
pub mod hash;
#[cfg(target_os = "linux")]
pub mod header;
pub mod heap;
#[cfg(target_os = "linux")]
pub mod inspection;
mod lanes;
#[cfg(target_os = "linux")]
pub mod layout;
pub mod limit;
pub mod locked;
pub mod log_line;
pub mod log_pool;
#[allow(unsafe_code)]
pub mod memory;
pub mod private;
#[cfg(target_os = "linux")]
pub mod region;
pub mod registry;
mod room;
pub mod slot;
#[cfg(target_os = "linux")]
mod soundness;
pub mod storage;
pub mod stripe;
pub mod table;
#[cfg(target_os = "linux")]
pub mod zone;
