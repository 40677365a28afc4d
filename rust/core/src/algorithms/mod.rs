//! Each algorithm as a pure transition on integers: no clock, no lock, no key, no I/O.

pub mod all_steps;
pub mod calendar_window;
pub mod concurrent;
pub mod fixed_window;
pub mod integers;
pub mod leaky_bucket;
pub mod leaky_queue;
pub mod leases;
pub mod log_view;
pub mod rare;
pub mod sliding_conversion;
pub mod sliding_log;
pub mod sliding_window;
pub mod stepwise;
pub mod token_bucket;
pub mod transition;
