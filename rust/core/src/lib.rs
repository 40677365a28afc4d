//! Headgate's native core: the transitions of `src/headgate/algorithms`, and the table that holds states.
//!
//! No Python, no I/O, no clock. Unsafe code is in `memory` alone.

#![deny(unsafe_code)]

pub mod algorithms;
pub mod answer;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod catalog;
pub mod ground;
pub mod hash;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod header;
pub mod heap;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod inspection;
mod lanes;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod layout;
pub mod limit;
pub mod locked;
pub mod log_line;
pub mod log_pool;
#[allow(unsafe_code)]
pub mod memory;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod patience;
pub mod private;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod region;
pub mod registry;
mod room;
pub mod slot;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod soundness;
mod state_check;
pub mod storage;
pub mod stripe;
pub mod table;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod zone;
