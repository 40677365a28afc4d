//! Headgate's native core: the transitions of `src/headgate/algorithms`, and the tables that hold states and decide.
//!
//! No Python, no I/O, no clock. Unsafe code is in `memory` alone. CONTRIBUTING.md lists the rooms and their floors.

#![deny(unsafe_code)]

pub mod algorithms;
pub mod encoding;
pub mod hash;
pub mod holding;
pub mod limit;
#[allow(unsafe_code)]
pub mod memory;
pub mod process;
pub mod shard;
pub mod table;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod zone;
