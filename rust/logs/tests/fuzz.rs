//! Lines that no server writes by accident.

#![allow(clippy::panic)] // a test says so when it fails

#[path = "../../fuzz/src/bounded.rs"]
mod bounded;
mod fuzzed;

#[test]
fn whatever_a_line_is_what_is_read_of_it_stands_in_it() {
    bounded::each("log_line", 100_000, fuzzed::log_line);
}
