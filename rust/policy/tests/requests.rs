//! Requests that no client sends by accident, decided by a gate.

#![allow(clippy::panic)] // a test says so when it fails

#[path = "../../fuzz/src/bounded.rs"]
mod bounded;
mod fuzzed;

#[test]
fn the_gate_decides_any_request_the_same_twice_and_admits_exactly_the_limit() {
    bounded::each("gate", 5_000, fuzzed::gate);
}
