//! How states are written in slots.

pub mod slot;
pub mod state_check;
