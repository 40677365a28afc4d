//! The encoding of states: three integers in a slot, and the entries of a log in its slot or in blocks.

pub mod block;
pub mod slot;
pub mod slot_entries;
pub mod state_check;
