#![no_main]

#[path = "../../logs/tests/fuzzed/mod.rs"]
mod fuzzed;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: &[u8]| fuzzed::log_line(sent));
